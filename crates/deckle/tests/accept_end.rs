//! Nothing hangs: services and supervisors that are killed, stopped or broken.

use crate::accept::{self, compile, deckle_path, turn};
use crate::common::*;
use std::time::{Duration, Instant};

/// What is promised.
const SOON: Duration = Duration::from_secs(1);

/// `deckle run` over a program that holds twice its limit and checks it in a loop.
fn start(mode: &str) -> (Running, u32) {
    deckle_path();
    let keeper = compile("keeper", &[]);
    let args = [
        "run",
        "--quiet",
        "--memory-max",
        "64M",
        "--",
        &keeper,
        "128",
        mode,
    ];
    let mut run = Running::start_job(&args);
    run.wait_for("filled ");
    let program = run.wait_for("\n").trim().parse().unwrap();
    (run, program)
}

/// The service of a program: its child that shares its memory.
fn service(program: u32) -> u32 {
    let children = |pid: u32| -> Vec<u32> {
        let of = std::fs::read_dir("/proc").unwrap().flatten();
        of.filter_map(|e| e.file_name().to_str()?.parse::<u32>().ok())
            .filter(|p| deckle_group::proc::proc_stat(*p).is_ok_and(|s| s.parent == pid))
            .collect()
    };
    let named = |pid: &u32| {
        let comm = std::fs::read_to_string(format!("/proc/{pid}/comm"));
        comm.is_ok_and(|c| c.trim() == "deckle")
    };
    let found: Vec<u32> = children(program).into_iter().filter(named).collect();
    assert_eq!(found.len(), 1, "services of {program}: {found:?}");
    found[0]
}

/// Waits for the end; how long it took.
fn ends(run: Running, what: &str) -> (i32, String, String) {
    let from = Instant::now();
    let end = run.end();
    let took = from.elapsed();
    eprintln!("{what}: over after {took:.1?}");
    assert!(took < SOON, "{what}: {took:?}");
    end
}

#[test]
fn p22_a_killed_service_ends_its_program_with_one_line() {
    let _turn = turn();
    for mode in ["loop", "wait"] {
        let (run, program) = start(mode);
        kill(service(program), libc::SIGKILL);
        let (code, _, err) = ends(run, "service killed");
        assert_eq!(code, 137, "{err}");
        assert_eq!(err.lines().count(), 1, "{err}");
        assert!(err.contains("its memory manager died"), "{err}");
        assert!(matches!(state(program), '-' | 'Z'));
    }
}

/// A variable that a user happens to have ends no program of a release.
#[test]
fn defects_are_asked_for_in_builds_with_assertions_alone() {
    let _turn = turn();
    deckle_path();
    let keeper = compile("keeper", &[]);
    let mut c = deckle(&["run", "--quiet", "--memory-max", "64M", "--"]);
    c.args([&keeper, "128", "ten"]).env("DECKLE_FAULT", "panic");
    let (code, _, err) = finish(c.output().unwrap());
    let wanted = if cfg!(debug_assertions) { 137 } else { 0 };
    assert_eq!(code, wanted, "{err}");
}

#[test]
fn p22_a_panic_of_the_service_ends_its_program_with_one_line() {
    let _turn = turn();
    if !accept::has_defects("p22_a_panic_of_the_service") {
        return;
    }
    deckle_path();
    let keeper = compile("keeper", &[]);
    let mut c = deckle(&["run", "--quiet", "--memory-max", "64M", "--"]);
    c.args([&keeper, "128", "loop"])
        .env("DECKLE_FAULT", "panic");
    let mut run = Running::spawn(&mut c);
    let first = run.said();
    assert!(first.contains("internal error"), "{first}");
    let (code, _, more) = ends(run, "panic");
    assert_eq!((code, &*more), (137, ""), "{first}");
}

