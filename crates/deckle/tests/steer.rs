//! `deckle set` and `deckle reclaim`: real trees, changed while they run.

use std::io::Write;
use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::accept::{compile, deckle_path, gauges, has_defects, turn};
use crate::common::*;
use crate::look::*;

#[test]
fn a_lowered_limit_holds_in_a_moment_beside_processes_that_fork_and_exit() {
    let _turn = turn();
    let forest = compile("forest", &[]);
    let name = unique("lowered");
    let mut run = start(&name, "--memory-max 1G", &[&forest, "50", "4", "churn"]);
    let pid = filled(&mut run);
    assert!(charged(&name) > 180 * MIB);
    for max in [260, 240, 400, 250] {
        let from = Instant::now();
        let args = ["set", &name, &format!("memory.max={max}M")];
        let (code, out, err) = output(&args);
        let took = from.elapsed();
        assert_eq!(code, 0, "{err}");
        assert!(
            out.starts_with(&format!("memory.max={max}M (was ")),
            "{out}"
        );
        until("it holds", || charged(&name) <= max * MIB);
        eprintln!(
            "{max} MiB: set returned after {took:.0?}, it held after {:.0?}",
            from.elapsed()
        );
        // And stays, but for moments: forks charge what they have already, and what replaces a
        // larger charge comes first.
        let mut above = 0;
        for _ in 0..20 {
            std::thread::sleep(Duration::from_millis(20));
            let now = charged(&name);
            above += u32::from(now > (max + 4) * MIB);
            assert!(now <= (max + 32) * MIB, "{} MiB in {max}", now / MIB);
        }
        assert!(above <= 5, "{above} times of 20 above {max} MiB");
    }
    assert_eq!(number(&stat(&name), "/oom_kills"), 0);
    end_well(run, pid);
}

/// Promised is a second, on a machine that does nothing else: by a clock that stops while it does.
/// That one is coarse and who has lost a CPU has lost its caches, too, so that the shortest of some
/// is what deckle takes; three times as much is left to the others.
#[test]
fn a_limit_lowered_from_300_mib_to_200_holds_within_a_second() {
    const TRIES: usize = 5;
    let [soon, late] = [1, 3].map(Duration::from_secs);
    let _turn = turn();
    let forest = compile("forest", &[]);
    let name = unique("second");
    gauges::Clock::with("lowered", |clock, enter| {
        let options = "--memory-max 1G";
        let mut c = command(&name, options, &[&forest, "50", "5", "churn"]);
        enter(&mut c);
        let mut run = Running::spawn(&mut c);
        let pid = filled(&mut run);
        let group = run.group();
        let bytes = || group.usage() * 4096;
        let lower = |_| {
            // They touch again what was evicted.
            set(&name, &["memory.max=1G"]);
            until("they have grown", || bytes() >= 300 * MIB);
            let was = bytes();
            let mut set = deckle(&["set", &name, "memory.max=200M"]);
            enter(&mut set);
            let mut changed = None;
            let max = || group.limits().max * 4096;
            let [took, wall] = clock.time(|| {
                changed = Some(Running::spawn(&mut set));
                until("it holds", || max() == 200 * MIB && bytes() <= 200 * MIB);
            });
            let was = was / MIB;
            eprintln!("from {was} MiB to 200: {took:.2?}, {wall:.2?} with what others did");
            assert_eq!(changed.unwrap().end().0, 0);
            took
        };
        let all: Vec<Duration> = (0..TRIES).map(lower).collect();
        assert!(all.iter().any(|took| *took <= soon), "{all:.2?}");
        assert!(all.iter().all(|took| *took <= late), "{all:.2?}");
        assert_eq!(number(&stat(&name), "/oom_kills"), 0);
        end_well(run, pid);
    });
}

#[test]
fn a_peak_from_before_a_limit_was_lowered_is_told_as_such() {
    let name = unique("peak");
    let program = [
        "lab",
        "program",
        "walk",
        "48",
        "uniform",
        "1",
        "--seconds",
        "60",
    ];
    let program = [&[env!("CARGO_BIN_EXE_deckle")][..], &program].concat();
    let run = start(&name, "--memory-max 64M", &program);
    let listed = || output(&["stat", &name]).0 == 0;
    until("the tree runs", listed);
    until("memory is in use", || charged(&name) > 40 * MIB);
    set(&name, &["memory.max=32M"]);
    let told = output(&["stat", &name]).1;
    assert!(told.contains(" before max was lowered\n"), "{told}");
    let stats = stat(&name);
    assert_eq!(number(&stats, "/memory_max_bytes"), 32 * MIB);
    assert_eq!(number(&stats, "/memory_max_largest_bytes"), 64 * MIB);
    run.signal(libc::SIGTERM);
    let (_, _, err) = run.end();
    let told = "(limit 32.0 MiB; the peak was before it was lowered from 64.0 MiB)";
    assert!(err.contains(told), "{err}");
}

