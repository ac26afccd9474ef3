//! Running real programs under the real `deckle`, as a user does.

pub mod gauges;

use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::common::{Scratch, deckle};
use crate::skipped::{not_here, skipped};

/// What no run here takes on any machine.
const LONGEST: Duration = Duration::from_secs(150);

/// One heavy run at a time: there may be two CPUs only, and gauges count whole trees.
pub fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Path of `deckle`, beside which the library must lie.
pub fn deckle_path() -> &'static str {
    let exe = env!("CARGO_BIN_EXE_deckle");
    let library = Path::new(exe).with_file_name("libdeckle.so");
    assert!(
        library.is_file(),
        "{} is missing: run scripts/test, or build deckle-preload in the profile of the tests",
        library.display()
    );
    exe
}

/// Whether this is root; says so if it is not.
pub fn root(test: &str) -> bool {
    let is = deckle_sys::process::effective_user() == 0;
    if !is {
        skipped(format_args!("{test}: needs root"));
    }
    is
}

/// Whether a test can ask for a defect (`DECKLE_FAULT`); says so where it cannot.
pub fn has_defects(test: &str) -> bool {
    let has = cfg!(debug_assertions);
    if !has {
        not_here(format_args!("{test}: no release has defects to ask for"));
    }
    has
}

/// Whether `program` is in PATH; says so if it is not.
pub fn have(test: &str, program: &str) -> bool {
    let path = std::env::var("PATH").unwrap_or_default();
    let there = path
        .split(':')
        .any(|dir| Path::new(dir).join(program).exists());
    if !there {
        not_here(format_args!("{test}: no {program} here"));
    }
    there
}

/// What a run did.
pub struct Ran {
    /// Exit status; 128 + N after signal N of `deckle` itself.
    pub code: i32,
    pub out: String,
    pub err: String,
    /// What `--stats` wrote.
    pub stats: Value,
    pub wall: Duration,
}

impl Ran {
    /// Ended well, and one line of its output is `line`.
    #[track_caller]
    pub fn expect(&self, line: &str) {
        self.ended(0);
        let said = self.out.lines().any(|l| l == line);
        assert!(said, "no {line:?} in {}\n{}", self.out, self.err);
    }
    #[track_caller]
    pub fn ended(&self, code: i32) {
        assert_eq!(self.code, code, "out: {}\nerr: {}", self.out, self.err);
    }
    /// Killed at the limit with one report.
    #[track_caller]
    pub fn out_of_memory(&self) {
        self.ended(137);
        assert_eq!(
            self.err.matches("deckle: out of memory").count(),
            1,
            "{}",
            self.err
        );
        assert_eq!(self.stats["oom_kills"], 1);
    }
    pub fn peak(&self, what: &str) -> u64 {
        self.stats["peak"][what].as_u64().unwrap()
    }
    pub fn counter(&self, what: &str) -> u64 {
        self.stats["counters"][what].as_u64().unwrap()
    }
    /// Prints the figures of a run.
    pub fn tell(&self, what: &str) {
        eprintln!(
            "{what}: {:.1?}, status {}, peak {} MiB, swapped {} MiB in {} MiB, {} faults",
            self.wall,
            self.code,
            self.peak("memory_bytes") >> 20,
            self.peak("swapped_bytes") >> 20,
            self.peak("stored_bytes") >> 20,
            self.counter("pgfault"),
        );
    }
}

/// `deckle run OPTIONS -- PROGRAM`, to its end.
pub fn run(options: &str, program: &[&str]) -> Ran {
    run_with(options, program, |_| (), |_| ())
}

/// The same; `prepare` sees the command, `started` the pid of `deckle`.
pub fn run_with(
    options: &str,
    program: &[&str],
    prepare: impl FnOnce(&mut Command),
    started: impl FnOnce(u32),
) -> Ran {
    deckle_path();
    let s = Scratch::new(&format!("accept-{:?}", std::thread::current().id()));
    let file = |name: &str| s.0.join(name);
    let create = |name: &str| Stdio::from(std::fs::File::create(file(name)).unwrap());
    let mut c = deckle(&["run", "--stats", file("stats").to_str().unwrap()]);
    c.args(options.split_whitespace()).arg("--").args(program);
    c.stdout(create("out")).stderr(create("err"));
    prepare(&mut c);
    let from = Instant::now();
    let mut child = c.spawn().unwrap();
    started(child.id());
    let read =
        |name: &str| String::from_utf8_lossy(&std::fs::read(file(name)).unwrap()).into_owned();
    let status = loop {
        match child.try_wait().unwrap() {
            Some(status) => break status,
            None if from.elapsed() > LONGEST => {
                // The tree goes with it.
                let _ = child.kill();
                let _ = child.wait();
                panic!("{program:?} hangs\n{}\n{}", read("out"), read("err"));
            }
            None => std::thread::sleep(Duration::from_millis(2)),
        }
    };
    Ran {
        code: status
            .code()
            .unwrap_or_else(|| 128 + status.signal().unwrap()),
        out: read("out"),
        err: read("err"),
        stats: serde_json::from_str(&read("stats")).unwrap_or(Value::Null),
        wall: from.elapsed(),
    }
}

/// A workload of the lab under `deckle run`.
pub fn lab(options: &str, program: &str) -> Ran {
    let exe = deckle_path();
    let words = [exe, "lab", "program"];
    let all: Vec<&str> = words.into_iter().chain(program.split(' ')).collect();
    run(options, &all)
}

/// Compiles a C program of `tests/accept/c`.
pub fn compile(name: &str, options: &[&str]) -> String {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/accept/c/{name}.c"));
    let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let to = dir.join(format!("{name}{}-{}", options.join(""), std::process::id()));
    let mut c = Command::new("cc");
    c.args(["-O1", "-w", "-pthread", "-o"]).arg(&to).arg(source);
    let done = c.args(options).output().expect("a C compiler");
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{name}: {said}");
    to.to_str().unwrap().to_owned()
}
