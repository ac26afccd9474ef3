//! The model's rows of `lab pageout`: every page accounted for, and every byte read back.

use deckle_lab::model;
use deckle_lab::pageout::{Case, Pageout};
use deckle_lab::{Experiment, Lab, LabError, Side};

const SIZE: usize = 16 << 20;
const BLOCKS: u64 = 8;
const ALL: u64 = BLOCKS * 512;

#[test]
fn r97_r110_r111_r115_model_rows_of_the_pageout_experiment() {
    let experiment = Pageout {
        size: SIZE,
        cases: Case::ALL.to_vec(),
        sides: vec![Side::Model],
        runs: 2,
    };
    let report = experiment.run(&Lab::default()).unwrap();
    assert_eq!(report.rows.len(), Case::ALL.len());
    for row in &report.rows {
        assert_eq!(row.zero_pages + row.stored_pages, ALL, "{row:?}");
        match row.case {
            // 511 of 512 cause no write and take no room.
            Case::Best => assert_eq!(row.stored_pages, BLOCKS),
            // One word, or a few bytes, each in the store.
            Case::Worst | Case::Middle => {
                assert_eq!(row.stored_pages, ALL);
                assert!(row.stored_bytes < SIZE as u64 / 32, "{row:?}");
            }
            Case::Text => {
                assert_eq!(row.stored_pages, ALL);
                let ratio = SIZE as f64 / row.stored_bytes as f64;
                assert!((1.8..2.7).contains(&ratio), "stored at {ratio}:1");
            }
        }
        assert_eq!(row.runs_s.len(), 2);
        assert!(row.cpu_s > 0.0);
    }
    // Times of a simulation are marked, and compared with nothing.
    assert!(report.ratios().is_empty());
    let json = report.to_json();
    assert_eq!(
        json.matches(r#""times_of":"simulation""#).count(),
        Case::ALL.len(),
        "{json}"
    );
    assert!(
        report
            .to_text()
            .contains("times of the simulation, in no ratio")
    );
}

#[test]
fn r115_a_size_beyond_the_host_is_refused_not_scaled_down() {
    match model::pageout::run(Case::Best, 1 << 45) {
        Err(LabError::Model(why)) => {
            assert!(
                why.contains("32768 GiB") && why.contains("available"),
                "{why}"
            )
        }
        other => panic!("{other:?}"),
    }
}
