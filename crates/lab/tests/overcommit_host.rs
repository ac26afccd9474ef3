//! The overcommit experiment at its smallest size: the kernel's rows on this host, and a run that
//! is killed.

use crate::alone;
use crate::skipped::skipped;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use deckle_lab::overcommit::Overcommit;
use deckle_lab::program::walk::Pattern;
use deckle_lab::working_set::WorkingSet;
use deckle_lab::{Experiment, Lab, LabError, Report, Side};

const SIZE: u64 = 64 << 20;

fn options(side: Side, patterns: &[Pattern]) -> Overcommit {
    Overcommit {
        set: WorkingSet {
            size: SIZE,
            ratio: 0.5,
            seconds: 0.2,
        },
        patterns: patterns.to_vec(),
        threads: vec![2],
        records: vec![200],
        sides: vec![side],
        runs: 2,
    }
}

/// The report; none, said loudly, where this host does not let us.
fn report(test: &str, options: Overcommit, deckle: &Path) -> Option<Report<Overcommit>> {
    let lab = Lab {
        deckle: deckle.into(),
        program_cmd: vec![OsString::from(env!("CARGO_BIN_EXE_lab-program"))],
    };
    match options.run(&lab) {
        Err(e @ LabError::Host { .. }) => {
            skipped(format_args!("{test}: {e}"));
            None
        }
        other => Some(other.unwrap()),
    }
}

#[test]
fn r150_kernel_rows_of_the_overcommit_experiment_use_the_ram_they_may() {
    let _alone = alone();
    let patterns = [Pattern::Uniform, Pattern::Phases];
    let options = options(Side::Kernel, &patterns);
    let test = "r150_kernel_rows_of_the_overcommit_experiment_use_the_ram_they_may";
    let Some(report) = report(test, options, Path::new("/nonexistent")) else {
        return;
    };
    eprintln!("{}", report.to_text());
    assert_eq!(report.rows.len(), 2);
    for row in &report.rows {
        if let Some(error) = &row.error {
            // Its out of memory killer may strike while zram has room: told, not hidden.
            assert!(
                error.contains("killed 4 times") && row.killed >= 4,
                "{row:?}"
            );
            continue;
        }
        assert_eq!(row.ram_bytes, row.limit_bytes + row.store_bytes);
        let off = row.ram_bytes.abs_diff(SIZE / 2);
        assert!(off < SIZE / 20, "{row:?}");
        // What is not resident was stored, and some of it read back.
        assert!(row.stored * 4096 > SIZE / 4 && row.read > 100, "{row:?}");
        assert!(row.faults > 100 && row.ops_per_s > 0.0, "{row:?}");
        assert_eq!(row.runs_ops_per_s.len(), 2);
    }
    let swaps = fs::read_to_string("/proc/swaps").unwrap();
    assert!(!swaps.contains("zram0"), "not given back: {swaps}");
}

#[test]
fn r150_a_run_that_is_killed_is_repeated_and_then_told() {
    let _alone = alone();
    // Says that it was killed: three times, and each time once there is a file beside it.
    let dir = std::env::temp_dir().join(format!("deckle-lab-killed-{}", std::process::id()));
    fs::create_dir(&dir).unwrap();
    let script = "#!/bin/sh\n\
        echo >> \"$0.runs\"\n\
        [ -e \"$0.always\" ] && exit 137\n\
        [ $(wc -l < \"$0.runs\") -le 3 ] && exit 137\n\
        printf '{\"peak\":{\"stored_bytes\":5,\"memory_bytes\":9},\
        \"counters\":{\"swpout_zero\":0,\"pswpout\":7,\"pswpin\":6,\"pgmajfault\":0,\
        \"thp_split_page\":0,\"thp_underused_split_page\":0,\"thp_underused_retouch\":0}}' \
        > \"$6\"\nshift 7\nexec \"$@\"\n";
    let fake = dir.join("fake");
    fs::write(&fake, script).unwrap();
    fs::set_permissions(&fake, fs::Permissions::from_mode(0o700)).unwrap();
    let options = || options(Side::Live, &[Pattern::Loop]);
    let first = report(
        "r150_a_run_that_is_killed_is_repeated_and_then_told",
        options(),
        &fake,
    );
    fs::write(dir.join("fake.always"), "").unwrap();
    let second = report(
        "r150_a_run_that_is_killed_is_repeated_and_then_told",
        options(),
        &fake,
    );
    fs::remove_dir_all(&dir).unwrap();
    let (Some(first), Some(second)) = (first, second) else {
        return;
    };
    assert!(!first.failed(), "{}", first.to_text());
    let row = &first.rows[0];
    assert_eq!((row.killed, row.runs_ops_per_s.len()), (3, 2));
    assert_eq!((row.ram_bytes, row.store_bytes, row.stored), (9, 5, 7));
    assert!(second.failed() && second.rows[0].killed == 4);
    assert!(second.to_text().contains("FAILED: killed 4 times in a row"));
}