#[test]
fn an_idle_process_comes_below_a_lowered_limit_by_itself() {
    let _turn = turn();
    let keeper = compile("keeper", &[]);
    let name = unique("idle");
    let mut run = start(&name, "--memory-max 256M", &[&keeper, "96", "wait"]);
    let pid = filled(&mut run);
    // What was left to the kernel is charged within a tenth of a second.
    until("all is charged", || charged(&name) > 96 * MIB);
    let out = set(&name, &["memory.max=48M"]);
    assert_eq!(
        out,
        "memory.max=48M (was 256M)\nmemory.high=44M (was 252M), as by default\n"
    );
    until("it holds", || charged(&name) <= 48 * MIB);
    // memory.high alone: in the background.
    set(&name, &["memory.high=32M"]);
    until("the background reclaims", || charged(&name) <= 33 * MIB);
    kill(pid, libc::SIGUSR1);
    let (code, out, err) = run.end();
    assert_eq!(code, 0, "{err}");
    assert!(out.contains("all right"), "{out}");
}

/// Lowers the limit of a process that shares what it has with a child, or, `early`, while that is
/// being forked.
fn lower_what_is_shared(early: bool) {
    let _turn = turn();
    if early && !has_defects("a_limit_lowered_within_a_fork") {
        return;
    }
    let keeper = compile("keeper", &[]);
    let name = unique("shared");
    let (mode, fault) = if early {
        ("late", "late")
    } else {
        ("forked", "")
    };
    let mut c = command(&name, "--memory-max 2G", &[&keeper, "768", mode]);
    let mut run = Running::spawn(c.env("DECKLE_FAULT", fault));
    let pid = filled(&mut run);
    if early {
        kill(pid, libc::SIGUSR1);
        let children = format!("/proc/{pid}/task/{pid}/children");
        until("it forks", || {
            std::fs::read_to_string(&children).is_ok_and(|pids| !pids.is_empty())
        });
    }
    // It may say that they go on giving back.
    let args = ["set", &name, "memory.max=640M", "memory.high=max"];
    assert_eq!(output(&args).0, 0);
    until("it holds", || charged(&name) <= 640 * MIB);
    assert_eq!(number(&stat(&name), "/oom_kills"), 0);
    kill(pid, libc::SIGUSR1);
    let (code, out, err) = run.end();
    assert_eq!(code, 0, "{err}");
    assert!(out.contains("all right"), "{out}");
}

/// What a process shares with its child can go nowhere before the child has given up the last page,
/// and until then nothing is gained: the parent was killed when that took more than a second.
#[test]
fn a_limit_lowered_on_what_a_fork_shares_has_nobody_killed() {
    lower_what_is_shared(false);
}

/// The child was not asked, and gave up nothing.
#[test]
fn a_limit_lowered_within_a_fork_has_nobody_killed() {
    lower_what_is_shared(true);
}

/// Nobody asked the child: not before it had joined, and its parent was gone when it could have.
#[test]
fn a_limit_lowered_within_the_fork_of_who_ends_then_holds_for_the_child() {
    let _turn = turn();
    if !has_defects("a_limit_lowered_within_the_fork") {
        return;
    }
    let keeper = compile("keeper", &[]);
    let name = unique("orphan");
    let script = "$0 256 orphan; read";
    let mut c = command(&name, "--memory-max 2G", &["bash", "-c", script, &keeper]);
    let mut run = Running::spawn(c.env("DECKLE_FAULT", "late"));
    let pid = filled(&mut run);
    kill(pid, libc::SIGUSR1);
    let children = format!("/proc/{pid}/task/{pid}/children");
    until("it forks", || {
        std::fs::read_to_string(&children).is_ok_and(|pids| !pids.is_empty())
    });
    // Room for what both have, compressed: 73 MiB each. With less the parent cannot even end: its
    // exit faults.
    let args = ["set", &name, "memory.max=160M", "memory.high=max"];
    assert_eq!(output(&args).0, 0);
    run.wait_for("orphan ");
    until("its parent is gone", || {
        !matches!(state(pid), 'R' | 'S' | 'D')
    });
    let group = run.group();
    let mut all = group.processes().map(|p| p.pid);
    let child = all.find(|other| *other != pid).unwrap();
    until("it holds", || charged(&name) <= 160 * MIB);
    assert_eq!(number(&stat(&name), "/oom_kills"), 0);
    kill(child, libc::SIGUSR1);
    run.wait_for("all right");
}

