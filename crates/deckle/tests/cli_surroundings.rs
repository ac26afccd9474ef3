//! Surroundings that take something away from `deckle run`: descriptors, tracing, the terminal.

use crate::accept::{Ran, compile, run, run_with, turn};
use crate::cli_terminal::Terminal;
use crate::common::*;
use crate::skipped::not_here;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Has `deckle` begin with these limits on descriptors, soft and hard.
pub fn with_files(c: &mut Command, [soft, hard]: [u64; 2]) {
    let limit = libc::rlimit {
        rlim_cur: soft,
        rlim_max: hard,
    };
    // SAFETY: a system call that reads a copied structure.
    unsafe { c.pre_exec(move || checked(libc::setrlimit(libc::RLIMIT_NOFILE, &limit))) };
}

/// 20 children and a hog that does not fit, with that many descriptors.
fn crowd(options: &str, files: [u64; 2]) -> Ran {
    let crowd = compile("crowd", &[]);
    let options = format!("--memory-max 160M --swap none {options}");
    run_with(
        &options,
        &[&crowd, "20", "1500", "300"],
        |c| with_files(c, files),
        |_| (),
    )
}

#[test]
fn few_descriptors_do_not_keep_the_supervisor_from_killing_the_largest() {
    let _turn = turn();
    let ran = crowd("", [60, 4096]);
    ran.expect("hog 9");
    ran.expect("refused 0, others killed 0");
    assert_eq!(ran.stats["oom_kills"], 1);
}

#[test]
fn where_the_hard_limit_is_low_forks_of_the_managed_fail() {
    let _turn = turn();
    for options in ["", "--strict"] {
        let ran = crowd(options, [60, 60]);
        ran.ended(0);
        let mut refused = ran
            .out
            .split(['\n', ' ', ','])
            .skip_while(|w| *w != "refused");
        let refused: u32 = refused.nth(1).unwrap().parse().unwrap();
        assert!((1..=20).contains(&refused), "{}{}", ran.out, ran.err);
        assert!(
            ran.out.contains("others killed 0"),
            "{}{}",
            ran.out,
            ran.err
        );
        assert!(!ran.err.contains("ended: descriptors"), "{}", ran.err);
    }
}

#[test]
fn programs_that_are_too_many_to_be_watched_run_outside_or_end() {
    let _turn = turn();
    let keeper = compile("keeper", &[]);
    let script = "
        for i in $(seq 12); do { $0 4 wait; echo status $?; } >>$1 & done
        until [ $(grep -c 'filled\\|status' $1) -ge 12 ]; do sleep 0.05; done
        kill -USR1 $(sed -n 's/^filled //p' $1)
        wait
        cat $1";
    let few = |options: &str| {
        let s = Scratch::new("few");
        let options = format!("--memory-max 128M {options}");
        let said = s.file("said", b"", 0o600);
        let program = ["sh", "-c", script, &keeper, &said];
        run_with(&options, &program, |c| with_files(c, [60, 60]), |_| ())
    };
    let ran = few("");
    ran.ended(0);
    let outside = ran.stats["programs_unmanaged"].as_u64().unwrap();
    assert!((1..12).contains(&outside), "{}", ran.err);
    let said = "its maximum under deckle run's limit on open files (ulimit -Hn)";
    assert_eq!(ran.err.matches(said).count() as u64, outside, "{}", ran.err);
    assert_eq!(ran.out.matches("all right").count(), 12, "{}", ran.out);

    let ran = few("--strict");
    let refused = ran.out.matches("status 125").count();
    assert!((1..12).contains(&refused), "{}{}", ran.out, ran.err);
    assert_eq!(ran.err.matches(said).count(), refused, "{}", ran.err);
    assert_eq!(ran.out.matches("all right").count(), 12 - refused);
}

#[test]
fn the_programs_own_limit_on_descriptors_stays_and_none_at_all_is_an_error() {
    let limits = ["sh", "-c", "ulimit -Sn; ulimit -Hn"];
    let ran = run_with("--quiet", &limits, |c| with_files(c, [60, 2000]), |_| ());
    assert_eq!(ran.out, "60\n2000\n");
    let ran = run_with("--quiet", &["true"], |c| with_files(c, [25, 25]), |_| ());
    ran.ended(125);
    assert!(ran.err.contains("ulimit -Hn"), "{}", ran.err);
}

/// Has the system refuse ptrace.
fn without_ptrace(c: &mut Command) {
    let take_away = || {
        let step = |code: u32, jt, jf, k| libc::sock_filter {
            code: code as u16,
            jt,
            jf,
            k,
        };
        let mut steps = [
            // The number of the call is the first word.
            step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
            step(
                libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
                0,
                1,
                libc::SYS_ptrace as u32,
            ),
            step(
                libc::BPF_RET,
                0,
                0,
                libc::SECCOMP_RET_ERRNO | libc::EPERM as u32,
            ),
            step(libc::BPF_RET, 0, 0, libc::SECCOMP_RET_ALLOW),
        ];
        let filter = libc::sock_fprog {
            len: steps.len() as u16,
            filter: steps.as_mut_ptr(),
        };
        // SAFETY: system calls on a filter that is live.
        unsafe {
            checked(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))?;
            checked(libc::prctl(libc::PR_SET_SECCOMP, 2, &raw const filter))
        }
    };
    // SAFETY: it makes system calls only.
    unsafe { c.pre_exec(take_away) };
}

