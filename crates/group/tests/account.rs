//! The account under real processes and threads.

use crate::common::*;
use deckle_group::{AttachError, Group, GroupCharge, Name};
use deckle_mm::Charge;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::SeqCst};

fn rng(seed: &mut u64) -> u64 {
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    *seed
}

/// Charges and uncharges at random; what it still holds at the end.
fn churn(charge: &GroupCharge, seed: u64, rounds: u32, held: &AtomicI64, worst: &AtomicU64) -> u64 {
    let mut seed = seed | 1;
    let mut mine = 0u64;
    for _ in 0..rounds {
        let n = match rng(&mut seed) % 10 {
            0 => 512,
            1..=3 => 16,
            _ => 1,
        };
        if rng(&mut seed).is_multiple_of(2) {
            if charge.try_charge(n).is_ok() {
                mine += n;
                let now = held.fetch_add(n as i64, SeqCst) + n as i64;
                worst.fetch_max(now.max(0) as u64, SeqCst);
            }
        } else {
            let n = n.min(mine);
            mine -= n;
            held.fetch_sub(n as i64, SeqCst);
            charge.uncharge(n);
        }
    }
    mine
}

/// A word shared with forked children.
fn shared<T>() -> &'static T {
    // SAFETY: a fresh, zeroed, page-sized shared mapping that is never unmapped; the tests use
    // it for atomics only, for which zero is a value.
    unsafe {
        let at = libc::mmap(
            std::ptr::null_mut(),
            4096,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_ANONYMOUS,
            -1,
            0,
        );
        assert_ne!(at, libc::MAP_FAILED);
        &*at.cast::<T>()
    }
}

#[test]
fn threads_and_processes_never_pass_the_limit_and_the_account_is_exact() {
    const MAX: u64 = 4096;
    let group = group(MAX);
    let held: &AtomicI64 = shared();
    let worst: &AtomicU64 = shared();
    let left: &AtomicU64 = shared();
    let done: &AtomicU64 = shared();
    let release: &AtomicU64 = shared();
    let children: Vec<u32> = (0..4u64)
        .map(|p| {
            let name = group.0.name();
            spawn(move || {
                let g = Group::attach(name).unwrap();
                let charge = GroupCharge::new(g, g.join(std::process::id(), 0).unwrap());
                std::thread::scope(|s| {
                    for t in 0..3u64 {
                        s.spawn(move || {
                            let mine = churn(&charge, 7919 * (p * 3 + t + 1), 30_000, held, worst);
                            left.fetch_add(mine, SeqCst);
                        });
                    }
                });
                done.fetch_add(1, SeqCst);
                while release.load(SeqCst) == 0 {
                    sleep_ms(2);
                }
                0
            })
        })
        .collect();
    while done.load(SeqCst) < 4 {
        sleep_ms(2);
    }
    // `held` is raised after the grant and lowered before the return, so it never shows more
    // than what is truly held.
    assert!(
        worst.load(SeqCst) <= MAX,
        "{} of {MAX} pages were held",
        worst.load(SeqCst)
    );
    assert!(
        worst.load(SeqCst) > MAX / 2,
        "the test never came near the limit"
    );
    assert_eq!(group.0.usage(), left.load(SeqCst));
    assert!(group.0.peak() <= MAX && group.0.peak() >= worst.load(SeqCst));
    release.store(1, SeqCst);
    for c in children {
        assert_eq!(wait(c), 0);
    }
    assert_eq!(group.0.fold_stale(), 4);
    assert_eq!(group.0.usage(), 0);
}

#[test]
fn a_charge_drains_the_batches_of_others_before_it_fails() {
    let group = group(64);
    let g = group.0;
    let a = GroupCharge::new(g, g.join(std::process::id(), 0).unwrap());
    // A second line needs a second process.
    let stop: &AtomicU64 = shared();
    let ready: &AtomicU64 = shared();
    let child = spawn(|| {
        let b = GroupCharge::new(g, g.join(std::process::id(), 0).unwrap());
        b.try_charge(1).unwrap(); // takes a batch of 32, spends 1
        ready.store(1, SeqCst);
        while stop.load(SeqCst) == 0 {
            sleep_ms(2);
        }
        0
    });
    while ready.load(SeqCst) == 0 {
        sleep_ms(2);
    }
    assert_eq!(g.usage(), 1);
    a.try_charge(63)
        .expect("31 unspent pages of the other process are given back");
    let full = a.try_charge(1).unwrap_err();
    assert_eq!((full.asked, full.max, full.usage), (1, 64, 64));
    stop.store(1, SeqCst);
    wait(child);
}