#[test]
fn where_nothing_can_go_a_lowered_limit_has_the_largest_killed() {
    let _turn = turn();
    let keeper = compile("keeper", &[]);
    let name = unique("none");
    let script = "$0 24 wait & small=$!
        $0 64 wait & large=$!
        wait $large; echo \"large ended with $?\"
        kill -USR1 $small; wait $small; echo \"small ended with $?\"";
    let options = "--memory-max 256M --swap none";
    let mut run = start(&name, options, &["bash", "-c", script, &keeper]);
    run.wait_for("filled");
    run.wait_for("filled");
    let args = ["set", &name, "memory.max=64M"];
    let (code, out, _) = output(&args);
    assert_eq!((code, out.lines().count()), (0, 2), "{out}");
    run.wait_for("large ended with 137");
    let (code, out, err) = run.end();
    assert_eq!(code, 0, "{err}");
    assert!(out.contains("small ended with 0"), "{out}");
    assert_eq!(err.matches("out of memory").count(), 1, "{err}");
    assert!(err.contains("memory.max was lowered"), "{err}");
}

/// A value that the knob may have, at random.
fn value(kind: deckle_mm::knob::Kind, dice: u64) -> String {
    use deckle_mm::knob::Kind;
    match kind {
        Kind::Flag => ["on", "off"][dice as usize % 2].to_owned(),
        Kind::Word(words) => words[dice as usize % words.len()].to_owned(),
        Kind::Number(max, _) | Kind::Bytes(max) => (dice % (max + 1)).to_string(),
        Kind::Limit if dice.is_multiple_of(2) => "max".to_owned(),
        Kind::Limit => (dice % (64 * MIB)).to_string(),
    }
}

fn mix(x: u64) -> u64 {
    let x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ x >> 31
}

#[test]
fn changes_of_every_setting_at_random_beside_load_leave_no_wrong_byte() {
    change_at_random(60);
}

/// As many as are promised.
#[test]
fn a_thousand_changes_beside_load_leave_no_wrong_byte() {
    change_at_random(1000);
}

/// Changes settings so many times beside processes that fork, exit and look at what they have
/// written. `DECKLE_SEED` says which.
fn change_at_random(times: u32) {
    use deckle_mm::knob::When;
    let _turn = turn();
    let seed = std::env::var("DECKLE_SEED").map_or(1, |n| n.parse().unwrap());
    let forest = compile("forest", &[]);
    let name = unique("random");
    let mut run = start(&name, "--memory-max 256M", &[&forest, "12", "16", "churn"]);
    let pid = filled(&mut run);
    let knobs = deckle_mm::Tunables::KNOBS.iter();
    let knobs: Vec<_> = knobs.filter(|knob| knob.when == When::Live).collect();
    let (mut dice, from) = (mix(seed), Instant::now());
    let mut roll = || {
        dice = mix(dice.wrapping_add(0x9e37_79b9_7f4a_7c15));
        dice
    };
    for time in 0..times {
        let max = 128 + roll() % 256;
        let mut settings = vec![format!("memory.max={max}M")];
        if roll().is_multiple_of(2) {
            settings.push(format!("memory.high={}M", max - roll() % 64));
        } else {
            settings.push("memory.high=max".to_owned());
        }
        for _ in 0..roll() % 4 {
            let knob = knobs[roll() as usize % knobs.len()];
            let setting = format!("{}={}", knob.key, value(knob.kind, roll()));
            if settings
                .iter()
                .all(|s| s.split('=').next() != Some(knob.key))
            {
                settings.push(setting);
            }
        }
        let mut args = vec!["set", &name];
        args.extend(settings.iter().map(String::as_str));
        let (code, out, err) = output(&args);
        if code != 0 {
            eprintln!("seed {seed}, {time}: {settings:?}: {err}");
            panic!("what ran: {:?}", run.end());
        }
        assert!(out.lines().count() >= settings.len(), "{out}");
        std::thread::sleep(Duration::from_millis(roll() % 100));
    }
    let seen = stat(&name);
    let (kills, forks) = (
        number(&seen, "/oom_kills"),
        number(&seen, "/programs_managed"),
    );
    eprintln!(
        "{times} changes in {:.0?}, {forks} processes",
        from.elapsed()
    );
    assert_eq!(kills, 0, "seed {seed}: {seen}");
    end_well(run, pid);
}

