//! The scheduler: replay, lock order, deadlocks; and the account.

use deckle_mm::{
    Charge, Content, LockClass, Machine, PAGE_SIZE, PageRun, Platform, Prot, Site, SpaceId, Vpn,
    Work,
};
use deckle_model::{FIRST_FRAME, Model, ModelCharge, ModelMachine, RunError, Trace, cpu};
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

/// A lock as the core builds them: announced, waited for by parking, reported.
struct Lock<'a> {
    m: &'a ModelMachine,
    word: AtomicU32,
    class: LockClass,
    at: u64,
}

impl<'a> Lock<'a> {
    fn new(m: &'a ModelMachine, class: LockClass, at: u64) -> Lock<'a> {
        Lock {
            m,
            word: AtomicU32::new(0),
            class,
            at,
        }
    }
    fn with<R>(&self, work: impl FnOnce() -> R) -> R {
        self.m.preempt(Site::Lock(self.class));
        while self.word.swap(1, SeqCst) != 0 {
            self.m.park(&self.word, 1);
        }
        self.m.lock_taken(self.class, self.at);
        let r = work();
        self.m.lock_released(self.class, self.at);
        self.word.store(0, SeqCst);
        self.m.unpark(&self.word, u32::MAX);
        r
    }
}

/// Four CPUs count under one lock, and once more without it; what the racy count came to.
fn contend(seed: u64) -> (Trace, u32) {
    let m = ModelMachine::new(4, seed);
    let lock = Lock::new(&m, LockClass::Block, 1);
    let zone = Lock::new(&m, LockClass::Zone, 1);
    let (safe, racy) = (AtomicU32::new(0), AtomicU32::new(0));
    let jobs = (0..4).map(|n| {
        let (m, lock, zone, safe, racy) = (&m, &lock, &zone, &safe, &racy);
        cpu(move || {
            assert_eq!(m.this_cpu(), n);
            for _ in 0..50 {
                let seen = racy.load(SeqCst);
                lock.with(|| {
                    let now = safe.load(SeqCst);
                    m.preempt(Site::Released);
                    zone.with(|| m.preempt(Site::Relock));
                    safe.store(now + 1, SeqCst);
                });
                racy.store(seen + 1, SeqCst);
            }
        })
    });
    let trace = m.run(jobs.collect()).unwrap();
    assert_eq!(safe.load(SeqCst), 200);
    (trace, racy.load(SeqCst))
}

#[test]
fn the_same_seed_gives_the_same_trace() {
    let mut traces = Vec::new();
    for seed in 0..12 {
        let (a, b) = (contend(seed), contend(seed));
        assert_eq!(a, b);
        assert!(a.0.steps() > 1000);
        traces.push(a);
    }
    traces.dedup();
    assert!(traces.len() > 10, "seeds give different runs");
    // CPUs really come between each other: an update without the lock gets lost.
    assert!(traces.iter().any(|(_, racy)| *racy < 200));
}

fn message(error: RunError) -> String {
    match error {
        RunError::Panicked { message, .. } => message,
        other => panic!("expected a panic, got {other}"),
    }
}

#[test]
fn a_reversed_pair_of_locks_is_caught_with_both_classes() {
    let pairs = [
        ((LockClass::Zone, 0), (LockClass::Lru, 0), false),
        ((LockClass::Lru, 0), (LockClass::Zone, 0), true),
        ((LockClass::Block, 5), (LockClass::Block, 4), false),
        ((LockClass::Block, 4), (LockClass::Block, 5), true),
        ((LockClass::Block, 4), (LockClass::Block, 4), false),
        ((LockClass::Lru, 1), (LockClass::Lru, 2), false),
        ((LockClass::MmapLock, 0), (LockClass::VmaTree, 0), true),
    ];
    for (a, b, fine) in pairs {
        let m = ModelMachine::new(2, 3);
        let result = m.run(vec![cpu(|| {
            m.lock_taken(a.0, a.1);
            m.lock_taken(b.0, b.1);
            m.lock_released(a.0, a.1);
            m.lock_released(b.0, b.1);
        })]);
        if fine {
            result.unwrap();
        } else {
            let text = message(result.unwrap_err());
            assert!(text.contains(&format!("{:?}", a.0)), "{text}");
            assert!(text.contains(&format!("{:?}", b.0)), "{text}");
        }
    }
}

#[test]
fn misuse_of_locks_is_caught() {
    let m = ModelMachine::new(1, 3);
    let left = m.run(vec![cpu(|| m.lock_taken(LockClass::Lru, 0))]);
    assert!(message(left.unwrap_err()).contains("Lru"));
    let twice = m.run(vec![cpu(|| m.lock_released(LockClass::Zone, 0))]);
    assert!(message(twice.unwrap_err()).contains("not held"));
    let word = AtomicU32::new(0);
    let park = m.run(vec![cpu(|| {
        m.lock_taken(LockClass::Block, 2);
        m.park(&word, 0);
    })]);
    assert!(message(park.unwrap_err()).contains("park while Block"));
}

#[test]
fn a_deadlock_is_found_and_shows_who_holds_what() {
    // Two CPUs wait for each other's word; a third one works on and returns.
    let m = ModelMachine::new(3, 9);
    let (a, b) = (AtomicU32::new(0), AtomicU32::new(0));
    let error = m
        .run(vec![
            cpu(|| {
                m.lock_taken(LockClass::MmapLock, 7);
                m.park(&a, 0);
            }),
            cpu(|| m.park(&b, 0)),
            cpu(|| m.preempt(Site::ReclaimRound)),
        ])
        .unwrap_err();
    let RunError::Deadlock { seed, waiting, .. } = &error else {
        panic!("expected a deadlock: {error}");
    };
    assert_eq!(*seed, 9);
    assert_eq!(*waiting, [(0, vec![(LockClass::MmapLock, 7)]), (1, vec![])]);
    assert!(error.to_string().contains("Park"));
    // The machine can be used again.
    m.run(vec![cpu(|| ()), cpu(|| ())]).unwrap();
}

#[test]
fn a_missed_wake_is_a_deadlock_but_a_changed_word_is_not() {
    for seed in 0..50 {
        let m = ModelMachine::new(2, seed);
        let word = AtomicU32::new(0);
        m.run(vec![
            cpu(|| m.park(&word, 0)),
            cpu(|| {
                m.preempt(Site::Released);
                word.store(1, SeqCst);
                m.unpark(&word, 1);
            }),
        ])
        .unwrap();
    }
    let missed = (0..50).filter(|&seed| {
        let m = ModelMachine::new(2, seed);
        let word = AtomicU32::new(0);
        let silent = cpu(|| word.store(1, SeqCst));
        m.run(vec![cpu(|| m.park(&word, 0)), silent]).is_err()
    });
    assert!((1..50).contains(&missed.count()));
}

#[test]
fn with_one_cpu_waiting_for_nobody_is_a_deadlock() {
    let m = ModelMachine::single();
    let word = AtomicU32::new(3);
    m.park(&word, 4);
    m.preempt(Site::Released);
    let wait = std::panic::AssertUnwindSafe(|| m.park(&word, 3));
    assert!(std::panic::catch_unwind(wait).is_err());
    assert_eq!((m.this_cpu(), m.nr_cpus()), (0, 1));
}

#[test]
fn a_livelock_ends_at_the_step_limit() {
    let m = ModelMachine::new(2, 1);
    m.set_max_steps(1000);
    let spin = || {
        cpu(|| {
            loop {
                m.preempt(Site::Relock)
            }
        })
    };
    let error = m.run(vec![spin(), spin()]).unwrap_err();
    assert!(matches!(error, RunError::TooLong { .. }));
}

#[test]
fn background_work_is_done_and_ends_with_the_others() {
    for seed in 0..30 {
        let m = ModelMachine::new(3, seed);
        let (asked, done) = (AtomicU32::new(0), AtomicU32::new(0));
        let worker = || {
            cpu(|| {
                for _ in 0..5 {
                    asked.fetch_add(1, SeqCst);
                    m.kick(Work::Reclaim);
                    m.preempt(Site::Released);
                }
            })
        };
        let background = cpu(|| {
            while let Some(Work::Reclaim) = m.wait_kick() {
                done.store(asked.load(SeqCst), SeqCst);
            }
        });
        m.run(vec![worker(), background, worker()]).unwrap();
        // Requests may be merged; the last one is never lost.
        assert_eq!(done.load(SeqCst), 10);
        assert_eq!(m.take_kick(), None);
    }
}

#[test]
fn an_attached_model_is_switched_between_its_operations() {
    // One CPU writes, the other unmaps and flushes in two steps: the write lands before the
    // unmap, in the window, or faults. With some seed each of the three happens.
    let mut seen = [0; 3];
    for seed in 0..200 {
        let m = ModelMachine::new(2, seed);
        let model = Model::new(1 << 20, 2, seed);
        model.attach(&m);
        let s = SpaceId(1);
        let at = PageRun::new(s, Vpn(0), 1);
        model.create_space(s).unwrap();
        model.map(at, FIRST_FRAME, Content::Zero, Prot::RW).unwrap();
        let (unmapped, outcome) = (AtomicU32::new(0), AtomicU32::new(9));
        m.run(vec![
            cpu(|| {
                let _ = model.store(0, s, 8, &[1]);
                let before = model.store(0, s, 9, &[1]);
                let late = unmapped.load(SeqCst);
                outcome.store(if before.is_err() { 2 } else { late }, SeqCst);
            }),
            cpu(|| {
                let (_, token) = model.unmap(at, FIRST_FRAME, Prot::RW).unwrap();
                unmapped.store(1, SeqCst);
                model.flush(&mut std::iter::once(token));
            }),
        ])
        .unwrap();
        seen[outcome.load(SeqCst) as usize] += 1;
        model.assert_clean();
        assert_eq!(model.frame_bytes(FIRST_FRAME).len(), PAGE_SIZE);
    }
    assert!(seen.iter().all(|&n| n > 0), "{seen:?}");
}

#[test]
fn the_account_is_exact_and_fails_on_demand() {
    let c = ModelCharge::new(10);
    c.try_charge(8).unwrap();
    let e = c.try_charge(3).unwrap_err();
    assert_eq!((e.asked, e.max, e.usage), (3, 10, 8));
    c.force_charge(4);
    assert_eq!((c.usage(), c.peak(), c.failures()), (12, 12, 1));
    c.uncharge(11);
    c.fail_nth(2);
    c.try_charge(1).unwrap();
    c.try_charge(1).unwrap_err();
    c.try_charge(1).unwrap();
    assert_eq!((c.usage(), c.failures()), (3, 2));
    c.set_swap_max(2);
    c.try_charge_swap(2).unwrap();
    c.try_charge_swap(1).unwrap_err();
    assert_eq!((c.swap_usage(), c.swap_failures()), (2, 1));
    c.uncharge_swap(2);
    assert_eq!((c.high(), c.max(), c.underflow()), (u64::MAX, 10, 0));
    c.uncharge(5);
    assert_eq!((c.usage(), c.underflow()), (0, 2));
    // A clone is the same account, and charges never wrap.
    let same = c.clone();
    same.set_max(u64::MAX);
    same.try_charge(5).unwrap();
    assert!(c.try_charge(u64::MAX).is_ok());
    assert_eq!(c.usage(), u64::MAX);
}
