//! At the limit the right process is killed, whatever else is short: standard error that is not
//! read, a full /dev/shm, descriptors, tasks, a victim that does not die; alone, two at a time,
//! and all at once.

use crate::accept::{compile, root, run_with, turn};
use crate::cli_surroundings::{Freezer, with_files};
use crate::cli_undisturbed::{full_pipe, with_small_shm};
use crate::common::*;
use crate::skipped::not_here;
use crate::tasks::Tasks;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

/// What is short: one bit each.
const STDERR: u32 = 1;
const SHM: u32 = 2;
const FILES: u32 = 4;
const TASKS: u32 = 8;
const FROZEN: u32 = 16;
const ALL: u32 = 31;

/// Enough for the tree until it uses up the rest.
const MOST_TASKS: u32 = 60;

/// Has the command move to a cgroup before it begins.
fn in_cgroup(c: &mut Command, cgroup: &Path) {
    let procs = cgroup.join("cgroup.procs");
    let procs = std::fs::OpenOptions::new().write(true).open(procs).unwrap();
    // SAFETY: one system call on a descriptor that lives as long as the closure.
    unsafe { c.pre_exec(move || io::Write::write_all(&mut &procs, b"0")) };
}

/// Processes that have `word` in their command line.
fn named(word: &str) -> usize {
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    all.filter(|e| {
        let line = std::fs::read(e.path().join("cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains(word)
    })
    .count()
}

/// One cell of the matrix.
fn kills_the_hog(killing: &str, short: u32) {
    let has = |what: u32| short & what != 0;
    let (tasks, freezer) = (Tasks::new(MOST_TASKS).unwrap(), Freezer::new().unwrap());
    let s = Scratch::new("kills");
    let (_unread, full) = full_pipe();
    let words = [
        if has(SHM) { "/dev/shm/filler" } else { "-" },
        if has(TASKS) { "tasks" } else { "-" },
        if has(FROZEN) { &freezer.0 } else { "-" },
        &s.path("left"),
    ];
    let program = [&[killing], &words[..]].concat();
    let ran = run_with(
        "--memory-max 96M --swap none",
        &program,
        |c| {
            if has(STDERR) {
                c.stderr(full);
            }
            if has(FILES) {
                with_files(c, [60, 1000]);
            }
            if has(SHM) {
                with_small_shm(c);
            }
            if has(TASKS) {
                in_cgroup(c, &tasks.0);
            }
        },
        |_| (),
    );
    let frozen = if has(FROZEN) { "frozen 137\n" } else { "" };
    let want = format!("hog 137\n{frozen}innocent 0\n");
    assert_eq!(ran.out, want, "{short:#b}: {}", ran.err);
    ran.ended(0);
    let kills = 1 + u64::from(has(FROZEN));
    assert_eq!(ran.stats["oom_kills"], kills, "{short:#b}: {}", ran.err);
    assert_eq!(named(&s.path("left")), 0, "{short:#b}");
}

#[test]
fn the_right_process_is_killed_whatever_else_is_short() {
    let test = "the_right_process_is_killed_whatever_else_is_short";
    if !root(test) {
        return;
    }
    if Freezer::new().is_none() || Tasks::new(MOST_TASKS).is_none() {
        return not_here(format_args!("{test}: no cgroups may be made here"));
    }
    let _turn = turn();
    let killing = compile("killing", &[]);
    let cells = (0..=ALL).filter(|short| short.count_ones() <= 2 || *short == ALL);
    for short in cells {
        kills_the_hog(&killing, short);
    }
}
