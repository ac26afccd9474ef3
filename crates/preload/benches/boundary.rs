//! What deckle's boundary costs a program: starts, forks, execs, calls of the mmap family, and
//! calls that are none of deckle's business.
//!
//! `cargo bench -p deckle-preload --bench boundary -- [FILTER] [--rounds N] [--format json]`, after
//! `scripts/build`. FILTER is a part of a row's name. Each row is measured by a process of its own,
//! natively and under `deckle run`, which alternate; medians of the rounds, and of their
//! differences and ratios.

mod common;

use std::ffi::c_void;
use std::hint::black_box;
use std::process::{Command, Stdio};
use std::time::Instant;

use common::{built, made, make, median, source};

const ROUNDS: usize = 8;
const LIMIT: &str = "256M";

/// How a row is measured.
#[derive(Clone, Copy)]
enum By {
    /// A program of ours with these arguments is started and ends.
    Start(&'static str, &'static [&'static str]),
    /// This program, run again, measures it by itself and says nanoseconds.
    Own(fn()),
    /// The same by the static program.
    Static(&'static str),
}

struct Row {
    name: &'static str,
    by: By,
    /// What it may cost more, in nanoseconds.
    aim: Option<(f64, &'static str)>,
}

const fn row(name: &'static str, by: By) -> Row {
    Row {
        name,
        by,
        aim: None,
    }
}

const fn aimed(name: &'static str, by: By, more: f64, words: &'static str) -> Row {
    Row {
        name,
        by,
        aim: Some((more, words)),
    }
}

const ROWS: &[Row] = &[
    aimed(
        "start, dynamic",
        By::Start("small", &[]),
        0.3e6,
        "+0.3 ms (preload)",
    ),
    row("start, dynamic, 2 MiB", By::Start("small", &["grow"])),
    aimed(
        "start, static",
        By::Start("static", &[]),
        1e6,
        "+1 ms (injection)",
    ),
    aimed("start, Go", By::Start("go", &[]), 1e6, "+1 ms (injection)"),
    row("chain of 20 execs", By::Start("small", &["20"])),
    row("fork of 24 MiB", By::Own(fork)),
    row("mmap + munmap, 4 KiB", By::Own(|| map(4 << 10))),
    row("mmap + munmap, 64 KiB", By::Own(|| map(64 << 10))),
    row("mmap + munmap, 2 MiB", By::Own(|| map(2 << 20))),
    row("brk, 64 KiB and back", By::Own(brk)),
    row("thread", By::Own(thread)),
    row("thread, of Rust's", By::Own(rust_thread)),
    aimed(
        "getppid by syscall()",
        By::Own(call),
        0.0,
        "nothing (preload)",
    ),
    aimed(
        "getppid, static",
        By::Static("call"),
        60.0,
        "+60 ns (injection)",
    ),
];

/// Samples of each process.
const SAMPLES: usize = 50;

/// Says for each sample how long one of `count` took.
fn sample(count: u32, mut work: impl FnMut()) {
    work();
    for _ in 0..SAMPLES {
        let start = Instant::now();
        for _ in 0..count {
            work();
        }
        println!("{}", start.elapsed().as_nanos() as f64 / f64::from(count));
    }
}

/// More than a small process has, so that this one is managed if anything is.
fn grow(bytes: usize) -> Vec<u8> {
    let mut memory = vec![0u8; bytes];
    memory.chunks_mut(64).enumerate().for_each(|(i, line)| {
        line[0] = i as u8 | 1;
    });
    black_box(memory)
}

fn fork() {
    let memory = grow(24 << 20);
    for _ in 0..SAMPLES {
        let start = Instant::now();
        // SAFETY: one thread; the child ends at once.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            // SAFETY: ends the child.
            unsafe { libc::_exit(0) };
        }
        println!("{}", start.elapsed().as_nanos());
        assert!(pid > 0, "fork");
        // SAFETY: our own child.
        unsafe { libc::waitpid(pid, std::ptr::null_mut(), 0) };
    }
    black_box(memory);
}

fn map(bytes: usize) {
    let memory = grow(4 << 20);
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    sample(100, || {
        // SAFETY: a new mapping, which goes at once.
        unsafe {
            let p = libc::mmap(std::ptr::null_mut(), bytes, prot, flags, -1, 0);
            assert_ne!(p, libc::MAP_FAILED);
            libc::munmap(p, bytes);
        }
    });
    black_box(memory);
}

fn brk() {
    let memory = grow(4 << 20);
    let bytes = 64 << 10;
    sample(50, || {
        // SAFETY: nobody else moves the end of the heap: this is the only thread, and it
        // allocates nothing meanwhile.
        unsafe {
            let p = libc::sbrk(bytes).cast::<u8>();
            assert_ne!(p as isize, -1);
            (0..bytes as usize)
                .step_by(4096)
                .for_each(|i| p.add(i).write_volatile(1));
            libc::sbrk(-bytes);
        }
    });
    black_box(memory);
}

extern "C" fn idle(argument: *mut c_void) -> *mut c_void {
    argument
}

/// As C makes them: Rust's map a signal stack each, which is another row.
fn thread() {
    let memory = grow(4 << 20);
    sample(20, || {
        let (mut thread, none) = (0, std::ptr::null_mut());
        // SAFETY: a thread that does nothing, and is waited for.
        let done = unsafe {
            let made = libc::pthread_create(&mut thread, std::ptr::null(), idle, none);
            (made, libc::pthread_join(thread, std::ptr::null_mut()))
        };
        assert_eq!(done, (0, 0));
    });
    black_box(memory);
}

fn rust_thread() {
    let memory = grow(4 << 20);
    sample(20, || {
        std::thread::spawn(|| black_box(1))
            .join()
            .expect("a thread");
    });
    black_box(memory);
}

fn call() {
    let memory = grow(4 << 20);
    sample(1000, || {
        // SAFETY: asks for a number.
        unsafe { libc::syscall(libc::SYS_getppid) };
    });
    black_box(memory);
}

/// Starts a program so often and says how long each took, to its end.
fn starts(program: &str, args: &[&str]) {
    for n in 0..SAMPLES + 3 {
        let mut command = Command::new(program);
        command.args(args).stdin(Stdio::null());
        let start = Instant::now();
        let status = command.status().expect("a program of ours");
        if n >= 3 {
            println!("{}", start.elapsed().as_nanos());
        }
        assert!(status.success());
    }
}

/// Compiles the programs that are started. What there is no compiler for is left out.
fn make_all() {
    let path = |name: &str| made(name).to_string_lossy().into_owned();
    let from = |name: &str| source(name).to_string_lossy().into_owned();
    let (small, fixed, go) = (path("small"), path("static"), path("go"));
    let _ = std::fs::remove_file(&fixed);
    let _ = std::fs::remove_file(&go);
    assert!(make("cc", &["-O1", "-o", &small, &from("small.c")]), "cc");
    let target = "x86_64-unknown-linux-musl";
    let source = from("static.rs");
    make("rustc", &["-O", "--target", target, "-o", &fixed, &source]);
    make("go", &["build", "-o", &go, &from("small.go")]);
}

/// What one process measures of a row, in nanoseconds.
fn measured(row: usize, managed: bool) -> Vec<f64> {
    let exe = std::env::current_exe().expect("own path");
    let mut command = match managed {
        true => Command::new(built("deckle")),
        false => Command::new(&exe),
    };
    if managed {
        command.args(["run", "--memory-max", LIMIT, "--"]).arg(&exe);
    }
    command.args(["row", &row.to_string()]);
    let out = command.stderr(Stdio::piped()).output().expect("a process");
    assert!(
        out.status.success(),
        "{}: {}",
        ROWS[row].name,
        String::from_utf8_lossy(&out.stderr)
    );
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    let numbers = text.lines().map(|l| l.parse().expect("nanoseconds"));
    numbers.collect()
}

/// In a process that measures.
fn measure(row: usize) {
    let path = |name: &str| made(name).to_string_lossy().into_owned();
    match ROWS[row].by {
        By::Start(program, args) => starts(&path(program), args),
        By::Own(work) => work(),
        By::Static(what) => {
            let status = Command::new(path("static")).arg(what).status();
            assert!(status.expect("the static program").success());
        }
    }
}

fn time(ns: f64) -> String {
    match ns.abs() {
        t if t >= 1e6 => format!("{:.2} ms", ns / 1e6),
        t if t >= 1e3 => format!("{:.1} us", ns / 1e3),
        _ => format!("{ns:.0} ns"),
    }
}

fn is_there(row: &Row) -> bool {
    match row.by {
        By::Start(program, _) => made(program).exists(),
        By::Own(_) => true,
        By::Static(_) => made("static").exists(),
    }
}

fn usage() -> ! {
    eprintln!(
        "usage: cargo bench -p deckle-preload --bench boundary -- [FILTER] [--rounds N] \
         [--format json]"
    );
    std::process::exit(2)
}

fn main() {
    let (mut filter, mut rounds, mut json) = (String::new(), ROUNDS, false);
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            // Cargo's own.
            "--bench" => {}
            "row" => return measure(args.next().and_then(|n| n.parse().ok()).expect("a row")),
            "--rounds" => match args.next().and_then(|n| n.parse().ok()) {
                Some(n) if n > 0 => rounds = n,
                _ => usage(),
            },
            "--format" => match args.next().as_deref() {
                Some("json") => json = true,
                Some("text") => json = false,
                _ => usage(),
            },
            word if word.starts_with('-') => usage(),
            word => filter = word.into(),
        }
    }
    make_all();
    built("libdeckle.so");
    built("libdeckle.image");
    let mut lines = Vec::new();
    if !json {
        println!(
            "medians of {rounds} rounds that alternate, {SAMPLES} samples each; under deckle run \
             --memory-max {LIMIT}\n\n{:<24} {:>10} {:>10} {:>10} {:>6}  aim",
            "", "native", "deckle", "more", "ratio"
        );
    }
    for (at, row) in ROWS.iter().enumerate() {
        if !row.name.contains(&filter) {
            continue;
        }
        if !is_there(row) {
            eprintln!("{}: left out, there is no compiler for it", row.name);
            continue;
        }
        let pairs: Vec<(f64, f64)> = (0..rounds)
            .map(|_| (median(measured(at, false)), median(measured(at, true))))
            .collect();
        let over = |f: fn(&(f64, f64)) -> f64| median(pairs.iter().map(f).collect());
        let (native, managed) = (over(|p| p.0), over(|p| p.1));
        // Of each round, since what else the machine does changes from one to the next.
        let (more, ratio) = (over(|p| p.1 - p.0), over(|p| p.1 / p.0));
        if json {
            let aim = row.aim.map_or("null".into(), |(ns, _)| format!("{ns}"));
            lines.push(format!(
                "  {{\"name\": \"{}\", \"native_ns\": {native:.1}, \"deckle_ns\": {managed:.1}, \
                 \"more_ns\": {more:.1}, \"ratio\": {ratio:.3}, \"aim_more_ns\": {aim}}}",
                row.name
            ));
            continue;
        }
        println!(
            "{:<24} {:>10} {:>10} {:>10} {ratio:>6.2}  {}",
            row.name,
            time(native),
            time(managed),
            time(more),
            row.aim.map_or("", |(_, words)| words)
        );
    }
    if json {
        println!("[\n{}\n]", lines.join(",\n"));
    }
}
