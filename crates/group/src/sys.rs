//! The few system calls of the group, without allocation.

use core::ffi::CStr;
use core::fmt;
use core::sync::atomic::AtomicU32;
use core::time::Duration;

/// A system call's error number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Errno(pub i32);

impl Errno {
    /// That of the calling thread's last failed call.
    pub fn last() -> Errno {
        // SAFETY: returns the address of this thread's errno, valid while the thread lives.
        Errno(unsafe { *libc::__errno_location() })
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self.0 {
            libc::EACCES => "permission denied",
            libc::EPERM => "not permitted",
            libc::ENOENT => "no such file or directory",
            libc::ENOMEM => "out of memory",
            libc::ENOSPC => "no space left",
            libc::EEXIST => "exists already",
            libc::EMFILE | libc::ENFILE => "too many open files",
            libc::ECONNREFUSED => "connection refused",
            libc::ENOTDIR => "not a directory",
            libc::EISDIR => "is a directory",
            libc::ENOEXEC => "not in a format that can be executed",
            libc::ELOOP => "too many symbolic links",
            libc::ENAMETOOLONG => "name too long",
            libc::ESRCH => "no such process",
            libc::ENOSYS => "not offered by this kernel",
            libc::EROFS => "read-only file system",
            n => return write!(f, "error {n}"),
        };
        f.write_str(text)
    }
}

/// A descriptor that is closed when dropped.
#[derive(Debug)]
pub struct Fd(i32);

impl Fd {
    /// Takes over `raw`, which must be an open descriptor that nobody else closes.
    pub fn own(raw: i32) -> Fd {
        Fd(raw)
    }
    /// The number.
    pub fn raw(&self) -> i32 {
        self.0
    }
    /// Gives the number away; it is no longer closed here.
    pub fn into_raw(self) -> i32 {
        let raw = self.0;
        core::mem::forget(self);
        raw
    }
    /// Opens `path`, close-on-exec.
    pub fn open(path: &CStr, flags: i32, mode: u32) -> Result<Fd, Errno> {
        // SAFETY: `path` is a NUL-terminated string that outlives the call.
        let raw = unsafe { libc::open(path.as_ptr(), flags | libc::O_CLOEXEC, mode) };
        if raw < 0 {
            Err(Errno::last())
        } else {
            Ok(Fd(raw))
        }
    }
    /// Reads up to `buf.len()` bytes at `offset`; short only at the end of the file.
    pub fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize, Errno> {
        let mut done = 0;
        while done < buf.len() {
            let rest = &mut buf[done..];
            // SAFETY: the pointer and length are those of a live, writable slice.
            let got = unsafe {
                libc::pread(
                    self.0,
                    rest.as_mut_ptr().cast(),
                    rest.len(),
                    (offset + done as u64) as i64,
                )
            };
            match got {
                0 => break,
                n if n > 0 => done += n as usize,
                _ if Errno::last().0 == libc::EINTR => {}
                _ => return Err(Errno::last()),
            }
        }
        Ok(done)
    }
}

impl Drop for Fd {
    fn drop(&mut self) {
        // SAFETY: the descriptor is ours and is not used after this.
        unsafe { libc::close(self.0) };
    }
}

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

/// What `/proc/PID/stat` tells about a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProcStat {
    /// State letter: `R`, `S`, `T`, `Z`, ...
    pub state: u8,
    /// Parent.
    pub parent: u32,
    /// Number of threads.
    pub threads: u64,
    /// Start time in clock ticks since boot: with the pid it names a process for good.
    pub start: u64,
}

/// A decimal number into `buf`; returns the rest of it.
fn push_number(buf: &mut [u8; 32], mut at: usize, n: u32) -> usize {
    let mut digits = [0u8; 10];
    let mut i = digits.len();
    let mut n = n;
    loop {
        i -= 1;
        digits[i] = b'0' + (n % 10) as u8;
        n /= 10;
        if n == 0 {
            break;
        }
    }
    for d in &digits[i..] {
        buf[at] = *d;
        at += 1;
    }
    at
}

/// Reads `/proc/PID/stat`. Errors: ENOENT or ESRCH when there is no such process.
pub fn proc_stat(pid: u32) -> Result<ProcStat, Errno> {
    let mut path = [0u8; 32];
    path[..6].copy_from_slice(b"/proc/");
    let at = push_number(&mut path, 6, pid);
    path[at..at + 5].copy_from_slice(b"/stat");
    let path = CStr::from_bytes_until_nul(&path).map_err(|_| Errno(libc::EINVAL))?;
    let file = Fd::open(path, libc::O_RDONLY, 0)?;
    let mut buf = [0u8; 1024];
    let n = file.read_at(&mut buf, 0)?;
    parse_stat(&buf[..n]).ok_or(Errno(libc::ESRCH))
}

/// The name in the second field may hold anything, so fields are counted from the last `)`.
fn parse_stat(text: &[u8]) -> Option<ProcStat> {
    let close = text.iter().rposition(|&b| b == b')')?;
    let mut fields = text[close + 1..]
        .split(|&b| b == b' ')
        .filter(|f| !f.is_empty());
    let number = |f: &[u8]| -> Option<u64> { core::str::from_utf8(f).ok()?.trim().parse().ok() };
    let state = *fields.next()?.first()?; // field 3
    let parent = number(fields.next()?)? as u32; // field 4
    let threads = number(fields.nth(15)?)?; // field 20
    let start = number(fields.nth(1)?)?; // field 22
    Some(ProcStat {
        state,
        parent,
        threads,
        start,
    })
}

/// Identity of the caller's pid and time namespaces (their inodes), 0 if it cannot be read. Pids
/// compare only within one of the former, and start times, which are told by the clock of who
/// asks, only within one of the latter.
pub fn namespaces() -> u64 {
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

/// Opens a pidfd, close-on-exec.
pub fn pidfd_open(pid: u32) -> Result<Fd, Errno> {
    // SAFETY: a system call on numbers.
    let raw = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    if raw < 0 {
        Err(Errno::last())
    } else {
        Ok(Fd(raw as i32))
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
    let mut p = libc::pollfd {
        fd: pidfd.raw(),
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one live pollfd, no waiting.
    unsafe { libc::poll(&mut p, 1, 0) > 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stat_is_read_past_a_name_with_spaces_and_brackets() {
        let text = b"42 (a) b (c)) S 7 42 42 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 3 0 98765 1 2";
        let got = parse_stat(text).unwrap();
        assert_eq!(
            got,
            ProcStat {
                state: b'S',
                parent: 7,
                threads: 3,
                start: 98765
            }
        );
        assert_eq!(parse_stat(b"42 (cut"), None);
        assert_eq!(parse_stat(b"42 (cut) S 1 2"), None);
    }

    #[test]
    fn own_stat_can_be_read_and_an_absent_pid_cannot() {
        let me = proc_stat(std::process::id()).unwrap();
        assert!(me.start > 0 && me.threads > 0);
        assert!(proc_stat(u32::MAX - 1).is_err());
    }
}
