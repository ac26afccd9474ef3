//! Forks for whose child there is no service: they fail, as the kernel's do that it has no task
//! for, and no child is ever killed.

use crate::common::tasks::Tasks;
use crate::common::{compile, expect, figure, run, run_behind};
use crate::skipped::skipped;
use deckle_group::layout::LINES;
use deckle_group::{Group, Name};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::Duration;

const LIMIT: [&str; 3] = ["--quiet", "--memory-max", "1G"];

/// Checks that some forks were made and some were refused.
fn both(ran: &crate::common::Ran, forks: u32) {
    expect(ran, "all forks right");
    let (made, refused) = (figure(&ran.out, "made "), figure(&ran.out, "refused "));
    assert_eq!(made + refused, forks, "{}", ran.out);
    assert!(made > 0 && refused > 0, "{}", ran.out);
}

#[test]
fn d30_a_fork_beyond_the_lines_of_the_group_fails_and_no_child_is_killed() {
    const LEFT: usize = 5;
    let program = compile("refused_forks", &[]);
    let name = format!("refused-forks-{}", std::process::id());
    let file = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    let path = file.to_str().expect("path").to_owned();
    let running = std::thread::spawn(move || {
        run(
            &LIMIT,
            &[program.to_str().expect("path"), "9", "0", "0", &path],
        )
    });
    while !file.exists() {
        assert!(
            !running.is_finished(),
            "{}",
            running.join().expect("run").err
        );
        std::thread::sleep(Duration::from_millis(5));
    }
    let group = fs::read(&file).expect("the group's name");
    let group = Group::attach(Name::new(&group).expect("a name")).expect("the group");
    // As if others had them.
    let lines: Vec<_> = std::iter::from_fn(|| group.reserve().ok()).collect();
    // The program has one, and there are no more than `deckle run` has descriptors for.
    assert!((LEFT + 1..LINES).contains(&lines.len()), "{}", lines.len());
    lines[..LEFT].iter().for_each(|line| group.cancel(*line));
    fs::remove_file(&file).expect("the file");
    let ran = running.join().expect("run");
    both(&ran, 9);
    assert_eq!(figure(&ran.out, "made "), LEFT as u32);
    assert_eq!(ran.err.lines().count(), 1, "{}", ran.err);
    assert!(ran.err.contains("a fork has failed"), "{}", ran.err);
}

/// There were 256 lines.
#[test]
fn d30_300_children_of_one_program_are_managed_at_once() {
    let program = compile("refused_forks", &[]);
    let ran = run(&LIMIT, &[program.to_str().expect("path"), "300", "0", "0"]);
    expect(&ran, "all forks right");
    assert_eq!((figure(&ran.out, "made "), &*ran.err), (300, ""));
}

/// A user without other processes, by a number from `first` on; says so where none can be had.
fn user(first: u32) -> Option<String> {
    let is_root = fs::metadata("/proc/self").expect("/proc").uid() == 0;
    if !is_root {
        skipped("a user without other processes needs root");
    }
    is_root.then(|| (first + std::process::id()).to_string())
}

/// A service begins with three tasks: several children fit.
#[test]
fn d30_a_fork_beyond_a_limit_on_processes_fails_and_no_child_is_killed() {
    let Some(user) = user(100_000) else { return };
    let program = compile("refused_forks", &[]);
    let program = [program.to_str().expect("path"), "11", "35", &user];
    let ran = run_behind(&["env"], &LIMIT, &program);
    both(&ran, 11);
    assert_eq!(ran.err, "", "as on the kernel");
}

#[test]
fn d30_a_fork_beyond_the_tasks_of_a_cgroup_fails_and_no_child_is_killed() {
    let Some(tasks) = Tasks::new(45) else {
        return skipped("no control group for tasks can be made here");
    };
    let script = format!(
        "echo $$ > {}/cgroup.procs && exec \"$@\"",
        tasks.0.display()
    );
    let program = compile("refused_forks", &[]);
    let program = [program.to_str().expect("path"), "11", "0", "0"];
    let ran = run_behind(&["sh", "-c", &script, "sh"], &LIMIT, &program);
    both(&ran, 11);
    assert_eq!(ran.err, "", "as on the kernel");
}

/// A service that gets no task more than those it begins with does all the work, and no byte is
/// wrong.
#[test]
fn d30_at_its_limit_of_tasks_a_program_goes_on() {
    let Some(user) = user(200_000) else { return };
    let program = compile("no_tasks", &[]);
    let program = [program.to_str().expect("path"), "160", &user];
    let limit = ["--quiet", "--memory-max", "64M"];
    let ran = run_behind(&["env"], &limit, &program);
    expect(&ran, "no tasks right");
    // The program, its child, and what the child's service begins with.
    assert_eq!(figure(&ran.out, "tasks "), 5);
    assert_eq!(ran.err, "", "as on the kernel");
}
