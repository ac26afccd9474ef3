//! Lines, cross-process reclaim and the out-of-memory ticket, with real processes.

use crate::common::*;
use crate::skipped::skipped;
use deckle_group::{Answer, Asked, Full, Gauges, GroupCharge, LineId, layout, proc};
use deckle_mm::{Charge, Item, Stats};
use std::time::{Duration, Instant};

/// A child that joined and waits to be killed, with `resident` pages published.
fn member(g: deckle_group::Group, resident: u64, inactive: u64) -> (u32, deckle_group::Process) {
    let child = spawn(|| {
        let id = g.join(std::process::id(), u32::MAX).unwrap();
        let stats = Stats::new();
        stats.add(Item::Pgfault, 5);
        stats.add(Item::NrAnon, 9);
        GroupCharge::new(g, id).try_charge(resident).unwrap();
        g.publish(
            id,
            &Gauges {
                resident,
                inactive,
                ..Gauges::default()
            },
            &stats,
        );
        loop {
            sleep_ms(1000);
        }
    });
    loop {
        if let Some(p) = g
            .processes()
            .find(|p| p.pid == child && p.gauges.resident == resident)
        {
            return (child, p);
        }
        sleep_ms(1);
    }
}

#[test]
fn counters_survive_a_process_and_gauges_do_not() {
    let group = group(u64::MAX);
    let g = group.0;
    let (child, p) = member(g, 40, 0);
    assert_eq!((g.counter(Item::Pgfault), g.counter(Item::NrAnon)), (5, 9));
    assert_eq!((g.usage(), p.charged), (40, 40));
    assert_eq!(g.fold_stale(), 0, "a live process keeps its line");
    kill(child, libc::SIGKILL);
    // Not reaped yet: a zombie holds no memory.
    while !g.is_gone(p.line) {
        sleep_ms(1);
    }
    assert_eq!(g.fold_stale(), 1);
    wait(child);
    assert_eq!((g.counter(Item::Pgfault), g.counter(Item::NrAnon)), (5, 0));
    assert_eq!((g.usage(), g.gauges()), (0, Gauges::default()));
    assert_eq!(g.peak_gauges().resident, 40);
    assert!(!g.is_current(p.line));
    assert_eq!(g.fold_stale(), 0, "folded once only");
}

#[test]
fn a_gauge_that_dips_below_zero_spoils_no_peak() {
    let group = group(u64::MAX);
    let g = group.0;
    let id = g.join(std::process::id(), 0).unwrap();
    let stats = Stats::new();
    // Taken off before it is seen to be put on.
    stats.sub(Item::NrAnon, 3);
    let dip = Gauges {
        resident: stats.get(Item::NrAnon),
        swapped: 7,
        ..Gauges::default()
    };
    g.publish(id, &dip, &stats);
    assert_eq!(g.counter(Item::NrAnon), 0);
    let (now, peak) = (g.gauges(), g.peak_gauges());
    assert_eq!((now.resident, peak.resident), (0, 0));
    assert_eq!((now.swapped, peak.swapped), (7, 7));
}

#[test]
fn a_process_that_executes_another_program_gets_a_new_line_and_keeps_no_charge() {
    let group = group(u64::MAX);
    let g = group.0;
    let me = std::process::id();
    let first = g.join(me, 0).unwrap();
    let old = GroupCharge::new(g, first);
    old.try_charge(100).unwrap();
    let second = g.join(me, 0).unwrap();
    assert_ne!(first, second);
    assert_eq!(g.usage(), 0);
    // What still acts for the old program changes nothing.
    assert!(old.try_charge(1).is_err());
    old.force_charge(5);
    old.uncharge(5);
    assert_eq!(g.usage(), 0);
    assert_eq!(g.joins(), 2);
}

#[test]
fn lines_of_the_dead_are_used_again_when_all_are_taken() {
    let group = group(u64::MAX);
    let g = group.0;
    for _ in 0..300 {
        let child = spawn(|| g.join(std::process::id(), 0).map_or(1, |_| 0));
        assert_eq!(wait(child), 0);
    }
    assert_eq!(g.joins(), 300);
}

