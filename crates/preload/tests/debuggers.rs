//! Defects under debuggers that attach to a managed program from outside, as people do to one that
//! runs already.

use crate::common::host::{Beside, beside};
use crate::common::{compile, deckle};
use crate::skipped::not_here;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdout, Command, Stdio};

/// A running program that waits for debuggers. Killed if the test ends early.
struct Debugged {
    child: Child,
    out: BufReader<ChildStdout>,
    pid: i32,
    /// Where its memory is, of which the first 16 MiB are away.
    memory: u64,
    _beside: Beside,
}

impl Debugged {
    fn start() -> Debugged {
        let _beside = beside();
        let program = compile("d15_debugged", &[]);
        let mut command = Command::new(deckle());
        command
            .args(["run", "--memory-max", "32M", "--"])
            .arg(program);
        let piped = command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = piped.spawn().expect("spawn");
        let mut out = BufReader::new(child.stdout.take().expect("piped"));
        let mut line = String::new();
        out.read_line(&mut line).expect("a line");
        let words: Vec<&str> = line.split_whitespace().collect();
        let ["ready", pid, memory] = words[..] else {
            panic!("{line}");
        };
        let memory = u64::from_str_radix(memory.trim_start_matches("0x"), 16);
        let (pid, memory) = (pid.parse().expect("number"), memory.expect("address"));
        Debugged {
            child,
            out,
            pid,
            memory,
            _beside,
        }
    }

    /// Runs a tool on it, for a minute at most; all that it says.
    fn with(&self, tool: &str, args: &[&str]) -> String {
        let mut path = deckle().parent().expect("directory").as_os_str().to_owned();
        path.push(":/usr/bin:/bin");
        let mut command = Command::new("timeout");
        command.args(["-k", "5", "60", tool]).args(args);
        let done = command.env("PATH", path).output().expect("a tool");
        let said = [done.stdout, done.stderr].concat();
        String::from_utf8_lossy(&said).into_owned()
    }

    /// Has it end; it has met no wrong byte.
    fn end(mut self) {
        // To the program, whose end we have not been told.
        deckle_sys::signal::send(self.pid, libc::SIGUSR1).expect("it is there");
        let (mut out, mut err) = (String::new(), String::new());
        self.out.read_to_string(&mut out).expect("output");
        let from = self.child.stderr.as_mut().expect("piped");
        from.read_to_string(&mut err).expect("errors");
        assert!(out.ends_with("d15 right\n"), "{out}\n{err}");
        assert!(err.contains("programs unmanaged 0"), "{err}");
    }
}

impl Drop for Debugged {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn has(tool: &str) -> bool {
    let there = Command::new(tool).arg("--version").output().is_ok();
    if !there {
        not_here(format_args!("no {tool} here"));
    }
    there
}

/// gdb with these commands, attached to a program.
fn gdb(program: &Debugged, commands: &[&str]) -> String {
    let pid = program.pid.to_string();
    let mut args = vec![
        "-nx",
        "-batch",
        "-iex",
        "set debuginfod enabled off",
        "-p",
        &pid,
    ];
    let quiet = "handle SIGSYS SIGUSR1 nostop noprint pass";
    let first = ["set confirm off", "set breakpoint pending off", quiet];
    for command in first.iter().chain(commands).chain(&["detach"]) {
        args.extend(["-ex", command]);
    }
    program.with("gdb", &args)
}

/// As `word` of defects.h, for the first page of its memory.
fn word(seed: u64, w: u64) -> u64 {
    let x = (seed << 48) + w + 1;
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (x ^ (x >> 31)) | 1
}

/// What was evicted a debugger could not read, and had no way to bring it back but to have the
/// program call a function.
#[test]
fn d15_a_debugger_reads_what_was_evicted() {
    if !has("gdb") {
        return;
    }
    let program = Debugged::start();
    let at = format!("{:#x}", program.memory);
    // gdb's own command, as the help has it.
    let help = program.with("deckle", &["fetch", "--help"]);
    let lines = help.lines().map(str::trim);
    let define = lines
        .skip_while(|l| *l != "define fetch")
        .take_while(|l| *l != "end");
    let script: String = define
        .chain(["end"])
        .map(|line| format!("{line}\n"))
        .collect();
    let file = format!("{}/d15-{}.gdb", env!("CARGO_TARGET_TMPDIR"), program.pid);
    std::fs::write(&file, script).expect("file");

    let said = gdb(
        &program,
        &[
            &format!("source {file}"),
            // Not in the middle of a fork: there nobody brings anything back.
            "break nanosleep",
            "continue",
            &format!("x/2gx {at}"),
            &format!("fetch {at} 16"),
            &format!("x/2gx {at}"),
            &format!("set {{long}}({at}+8) = {{long}}({at}+8)"),
            // More than there is room for: all of it, in half as much.
            &format!("fetch {at} 48*1024*1024"),
            &format!("shell deckle fetch {} {at} 4M", program.pid),
            &format!("find /g {at}, +4*1024*1024, {:#x}", word(15, 1)),
        ],
    );
    let _ = std::fs::remove_file(file);
    assert!(
        said.contains(&format!("Cannot access memory at address {at}")),
        "{said}"
    );
    assert!(said.contains("4096 bytes at"), "{said}");
    let words = [0, 1].map(|w| format!("{:#018x}", word(15, w)));
    let found = said.lines().find(|l| l.contains(&words[0]));
    assert!(found.is_some_and(|l| l.ends_with(&words[1])), "{said}");
    assert!(said.contains("bytes were evicted again at once"), "{said}");
    assert!(said.contains("4194304 bytes at"), "{said}");
    assert!(said.contains("1 pattern found"), "{said}");
    program.end();
}

/// A breakpoint in a function of libc was met by the service, which ran libc's text untraced: the
/// program was killed.
#[test]
fn d16_breakpoints_in_functions_of_libc_stop_the_program_alone() {
    if !has("gdb") {
        return;
    }
    let program = Debugged::start();
    for function in ["read", "write", "malloc", "fork"] {
        let stop = format!("break {function}");
        let said = gdb(
            &program,
            &[&stop, "continue 5", "info breakpoints", "delete"],
        );
        assert!(said.contains("already hit"), "{function}: {said}");
        assert!(
            !said.contains("SIGTRAP") && !said.contains("exited"),
            "{said}"
        );
    }
    program.end();
}

/// The same for who traces all calls of the program and its children.
#[test]
fn d15_strace_follows_a_program_that_runs() {
    if !has("strace") {
        return;
    }
    let program = Debugged::start();
    let (pid, mut command) = (program.pid.to_string(), Command::new("strace"));
    let file = format!("{}/d15-{pid}.strace", env!("CARGO_TARGET_TMPDIR"));
    command.args(["-f", "-p", &pid, "-o", &file]);
    let mut strace = command.stderr(Stdio::null()).spawn().expect("strace");
    let text = || std::fs::read_to_string(&file).unwrap_or_default();
    let children = |text: &str| text.matches("exit_group(0)").count();
    let mut turns = 0;
    while children(&text()) < 5 && turns < 600 {
        std::thread::sleep(std::time::Duration::from_millis(100));
        turns += 1;
    }
    program.end();
    strace.wait().expect("strace ends with the program");
    let traced = text();
    let _ = std::fs::remove_file(&file);
    assert!(children(&traced) >= 5, "{turns} turns");
    assert!(!traced.contains("SIGKILL") && !traced.contains("SIGSEGV"));
}
