//! The model's rows of `lab underused`.

use deckle_lab::program::underused::Program;
use deckle_lab::underused::{META, Setting, Underused};
use deckle_lab::{Experiment, Lab, Report, Side};

fn on_the_model(program: Program, settings: &[Setting]) -> Report<Underused> {
    let experiment = Underused {
        programs: vec![program],
        settings: settings.to_vec(),
        sides: vec![Side::Model],
        runs: 2,
    };
    experiment.run(&Lab::default()).unwrap()
}

/// 41 of the 512 pages of each block are touched, so 471 hold zeros: more than 470, no more
/// than 471. Once there is pressure each block is looked at right after its first touch, and goes
/// at any threshold; what came before, a third of the memory, stays with 471.
#[test]
fn r118_r138_the_threshold_decides_what_the_sparse_program_keeps() {
    let settings = [
        Setting::Madvise,
        Setting::Always,
        META,
        Setting::Shrink(470),
        Setting::Shrink(471),
        Setting::Shrink(511),
    ];
    let report = on_the_model(Program::Sparse, &settings);
    let (blocks, touched) = (128, (256_u64 << 20).div_ceil(50 << 10) * 4096);
    assert_eq!(report.rows.len(), settings.len());
    for row in &report.rows {
        assert_eq!((row.program, row.on), (Program::Sparse, Side::Model));
        assert!(row.time_s.is_none() && row.peak_bytes >= row.settled_bytes);
        let (settled, splits) = (row.settled_bytes, row.underused_splits);
        match row.setting {
            Setting::Madvise => assert_eq!((settled, row.huge_bytes), (touched, 0)),
            Setting::Always | Setting::Shrink(511) => {
                assert_eq!((settled, row.huge_bytes, splits), (256 << 20, 256 << 20, 0))
            }
            Setting::Shrink(471) => assert!(
                splits < 90 && row.huge_bytes > 80 << 20 && settled > 80 << 20,
                "{row:?}"
            ),
            _ => {
                assert_eq!((row.huge_bytes, splits, row.splits), (0, blocks, blocks));
                // A block that was taken apart while it was being filled gets up to as many
                // pages more as have come back.
                let extra = settled - touched;
                assert!(extra * 50 < (256 << 20) - touched, "{row:?}");
            }
        }
    }
}

#[test]
fn r138_the_churn_wastes_huge_pages_and_the_shrinker_gets_them_back() {
    let settings = [Setting::Madvise, Setting::Always, META];
    let report = on_the_model(Program::Churn, &settings);
    let [madvise, always, shrink] = &report.rows[..] else {
        panic!("{report:?}");
    };
    let over = |bytes: u64| bytes.saturating_sub(madvise.settled_bytes);
    assert!(
        always.settled_bytes > 2 * madvise.settled_bytes,
        "{report:?}"
    );
    assert!(
        3 * over(shrink.settled_bytes) <= over(always.settled_bytes),
        "{report:?}"
    );
    assert!(shrink.peak_bytes < always.peak_bytes, "{report:?}");
    assert!(shrink.underused_splits > 0 && shrink.retouches > Some(0));
}