#[test]
fn a_reserved_line_is_its_holders_child_s_or_free_again() {
    let group = group(u64::MAX);
    let g = group.0;
    let me = std::process::id();
    let mut all: Vec<_> = (0..layout::LINES).map(|_| g.reserve().unwrap()).collect();
    let full = Full(layout::LINES as u32);
    assert_eq!((g.reserve(), g.join(me, 0)), (Err(full), Err(full)));
    assert_eq!((g.processes().count(), g.fold_stale()), (0, 0));
    let child = all.pop().unwrap();
    let id = g.join_reserved(child, me, 0).unwrap();
    // Its holder has forgotten that the child has it.
    g.cancel(child);
    assert!(g.is_current(id) && g.reserve() == Err(full));
    g.leave(id);
    all.into_iter().for_each(|line| g.cancel(line));
    // A holder that is killed leaves it to the next one, unless its child was faster.
    let holder = spawn(|| {
        (0..layout::LINES).for_each(|_| assert!(g.reserve().is_ok()));
        0
    });
    assert_eq!(wait(holder), 0);
    let last = g.reserve().unwrap();
    assert_eq!(g.fold_stale(), 0, "folded to find that one");
    assert!(g.is_current(g.join_reserved(last, me, 0).unwrap()));
}

#[test]
fn a_request_is_answered_and_a_dead_or_stopped_process_is_not_waited_for_long() {
    let group = group(u64::MAX);
    let g = group.0;
    let patience = Duration::from_secs(20);
    let worker = spawn(|| {
        let id = g.join(std::process::id(), 0).unwrap();
        loop {
            if let Some(request) = g.wait_request(id, Duration::from_secs(1)) {
                g.answer(id, request, request.pages / 2);
            }
        }
    });
    let line = loop {
        if let Some(p) = g.processes().find(|p| p.pid == worker) {
            break p.line;
        }
        sleep_ms(1);
    };
    let ring = g.ask(line, 64).unwrap();
    assert_eq!(g.wait_answer(ring, patience), Answer::Freed(32));
    kill(worker, libc::SIGSTOP);
    while proc::proc_stat(worker).unwrap().state != b'T' {
        sleep_ms(1);
    }
    let ring = g.ask(line, 64).unwrap();
    assert_eq!(g.wait_answer(ring, Duration::from_millis(30)), Answer::Late);
    kill(worker, libc::SIGCONT);
    assert_eq!(g.wait_answer(ring, patience), Answer::Freed(32));
    kill(worker, libc::SIGSTOP);
    let ring = g.ask(line, 1).unwrap();
    kill(worker, libc::SIGKILL);
    assert_eq!(g.wait_answer(ring, patience), Answer::Gone);
    wait(worker);
    g.fold_stale();
    assert!(g.ask(line, 1).is_none());
}

/// All who are stopped are waited for together, once: not each of them by each who asks.
#[test]
fn processes_that_do_not_answer_are_passed_over_until_they_do() {
    let group = group(u64::MAX);
    let g = group.0;
    let me = g.join(std::process::id(), 0).unwrap();
    let workers = [0; 4].map(|_| {
        spawn(|| {
            let id = g.join(std::process::id(), 1).unwrap();
            loop {
                if let Some(request) = g.wait_request(id, Duration::from_secs(1)) {
                    g.answer(id, request, 0);
                }
            }
        })
    });
    while g.processes().count() < 5 {
        sleep_ms(1);
    }
    let patience = Duration::from_secs(20);
    assert_eq!(g.ask_all(me, 1, patience), Answer::Freed(0));
    for worker in &workers[..3] {
        kill(*worker, libc::SIGSTOP);
        while proc::proc_stat(*worker).unwrap().state != b'T' {
            sleep_ms(1);
        }
    }
    let (short, begin) = (Duration::from_secs(1), Instant::now());
    assert_eq!(g.ask_all(me, 1, short), Answer::Late);
    assert!(begin.elapsed() < 3 * short);
    let late = || g.processes().filter(|p| p.late).count();
    let donors = || {
        let mut asked = Asked::default();
        std::iter::from_fn(|| g.choose_donor(me, &mut asked)).count()
    };
    assert_eq!((late(), donors()), (3, 1));
    assert_eq!(g.ask_all(me, 1, patience), Answer::Freed(0));
    for worker in &workers[..3] {
        kill(*worker, libc::SIGCONT);
    }
    while late() > 0 {
        sleep_ms(1);
    }
    assert_eq!(donors(), 4);
    for worker in workers {
        kill(worker, libc::SIGKILL);
        wait(worker);
    }
}

