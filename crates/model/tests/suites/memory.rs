//! The core against a naive oracle: random operations of one program, every byte checked,
//! every invariant after every step.

use super::P;
use super::common::{BASE, BELOW, Program, Rig, WINDOW};
use deckle_mm::{FaultOrder, HUGE_PAGES, Item, Profile, SplitMode, ThpMode, Tunables};
use deckle_model::{Counters, Profile as _, Rng};

/// Runs one seed; what the machine did. On a failure the seed and the last operations are printed.
pub fn run(seed: u64, steps: u32, forks: bool, unseen: bool) -> (Counters, u64) {
    let mut rng = Rng::new(seed);
    let mut t = Tunables::of_profile([Profile::Deckle, Profile::Linux][rng.below(2) as usize]);
    t.thp = [ThpMode::Always, ThpMode::Madvise, ThpMode::Never][rng.below(3) as usize];
    t.khugepaged_scan_sleep_millisecs = 100;
    t.max_ptes_none = [0, 64, 255, 409, 510, 511][rng.below(6) as usize];
    t.fault_order = [FaultOrder::Fixed, FaultOrder::Auto][rng.below(2) as usize];
    t.thp_waste_max = [0, 1 << 20, u64::MAX][rng.below(3) as usize];
    t.split_mode = [SplitMode::Auto, SplitMode::Shatter, SplitMode::InPlace][rng.below(3) as usize];
    t.swap_cache = rng.below(2) > 0;
    t.fault_open_ratio = [0, 50, 100][rng.below(3) as usize];
    let swap = rng.below(3) > 0;
    let rig = Rig::new(64, 1, seed, swap, t);
    let limit = [u64::MAX, 6000, 3000, 1500][rng.below(4) as usize];
    rig.charge.set_max(limit);
    rig.charge.set_high(limit - limit / 16);
    let mut program = Program::new(&rig, 0, seed, BASE, WINDOW / 3);
    program.may_fail = rng.below(3) == 0;
    program.may_fork = forks;
    program.unseen = unseen;
    let mut last = Vec::new();
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        for step in 0..steps {
            let op = match rng.below(26) {
                0 if BELOW => program.give_away(),
                1 => program.leave_behind(),
                2 => rig.split_somewhere(&mut rng),
                3 => {
                    let done = program.stopping(|| (rig.mm.khugepaged(), rig.mm.trim()));
                    format!("{done:?}")
                }
                // A page that is discarded unseen has no bit that could tell.
                4 if !unseen => program.track(),
                5 => rig.migrate_somewhere(&mut rng),
                _ => program.step(),
            };
            last.push(op);
            rig.verify(&(step, last.last()));
        }
        program.check_all();
        rig.verify(&"the final check");
    }));
    if let Err(panic) = result {
        let from = last.len().saturating_sub(12);
        eprintln!("seed {seed}, {t:?}, swap {swap}, limit {limit}; last operations:");
        last[from..].iter().for_each(|op| eprintln!("  {op}"));
        std::panic::resume_unwind(panic);
    }
    (rig.model.counters(), program.parts)
}

/// DECKLE_SEED=n replays one seed with ten times the steps.
pub fn seeds(from: u64, count: u64, steps: u32, forks: bool, unseen: bool) {
    let seed = std::env::var("DECKLE_SEED").ok();
    if let Some(seed) = seed.and_then(|s| s.parse().ok()) {
        run(seed, steps * 10, forks, unseen);
        return;
    }
    let (mut made, mut written, mut parts, mut passed_over) = (0, 0, 0, 0);
    for seed in from..from + count * scale() {
        let (did, of_huge) = run(seed, steps, forks, unseen);
        (made, written, parts) = (made + did.made, written + did.written, parts + of_huge);
        passed_over += did.passed_over;
    }
    println!("{parts} huge pages were given up in part");
    assert!(parts >= count / 6 || !HUGE_PAGES, "as good as none");
    // What a kernel with memory of its own does, it has done.
    println!("{made} pages were made, {written} written before they were protected");
    assert!([made, written].iter().all(|&n| (n > 0) != P::RAM));
    println!("{passed_over} pages were taken out that the program had unmapped");
    // Between such an act and what the manager is told of it comes nothing but the breaking of a
    // huge page at an edge of the range.
    assert!((passed_over > 0) == (unseen && !P::RAM && HUGE_PAGES));
}

