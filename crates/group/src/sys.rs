//! The few system calls of the group, without allocation.

use core::ffi::CStr;
use core::fmt;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicU32, AtomicU64};
use core::time::Duration;
use std::io::Write;

use deckle_door::sys::{call, timespec};

pub use deckle_door::{Errno, Fd};

/// What one of the stat family writes.
pub(crate) fn stat(call: impl FnOnce(*mut libc::stat) -> i32) -> Result<libc::stat, Errno> {
    // SAFETY: stat is plain data, and all zeros is a value of it.
    let mut st: libc::stat = unsafe { core::mem::zeroed() };
    match call(&raw mut st) {
        0 => Ok(st),
        _ => Err(Errno::last()),
    }
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
    /// Bytes of address space; 0 if it has left its memory.
    pub memory: u64,
}

impl ProcStat {
    /// Reads such a file. Errors: ESRCH when the process is gone.
    pub fn read(file: &Fd) -> Result<ProcStat, Errno> {
        let mut text = [0u8; 1024];
        let n = file.read_at(&mut text, 0)?;
        parse_stat(&text[..n]).ok_or(Errno(libc::ESRCH))
    }
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
    // There is room for two pids, and a NUL behind them.
    let mut bytes = [0; 48];
    write!(&mut bytes[..47], "{path}").map_err(|_| Errno(libc::ENAMETOOLONG))?;
    let path = CStr::from_bytes_until_nul(&bytes).map_err(|_| Errno(libc::EINVAL))?;
    ProcStat::read(&Fd::open(path, libc::O_RDONLY, 0)?)
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
        memory: number(0)?,                       // field 23
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
        // SAFETY: the path is a NUL-terminated string and `st` a live stat.
        stat(|st| unsafe { libc::stat(path.as_ptr(), st) }).map(|st| st.st_ino)
    };
    let Ok(pids) = inode(c"/proc/self/ns/pid") else {
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

/// Waits until there is something to read, or the end, at most so long; false when there is not.
pub fn is_ready(fd: i32, time: Duration) -> bool {
    let (mut slot, mut time) = (to_read(fd), timespec(time));
    let args = [&raw mut slot as usize, 1, &raw mut time as usize];
    // SAFETY: one slot and a time, both on this stack: the kernel writes what is left of it.
    let done = unsafe { call(libc::SYS_ppoll, args) };
    done == Ok(1) && slot.revents & !libc::POLLNVAL != 0
}

/// Opens a pidfd, close-on-exec.
pub fn pidfd_open(pid: u32) -> Result<Fd, Errno> {
    // SAFETY: a system call on numbers.
    let made = unsafe { call(libc::SYS_pidfd_open, [pid as usize, 0]) };
    made.map(|raw| Fd::own(raw as i32)).map_err(Errno)
}

/// Sends `signal` to the process behind `pidfd`. ESRCH when it is gone.
pub fn pidfd_kill(pidfd: &Fd, signal: i32) -> Result<(), Errno> {
    let args = [pidfd.raw() as usize, signal as usize, 0, 0];
    // SAFETY: a system call on numbers; the siginfo pointer may be null.
    let sent = unsafe { call(libc::SYS_pidfd_send_signal, args) };
    sent.map(drop).map_err(Errno)
}

/// Whether the process behind `pidfd` has ended (a zombie has).
pub fn pidfd_ended(pidfd: &Fd) -> bool {
    is_ready(pidfd.raw(), Duration::ZERO)
}

#[cfg(test)]
#[path = "../tests/unit/sys.rs"]
mod tests;