#[test]
fn the_one_with_most_cold_memory_is_asked_and_the_largest_is_killed_once() {
    let group = group(u64::MAX);
    let g = group.0;
    let me = g.join(std::process::id(), 0).unwrap();
    let (hog, hog_line) = member(g, 5000, 10);
    let (idle, idle_line) = member(g, 900, 800);
    let mut asked = Asked::default();
    for expected in [idle, hog] {
        let p = g.choose_donor(me, &mut asked).unwrap();
        assert_eq!(p.pid, expected);
    }
    assert!(g.choose_donor(me, &mut asked).is_none());

    let victim = g.choose_victim().unwrap();
    assert_eq!(victim.pid, hog);
    assert_eq!(victim.line, hog_line.line);
    // Counted once, however often it is asked for.
    assert!(g.note_killed(victim.line) && g.note_killed(victim.line));
    assert_eq!(g.oom_kills(), 1);
    kill(hog, libc::SIGKILL);
    wait(hog);
    assert_eq!(g.fold_stale(), 1);
    assert!(!g.note_killed(victim.line), "its tenancy is over");
    assert_eq!(g.choose_victim().map(|p| p.line), Some(idle_line.line));
    kill(idle, libc::SIGKILL);
    wait(idle);
}

#[test]
fn a_reservation_is_not_asked_for_memory_and_is_killed_last() {
    let group = group(u64::MAX);
    let g = group.0;
    // Of a `deckle run` within this one: a line without a service.
    let reserved = g.join(std::process::id(), 0).unwrap();
    GroupCharge::new(g, reserved).try_charge(9000).unwrap();
    let (child, p) = member(g, 10, 0);
    let mut asked = Asked::default();
    let donor = g.choose_donor(LineId::NONE, &mut asked).unwrap();
    assert_eq!(donor.line, p.line);
    assert!(g.choose_donor(LineId::NONE, &mut asked).is_none());
    assert_eq!(g.choose_victim().unwrap().line, p.line);
    kill(child, libc::SIGKILL);
    wait(child);
    assert_eq!(g.fold_stale(), 1);
    assert_eq!(g.choose_victim().unwrap().line, reserved);
}

/// Start times are told by the clock of who asks.
#[test]
fn p22_a_process_in_another_time_namespace_is_not_taken_for_a_dead_one() {
    let group = group(u64::MAX);
    let g = group.0;
    let outer = spawn(|| {
        // SAFETY: a system call on a number.
        if unsafe { libc::unshare(libc::CLONE_NEWTIME) } != 0 {
            return 77;
        }
        std::fs::write("/proc/self/timens_offsets", "boottime 100000 0").unwrap();
        // Only children are in it.
        let inner = spawn(|| {
            let id = g.join(std::process::id(), 0).unwrap();
            GroupCharge::new(g, id).force_charge(10);
            loop {
                sleep_ms(1000);
            }
        });
        wait(inner)
    });
    while g.usage() != 10 {
        let ended = deckle_sys::process::wait(outer as i32, libc::WNOHANG);
        if let Some((_, status)) = ended.unwrap() {
            assert_eq!(libc::WEXITSTATUS(status), 77, "ended: {status:#x}");
            skipped("may not make one");
            return;
        }
        sleep_ms(1);
    }
    let inner = g.processes().next().unwrap();
    assert!(!g.is_gone(inner.line));
    assert_eq!((g.fold_stale(), g.usage()), (0, 10));
    kill(inner.pid, libc::SIGKILL);
    wait(outer);
}
