//! A tree that does nothing, and what wakes it.

use std::time::Duration;

use crate::accept::{compile, turn};
use crate::common::{kill, state, until};
use crate::look::*;

/// How often the tasks of a process have gone to sleep.
fn sleeps(pid: u32) -> u64 {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let count = |task: std::fs::DirEntry| -> u64 {
        let status = std::fs::read_to_string(task.path().join("status")).unwrap();
        let (_, count) = status.split_once("\nvoluntary_ctxt_switches:").unwrap();
        count.lines().next().unwrap().trim().parse().unwrap()
    };
    tasks.map(|task| count(task.unwrap())).sum()
}

#[test]
fn twenty_idle_processes_are_not_woken_once_in_five_seconds_and_end_with_deckle() {
    let _turn = turn();
    let forest = compile("forest", &[]);
    let name = unique("idle");
    // Looked through for huge pages a few times before, and not any more.
    let often = "transparent_hugepage.khugepaged.scan_sleep_millisecs=300";
    let options = format!("--memory-max 200M --thp always --set {often}");
    let mut run = start(&name, &options, &[&forest, "20", "2", "hold"]);
    let pid = filled(&mut run);
    let group = run.group();
    let all: Vec<_> = group.processes().collect();
    assert_eq!(all.len(), 20);
    let services = || all.iter().map(|p| sleeps(p.service)).sum::<u64>();
    let tasks = |pid| {
        std::fs::read_dir(format!("/proc/{pid}/task"))
            .unwrap()
            .count()
    };
    // What is measured outside of the limit is measured once a second at first.
    std::thread::sleep(Duration::from_secs(4));
    let before = (services(), sleeps(group.supervisor()));
    std::thread::sleep(Duration::from_secs(5));
    let woken = (services() - before.0, sleeps(group.supervisor()) - before.1);
    eprintln!(
        "woken in five seconds: services {}, deckle run {}",
        woken.0, woken.1
    );
    assert_eq!(woken.0, 0);
    for p in &all {
        assert_eq!(tasks(p.service), 3, "of process {}", p.pid);
    }
    assert!(woken.1 <= 5);
    // Whoever sleeps hears of the end of `deckle run`.
    kill(group.supervisor(), libc::SIGKILL);
    until("all have ended", || {
        let mut pids = all.iter().flat_map(|p| [p.pid, p.service]).chain([pid]);
        pids.all(|pid| matches!(state(pid), 'Z' | 'X' | '-'))
    });
}
