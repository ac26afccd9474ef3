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

use crate::sys;
use core::fmt;
use core::sync::atomic::{AtomicU32, Ordering};
use core::time::Duration;
use deckle_group::proc::ProcStat;
use deckle_sys::Fd;
use deckle_sys::futex::{self, Awaited, Scope};
use deckle_sys::poll::is_ready;

const KCMP_VM: usize = 1;

/// Whether process (or thread) `pid` has the caller's memory. A task on its way out, which has
/// no memory any more, has not.
///
/// # Errors
///
/// The errno of kcmp: ESRCH if there is no such process, EPERM or ENOSYS where it is not allowed.
pub fn same_memory(pid: i32) -> Result<bool, i32> {
    if !crate::door().may(libc::SYS_kcmp) {
        return Err(libc::EPERM);
    }
    let args = [std::process::id() as i32 as usize, pid as usize, KCMP_VM];
    // SAFETY: compares, changes nothing.
    unsafe { sys::call(libc::SYS_kcmp, args) }.map(|order| order == 0)
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

/// The program's state cannot be told: kcmp and /proc are both closed to the service, and the main
/// thread has left. It may have called exec, or ended alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unknown;

impl fmt::Display for Unknown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("cannot tell whether the program called exec: kcmp and /proc are refused")
    }
}

/// Watches the program from the service.
#[derive(Debug)]
pub struct Watch {
    pid: i32,
    word: Option<&'static AtomicU32>,
    pidfd: Fd,
    /// `/proc/PID/stat`, if there is a /proc.
    stat: Option<Fd>,
}

impl Watch {
    /// Watches the program `pid`, by its pidfd and its `stat` in /proc. `left` is the address of
    /// the word that the kernel clears when the main thread leaves the memory, 0 if that is not
    /// known.
    pub fn of(pid: i32, left: usize, pidfd: Fd, stat: Option<Fd>) -> Watch {
        // SAFETY: the address that the kernel will write to stays mapped as long as the memory
        // exists; whoever told it (the kernel, by the program's side) has it aligned.
        let word = (left != 0).then(|| unsafe { AtomicU32::from_ptr(left as *mut u32) });
        Watch {
            pid,
            word: word.filter(|w| w.load(Ordering::Acquire) == pid as u32),
            pidfd,
            stat,
        }
    }

    /// The pidfd, for poll: readable when the program is dead. It belongs to the watch.
    pub fn pidfd(&self) -> i32 {
        self.pidfd.raw()
    }

    /// Whether the main thread's word says that nothing has changed. A load: cheap enough for
    /// every turn of a service's loop. False means: ask [`Watch::state`].
    pub fn unchanged(&self) -> bool {
        self.word
            .is_some_and(|w| w.load(Ordering::Acquire) == self.pid as u32)
    }

    /// What became of the program.
    ///
    /// # Errors
    ///
    /// [`Unknown`].
    pub fn state(&self) -> Result<State, Unknown> {
        if self.poll(Duration::ZERO) {
            return Ok(State::Ended);
        }
        match same_memory(self.pid) {
            Ok(true) => Ok(State::Running),
            Err(libc::ESRCH) => Ok(State::Ended),
            Ok(false) => self.left(),
            Err(_) if self.unchanged() => Ok(State::Running),
            Err(_) if self.word.is_some() => self.left(),
            Err(_) => Err(Unknown),
        }
    }

    /// Waits until the main thread leaves the memory or the time is over, then tells the state.
    /// Without the word it waits for the pidfd only.
    ///
    /// # Errors
    ///
    /// [`Unknown`].
    pub fn wait(&self, timeout: Duration) -> Result<State, Unknown> {
        match self.word {
            Some(word) if self.unchanged() => {
                futex::wait_in(Scope::Shared, word, self.pid as u32, Some(timeout));
                self.settled()
            }
            _ => {
                self.poll(timeout);
                self.state()
            }
        }
    }

    /// The state, after a wait for the word.
    fn settled(&self) -> Result<State, Unknown> {
        if !self.unchanged() {
            // The word is cleared a moment before the memory changes hands.
            self.poll(Duration::from_millis(2));
        }
        self.state()
    }

    /// Whether [`wait_with`](Self::wait_with) can be called.
    pub fn can_wait_with(&self) -> bool {
        // The word that has another value: not waited for.
        let other = AtomicU32::new(1);
        self.unchanged()
            && crate::door().may(libc::SYS_futex_waitv)
            && futex::wait_any(&[(Scope::Private, &other, 0)], None).is_ok()
    }

    /// The same, until one of these words (at most six) has another value than the one beside it or
    /// a wake-up comes for it; without `timeout` for ever. Only where it
    /// [can](Self::can_wait_with) be called.
    ///
    /// # Errors
    ///
    /// [`Unknown`].
    pub fn wait_with(
        &self,
        words: &[Awaited<'_>],
        timeout: Option<Duration>,
    ) -> Result<State, Unknown> {
        // When the main thread alone has left, the end of the others is seen by looking.
        const LOOK: Duration = Duration::from_millis(100);
        let Some(word) = self.word.filter(|_| self.unchanged()) else {
            let state = self.state()?;
            if state == State::Running {
                let timeout = timeout.map_or(LOOK, |timeout| timeout.min(LOOK));
                let _ = futex::wait_any(words, Some(timeout));
                return self.state();
            }
            return Ok(state);
        };
        let own = (Scope::Shared, word, self.pid as u32);
        let mut all = [own; futex::WORDS];
        let count = words.len().min(all.len() - 1);
        all[1..=count].copy_from_slice(&words[..count]);
        let _ = futex::wait_any(&all[..=count], timeout);
        self.settled()
    }

    /// The main thread has left the memory: how?
    fn left(&self) -> Result<State, Unknown> {
        let kcmp = same_memory(self.pid);
        if kcmp == Ok(true) {
            return Ok(State::Running);
        }
        // Without kcmp only the word says that it has left, and that is cleared a moment before
        // a dying thread drops the memory: give it that moment. (When exec clears the word it
        // can no longer fail.)
        if kcmp.is_err() && self.poll(Duration::from_millis(5)) {
            return Ok(State::Ended);
        }
        match self
            .stat
            .as_ref()
            .and_then(|file| ProcStat::read(file).ok())
        {
            Some(stat) if stat.memory > 0 => Ok(State::Execed),
            // No memory: all of it is dying, or only the main thread has ended.
            Some(stat) if stat.threads > 1 => Ok(State::Running),
            Some(_) => Ok(State::Ended),
            // It died under our eyes, or there is no /proc.
            None if self.poll(Duration::from_millis(20)) => Ok(State::Ended),
            None => Err(Unknown),
        }
    }

    /// Waits for the pidfd; whether it is readable.
    fn poll(&self, timeout: Duration) -> bool {
        is_ready(self.pidfd.raw(), timeout)
    }
}
