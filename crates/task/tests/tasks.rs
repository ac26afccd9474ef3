//! Service tasks in real processes.
//!
//! Each test starts this binary again with the name of a case in the environment. The case runs
//! in a constructor, before `main`: the process has one thread, as a preloaded program has.

#![cfg(all(target_os = "linux", target_arch = "x86_64", target_env = "gnu"))]

mod cases;
mod watching;

use std::io::Read;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const VARIABLE: &str = "DECKLE_TASK_CASE";
const TIMEOUT: Duration = Duration::from_secs(30);

#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn() = constructor;

extern "C" fn constructor() {
    let Ok(name) = std::env::var(VARIABLE) else {
        return;
    };
    let case = cases::CASES
        .iter()
        .chain(watching::CASES)
        .find(|(n, _)| *n == name);
    let status = match case {
        Some((_, run)) => std::panic::catch_unwind(run).map_or(1, |()| 0),
        None => 2,
    };
    // SAFETY: ends the process; there is nothing to flush.
    unsafe { libc::_exit(status) }
}

fn run(name: &str) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .env(VARIABLE, name)
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let start = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break Some(status);
        }
        if start.elapsed() > TIMEOUT {
            child.kill().unwrap();
            child.wait().unwrap();
            break None;
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    let mut text = String::new();
    child
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut text)
        .unwrap();
    for line in text.lines().filter(|l| l.starts_with("SKIPPED")) {
        eprintln!("{line}");
    }
    match status {
        Some(status) => assert!(status.success(), "{name}: {status}\n{text}"),
        None => panic!("{name}: still running after {TIMEOUT:?}\n{text}"),
    }
}

macro_rules! tests {
    ($($name:ident)*) => { $(#[test] fn $name() { run(stringify!($name)); })* };
}

tests! {
    std_works_inside_the_task
    errno_is_separate
    the_program_stays_single_threaded
    waits_of_the_program_do_not_see_the_task
    libc_takes_real_locks_from_then_on
    p30_descriptors_of_the_task_survive_close_range_in_the_program
    descriptors_of_the_program_are_not_kept_open
    kept_descriptors_are_kept
    the_working_directory_is_separate
    p22_a_killed_task_is_noticed_and_the_program_lives
    p22_a_stack_overflow_kills_the_task_alone
    signals_of_the_program_do_not_reach_the_task
    libraries_with_thread_local_data_may_come_later
    threads_of_the_service_share_its_descriptors
    p20_a_child_of_fork_makes_its_own_task_in_the_same_area
    a_busy_area_is_refused_and_a_dead_one_used_again
    bad_settings_are_refused
    death_of_the_program_is_seen
    exec_of_the_program_is_seen
    exec_from_another_thread_is_seen
    exec_is_seen_without_kcmp
    death_is_seen_without_kcmp
    the_end_of_the_main_thread_alone_is_not_the_end
}
