//! Real processes for the tests: fork, then run a closure and leave without unwinding.

use deckle_group::{Group, Limits, Name, SwapKind};
use deckle_mm::Tunables;
use deckle_sys::{process, signal};
use std::sync::atomic::{AtomicU32, Ordering};

pub struct TestGroup(pub Group);

impl Drop for TestGroup {
    fn drop(&mut self) {
        Group::unlink(self.0.name());
    }
}

pub fn name() -> Name {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let n = NEXT.fetch_add(1, Ordering::Relaxed);
    Name::new(format!("test-{}-{n}", std::process::id()).as_bytes()).unwrap()
}

pub fn group(max: u64) -> TestGroup {
    let limits = Limits {
        max,
        high: u64::MAX,
        swap_max: u64::MAX,
    };
    TestGroup(Group::create(name(), limits, &Tunables::default(), SwapKind::Lz4).unwrap())
}

/// Forks; the child runs `f` and exits with its result.
pub fn spawn(f: impl FnOnce() -> i32) -> u32 {
    // SAFETY: the child only runs code that takes no lock of the parent's other threads: raw
    // system calls and atomics of the group.
    match unsafe { libc::fork() } {
        0 => {
            // A failed assertion ends the test's thread, and with it the child.
            // SAFETY: a system call on numbers.
            unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
            let status = f();
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(status) }
        }
        pid if pid > 0 => pid as u32,
        _ => panic!("fork failed"),
    }
}

/// Waits for `pid`; its raw wait status.
pub fn wait(pid: u32) -> i32 {
    process::wait(pid as i32, 0).unwrap().unwrap().1
}

pub fn kill(pid: u32, sig: i32) {
    signal::send(pid as i32, sig).unwrap();
}

pub fn sleep_ms(ms: u64) {
    std::thread::sleep(std::time::Duration::from_millis(ms));
}
