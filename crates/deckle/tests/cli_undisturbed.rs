//! `deckle run` neither crashes nor hangs through what others do: who reads its standard error or
//! its files, who fills /dev/shm, which limits it has, and what killed ones have left.

use crate::accept::{deckle_path, root, turn};
use crate::common::*;
use deckle_group::proc::proc_stat;
use deckle_group::proto::Link;
use deckle_group::{Group, GroupCharge, LineId};
use deckle_mm::Charge;
use deckle_sys::file::{make_fifo, set_flags};
use deckle_sys::{Fd, pidfd};
use std::ffi::CString;
use std::fs::OpenOptions;
use std::io::{PipeReader, PipeWriter, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

/// Prints its pid, and runs until it is killed.
const SLEEPER: [&str; 4] = ["--", "sh", "-c", "echo $$; exec sleep 1000"];

/// What a pipe was filled with.
const FILLING: &[u8] = &[b'x'; 4096];

/// A pipe that is full: its two ends.
pub fn full_pipe() -> (PipeReader, PipeWriter) {
    let (unread, full) = std::io::pipe().unwrap();
    set_flags(&full, libc::O_NONBLOCK).unwrap();
    while (&full).write(FILLING).is_ok() {}
    set_flags(&full, 0).unwrap();
    (unread, full)
}

/// `deckle run ARGS` over a sleeping program, with a pipe for standard error that is full; its
/// other end, the program, and its group.
fn start_full(args: &[&str]) -> (PipeReader, Running, u32, Group) {
    let (unread, full) = full_pipe();
    let mut c = deckle(&[&["run", "--unmanaged"], args, &SLEEPER].concat());
    c.stdout(Stdio::piped()).stderr(full);
    let mut run = Running(c.spawn().unwrap());
    drop(c);
    let program = run.wait_for("\n").trim().parse().unwrap();
    let group = run.group();
    (unread, run, program, group)
}

/// A connection of a service of the program.
fn announce(group: &Group, program: u32, line: LineId) -> Link {
    let link = Link::connect(group.name().as_bytes()).unwrap();
    let [me, program_fd] = [std::process::id(), program].map(|pid| pidfd::open(pid).unwrap());
    // Stands for the userfaultfd.
    let any = Fd::open(c"/dev/null", libc::O_RDONLY, 0).unwrap();
    let fds = [&any, &me, &program_fd].map(Fd::raw);
    link.hello((program, std::process::id()), line, &fds)
        .unwrap();
    link
}

/// Kills a `deckle run` that goes on for too long while the test waits for something of it: until
/// the value is dropped.
fn watchdog(front: u32) -> Sender<()> {
    let (watched, over) = channel();
    std::thread::spawn(move || {
        if over.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout) {
            eprintln!("deckle run {front} hangs: killed");
            let all = std::fs::read_dir("/proc").unwrap().flatten();
            all.filter_map(|e| e.file_name().to_str()?.parse::<u32>().ok())
                .filter(|pid| proc_stat(*pid).is_ok_and(|s| s.parent == front))
                .chain([front])
                .for_each(|pid| kill(pid, libc::SIGKILL));
        }
    });
    watched
}

fn end_of(run: &mut Running) -> ExitStatus {
    let mut status = None;
    until("the end of deckle run", || {
        status = run.0.try_wait().unwrap();
        status.is_some()
    });
    status.unwrap()
}

#[test]
fn a_standard_error_that_is_not_read_delays_neither_a_kill_nor_the_end() {
    let (_unread, mut run, program, group) = start_full(&["--memory-max", "64M"]);
    let line = group.join(program, 0).unwrap();
    GroupCharge::new(group, line).try_charge(16_350).unwrap();
    let link = announce(&group, program, line);
    let text = b"deckle: out of memory: the report\n";
    link.out_of_memory(line, 0, text).unwrap();
    assert_eq!(end_of(&mut run).code(), Some(137));
}

