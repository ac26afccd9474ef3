//! What became of the program: seen from the service, which shares its memory.
//!
//! Three signs, each with its gaps:
//!
//! - a pidfd: readable when the program is dead, silent about exec;
//! - kcmp(KCMP_VM): whether program and service still have the same memory; refused by some
//!   seccomp profiles and for programs that are not dumpable;
//! - the thread id in the main thread's descriptor: the kernel clears it, and wakes waiters, when
//!   that thread leaves the memory by exec or exit, because somebody else (the service) still has
//!   it. Costs a load, needs no permission; says nothing about which of the two.

use crate::futex::{self, Scope};
use crate::{loader::Loader, sys, tcb};
use core::fmt;
use core::sync::atomic::{AtomicU32, Ordering};
use core::time::Duration;

const KCMP_VM: usize = 1;

/// Whether process (or thread) `pid` has the caller's memory. A task on its way out, which has
/// no memory any more, has not.
///
/// # Errors
///
/// The errno of kcmp: ESRCH if there is no such process, EPERM or ENOSYS where it is not allowed.
pub fn same_memory(pid: i32) -> Result<bool, i32> {
    let args = [sys::getpid() as usize, pid as usize, KCMP_VM, 0, 0, 0];
    // SAFETY: compares, changes nothing.
    unsafe { sys::call(libc::SYS_kcmp, args) }.map(|order| order == 0)
}

/// What the service must know of the program; made in the program before the service is.
#[derive(Debug, Clone, Copy)]
pub struct Program {
    pid: i32,
    word: Option<&'static AtomicU32>,
}

impl Program {
    /// The calling process. On its main thread (also that of a child of fork) the thread id word
    /// is used as well; on others only pidfd and kcmp.
    pub fn current() -> Program {
        let pid = sys::getpid();
        let word = (sys::gettid() == pid)
            .then(Loader::find)
            .and_then(Result::ok)
            // SAFETY: the main thread's descriptor stays mapped as long as the memory exists;
            // `find` has checked that its id is there.
            .map(|loader| unsafe {
                AtomicU32::from_ptr((tcb::current() + loader.tid) as *mut u32)
            });
        Program { pid, word }
    }

    /// Its process id.
    pub fn pid(&self) -> i32 {
        self.pid
    }
}

/// What became of the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// It runs in the shared memory.
    Running,
    /// It has called exec: the memory is the service's alone.
    Execed,
    /// It is dead or dying: no thread of it has the memory.
    Ended,
}

/// Why the program's state cannot be told, or the watch not be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WatchError {
    /// pidfd_open failed with this errno (ESRCH: the program is gone).
    NoPidfd(i32),
    /// kcmp and /proc are both closed to the service, and the main thread has left: it may have
    /// called exec, or ended alone.
    Unknown,
}

impl fmt::Display for WatchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WatchError::NoPidfd(errno) => write!(
                f,
                "cannot watch the program: pidfd_open failed with errno {errno}"
            ),
            WatchError::Unknown => write!(
                f,
                "cannot tell whether the program called exec: kcmp and /proc are refused"
            ),
        }
    }
}

impl core::error::Error for WatchError {}

/// Watches the program from the service.
#[derive(Debug)]
pub struct Watch {
    program: Program,
    pidfd: i32,
}

impl Watch {
    /// Opens the program's pidfd in the caller's descriptor table: call it in the service.
    ///
    /// # Errors
    ///
    /// [`WatchError::NoPidfd`].
    pub fn open(program: Program) -> Result<Watch, WatchError> {
        // SAFETY: makes a descriptor.
        let fd = unsafe { sys::call(libc::SYS_pidfd_open, [program.pid as usize, 0, 0, 0, 0, 0]) };
        Ok(Watch {
            program,
            pidfd: fd.map_err(WatchError::NoPidfd)? as i32,
        })
    }

    /// The pidfd, for poll: readable when the program is dead. It belongs to the watch.
    pub fn pidfd(&self) -> i32 {
        self.pidfd
    }

    /// Whether the main thread's word says that nothing has changed. A load: cheap enough for
    /// every turn of a service's loop. False means: ask [`Watch::state`].
    pub fn unchanged(&self) -> bool {
        self.program
            .word
            .is_some_and(|w| w.load(Ordering::Acquire) == self.program.pid as u32)
    }

    /// What became of the program.
    ///
    /// # Errors
    ///
    /// [`WatchError::Unknown`].
    pub fn state(&self) -> Result<State, WatchError> {
        if self.dead() {
            return Ok(State::Ended);
        }
        match same_memory(self.program.pid) {
            Ok(true) => Ok(State::Running),
            Err(libc::ESRCH) => Ok(State::Ended),
            Ok(false) => self.left(),
            Err(_) if self.unchanged() => Ok(State::Running),
            Err(_) if self.program.word.is_some() => self.left(),
            Err(_) => Err(WatchError::Unknown),
        }
    }

