//! Copy on write in the core, on the model without a kernel below.

#[path = "cow/basic.rs"]
mod basic;
#[path = "common/rig.rs"]
#[allow(dead_code)]
mod common;
#[path = "cow/fuzz.rs"]
mod fuzz;
#[path = "cow/machine.rs"]
mod machine;
#[path = "cow/race.rs"]
mod race;
#[path = "cow/rules.rs"]
mod rules;

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// Runs one seed; every one of the first `dense` steps is verified, then every 64th.
fn run(seed: u64, steps: u64, dense: u64) {
    let mut fuzz = fuzz::Fuzz::new(seed);
    let result = catch_unwind(AssertUnwindSafe(|| {
        for step in 0..steps {
            fuzz.step();
            if step < dense || step % 64 == 0 {
                fuzz.verify(step);
            }
        }
    }));
    let from = fuzz.last.len().saturating_sub(14);
    let tail: Vec<String> = [&fuzz.last[..1], &fuzz.last[from..]].concat();
    let result = result.and_then(|()| catch_unwind(AssertUnwindSafe(|| fuzz.finish())));
    if let Err(panic) = result {
        eprintln!("DECKLE_SEED={seed}; last operations:");
        tail.iter().for_each(|op| eprintln!("  {op}"));
        resume_unwind(panic);
    }
}

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// DECKLE_SEED=n replays one seed, DECKLE_SCALE=n runs n times as many.
#[test]
fn r62_r82_r148_spaces_that_fork_lose_no_byte_and_all_counts_reconcile() {
    match variable("DECKLE_SEED") {
        Some(seed) => run(seed, variable("DECKLE_STEPS").unwrap_or(500), u64::MAX),
        None => {
            let scale = variable("DECKLE_SCALE").unwrap_or(1);
            (1..1 + 20 * scale).for_each(|seed| run(seed, 500, u64::MAX));
            // 90,000 steps more.
            (1001..1001 + 18 * scale).for_each(|seed| run(seed, 5000, 0));
        }
    }
}
