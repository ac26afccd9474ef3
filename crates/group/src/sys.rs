//! The few system calls of the group, without allocation.

use core::ffi::CStr;
use core::fmt;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicU32, AtomicU64};
use core::time::Duration;

pub use deckle_door::{Errno, Fd};

/// Sleeps while `word` holds `expected`, at most for `timeout`. Spurious returns happen.
/// The word may be shared between processes.
pub fn futex_wait(word: &AtomicU32, expected: u32, timeout: Duration) {
    let wait = libc::timespec {
        tv_sec: timeout.as_secs().min(i64::MAX as u64) as i64,
        tv_nsec: i64::from(timeout.subsec_nanos()),
    };
    // SAFETY: the word is live and aligned for the whole call; `wait` outlives it.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAIT,
            expected,
            &wait as *const libc::timespec,
        )
    };
}

/// Wakes every sleeper on `word`, in all processes.
pub fn futex_wake_all(word: &AtomicU32) {
    // SAFETY: FUTEX_WAKE only uses the address of the word as a key.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, i32::MAX) };
}

/// Monotonic time.
pub fn now() -> Duration {
    // SAFETY: timespec is plain data, and all zeros is a value of it.
    let mut t: libc::timespec = unsafe { core::mem::zeroed() };
    // SAFETY: `t` is a live timespec.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut t) };
    Duration::new(t.tv_sec as u64, t.tv_nsec as u32)
}

/// What `/proc/PID/stat` tells about a process, or `/proc/PID/task/TID/stat` about a task of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProcStat {
    /// State letter: `R`, `S`, `T`, `Z`, ... That of a process is its first task's.
    pub state: u8,
    /// Parent.
    pub parent: u32,
    /// It ends: the kernel takes it apart. Of a process: its first task does.
    pub exiting: bool,
    /// What it has used of CPUs, in clock ticks; of a process, also by tasks that have ended.
    pub cpu: u64,
    /// Number of threads.
    pub threads: u64,
    /// Start time in clock ticks since boot: with the pid it names a process for good.
    pub start: u64,
}

/// Reads `/proc/PID/stat`. Errors: ENOENT or ESRCH when there is no such process.
pub fn proc_stat(pid: u32) -> Result<ProcStat, Errno> {
    read_stat(format_args!("/proc/{pid}/stat"))
}

/// Reads `/proc/PID/task/TID/stat`. Errors: ENOENT or ESRCH when there is no such task.
pub fn task_stat(pid: u32, tid: u32) -> Result<ProcStat, Errno> {
    read_stat(format_args!("/proc/{pid}/task/{tid}/stat"))
}

fn read_stat(path: fmt::Arguments<'_>) -> Result<ProcStat, Errno> {
    let mut text = PathText {
        bytes: [0; 48],
        len: 0,
    };
    fmt::write(&mut text, path).map_err(|_| Errno(libc::ENAMETOOLONG))?;
    let path = CStr::from_bytes_until_nul(&text.bytes).map_err(|_| Errno(libc::EINVAL))?;
    let file = Fd::open(path, libc::O_RDONLY, 0)?;
    let mut buf = [0u8; 1024];
    let n = file.read_at(&mut buf, 0)?;
    parse_stat(&buf[..n]).ok_or(Errno(libc::ESRCH))
}

/// A path, put together without allocation; the last byte stays NUL. There is room for two pids.
struct PathText {
    bytes: [u8; 48],
    len: usize,
}

impl fmt::Write for PathText {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let end = self.len + text.len();
        if end >= self.bytes.len() {
            return Err(fmt::Error);
        }
        self.bytes[self.len..end].copy_from_slice(text.as_bytes());
        self.len = end;
        Ok(())
    }
}

/// The name in the second field may hold anything, so fields are counted from the last `)`.
fn parse_stat(text: &[u8]) -> Option<ProcStat> {
    /// The kernel's flag of a task that ends.
    const PF_EXITING: u64 = 4;
    let close = text.iter().rposition(|&b| b == b')')?;
    let fields = text[close + 1..].split(u8::is_ascii_whitespace);
    let mut fields = fields.filter(|f| !f.is_empty());
    let state = *fields.next()?.first()?; // field 3
    // The next one, after so many others.
    let mut number = |others: usize| -> Option<u64> {
        let field = fields.nth(others)?;
        core::str::from_utf8(field).ok()?.parse().ok()
    };
    Some(ProcStat {
        state,
        parent: number(0)? as u32,                // field 4
        exiting: number(4)? & PF_EXITING != 0,    // field 9
        cpu: number(4)?.checked_add(number(0)?)?, // fields 14 and 15
        threads: number(4)?,                      // field 20
        start: number(1)?,                        // field 22
    })
}