#[test]
fn what_a_slow_reader_of_standard_error_does_not_get_is_counted() {
    const LINES: u64 = 64 * 128;
    let (mut unread, mut run, program, group) = start_full(&["--quiet"]);
    let _watched = watchdog(run.pid());
    let link = Link::connect(group.name().as_bytes()).unwrap();
    let lines: Vec<String> = (0..LINES).map(|n| format!("{n:063}\n")).collect();
    for text in lines.chunks(128) {
        link.say(text.concat().as_bytes()).unwrap();
    }
    // The answer comes after what was said before.
    link.spare().expect("deckle run answers");
    let reader = std::thread::spawn(move || {
        let mut text = String::new();
        unread.read_to_string(&mut text).unwrap();
        text
    });
    kill(program, libc::SIGTERM);
    assert_eq!(end_of(&mut run).code(), Some(143));
    let text = reader.join().unwrap();
    let text = text.trim_start_matches('x');
    let (mut next, mut left_out) = (0, 0);
    for line in text.lines() {
        if let Ok(n) = line.parse::<u64>() {
            assert_eq!(n, next, "in their order, and what is missing is told");
            next += 1;
            continue;
        }
        let count = line.strip_prefix("deckle: ").unwrap();
        let (count, rest) = count.split_once(' ').unwrap();
        assert_eq!(rest, "lines left out: standard error was not read");
        let count: u64 = count.parse().unwrap();
        (next, left_out) = (next + count, left_out + count);
    }
    assert_eq!(next, LINES);
    assert!(left_out > 0 && left_out < LINES, "{left_out}");
}

/// A pipe with a name. At the end it has a reader for a moment, whatever waits for one.
struct Fifo(String);

impl Fifo {
    fn new(s: &Scratch) -> Fifo {
        let path = s.path("fifo");
        let name = std::ffi::CString::new(path.clone()).unwrap();
        make_fifo(&name, 0o600).unwrap();
        Fifo(path)
    }
}

