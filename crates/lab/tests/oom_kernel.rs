//! The kernel rows of `lab oom`, on this host.

use crate::alone;
use std::ffi::OsString;

use deckle_lab::oom::{self, Blocks, CASES, LIMIT, OomOptions, Outcome};
use deckle_lab::{LabError, Side};

/// Zero-filled pages of each sparse block: 41 of 512 are touched.
const SPARSE_ZEROS: u32 = 471;

#[test]
fn r118_r137_kernel_rows_of_the_oom_experiment() {
    let _alone = alone();
    assert_eq!(LIMIT, 20 << 20);
    let options = OomOptions {
        sides: vec![Side::Kernel],
        deckle: "/nonexistent".into(),
        program_cmd: vec![OsString::from(env!("CARGO_BIN_EXE_lab-program"))],
        model: None,
    };
    let report = match oom::run(options) {
        Err(LabError::Host { what, remedy }) => {
            eprintln!("SKIPPED r118_r137_kernel_rows_of_the_oom_experiment: {what}; {remedy}");
            return;
        }
        other => other.unwrap(),
    };
    eprintln!("{}", report.to_text());
    assert_eq!(report.rows.len(), CASES.len());
    for row in &report.rows {
        let zeros = if row.blocks == Blocks::Zeros {
            512
        } else {
            SPARSE_ZEROS
        };
        // More zeros than the threshold, and 511 turns the test off.
        let split = row.shrink_underused && row.max_ptes_none != 511 && zeros > row.max_ptes_none;
        let want = if split {
            Outcome::Survived
        } else {
            Outcome::Killed
        };
        assert_eq!(row.outcome, want, "{row:?}");
    }
}
