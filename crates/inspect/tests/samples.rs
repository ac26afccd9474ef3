//! What a sample says of the whole lies in its interval, in 95 of 100 trials at least.

use deckle_inspect::gather::Kind;
use deckle_inspect::sample::{Rng, choose};
use deckle_inspect::{Histogram, Tally};

use crate::common::{Subject, blocks};

const TRIALS: u64 = 100;

/// Populations of huge pages, by the zero pages in each.
fn populations() -> Vec<(&'static str, Vec<u32>)> {
    let all = 5120;
    vec![
        ("none", vec![0; all]),
        ("all alike", vec![137; all]),
        (
            "one in a hundred wholly",
            (0..all).map(|n| 512 * u32::from(n % 100 == 7)).collect(),
        ),
        (
            "one in five",
            (0..all).map(|n| 490 * u32::from(n % 5 == 0)).collect(),
        ),
        ("any", (0..all).map(|n| (n * 7919 % 513) as u32).collect()),
        (
            "the last tenth",
            (0..all)
                .map(|n| 471 * u32::from(n > all * 9 / 10))
                .collect(),
        ),
        ("few", (0..60).map(|n| n * 8).collect()),
    ]
}

fn tally(all: &[u32], places: &[usize]) -> Tally {
    let mut seen = Histogram::default();
    places.iter().for_each(|at| seen.add(all[*at]));
    Tally {
        all: all.len() as u64,
        seen,
    }
}

#[test]
fn a_sample_of_five_per_cent_is_within_its_interval() {
    for (name, all) in populations() {
        let everyone: Vec<usize> = (0..all.len()).collect();
        let whole = tally(&all, &everyone);
        for threshold in [0, 409] {
            let truth = whole.freed_at(threshold).value;
            let within = (0..TRIALS).filter(|seed| {
                let n = (all.len() / 20).max(16);
                let places = choose(&mut Rng(*seed), all.len(), n);
                let guess = tally(&all, &places).freed_at(threshold);
                assert!(
                    guess.low <= guess.value && guess.value <= guess.high,
                    "{guess:?}"
                );
                (guess.low..=guess.high).contains(&truth)
            });
            let within = within.count();
            assert!(within >= 95, "{name} at {threshold}: {within} of {TRIALS}");
        }
    }
}

#[test]
fn the_interval_is_no_wider_than_it_has_to_be() {
    let all: Vec<u32> = (0..5120).map(|n| 490 * u32::from(n % 5 == 0)).collect();
    let places = choose(&mut Rng(1), all.len(), 256);
    let guess = tally(&all, &places).freed_at(409);
    // Of the mean of 256 shares with a deviation of 0.38 the error is 0.024: an eighth of 0.19.
    let half = (guess.high - guess.low) / 2.0 / guess.value;
    assert!((0.1..0.5).contains(&half), "{half}");
}

#[test]
fn a_sample_of_a_process_is_within_its_interval() {
    let zeros: Vec<u32> = (0..64).map(|n| if n % 3 == 0 { 480 } else { n }).collect();
    let truth: u32 = zeros.iter().sum();
    let Some(subject) = Subject::new(move || blocks(&zeros)) else {
        return;
    };
    let truth = f64::from(truth) * 4096.0;
    let within = (0..TRIALS).filter(|seed| {
        let looked = subject.sample(5.0, *seed);
        assert_eq!(
            (looked.huge(), looked.tally(Kind::Free).seen.pages()),
            (64, 16)
        );
        let zeros = looked.zeros();
        (zeros.low..=zeros.high).contains(&truth)
    });
    let within = within.count();
    assert!(within >= 95, "{within} of {TRIALS}");
}