impl Drop for Fifo {
    fn drop(&mut self) {
        let mut both = OpenOptions::new();
        both.read(true).write(true).custom_flags(libc::O_NONBLOCK);
        let _open = both.open(&self.0);
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn a_pipe_for_statistics_that_is_not_read_delays_neither_the_start_nor_the_end() {
    for option in ["--stats", "--metrics"] {
        let s = Scratch::new("fifo");
        let fifo = Fifo::new(&s);
        let args = ["run", "--unmanaged", "--quiet", option, &fifo.0, "--"];
        let mut run = Running::start(&[&args[..], &["echo", "on"]].concat());
        assert_eq!(end_of(&mut run).code(), Some(125));
        let (_, out, err) = run.end();
        assert_eq!(out, "on\n");
        let lost = "takes no data for 5 s: its last state is lost";
        assert_eq!(err, format!("deckle: {option}: {}: {lost}\n", fifo.0));
    }
}

#[test]
fn a_pipe_that_gets_its_reader_late_is_written() {
    let s = Scratch::new("late");
    let fifo = Fifo::new(&s);
    let args = ["run", "--unmanaged", "--quiet", "--stats", &fifo.0];
    let mut run = Running::start(&[&args[..], &SLEEPER].concat());
    let _watched = watchdog(run.pid());
    let program: u32 = run.wait_for("\n").trim().parse().unwrap();
    let path = fifo.0.clone();
    let reader = std::thread::spawn(move || std::fs::read_to_string(path).unwrap());
    kill(program, libc::SIGTERM);
    let (code, _, err) = run.end();
    assert_eq!((code, err.as_str()), (143, ""));
    let stats: serde_json::Value = serde_json::from_str(&reader.join().unwrap()).unwrap();
    assert_eq!(stats["exit_status"], 143);
}

#[test]
fn a_pipe_is_no_record() {
    let s = Scratch::new("record-fifo");
    let fifo = Fifo::new(&s);
    let args = ["run", "--unmanaged", "--record", &fifo.0, "--", "true"];
    let mut run = Running::start(&args);
    assert_eq!(end_of(&mut run).code(), Some(125));
    let (_, _, err) = run.end();
    assert!(err.contains("not a regular file of yours"), "{err}");
}

/// Gives the command a /dev/shm of its own, of 2 MiB.
pub fn with_small_shm(c: &mut Command) {
    let names = ["none", "/", "/dev/shm", "tmpfs", "size=2m"].map(|s| CString::new(s).unwrap());
    // SAFETY: system calls on strings that were made before; nothing is allocated.
    unsafe {
        c.pre_exec(move || {
            let [none, root, shm, tmpfs, size] = names.each_ref().map(|s| s.as_ptr());
            checked(libc::unshare(libc::CLONE_NEWNS))?;
            let (alone, null) = (libc::MS_REC | libc::MS_PRIVATE, std::ptr::null());
            checked(libc::mount(none, root, null, alone, null.cast()))?;
            checked(libc::mount(none, shm, tmpfs, 0, size.cast()))
        });
    }
}

/// Runs a script of the shell so; `$D` is deckle.
fn in_small_shm(test: &str, script: &str) -> Option<(i32, String, String)> {
    if !root(test) {
        return None;
    }
    let fill = "fill() { head -c 4M /dev/zero > /dev/shm/filler 2> /dev/null; :; }";
    let script = format!("{fill}\n{script}");
    let mut c = Command::new("timeout");
    c.args(["--signal=KILL", "60", "sh", "-c"]);
    c.arg(script)
        .env("D", deckle_path())
        .env_remove("LD_PRELOAD");
    with_small_shm(&mut c);
    Some(finish(c.output().unwrap()))
}

#[test]
fn a_full_dev_shm_costs_no_tree_that_runs() {
    let _turn = turn();
    let name = "a_full_dev_shm_costs_no_tree_that_runs";
    let walk = "$D lab program walk 4 uniform 1 --seconds 1 > /dev/null";
    let many = format!("for i in 1 2 3 4 5 6 7 8; do {walk} & done; wait");
    let fill = "head -c 4M /dev/zero > /dev/shm/filler 2> /dev/null";
    let script = format!("$D run --memory-max 256M --quiet -- sh -c '{fill}; {many}; echo on'");
    if let Some(done) = in_small_shm(name, &script) {
        assert_eq!(done, (0, "on\n".into(), String::new()));
    }
}

#[test]
fn in_a_full_dev_shm_no_tree_begins() {
    let name = "in_a_full_dev_shm_no_tree_begins";
    let script = "fill; $D run --memory-max 256M -- echo on; echo $?; ls -A /dev/shm";
    if let Some((_, out, err)) = in_small_shm(name, script) {
        assert_eq!(out, "125\nfiller\n", "{err}");
        assert!(err.contains("/dev/shm is full: free 1 MiB there"), "{err}");
        assert_eq!(err.lines().count(), 1, "{err}");
    }
}

/// The page of a run, and its socket.
fn names(run: &Running) -> [PathBuf; 2] {
    let name = run.group().name();
    ["deckle-", ".deckle-"].map(|head| Path::new("/dev/shm").join(head.to_owned() + name.as_str()))
}

/// Starts a run and kills all of it at once; the names that it has left.
fn killed_whole() -> [PathBuf; 2] {
    let mut run = Running::start(&[&["run", "--unmanaged"], &SLEEPER[..]].concat());
    let program: u32 = run.wait_for("\n").trim().parse().unwrap();
    let (names, supervisor) = (names(&run), parent(program));
    // It does nothing about the end of the front any more.
    kill(supervisor, libc::SIGSTOP);
    until("the supervisor is stopped", || state(supervisor) == 'T');
    run.signal(libc::SIGKILL);
    kill(supervisor, libc::SIGKILL);
    assert_eq!(run.0.wait().unwrap().signal(), Some(libc::SIGKILL));
    // Its last thread closes the socket.
    until("the supervisor is gone", || {
        let tasks = std::fs::read_dir(format!("/proc/{supervisor}/task"));
        state(supervisor) == '-' || state(supervisor) == 'Z' && tasks.map_or(0, Iterator::count) < 2
    });
    // What the guard would remove is what this is about.
    std::mem::forget(run);
    names
}

#[test]
fn what_runs_that_were_killed_have_left_is_removed_by_the_next() {
    let mut alive = Running::start(&[&["run", "--unmanaged"], &SLEEPER[..]].concat());
    let program: u32 = alive.wait_for("\n").trim().parse().unwrap();
    let kept = names(&alive);
    for args in [
        &["stat"][..],
        &["run", "--unmanaged", "--quiet", "--", "true"],
    ] {
        let whole = killed_whole();
        let [page, socket] = killed_whole();
        // Of this only the socket is left.
        let _ = std::fs::remove_file(page);
        assert_eq!(output(args).0, 0);
        for left in whole.iter().chain([&socket]) {
            assert!(!left.exists(), "{args:?} leaves {}", left.display());
        }
        for name in &kept {
            assert!(name.exists(), "{args:?} takes {}", name.display());
        }
    }
    kill(program, libc::SIGTERM);
    assert_eq!(alive.end().0, 143);
}

/// `deckle ARGS` after `ulimit LIMIT`, in blocks of 512 bytes (other shells count KiB).
fn with_small_files(limit: &str, args: &[&str]) -> (i32, String, String) {
    let mut c = Command::new("sh");
    let script = format!("ulimit {limit}; exec timeout --signal=KILL 60 \"$0\" \"$@\"");
    c.args(["-c", &script, deckle_path()]).args(args);
    finish(c.env_remove("LD_PRELOAD").output().unwrap())
}

#[test]
fn a_file_that_gets_too_large_is_an_error_and_the_program_goes_on() {
    let s = Scratch::new("fsize");
    let (stats, record) = (s.path("stats"), s.path("record"));
    let args = ["run", "--unmanaged", "--quiet"];
    let files = ["--stats", &stats, "--record", &record, "--", "sh", "-c"];
    let script = "sleep 5; grep SigIgn /proc/self/status; ulimit -S -f; echo on; exit 7";
    let (code, out, err) = with_small_files("-S -f 2", &[&args[..], &files, &[script]].concat());
    assert_eq!(code, 7, "{err}");
    let [ignored, limit, on] = *out.lines().collect::<Vec<_>>() else {
        panic!("{out}")
    };
    let ignored = ignored.split_whitespace().nth(1).unwrap();
    let ignored = u64::from_str_radix(ignored, 16).unwrap();
    assert_eq!(ignored >> (libc::SIGXFSZ - 1) & 1, 0, "the program's own");
    assert_eq!((limit, on), ("2", "on"), "{out}");
    let lines: Vec<&str> = err.lines().collect();
    assert_eq!(lines.len(), 2, "{err}");
    for (line, option) in lines.iter().zip(["--record", "--stats"]) {
        let right = line.contains(option) && line.contains("file too large");
        assert!(right, "{line}");
    }
}

#[test]
fn a_file_for_swapped_pages_that_gets_too_large_is_an_error_and_the_program_goes_on() {
    let _turn = turn();
    let s = Scratch::new("fsize-swap");
    let swap = format!("zram:lz4,file:{}", s.0.display());
    let args = [
        "run",
        "--quiet",
        "--memory-max",
        "32M",
        "--swap",
        &swap,
        "--",
    ];
    let walk = "lab program walk 48 uniform 1 --seconds 1";
    let walk: Vec<&str> = [deckle_path()].into_iter().chain(walk.split(' ')).collect();
    let (code, out, err) = with_small_files("-S -f 10", &[&args[..], &walk].concat());
    assert_eq!(code, 0, "{out}\n{err}");
    let said = "its file for swapped pages takes no more, they stay in memory";
    assert_eq!(err.matches(said).count(), 1, "{err}");
    assert_eq!(err.lines().count(), 1, "{err}");
}

#[test]
fn a_hard_limit_that_leaves_no_room_for_the_page_is_told_at_the_start() {
    let (code, out, err) = with_small_files("-f 10", &["run", "--unmanaged", "--", "echo", "on"]);
    assert_eq!((code, out.as_str()), (125, ""), "{err}");
    assert!(err.contains("raise it (ulimit -H -f)"), "{err}");
    assert_eq!(err.lines().count(), 1, "{err}");
}
