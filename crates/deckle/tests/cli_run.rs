//! The supervisor: statuses, signals, orphans, the end of the tree.

use crate::common::*;
use crate::skipped::skipped;

const RUN: [&str; 4] = ["run", "--unmanaged", "--quiet", "--"];

fn sh(script: &str) -> Vec<&str> {
    let mut args = RUN.to_vec();
    args.extend(["sh", "-c", script]);
    args
}

#[test]
fn the_status_of_the_program_is_passed_on() {
    for (script, status) in [
        ("exit 0", 0),
        ("exit 7", 7),
        ("exit 255", 255),
        ("kill -9 $$", 137),
        ("kill -TERM $$", 143),
    ] {
        assert_eq!(output(&sh(script)).0, status, "{script}");
    }
}

#[test]
fn input_output_and_arguments_are_the_programs() {
    use std::io::Write;
    use std::process::Stdio;
    let mut args = RUN.to_vec();
    args.extend([
        "sh",
        "-c",
        "cat; echo \"$0|$1|$2\"; echo e >&2",
        "a b",
        "--quiet",
        "",
    ]);
    let mut c = deckle(&args);
    c.stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = c.spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"in\n").unwrap();
    let got = finish(child.wait_with_output().unwrap());
    assert_eq!(got, (0, "in\na b|--quiet|\n".into(), "e\n".into()));
}

#[test]
fn a_script_without_a_first_line_runs_as_in_a_shell() {
    let s = Scratch::new("noline");
    let path = s.file("script", b"exit 9\n", 0o755);
    let mut args = RUN.to_vec();
    args.push(&path);
    assert_eq!(output(&args).0, 9);
}

#[test]
fn the_program_starts_with_signals_as_they_were() {
    let (code, out, _) = output(&sh("grep -E '^Sig(Blk|Ign)' /proc/self/status"));
    assert_eq!(code, 0);
    for line in out.lines() {
        let mask = u64::from_str_radix(line.split_whitespace().nth(1).unwrap(), 16).unwrap();
        let touched = [
            libc::SIGTERM,
            libc::SIGINT,
            libc::SIGCHLD,
            libc::SIGPIPE,
            libc::SIGTSTP,
        ];
        for signal in touched {
            assert_eq!(mask >> (signal - 1) & 1, 0, "signal {signal}: {line}");
        }
    }
}

#[test]
fn signals_reach_the_program() {
    let script = "
        for s in TERM INT HUP QUIT USR1 USR2 WINCH; do trap \"echo got $s\" $s; done
        echo ready
        while :; do sleep 0.01; done";
    let mut run = Running::start(&sh(script));
    run.wait_for("ready");
    for (signal, name) in [
        (libc::SIGTERM, "TERM"),
        (libc::SIGINT, "INT"),
        (libc::SIGHUP, "HUP"),
        (libc::SIGQUIT, "QUIT"),
        (libc::SIGUSR1, "USR1"),
        (libc::SIGUSR2, "USR2"),
        (libc::SIGWINCH, "WINCH"),
    ] {
        run.signal(signal);
        run.wait_for(&format!("got {name}\n"));
    }
}

#[test]
fn stop_and_continue_reach_the_program_and_are_mirrored() {
    let mut run = Running::start_job(&sh("echo $$; exec sleep 1000"));
    let program: u32 = run.wait_for("\n").trim().parse().unwrap();
    let deckle = run.pid();
    run.signal(libc::SIGTSTP);
    until("the program stops", || state(program) == 'T');
    until("deckle stops with it", || state(deckle) == 'T');
    run.signal(libc::SIGCONT);
    until("both go on", || {
        state(program) == 'S' && state(deckle) == 'S'
    });
    // Somebody who stops the program alone must not leave deckle stopped.
    kill(program, libc::SIGSTOP);
    until("the program stops", || state(program) == 'T');
    std::thread::sleep(std::time::Duration::from_millis(50));
    assert_eq!(state(deckle), 'S');
    kill(program, libc::SIGCONT);
    kill(program, libc::SIGTERM);
    assert_eq!(run.end().0, 143);
}

#[test]
fn orphans_are_reaped_and_deckle_dies_last() {
    // The grandchild outlives the program and becomes a child of the supervisor.
    let script = "(sh -c 'sleep 0.3; echo late' &); exit 4";
    let (code, out, _) = output(&sh(script));
    assert_eq!((code, out.as_str()), (4, "late\n"));
}

#[test]
fn signals_reach_what_is_left_after_the_program() {
    let mut run = Running::start(&sh("(sleep 1000 & echo $!); exit 5"));
    let left: u32 = run.wait_for("\n").trim().parse().unwrap();
    until("the orphan is deckle's child", || {
        parent(parent(left)) == run.pid()
    });
    // A moment until the program itself has been reaped.
    until("the orphan ends", || {
        run.signal(libc::SIGTERM);
        matches!(state(left), '-' | 'Z')
    });
    let status = run.end().0;
    assert!(status == 5 || status == 143, "{status}");
}

#[test]
fn killing_deckle_ends_its_program() {
    let mut run = Running::start(&sh("echo $$; exec sleep 1000"));
    let program: u32 = run.wait_for("\n").trim().parse().unwrap();
    let from = std::time::Instant::now();
    run.signal(libc::SIGKILL);
    until("the program is gone", || {
        matches!(state(program), '-' | 'Z')
    });
    eprintln!("gone after {:?}", from.elapsed());
}

#[test]
fn as_first_process_of_a_namespace_it_reaps_and_ends_the_tree() {
    if deckle_sys::process::effective_user() != 0 {
        skipped("needs root");
        return;
    }
    let exe = env!("CARGO_BIN_EXE_deckle");
    let script = "trap 'exit 0' TERM; (sleep 0.05 &); (sleep 1000 &); sleep 0.2; \
                  grep -l 'State:.Z' /proc/[0-9]*/status; exit 6";
    let mut c = std::process::Command::new("unshare");
    c.args(["--fork", "--pid", "--mount-proc", "--kill-child", exe]);
    c.args(RUN).args(["sh", "-c", script]);
    let (code, out, err) = finish(c.output().unwrap());
    assert_eq!(
        (code, out.as_str(), err.as_str()),
        (6, "", ""),
        "no zombie, and the status"
    );
}

#[test]
fn the_group_leaves_no_file_behind() {
    let mut command = deckle(&sh("echo up; read x; exit 0"));
    let mut run = Running::spawn(command.stdin(std::process::Stdio::piped()));
    run.wait_for("up");
    let pid = run.pid();
    assert!(group_page(pid).is_some());
    drop(run.0.stdin.take());
    assert_eq!(run.end().0, 0);
    assert_eq!(group_page(pid), None);
}
