//! Child processes and helper threads of a case.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use deckle_sys::process::wait;
use deckle_sys::signal::send;
use deckle_uffd::{Errno, Event, Msg, Uffd};

use super::mem::{peek, poke};

/// A forked child; killed on drop if still there.
pub struct Child {
    pub pid: i32,
    done: bool,
}

/// Forks. The child runs `body` and exits with what it returns; it dies with the case and after
/// 15 seconds at the latest.
///
/// The case's other threads only wait at this moment, so that the child's heap is usable.
pub fn fork(body: impl FnOnce() -> i32) -> Child {
    // SAFETY: see above.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "fork: {}", Errno::last());
    if pid == 0 {
        // SAFETY: plain system calls; their signals end this process.
        unsafe {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            libc::alarm(15);
        }
        let body = std::panic::AssertUnwindSafe(body);
        let code = std::panic::catch_unwind(body).unwrap_or(101);
        // SAFETY: ends the process at once, without the parent's exit handlers.
        unsafe { libc::_exit(code) };
    }
    Child { pid, done: false }
}

impl Child {
    /// Waits for the end: exit code, or 128 and the signal.
    pub fn status(mut self) -> i32 {
        self.reap()
    }

    /// Whether it has ended.
    pub fn has_ended(&mut self) -> bool {
        self.done |= matches!(wait(self.pid, libc::WNOHANG), Ok(Some(_)));
        self.done
    }

    /// SIGKILL, then [`status`](Self::status).
    pub fn kill(self) -> i32 {
        let _ = send(self.pid, libc::SIGKILL);
        self.status()
    }

    fn reap(&mut self) -> i32 {
        let (_, status) = wait(self.pid, libc::__WALL).unwrap().expect("its end");
        self.done = true;
        if libc::WIFEXITED(status) {
            libc::WEXITSTATUS(status)
        } else {
            128 + libc::WTERMSIG(status)
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if !self.done {
            let _ = send(self.pid, libc::SIGKILL);
            self.reap();
        }
    }
}

/// Work in a thread, with a flag that says whether it has ended.
pub struct Task<T> {
    thread: JoinHandle<T>,
    ended: Arc<AtomicBool>,
}

/// Starts a thread.
pub fn task<T: Send + 'static>(body: impl FnOnce() -> T + Send + 'static) -> Task<T> {
    let ended = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&ended);
    let thread = std::thread::spawn(move || {
        let result = body();
        flag.store(true, Ordering::SeqCst);
        result
    });
    Task { thread, ended }
}

/// Reads one byte in a thread.
pub fn reader(addr: usize) -> Task<u8> {
    task(move || peek(addr))
}

/// Writes one byte in a thread.
pub fn writer(addr: usize, byte: u8) -> Task<()> {
    task(move || poke(addr, byte))
}

impl<T> Task<T> {
    /// Waits for the result.
    pub fn join(self) -> T {
        self.thread.join().expect("thread of the case")
    }

    /// Whether it still runs after a while that would be ample for it to end.
    pub fn still_waits(&self) -> bool {
        std::thread::sleep(Duration::from_millis(100));
        !self.ended.load(Ordering::SeqCst)
    }
}

/// The next message; waits for it.
pub fn next_event(uffd: &Uffd) -> Event {
    let mut msgs = [Msg::empty()];
    loop {
        assert!(uffd.wait(10_000).expect("poll"), "no event came");
        if uffd.read_events(&mut msgs).expect("read") == 1 {
            return msgs[0].take().expect("a message");
        }
    }
}

/// The next message, which must be a fault: its address, whether it was a write, whether it met
/// write-protection.
pub fn next_fault(uffd: &Uffd) -> (usize, bool, bool) {
    match next_event(uffd) {
        Event::Pagefault {
            addr, write, wp, ..
        } => (addr, write, wp),
        other => panic!("not a fault: {other:?}"),
    }
}

/// Whether nothing is pending.
pub fn is_quiet(uffd: &Uffd) -> bool {
    !uffd.wait(50).expect("poll")
}
