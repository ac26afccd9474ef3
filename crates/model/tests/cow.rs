//! Copy on write in the core, on the model without a kernel below.

mod basic;
mod collapse;
#[path = "common/rig.rs"]
#[allow(dead_code)]
mod common;
mod fuzz;
mod machine;
mod marks;
mod matrix;
mod migrate;
mod race;
mod rules;

use deckle_model::RamCoreCow;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// The profile.
type P = RamCoreCow;

/// Runs one seed; every one of the first `dense` steps is verified, then every 64th.
fn run(seed: u64, steps: u64, dense: u64) {
    let (m, settings) = fuzz::machine(seed, 1);
    let mut fuzz = fuzz::Fuzz::new(&m, seed);
    let result = catch_unwind(AssertUnwindSafe(|| {
        for step in 0..steps {
            fuzz.step();
            if step < dense || step % 64 == 0 {
                fuzz.verify(step);
            }
        }
    }));
    let from = fuzz.last.len().saturating_sub(14);
    let tail = fuzz.last[from..].to_vec();
    let result = result.and_then(|()| {
        catch_unwind(AssertUnwindSafe(|| {
            fuzz.finish();
            fuzz::nothing_is_left(&m);
        }))
    });
    if let Err(panic) = result {
        eprintln!("DECKLE_SEED={seed}, {settings}; last operations:");
        tail.iter().for_each(|op| eprintln!("  {op}"));
        resume_unwind(panic);
    }
}

/// Programs of one family, each on its own CPU; the scheduler switches at every lock, platform
/// operation, load and store.
fn family(seed: u64, steps: u64) {
    const CPUS: usize = 3;
    let (m, settings) = fuzz::machine(seed, CPUS);
    let mut first = fuzz::Fuzz::new(&m, seed);
    (0..80).for_each(|_| first.step());
    let mut members = first.scatter(CPUS);
    let mut jobs: Vec<Vec<&mut fuzz::Fuzz<'_>>> = (0..CPUS).map(|_| Vec::new()).collect();
    for (n, member) in members.iter_mut().enumerate() {
        jobs[n % CPUS].push(member);
    }
    let jobs = jobs.into_iter().map(|mut mine| {
        deckle_model::cpu(move || {
            for _ in 0..steps {
                mine.iter_mut().for_each(|member| member.step());
            }
        })
    });
    if let Err(e) = m.machine.run(jobs.collect()) {
        for member in &members {
            let from = member.last.len().saturating_sub(4);
            member.last[from..]
                .iter()
                .for_each(|op| eprintln!("  {op}"));
        }
        panic!("DECKLE_SEED={seed}, {settings}: {e}");
    }
    m.verify(&("family", seed));
    members.into_iter().for_each(fuzz::Fuzz::finish);
    fuzz::nothing_is_left(&m);
}

/// DECKLE_SEED=n replays one seed.
#[test]
fn r98_r148_families_on_several_cpus_lose_no_byte() {
    match variable("DECKLE_SEED") {
        Some(seed) => family(seed, variable("DECKLE_STEPS").unwrap_or(40)),
        None => {
            let scale = variable("DECKLE_SCALE").unwrap_or(1);
            (1..1 + 40 * scale).for_each(|seed| family(seed, 40));
        }
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