    /// Waits until the main thread leaves the memory or the time is over, then tells the state.
    /// Without the word (see [`Program::current`]) it waits for the pidfd only.
    ///
    /// # Errors
    ///
    /// [`WatchError::Unknown`].
    pub fn wait(&self, timeout: Duration) -> Result<State, WatchError> {
        match self.program.word {
            Some(word) if self.unchanged() => {
                futex::wait_in(Scope::Shared, word, self.program.pid as u32, Some(timeout));
                if !self.unchanged() {
                    // The word is cleared a moment before the memory changes hands.
                    self.poll(Duration::from_millis(2));
                }
            }
            _ => {
                self.poll(timeout);
            }
        }
        self.state()
    }

    /// The main thread has left the memory: how?
    fn left(&self) -> Result<State, WatchError> {
        let kcmp = same_memory(self.program.pid);
        if kcmp == Ok(true) {
            return Ok(State::Running);
        }
        // Without kcmp only the word says that it has left, and that is cleared a moment before
        // a dying thread drops the memory: give it that moment. (When exec clears the word it
        // can no longer fail.)
        if kcmp.is_err() && self.poll(Duration::from_millis(5)) {
            return Ok(State::Ended);
        }
        match Stat::of(self.program.pid) {
            Some(stat) if stat.memory_pages > 0 => Ok(State::Execed),
            // No memory: all of it is dying, or only the main thread has ended.
            Some(stat) if stat.threads > 1 => Ok(State::Running),
            Some(_) => Ok(State::Ended),
            // It died under our eyes, or there is no /proc.
            None if self.poll(Duration::from_millis(20)) => Ok(State::Ended),
            None => Err(WatchError::Unknown),
        }
    }

    fn dead(&self) -> bool {
        self.poll(Duration::ZERO)
    }

    /// Waits for the pidfd; whether it is readable.
    fn poll(&self, timeout: Duration) -> bool {
        let mut slot = libc::pollfd {
            fd: self.pidfd,
            events: libc::POLLIN,
            revents: 0,
        };
        let time = libc::timespec {
            tv_sec: timeout.as_secs().min(i64::MAX as u64) as i64,
            tv_nsec: i64::from(timeout.subsec_nanos()),
        };
        let args = [&raw mut slot as usize, 1, &raw const time as usize, 0, 0, 0];
        // SAFETY: one slot and a time, both on this stack.
        let done = unsafe { sys::call(libc::SYS_ppoll, args) };
        done == Ok(1) && slot.revents & (libc::POLLIN | libc::POLLHUP) != 0
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        sys::close(self.pidfd);
    }
}

/// Two figures of /proc/PID/stat, which everybody may read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stat {
    threads: u64,
    /// Size of the main thread's memory; 0 if it has none.
    memory_pages: u64,
}

impl Stat {
    fn of(pid: i32) -> Option<Stat> {
        let mut path = [0_u8; 32];
        let end = write_path(&mut path, pid)?;
        let mut text = [0_u8; 1024];
        let fd = sys::open_read(&path[..end]).ok()?;
        let length = sys::read(fd, &mut text);
        sys::close(fd);
        Stat::parse(&text[..length.ok()?])
    }

    /// The name, in parentheses, may hold anything: fields are counted from its end.
    fn parse(text: &[u8]) -> Option<Stat> {
        let name_end = text.iter().rposition(|b| *b == b')')?;
        let mut fields = text[name_end + 1..]
            .split(|b| *b == b' ')
            .filter(|f| !f.is_empty());
        let number = |field: &[u8]| core::str::from_utf8(field).ok()?.trim().parse::<u64>().ok();
        // Field 3 (state) comes first here; 20 is the number of threads, 23 the size in bytes.
        let threads = number(fields.nth(17)?)?;
        let bytes = number(fields.nth(2)?)?;
        Some(Stat {
            threads,
            memory_pages: bytes / 4096,
        })
    }
}

/// Writes `/proc/PID/stat` and a NUL; returns the length.
fn write_path(path: &mut [u8; 32], pid: i32) -> Option<usize> {
    use core::fmt::Write;
    struct Into<'a>(&'a mut [u8], usize);
    impl fmt::Write for Into<'_> {
        fn write_str(&mut self, s: &str) -> fmt::Result {
            let to = self.0.get_mut(self.1..self.1 + s.len()).ok_or(fmt::Error)?;
            to.copy_from_slice(s.as_bytes());
            self.1 += s.len();
            Ok(())
        }
    }
    let mut into = Into(path, 0);
    write!(into, "/proc/{pid}/stat\0").ok()?;
    Some(into.1)
}

#[cfg(test)]
mod tests {
    use super::Stat;

    #[test]
    fn stat_is_parsed_behind_a_hostile_name() {
        let text = b"7 (a) b (c) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 3 18 19 8192 21";
        assert_eq!(
            Stat::parse(text),
            Some(Stat {
                threads: 3,
                memory_pages: 2
            })
        );
        assert_eq!(Stat::parse(b"7 (a"), None);
        assert_eq!(Stat::parse(b"7 (a) S 1"), None);
    }

    #[test]
    fn the_own_process_has_its_own_memory() {
        let stat = Stat::of(std::process::id() as i32).unwrap();
        assert!(stat.threads >= 1 && stat.memory_pages > 0);
        assert_eq!(super::same_memory(std::process::id() as i32), Ok(true));
        assert_eq!(super::same_memory(0x3fff_ffff), Err(libc::ESRCH));
    }
}
