//! What /proc tells of processes, without allocation.

use core::ffi::CStr;
use core::fmt;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicU32, AtomicU64};
use std::io::Write;

use deckle_sys::file::stat_at;
use deckle_sys::{Errno, Fd};

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
    let inode = |path: &CStr| stat_at(path).map(|st| st.st_ino);
    let Ok(pids) = inode(c"/proc/self/ns/pid") else {
        return 0;
    };
    // Kernels without time namespaces have but one clock. Inodes of namespaces have 32 bits.
    let clock = inode(c"/proc/self/ns/time").unwrap_or(0);
    pids ^ clock << 32
}

#[cfg(test)]
#[path = "../tests/unit/proc.rs"]
mod tests;