#[test]
fn r148_r98_r100_r104_no_byte_is_lost_and_all_counts_reconcile() {
    seeds(1, 60, 200, false, false);
}

/// Three programs on three CPUs in parts of one space, and kswapd on a fourth; the scheduler
/// switches at every lock, platform operation, load and store.
/// How often a CPU had to wait for another one, and how many pages were written to the store.
pub fn race(seed: u64, steps: u32, forks: bool, unseen: bool) -> (u64, u64) {
    let mut rng = Rng::new(seed);
    let mut t = Tunables::of_profile(Profile::Deckle);
    t.khugepaged_scan_sleep_millisecs = 100;
    t.max_ptes_none = [64, 409, 510][rng.below(3) as usize];
    t.thp_waste_max = [0, 1 << 20, u64::MAX][rng.below(3) as usize];
    t.split_mode = [SplitMode::Auto, SplitMode::Shatter, SplitMode::InPlace][rng.below(3) as usize];
    t.fault_order = [FaultOrder::Fixed, FaultOrder::Auto][rng.below(2) as usize];
    t.fault_open_ratio = [0, 50, 100][rng.below(3) as usize];
    let rig = Rig::new(64, 4, seed, rng.below(4) > 0, t);
    let limit = [5000, 2500, 1200][rng.below(3) as usize];
    rig.charge.set_max(limit);
    rig.charge.set_high(limit - limit / 8);
    let part = WINDOW / 4;
    let mut programs: Vec<Program<'_>> = (0..3)
        .map(|cpu| Program::new(&rig, cpu, seed, BASE.add(part * cpu as u64), part))
        .collect();
    programs.iter_mut().for_each(|p| p.unseen = unseen);
    // The second time on pages that children share, who end while it goes on.
    for forked in [false, true].into_iter().take(1 + usize::from(forks)) {
        if forked {
            rig.fork();
        }
        let mut jobs: Vec<_> = Vec::new();
        for program in &mut programs {
            jobs.push(deckle_model::cpu(move || {
                for _ in 0..steps {
                    program.step();
                }
                program.check_all();
            }));
        }
        jobs.push(deckle_model::cpu(|| {
            let mut kicks = 0;
            while rig.machine.wait_kick().is_some() {
                while rig.mm.reclaim_background() {}
                rig.split_somewhere(&mut rng);
                rig.migrate_somewhere(&mut rng);
                rig.mm.khugepaged();
                rig.mm.trim();
                kicks += 1;
                match kicks {
                    1..10 => drop(rig.mm.reclaim_shared(40)),
                    10 => drop(rig.others_are_gone()),
                    _ => {}
                }
            }
        }));
        if let Err(e) = rig.machine.run(jobs) {
            panic!("seed {seed}, {t:?}, limit {limit}, forked {forked}: {e}");
        }
        rig.verify(&("race", seed, forked));
    }
    (rig.machine.parked(), rig.mm.stats().get(Item::Pswpout))
}

pub fn races(from: u64, forks: bool, unseen: bool) {
    match std::env::var("DECKLE_SEED")
        .ok()
        .and_then(|s| s.parse().ok())
    {
        Some(seed) => _ = race(seed, 200, forks, unseen),
        None => {
            let all = from..from + 24 * scale();
            let met = all.map(|seed| race(seed, 40, forks, unseen));
            let (waits, stored) = met.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
            println!("{waits} times one waited for another, {stored} pages were stored");
            assert!(waits > 0 && stored > 0, "nobody met anybody");
        }
    }
}

#[test]
fn r53_r98_r131_r148_programs_and_reclaim_race_and_lose_nothing() {
    races(1, false, false);
}

/// Who had isolated a folio waited for its block, whose owner waited for that reference.
#[test]
fn r31_r53_what_the_schedules_of_seeds_have_found_stays_mended() {
    [425, 1186]
        .iter()
        .for_each(|seed| _ = race(*seed, 40, false, false));
}

/// DECKLE_SCALE=n runs n times as many seeds.
fn scale() -> u64 {
    std::env::var("DECKLE_SCALE")
        .ok()
        .and_then(|s| s.parse().ok())
        .unwrap_or(1)
}