#[test]
fn where_ptrace_is_refused_a_static_program_runs_outside_and_with_strict_not_at_all() {
    let s = Scratch::new("ptrace");
    let fixed = s.file("static", &static_elf(), 0o755);
    let script = s.file("script", format!("#!/bin/sh\n{fixed}\n").as_bytes(), 0o755);
    for program in [&fixed, &script] {
        assert_eq!(
            std::fs::metadata(program).unwrap().permissions().mode() & 0o777,
            0o755
        );
        let ran = run_with("", &[program], without_ptrace, |_| ());
        ran.ended(3);
        assert_eq!(ran.stats["programs_unmanaged"], 1, "{}", ran.err);
    }
    let ran = run_with("--strict", &[&fixed], without_ptrace, |_| ());
    ran.ended(125);
    assert!(ran.err.contains("refuses to trace it"), "{}", ran.err);
    let ran = run_with("--strict", &[&script], without_ptrace, |_| ());
    ran.ended(126);
    run("--strict", &[&fixed]).ended(3);
}

#[test]
fn the_end_of_the_terminal_ends_a_program_that_deckle_leads() {
    for options in [&["--unmanaged"][..], &["--memory-max", "64M"]] {
        let mut all = vec!["run", "--quiet"];
        all.extend(options);
        all.extend(["--", "sh", "-c", "echo begun; exec sleep 1000"]);
        let mut t = Terminal::lead(&mut deckle(&all));
        t.wait_for("begun");
        assert_eq!(t.hang_up(), 128 + libc::SIGHUP);
    }
    // A program may have its own mind.
    let script = "trap 'exit 5' HUP; echo begun; while :; do sleep 0.05; done";
    let mut t = Terminal::lead(&mut deckle(&["run", "--quiet", "--", "sh", "-c", script]));
    t.wait_for("begun");
    assert_eq!(t.hang_up(), 5);
}

/// A freezer cgroup, thawed and removed at the end.
pub struct Freezer(pub String);

impl Freezer {
    pub fn new() -> Option<Freezer> {
        let dir = format!("/sys/fs/cgroup/freezer/deckle-test-{}", std::process::id());
        std::fs::create_dir(&dir).ok()?;
        Some(Freezer(dir))
    }
}

impl Drop for Freezer {
    fn drop(&mut self) {
        let _ = std::fs::write(format!("{}/freezer.state", self.0), "THAWED");
        until("the cgroup is empty", || {
            std::fs::remove_dir(&self.0).is_ok()
        });
    }
}

#[test]
fn a_frozen_victim_is_passed_over_and_the_next_largest_is_killed() {
    let Some(freezer) = Freezer::new() else {
        return not_here(format_args!(
            "no freezer cgroup (version 1) may be made here"
        ));
    };
    let _turn = turn();
    let (keeper, s) = (compile("keeper", &[]), Scratch::new("frozen"));
    let script = "
        sh -c 'echo $$ >$0/cgroup.procs; exec $1 40 wait' $1 $0 >$2/large & large=$!
        until grep -q filled $2/large; do sleep 0.05; done
        $0 8 wait >$2/small & small=$!
        until grep -q filled $2/small; do sleep 0.05; done
        echo FROZEN >$1/freezer.state
        until grep -q FROZEN $1/freezer.state; do sleep 0.05; done
        $0 100 check; echo hog-$?
        echo THAWED >$1/freezer.state
        wait $large; echo large-$?
        kill -USR1 $small; wait $small; echo small-$?";
    let program = ["bash", "-c", script, &keeper, &freezer.0, &s.path("")];
    let ran = run("--memory-max 80M --swap none", &program);
    assert_eq!(ran.out, "hog-137\nlarge-137\nsmall-0\n", "{}", ran.err);
    assert_eq!(ran.stats["oom_kills"], 2);
    assert_eq!(
        ran.err.matches("is killed instead").count(),
        1,
        "{}",
        ran.err
    );
}

/// It was said to have no memory, whatever the limit.
#[test]
fn a_program_with_too_little_address_space_runs_outside_and_is_told_which_limit() {
    let _turn = turn();
    let keeper = compile("keeper", &[]);
    let mut c = Command::new("bash");
    let deckle = env!("CARGO_BIN_EXE_deckle");
    c.args(["-c", "ulimit -v 120000 && exec \"$@\"", "bash", deckle]);
    c.args(["run", "--quiet", "--memory-max", "64M", "--"]);
    c.args([&keeper, "8", "check"]);
    let (code, out, err) = finish(c.output().unwrap());
    assert_eq!((code, out.contains("all right")), (0, true), "{out}{err}");
    assert!(
        err.contains("runs outside the limit") && err.contains("(RLIMIT_AS, ulimit -v)"),
        "{err}"
    );
    assert_eq!(err.lines().count(), 1, "{err}");
}