/// Identity of the caller's pid and time namespaces (their inodes), 0 if it cannot be read. Pids
/// compare only within one of the former, and start times, which are told by the clock of who
/// asks, only within one of the latter.
///
/// Found out once for each process: it enters no other one of either, only its children do.
pub fn namespaces() -> u64 {
    let me = std::process::id();
    if OF.load(Acquire) != me {
        KNOWN.store(look_at_namespaces(), Relaxed);
        OF.store(me, Release);
    }
    KNOWN.load(Relaxed)
}

static KNOWN: AtomicU64 = AtomicU64::new(0);
/// Whose they are.
static OF: AtomicU32 = AtomicU32::new(0);

/// For a process that may not look: they are not known, and no process is judged by it.
pub fn leave_namespaces_unknown() {
    OF.store(std::process::id(), Release);
}

fn look_at_namespaces() -> u64 {
    let inode = |path: &CStr| {
        // SAFETY: stat is plain data, and all zeros is a value of it.
        let mut st: libc::stat = unsafe { core::mem::zeroed() };
        // SAFETY: the path is a NUL-terminated string and `st` a live stat.
        let rc = unsafe { libc::stat(path.as_ptr(), &mut st) };
        (rc == 0).then_some(st.st_ino)
    };
    let Some(pids) = inode(c"/proc/self/ns/pid") else {
        return 0;
    };
    // Kernels without time namespaces have but one clock. Inodes of namespaces have 32 bits.
    let clock = inode(c"/proc/self/ns/time").unwrap_or(0);
    pids ^ clock << 32
}

/// Bytes that nobody can guess.
///
/// # Errors
/// The system has none.
pub fn random<const N: usize>() -> Result<[u8; N], Errno> {
    let mut bytes = [0; N];
    // SAFETY: fills a live buffer of this length.
    match unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), N, 0) } {
        got if got == N as isize => Ok(bytes),
        _ => Err(Errno::last()),
    }
}

/// What poll needs to wait until there is something to read.
pub fn to_read(fd: i32) -> libc::pollfd {
    libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    }
}

/// Opens a pidfd, close-on-exec.
pub fn pidfd_open(pid: u32) -> Result<Fd, Errno> {
    // SAFETY: a system call on numbers.
    let raw = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    if raw < 0 {
        Err(Errno::last())
    } else {
        Ok(Fd::own(raw as i32))
    }
}

/// Sends `signal` to the process behind `pidfd`. ESRCH when it is gone.
pub fn pidfd_kill(pidfd: &Fd, signal: i32) -> Result<(), Errno> {
    // SAFETY: a system call on numbers; the siginfo pointer may be null.
    let rc = unsafe {
        libc::syscall(
            libc::SYS_pidfd_send_signal,
            pidfd.raw(),
            signal,
            core::ptr::null::<libc::siginfo_t>(),
            0,
        )
    };
    if rc < 0 { Err(Errno::last()) } else { Ok(()) }
}

/// Whether the process behind `pidfd` has ended (a zombie has).
pub fn pidfd_ended(pidfd: &Fd) -> bool {
    let mut p = to_read(pidfd.raw());
    // SAFETY: one live pollfd, no waiting.
    unsafe { libc::poll(&mut p, 1, 0) > 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stat_is_read_past_a_name_with_spaces_and_brackets() {
        let text = b"42 (a) b (c)) S 7 42 42 0 -1 4194560 1 0 0 0 25 75 8 9 20 0 3 0 98765 1 2\n";
        let got = parse_stat(text).unwrap();
        assert_eq!(
            got,
            ProcStat {
                state: b'S',
                parent: 7,
                exiting: false,
                cpu: 100,
                threads: 3,
                start: 98765
            }
        );
        let ends = b"7 (a) R (b) S 1 7 7 0 -1 4194308 0 0 0 0 25 75 0 0 39 19 3 0 99\n";
        assert!(parse_stat(ends).unwrap().exiting);
        for cut in [
            "42 (cut",
            "42 (cut) S 1 2",
            "42 (cut) S 7 42 42 0 -1 4194560 1 0 0 0 25",
        ] {
            assert_eq!(parse_stat(cut.as_bytes()), None);
        }
    }

    #[test]
    fn own_stat_can_be_read_and_an_absent_pid_cannot() {
        let pid = std::process::id();
        let me = proc_stat(pid).unwrap();
        assert!(me.start > 0 && me.threads > 0 && !me.exiting);
        // SAFETY: a system call without arguments.
        let tid = unsafe { libc::gettid() } as u32;
        let task = task_stat(pid, tid).unwrap();
        // The task that asks runs.
        assert_eq!((task.state, task.exiting), (b'R', false));
        assert_eq!(task.parent, me.parent);
        // The longest path there is.
        for absent in [proc_stat(u32::MAX), task_stat(u32::MAX, u32::MAX)] {
            assert_eq!(absent, Err(Errno(libc::ENOENT)));
        }
    }
}
