//! Defect 19: programs that cannot be managed, started in numbers.

use crate::common::{self, compile, deckle, host, is_second};
use crate::skipped::{not_here, skipped};
use deckle_group::{Group, Name};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

fn scratch(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("d19-{name}-{}", std::process::id()))
}

/// A program that becomes another user by its file's mode, if we may make one.
fn set_user_id() -> Option<PathBuf> {
    let to = scratch("setuid");
    common::copy(Path::new("/bin/true"), &to);
    let mode = std::fs::Permissions::from_mode(0o4755);
    let made = std::os::unix::fs::chown(&to, Some(65534), None)
        .and_then(|()| std::fs::set_permissions(&to, mode));
    made.inspect_err(|e| skipped(format_args!("in part, a set-user-id program: {e}")))
        .ok()
        .map(|()| to)
}

/// A program for 32 bits without a C library, if the compiler and the kernel have that.
fn of_32_bits() -> Option<PathBuf> {
    let to = scratch("32");
    let source = to.with_extension("c");
    let text = "void _start(void) { __asm__ volatile(\"int $0x80\" : : \"a\"(1), \"b\"(0)); }";
    std::fs::write(&source, text).expect("source");
    let mut cc = Command::new("cc");
    cc.args(["-m32", "-static", "-nostdlib", "-fno-pie", "-no-pie", "-o"]);
    let made = cc.arg(&to).arg(&source).stderr(Stdio::null()).status();
    let _ = std::fs::remove_file(source);
    let runs = || Command::new(&to).status().is_ok_and(|s| s.success());
    let there = made.is_ok_and(|s| s.success()) && runs();
    if !there {
        not_here("in part: no programs for 32 bits here");
    }
    there.then_some(to)
}

/// A script that has its program traced, so that it cannot be entered, if there is a tracer.
fn traced(program: &Path) -> Option<PathBuf> {
    if is_second() {
        // An exec below a tracer is refused there (docs/limits.md).
        return None;
    }
    if Command::new("strace").arg("-V").output().is_err() {
        not_here("in part: no strace here");
        return None;
    }
    let to = scratch("traced");
    let text = format!(
        "#!/bin/sh\nexec strace -qq -o /dev/null {}\n",
        program.display()
    );
    std::fs::write(&to, text).expect("script");
    std::fs::set_permissions(&to, std::fs::Permissions::from_mode(0o755)).expect("mode");
    Some(to)
}

struct Ended(Child);
impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts the programs so often in turns. How many ran outside.
fn start(times: usize, programs: &[PathBuf]) -> usize {
    let _beside = host::beside();
    let mut command = Command::new(deckle());
    command.args(["run", "--memory-max", "64M", "--"]);
    command
        .arg(compile("d19_spawns", &[]))
        .arg(times.to_string());
    command.args(programs).stdin(Stdio::piped());
    let piped = command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = Ended(piped.spawn().expect("spawn"));
    let mut from = child.0.stderr.take().expect("piped");
    let errors = std::thread::spawn(move || {
        let mut text = String::new();
        from.read_to_string(&mut text).expect("errors");
        text
    });
    let mut lines = BufReader::new(child.0.stdout.take().expect("piped")).lines();
    let mut line = || lines.next().expect("a line").expect("text");
    let ready = line();
    let words: Vec<&str> = ready.split(' ').collect();
    let ["ready", pid, "before", before, "after", after] = words[..] else {
        panic!("{ready}");
    };
    assert_eq!(before, after, "mappings are left");

    let environ = std::fs::read(format!("/proc/{pid}/environ")).expect("environ");
    let mut all = environ.split(|b| *b == 0);
    let name = all.find_map(|v| v.strip_prefix(b"DECKLE_GROUP="));
    let name = Name::new(name.expect("a group")).expect("name");
    let group = Group::attach(name).expect("page");
    // A service sees the end of its program a moment later.
    let since = Instant::now();
    let pids = || {
        group
            .processes()
            .map(|p| p.pid.to_string())
            .collect::<Vec<_>>()
    };
    while pids() != [pid] && since.elapsed() < Duration::from_secs(10) {
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(pids(), [pid], "who has a line");

    drop(child.0.stdin.take());
    assert_eq!(line(), "d19 right");
    let err = errors.join().expect("errors");
    err.matches("runs outside the limit").count()
}

/// What a program that cannot be managed had got at its start was never given back: 200 spawns left
/// 200 mappings in their parent, and took 200 lines of the group's page.
#[test]
fn d19_programs_that_cannot_be_managed_leave_nothing() {
    let simple = compile("d19_nothing", &["-static"]);
    let outside: Vec<PathBuf> = [set_user_id(), of_32_bits(), traced(&simple)]
        .into_iter()
        .flatten()
        .collect();
    let ran = start(201, &outside);
    for path in &outside {
        let _ = std::fs::remove_file(path);
    }
    // strace itself is managed; what it traces is not.
    // The second door is put into a set-user-id program by who may trace it.
    assert!(ran == 201 || is_second(), "{ran} ran outside");
}

/// The same of static programs, with which it was seen: now each is managed, as long as it runs.
#[test]
fn d19_static_programs_leave_nothing() {
    let program = compile("d19_nothing", &["-static"]);
    assert_eq!(start(200, &[program]), 0);
}
