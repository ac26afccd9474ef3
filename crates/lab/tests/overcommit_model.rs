//! The model's part of `lab overcommit`: how often a page is read back, beside other policies.

use deckle_lab::overcommit::Overcommit;
use deckle_lab::program::walk::Pattern;
use deckle_lab::working_set::WorkingSet;
use deckle_lab::{Experiment, Lab, LabError, Side};

const SIZE: u64 = 32 << 20;
const PAGES: f64 = (SIZE / 4096) as f64;

fn options(records: &[usize]) -> Overcommit {
    Overcommit {
        set: WorkingSet {
            size: SIZE,
            ratio: 0.5,
            seconds: 1.0,
        },
        patterns: vec![Pattern::Uniform, Pattern::Zipf, Pattern::Sequential],
        threads: vec![1, 2],
        records: records.to_vec(),
        sides: vec![Side::Model],
        runs: 1,
    }
}

#[test]
fn r150_the_model_tells_what_is_read_back_beside_policies_with_as_many_pages() {
    let report = options(&[4096]).run(&Lab::default()).unwrap();
    eprintln!("{}", report.to_text());
    assert!(report.rows.is_empty() && !report.failed());
    let [uniform, zipf, sequential] = &report.more.replacement[..] else {
        panic!(
            "threads have no rows of their own: {:?}",
            report.more.replacement
        );
    };
    for row in &report.more.replacement {
        assert_eq!(row.accesses as f64, 4.0 * PAGES);
        assert!(row.min <= row.lru && row.min <= row.fifo, "{row:?}");
        // What was not read ahead of need was waited for.
        assert!(row.deckle <= row.deckle_read, "{row:?}");
        // What has room when the rest takes a third of it, less what memory.high leaves.
        let most = (SIZE / 4 / 4096) as f64;
        let resident = row.resident_pages as f64;
        assert!(resident > most / 2.0 && resident < most, "{row:?}");
    }
    // Without knowing what comes nobody does better than what is not resident: four standard
    // deviations of so many accesses.
    let missing = 1.0 - uniform.resident_pages as f64 / PAGES;
    let deviation = (missing * (1.0 - missing) / uniform.accesses as f64).sqrt();
    for found in [uniform.deckle, uniform.fifo, uniform.lru] {
        assert!(
            (found - missing).abs() < 4.0 * deviation + 0.005,
            "{uniform:?}"
        );
    }
    // Skewed accesses are what policies are for: no worse than none, far better than by chance.
    assert!(zipf.deckle < zipf.fifo * 1.02, "{zipf:?}");
    // All but the first page of a window are there before they are needed.
    assert!(
        sequential.deckle < 0.1 && sequential.deckle_read > 0.9,
        "{sequential:?}"
    );
    let json: serde_json::Value = serde_json::from_str(&report.to_json()).unwrap();
    assert_eq!(json["replacement"][1]["pattern"], "zipf");
    assert!(json["replacement"][1]["min"].as_f64().unwrap() > 0.0);
}

#[test]
fn r150_without_a_side_nothing_is_run_and_the_model_draws_nothing() {
    let on = |sides: &[Side]| Overcommit {
        sides: sides.to_vec(),
        ..options(&[200])
    };
    for refused in [
        on(&[]).run(&Lab::default()).map(|_| ()),
        on(&[Side::Model]).may_plot(),
    ] {
        assert!(matches!(refused, Err(LabError::Option(_))), "{refused:?}");
    }
}