#[test]
fn a_process_that_runs_follows_a_changed_knob() {
    let _turn = turn();
    let steps = compile("steps", &[]);
    let name = unique("knob");
    let mut c = deckle(&[
        "run",
        "--memory-max",
        "256M",
        "--name",
        &name,
        "--",
        &steps,
        "16",
    ]);
    deckle_path();
    let mut run = Running::spawn(c.stdin(Stdio::piped()));
    let step = |run: &mut Running, n: u32| {
        run.0.stdin.as_mut().unwrap().write_all(b"x").unwrap();
        run.wait_for(&format!("step {n}\n"));
        // It publishes ten times a second.
        std::thread::sleep(Duration::from_millis(300));
        number(&stat(&name), "/counters/thp_fault_alloc")
    };
    let first = step(&mut run, 1);
    assert!(first > 0, "a huge page");
    let out = set(&name, &["transparent_hugepage.enabled=never"]);
    assert_eq!(out, "transparent_hugepage.enabled=never (was always)\n");
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(step(&mut run, 2), first, "none more");
    set(&name, &["transparent_hugepage.enabled=always"]);
    std::thread::sleep(Duration::from_millis(500));
    assert!(step(&mut run, 3) > first, "more again");
    let knobs = &stat(&name)["knobs"];
    assert_eq!(
        knobs.pointer("/transparent_hugepage/enabled"),
        Some(&"always".into())
    );
    drop(run.0.stdin.take());
    assert_eq!(run.end().0, 0);
}

/// What an idle process had while memory was far from short is adopted when it is asked for: the
/// first request found nothing.
#[test]
fn memory_that_was_left_to_the_kernel_is_reclaimed_on_request() {
    let _turn = turn();
    let keeper = compile("keeper", &[]);
    let name = unique("left");
    let options = "--memory-max 256M";
    let mut run = start(&name, options, &[&keeper, "40", "wait"]);
    let pid = filled(&mut run);
    until("it is charged", || charged(&name) >= 40 * MIB);
    let (code, out, err) = output(&["reclaim", &name, "12M"]);
    assert_eq!((code, err.as_str()), (0, ""), "{out}");
    kill(pid, libc::SIGUSR1);
    let (code, out, err) = run.end();
    assert_eq!(code, 0, "{err}");
    assert!(out.contains("all right"), "{out}");
}

#[test]
fn memory_is_reclaimed_on_request_and_told_how_much() {
    let _turn = turn();
    let keeper = compile("keeper", &[]);
    let name = unique("reclaim");
    let mut run = start(&name, "--memory-max 256M", &[&keeper, "64", "wait"]);
    let pid = filled(&mut run);
    // What it takes itself is charged before its pages are told.
    until("it tells of its pages", || {
        number(&stat(&name), "/current/resident_bytes") >= 64 * MIB
    });
    let before = charged(&name);
    let (code, out, err) = output(&["reclaim", &name, "24M"]);
    assert_eq!((code, err.as_str()), (0, ""));
    let told = out.strip_suffix("M reclaimed\n").expect("how much");
    let told: f64 = told.parse().unwrap();
    // The store grows by whole segments, so that it may be some more.
    assert!((24.0..=40.0).contains(&told), "{told}");
    let less = before.saturating_sub(charged(&name));
    assert!(
        less as f64 >= (told - 1.0) * MIB as f64,
        "{less} of {told} M"
    );
    assert!(number(&stat(&name), "/current/swapped_bytes") > 24 * MIB);
    let (code, out, err) = output(&["reclaim", &pid.to_string(), "1G"]);
    assert_eq!((code, out.as_str()), (1, ""), "{err}");
    assert!(err.contains("of 1.0G were reclaimed"), "{err}");
    assert_eq!(output(&["reclaim", &name, "max"]).0, 0);
    fails(&["reclaim", &name, "0"], &["a size of zero"]);
    fails(&["reclaim", &name, "much"], &["`much` is not a size"]);
    kill(pid, libc::SIGUSR1);
    let (code, out, err) = run.end();
    assert_eq!(code, 0, "{err}");
    assert!(out.contains("all right"), "{out}");
}
