//! The kernel rows of `lab oom`, on this host.

use crate::alone;
use crate::skipped::skipped;
use std::ffi::OsString;

use deckle_lab::oom::{Blocks, CASES, LIMIT, Oom, Outcome};
use deckle_lab::{Experiment, Lab, LabError, Side};

/// Zero-filled pages of each sparse block: 41 of 512 are touched.
const SPARSE_ZEROS: u32 = 471;

#[test]
fn r118_r137_kernel_rows_of_the_oom_experiment() {
    let _alone = alone();
    assert_eq!(LIMIT, 20 << 20);
    let lab = Lab {
        deckle: "/nonexistent".into(),
        program_cmd: vec![OsString::from(env!("CARGO_BIN_EXE_lab-program"))],
    };
    let sides = vec![Side::Kernel];
    let report = match (Oom { sides }).run(&lab) {
        Err(LabError::Host { what, remedy }) => {
            skipped(format_args!("{what}; {remedy}"));
            return;
        }
        other => other.unwrap(),
    };
    eprintln!("{}", report.to_text());
    assert_eq!(report.rows.len(), CASES.len());
    for row in &report.rows {
        let case = row.case;
        let zeros = if case.blocks == Blocks::Zeros {
            512
        } else {
            SPARSE_ZEROS
        };
        // More zeros than the threshold, and 511 turns the test off.
        let none = case.max_ptes_none;
        let split = case.shrink_underused && none != 511 && zeros > none;
        let want = if split {
            Outcome::Survived
        } else {
            Outcome::Killed
        };
        assert_eq!(row.outcome, want, "{row:?}");
    }
}
