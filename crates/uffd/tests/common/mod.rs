//! Harness of the facts: every fact runs in a process of its own.
//!
//! A fact may hang, be killed by a signal or turn memory into zeros, and some facts fork. So a
//! test starts its own binary again for just that one test; the child process does the work under
//! an alarm, the parent collects its status and kills it by pid should even the alarm not help.

pub mod kpage;
pub mod mem;
pub mod pair;
pub mod process;
pub mod service;

use std::any::type_name;
use std::fs::File;
use std::io::{Read, Seek, Write};
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};
use std::sync::{PoisonError, RwLock, RwLockWriteGuard};
use std::time::{Duration, Instant};

use crate::skipped::skipped;
use deckle_uffd::{Features, Uffd, Via};

const CASE: &str = "DECKLE_UFFD_FACT";
const SKIPPED: i32 = 77;
/// Not 0: a run that never came to the case must not count as a success.
const PASSED: i32 = 42;
/// Seconds until a case is taken for hung. No case needs more than a fraction of one.
const PATIENCE: u32 = 30;

/// The test's name, as the test program knows it, of a closure in its function.
fn name_of<F>() -> &'static str {
    let path = type_name::<F>().strip_suffix("::{{closure}}");
    let path = path.expect("closure in a test function");
    path.split_once("::").expect("a crate").1
}

/// Runs `body`, a closure written in the test function itself, in a process of its own.
pub fn fact<F: FnOnce()>(body: F) {
    let _beside = SIZES.read().unwrap_or_else(PoisonError::into_inner);
    in_process(body);
}

/// Read by facts, written by who sets the sizes of folios or counts them.
static SIZES: RwLock<()> = RwLock::new(());

/// No other fact goes on meanwhile.
pub struct Alone {
    _guard: RwLockWriteGuard<'static, ()>,
}

pub fn alone() -> Alone {
    let _guard = SIZES.write().unwrap_or_else(PoisonError::into_inner);
    Alone { _guard }
}

impl Alone {
    /// As [`fact`].
    pub fn fact<F: FnOnce()>(&self, body: F) {
        in_process(body);
    }
}

fn in_process<F: FnOnce()>(body: F) {
    let name = name_of::<F>();
    if std::env::var(CASE).is_ok_and(|case| case == name) {
        // SAFETY: alarm has no preconditions; its signal ends the process.
        unsafe { libc::alarm(PATIENCE) };
        let ok = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)).is_ok();
        std::process::exit(if ok { PASSED } else { 101 });
    }
    let mut log = log_file();
    let mut child = Command::new(std::env::current_exe().expect("own path"))
        .args([name, "--exact", "--nocapture"])
        .env(CASE, name)
        .stdin(Stdio::null())
        .stdout(log.try_clone().expect("log"))
        .stderr(log.try_clone().expect("log"))
        .spawn()
        .expect("start the case");
    let deadline = Instant::now() + Duration::from_secs(u64::from(PATIENCE) + 5);
    let status = loop {
        if let Some(status) = child.try_wait().expect("status") {
            break Some(status);
        }
        if Instant::now() > deadline {
            child.kill().expect("kill the case");
            child.wait().expect("status");
            break None;
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    let mut text = String::new();
    log.rewind().expect("log");
    log.read_to_string(&mut text).expect("log");
    match status.map(|s| (s.code(), s)) {
        Some((Some(PASSED), _)) => {}
        // Written to the descriptor itself: the test harness shows it even when the test passes.
        Some((Some(SKIPPED), _)) => {
            let line = text
                .lines()
                .find(|l| l.starts_with("SKIPPED"))
                .unwrap_or("SKIPPED");
            let _ = writeln!(std::io::stderr(), "{line}");
        }
        Some((_, status)) => panic!("{name}: {status}\n{text}"),
        None => panic!("{name}: hung\n{text}"),
    }
}

/// Whether this process runs a case, rather than the test that starts it.
pub fn in_case() -> bool {
    std::env::var_os(CASE).is_some()
}

fn log_file() -> File {
    let file = deckle_sys::file::in_memory(c"log").expect("memfd_create");
    OwnedFd::from(file).into()
}

/// Ends the case as not runnable here, loudly.
pub fn skip(why: &str) -> ! {
    skipped(why);
    std::process::exit(SKIPPED);
}

/// A privileged descriptor with these features, or the case is skipped.
pub fn uffd(features: Features) -> Uffd {
    let (uffd, via) = match Uffd::open_any(false) {
        Ok(opened) => opened,
        Err(e) => skip(&e.to_string()),
    };
    ready(uffd, via, features, false)
}

/// A descriptor for faults from user mode only.
pub fn user_mode_uffd(features: Features) -> Uffd {
    match Uffd::open(Via::Syscall, true) {
        Ok(uffd) => ready(uffd, Via::Syscall, features, true),
        Err(e) => skip(&format!("userfaultfd, user mode only: {e}")),
    }
}

fn ready(uffd: Uffd, via: Via, features: Features, user_mode_only: bool) -> Uffd {
    let offered = Uffd::probe(via, user_mode_only).expect("probe");
    let missing = features.without(offered);
    if !missing.is_empty() {
        skip(&format!("this kernel does not offer {missing}"));
    }
    match uffd.api(features) {
        Ok(api) => assert_eq!(api.offered, offered),
        Err(e) => skip(&format!("{features}: {e}")),
    }
    uffd
}

/// Whether the case runs as root.
pub fn is_root() -> bool {
    deckle_sys::process::effective_user() == 0
}