#[test]
fn forced_charges_pass_the_limit_and_are_counted() {
    let group = group(100);
    let g = group.0;
    let c = GroupCharge::new(g, g.join(std::process::id(), 0).unwrap());
    c.try_charge(100).unwrap();
    c.force_charge(7);
    assert_eq!(g.usage(), 107);
    assert_eq!(g.peak(), 107);
    assert!(c.try_charge(1).is_err());
    c.uncharge(107);
    assert_eq!(g.usage(), 0);
    c.try_charge(100).unwrap();
}

#[test]
fn swap_has_a_limit_of_its_own() {
    let group = group(u64::MAX);
    let g = group.0;
    let mut limits = g.limits();
    limits.swap_max = 10;
    g.set_limits(limits);
    let c = GroupCharge::new(g, g.join(std::process::id(), 0).unwrap());
    c.try_charge_swap(8).unwrap();
    let over = c.try_charge_swap(3).unwrap_err();
    assert_eq!((over.usage, over.max), (8, 10));
    c.try_charge_swap(2).unwrap();
    c.uncharge_swap(10);
    assert_eq!((g.swap_usage(), g.swap_peak()), (0, 10));
}

#[test]
fn processes_killed_while_they_charge_leave_nothing_behind() {
    let group = group(100_000);
    let g = group.0;
    let me = GroupCharge::new(g, g.join(std::process::id(), 0).unwrap());
    me.try_charge(1000).unwrap();
    for round in 0..20u64 {
        let child = spawn(|| {
            let c = GroupCharge::new(g, g.join(std::process::id(), 0).unwrap());
            let (held, worst) = (AtomicI64::new(0), AtomicU64::new(0));
            churn(&c, round + 1, u32::MAX, &held, &worst);
            0
        });
        sleep_ms(3 + round % 5);
        kill(child, libc::SIGKILL);
        wait(child);
        g.fold_stale();
        assert_eq!(g.usage(), 1000, "round {round}");
    }
    me.try_charge(99_000)
        .expect("every page of the dead is back");
}

#[test]
fn another_layout_version_is_a_clear_error() {
    let group = group(1);
    let path = format!("/dev/shm/deckle-{}", group.0.name().as_str());
    let patch = |at: u64, bytes: &[u8]| {
        use std::os::unix::fs::FileExt;
        let f = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        f.write_all_at(bytes, at).unwrap();
    };
    let attach = || Group::attach(group.0.name()).err();
    patch(8, &77u32.to_le_bytes());
    let e = attach().unwrap();
    assert!(matches!(e, AttachError::Version { found: 77, .. }));
    assert!(e.to_string().contains("layout version 77"), "{e}");
    patch(8, &deckle_group::layout::VERSION.to_le_bytes());
    assert!(attach().is_none());
    patch(12, &3u32.to_le_bytes()); // another number of counters
    assert!(matches!(attach().unwrap(), AttachError::Size { .. }));
    patch(0, b"notours!");
    assert!(matches!(attach().unwrap(), AttachError::Magic));
    std::fs::write(&path, b"short").unwrap();
    assert!(matches!(attach().unwrap(), AttachError::Magic));
}

#[test]
fn names_of_groups_are_checked() {
    for bad in ["", "../x", "A", "a b", "a/b", &"x".repeat(41)] {
        assert!(Name::new(bad.as_bytes()).is_err(), "{bad}");
    }
    assert!(Name::new(b"a-1").is_ok());
    let absent = Name::new(b"never-made").unwrap();
    let e = Group::attach(absent).err().unwrap();
    assert!(e.to_string().contains("no such file"), "{e}");
}

#[test]
fn every_knob_that_is_set_is_read_again() {
    use deckle_mm::{Profile, Tunables, knob::Kind};
    let group = group(1);
    let mut all = vec![Tunables::of_profile(Profile::Linux), Tunables::default()];
    let (mut odd, mut even) = (all[0], all[1]);
    for (i, knob) in Tunables::KNOBS.iter().enumerate().skip(1) {
        let [one, other] = match knob.kind {
            Kind::Flag => ["false", "true"],
            Kind::Word(words) => [words[1], words[0]],
            Kind::Number(..) | Kind::Bytes(_) | Kind::Limit => [["5", "6"], ["7", "8"]][i % 2],
        };
        odd.set(knob.key, one).unwrap();
        even.set(knob.key, other).unwrap();
    }
    all.extend([odd, even]);
    for knobs in all {
        group.0.set_knobs(&knobs, deckle_group::SwapKind::Zstd);
        assert_eq!(group.0.knobs(), Ok(knobs));
    }
    assert_eq!(group.0.swap_kind(), deckle_group::SwapKind::Zstd);
}
