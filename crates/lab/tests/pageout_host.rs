//! The pageout experiment at a small size: the kernel's row on this host, and a live row whose
//! pager does not do its work.

use crate::alone;
use crate::skipped::skipped;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::PermissionsExt;

use deckle_lab::pageout::{Case, Pageout, PageoutRow};
use deckle_lab::{Experiment, Lab, LabError, Report, Side};

const SIZE: usize = 64 << 20;
const BLOCKS: u64 = 32;

fn run(side: Side, cases: &[Case], deckle: &str) -> Result<Report<Pageout>, LabError> {
    let lab = Lab {
        deckle: deckle.into(),
        program_cmd: vec![OsString::from(env!("CARGO_BIN_EXE_lab-program"))],
    };
    let experiment = Pageout {
        size: SIZE,
        cases: cases.to_vec(),
        sides: vec![side],
        runs: 1,
    };
    experiment.run(&lab)
}

/// The report; none, said loudly, where this host does not let us or is never warm.
fn report(test: &str, ran: Result<Report<Pageout>, LabError>) -> Option<Report<Pageout>> {
    match ran {
        Err(e @ (LabError::Host { .. } | LabError::Cold { .. })) => {
            skipped(format_args!("{test}: {e}"));
            None
        }
        other => Some(other.unwrap()),
    }
}

/// Most runs of which one is to be undisturbed.
const RUNS: u32 = 5;

/// The device is the whole machine's: a page that the kernel swaps out of somebody else meanwhile
/// is in its count, too.
fn is_disturbed(report: &Report<Pageout>) -> bool {
    let counted = |row: &PageoutRow| row.zero_pages + row.stored_pages;
    report.rows.iter().any(|row| counted(row) > BLOCKS * 512)
}

#[test]
fn r115_kernel_rows_of_the_pageout_experiment() {
    let _alone = alone();
    for left in (0..RUNS).rev() {
        let ran = run(Side::Kernel, &Case::ALL, "/nonexistent");
        let Some(report) = report("r115_kernel_rows_of_the_pageout_experiment", ran) else {
            return;
        };
        eprintln!("{}", report.to_text());
        if left == 0 || !is_disturbed(&report) {
            return are_right(&report);
        }
    }
}

fn are_right(report: &Report<Pageout>) {
    assert!(!report.failed(), "{}", report.to_text());
    let all = BLOCKS * 512;
    for row in &report.rows {
        assert_eq!(row.zero_pages + row.stored_pages, all, "{row:?}");
        match row.case {
            Case::Best => assert_eq!(row.stored_pages, BLOCKS),
            Case::Worst | Case::Middle => assert_eq!(row.stored_pages, all),
            Case::Text => {
                assert_eq!(row.stored_pages, all);
                let ratio = SIZE as f64 / row.stored_bytes as f64;
                assert!((2.3..2.7).contains(&ratio), "stored at {ratio}:1");
            }
        }
        assert_eq!(row.runs_s.len(), 1);
        assert!(row.cpu_s > 0.0);
    }
}

#[test]
fn r111_a_live_row_whose_memory_stays_fails() {
    let _alone = alone();
    // Runs the program on the kernel alone, without swap: MADV_PAGEOUT gives back nothing but
    // zero pages (the kernel splits the huge page and drops them), so the case without any.
    let idle = std::env::temp_dir().join(format!("deckle-lab-idle-{}", std::process::id()));
    let script = "#!/bin/sh\n\
        [ \"$1 $2 $3 $6 $8\" = 'run --memory-max max --stats --' ] || exit 125\n\
        printf '{\"peak\":{\"stored_bytes\":0,\"memory_bytes\":0},\
        \"counters\":{\"swpout_zero\":0,\"pswpout\":0,\"pswpin\":0,\"pgmajfault\":0,\
        \"thp_split_page\":0,\"thp_underused_split_page\":0,\"thp_underused_retouch\":0}}' \
        > \"$7\"\nshift 8\nexec \"$@\"\n";
    fs::write(&idle, script).unwrap();
    fs::set_permissions(&idle, fs::Permissions::from_mode(0o700)).unwrap();
    let ran = run(Side::Live, &[Case::Worst], idle.to_str().unwrap());
    fs::remove_file(&idle).unwrap();
    let Some(report) = report("r111_a_live_row_whose_memory_stays_fails", ran) else {
        return;
    };
    assert!(report.failed());
    let error = report.rows[0].error.as_deref().unwrap();
    assert!(error.contains("left beside the store"), "{error}");
}