#[test]
fn p22_a_panic_in_a_forked_child_s_service_fails_the_fork_and_no_more() {
    let _turn = turn();
    deckle_path();
    let test = "p22_a_panic_in_a_forked_child_s_service";
    if !accept::has_defects(test) || !accept::have(test, "python3") {
        return;
    }
    let script = "
import os
b = bytearray(8 << 20)
try:
    if os.fork() == 0: os._exit(0)
except BlockingIOError: print('EAGAIN')
try: os.wait()
except ChildProcessError: print('no child')";
    let mut c = deckle(&["run", "--quiet", "--memory-max", "64M", "--"]);
    c.args(["python3", "-c", script])
        .env("DECKLE_FAULT", "child");
    let (code, out, err) = finish(c.output().unwrap());
    assert_eq!((code, &*out), (0, "EAGAIN\nno child\n"), "{err}");
    assert_eq!(err.lines().count(), 1, "{err}");
    assert!(err.contains("as DECKLE_FAULT asks"), "{err}");
}

#[test]
fn p22_a_program_whose_place_in_the_group_is_lost_ends_with_one_line() {
    let _turn = turn();
    for mode in ["loop", "wait"] {
        let (run, program) = start(mode);
        let group = accept::gauges::group_below(run.pid()).expect("a group");
        let line = group.processes().find(|p| p.pid == program);
        // As if somebody took it for dead.
        group.leave(line.expect("its line").line);
        let (code, _, err) = ends(run, "line lost");
        assert_eq!(code, 137, "{err}");
        assert_eq!(err.lines().count(), 1, "{err}");
        assert!(err.contains("place in the group is lost"), "{err}");
        assert!(matches!(state(program), '-' | 'Z'));
    }
}

#[test]
fn p22_a_service_stopped_for_ten_seconds_is_waited_for() {
    let first_turn = turn();
    let (run, program) = start("loop");
    let service = service(program);
    kill(service, libc::SIGSTOP);
    until("the service stops", || state(service) == 'T');
    // Its program waits at the next fault meanwhile: others may have their turn.
    drop(first_turn);
    std::thread::sleep(Duration::from_secs(10));
    assert!(!matches!(state(program), '-' | 'Z'), "nothing was killed");
    assert_eq!(state(service), 'T');
    let _turn = turn();
    kill(service, libc::SIGCONT);
    // It checks everything once more before it ends.
    run.signal(libc::SIGTERM);
    let (code, out, err) = run.end();
    assert_eq!(code, 0, "{out}{err}");
    assert!(out.contains("all right"), "{out}");
}

#[test]
fn p22_killing_deckle_ends_the_tree() {
    let _turn = turn();
    deckle_path();
    let keeper = compile("keeper", &[]);
    let script = "$0 60 loop & $0 60 wait & sleep 1000 & echo pids $$ $(jobs -p); wait; wait";
    let line = [
        "run",
        "--quiet",
        "--memory-max",
        "96M",
        "--",
        "bash",
        "-c",
        script,
        &keeper,
    ];
    let mut run = Running::start(&line);
    let seen = (0..3).fold(String::new(), |s, _| s + &run.wait_for("\n"));
    let pids = seen.lines().find_map(|l| l.strip_prefix("pids ")).unwrap();
    let mut pids: Vec<u32> = pids.split(' ').map(|p| p.parse().unwrap()).collect();
    pids.extend([service(pids[1]), service(pids[2]), parent(pids[0])]);
    assert_eq!(pids.len(), 7, "{seen}");
    let from = Instant::now();
    run.signal(libc::SIGKILL);
    let gone = |p: u32| matches!(state(p), '-' | 'Z');
    until("the tree is gone", || pids.iter().all(|p| gone(*p)));
    eprintln!("tree gone after {:.1?}", from.elapsed());
    assert!(from.elapsed() < SOON);
}

#[test]
fn p22_signals_reach_a_managed_program() {
    let _turn = turn();
    for (signal, name) in [(libc::SIGTERM, "got TERM"), (libc::SIGINT, "got INT.")] {
        let (mut run, program) = start("loop");
        run.signal(libc::SIGTSTP);
        until("the program stops", || state(program) == 'T');
        let deckle = run.pid();
        until("deckle stops with it", || state(deckle) == 'T');
        run.signal(libc::SIGCONT);
        run.wait_for("got CONT");
        run.signal(signal);
        run.wait_for(name);
        let (code, out, err) = run.end();
        assert_eq!(code, 0, "{out}{err}");
        assert!(out.contains("all right"));
    }
}
