//! The child of a fork, as its parent's thread sees it until the child runs.
//!
//! A child that cannot be served ends before code of the program runs in it, and the fork fails.
//! To the program there was no such child: the thread that has forked waits for it, and takes
//! the signal of its end, which is blocked in this thread, out of the queue. Where another thread
//! waits for any child, or has the signal not blocked, that thread may see it.

use crate::fork::Clone;
use crate::{DOOR, sys};
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::time::Duration;
use deckle_door::{NO_TASK, STALE};
use deckle_sys::futex::{self, Scope};
use libc::siginfo_t;

/// How often it is asked whether the child lives still.
const LOOK: Duration = Duration::from_millis(20);
/// How often a child looks for its parent's word at most.
const LOOKS: u32 = 3000;

/// How far a child is.
#[derive(core::clone::Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// It has said nothing yet.
    Made,
    /// The parent's service may go on.
    Apart,
    /// It runs.
    Runs,
    /// It has no service, and ends.
    Failed,
    /// It ends, since its memory changed while it was made.
    Stale,
}

/// Numbers of forks are multiples of this: the child's service writes the number of its fork into
/// the shared word at stage [`Stage::Apart`], and the child the numbers above it at the next ones.
pub const STAGES: u32 = 4;

impl Stage {
    fn of(word: u32, number: u32) -> Stage {
        match word.wrapping_sub(number) {
            0 => Stage::Apart,
            1 => Stage::Runs,
            2 => Stage::Failed,
            3 => Stage::Stale,
            _ => Stage::Made,
        }
    }

    /// The word of fork `number` at this stage, from [`Stage::Apart`] on.
    fn word(self, number: u32) -> u32 {
        number + self as u32 - Stage::Apart as u32
    }
}

/// What both sides of a fork share: the word by which the child tells how far it is, and the one by
/// which the parent tells what it has seen of its memory meanwhile.
#[repr(C)]
pub struct Shared {
    pub stage: AtomicU32,
    seen: AtomicU32,
}

impl Shared {
    /// Tells the child whether what its service has taken over `is_right`: the parent's memory was
    /// not changed unseen since its service looked.
    pub fn tell_child(&self, number: u32, is_right: bool) {
        self.seen.store(number + u32::from(is_right), Release);
        futex::wake_in(Scope::Shared, &self.seen, u32::MAX);
    }

    /// In the child: waits for that. A parent that does not tell is dead, or stopped for long.
    fn hear_parent(&self, number: u32) -> bool {
        let may_look = DOOR.may(libc::SYS_getppid);
        // SAFETY: a call on nothing.
        let parent = || may_look.then(|| unsafe { sys::call(libc::SYS_getppid, []) });
        let before = parent();
        for _ in 0..LOOKS {
            match self.seen.load(Acquire) {
                told if told == number + 1 => return true,
                told if told == number => return false,
                _ if parent() != before => return false,
                other => drop(futex::wait_in(Scope::Shared, &self.seen, other, Some(LOOK))),
            }
        }
        false
    }
}

/// In a child: tells the parent whether it runs, and returns that. The parent looks whether its
/// memory has changed meanwhile.
pub fn tell(failure: Option<&str>) -> bool {
    let address = DOOR.forked.load(Relaxed) as *const Shared;
    // SAFETY: what the parent has made before the fork, in a mapping that both share.
    let shared = unsafe { &*address };
    let number = DOOR.fork.load(Relaxed);
    let stage = match failure {
        _ if !shared.hear_parent(number) => Stage::Stale,
        None => Stage::Runs,
        Some(STALE) => Stage::Stale,
        Some(why) => {
            if why != NO_TASK {
                let said = b"deckle: a fork has failed: its child cannot be managed: ";
                sys::say(&[said, why.as_bytes()]);
            }
            Stage::Failed
        }
    };
    shared.stage.store(stage.word(number), Release);
    futex::wake_in(Scope::Shared, &shared.stage, u32::MAX);
    stage == Stage::Runs
}

/// The child of a fork.
pub struct Child<'a> {
    pub pid: i32,
    /// The word by which it tells how far it is.
    pub word: &'a AtomicU32,
    pub number: u32,
}

impl Child<'_> {
    /// Waits until the child is at a stage, or dead: as long as that takes, since a child may be
    /// stopped at any moment. At which stage it is.
    pub fn wait_for(&self, stage: Stage) -> Stage {
        loop {
            let now = self.word.load(Acquire);
            let at = Stage::of(now, self.number);
            if at >= stage {
                return at;
            }
            futex::wait_in(Scope::Shared, self.word, now, Some(LOOK));
            if self.word.load(Acquire) == now && is_dead(self.pid) {
                return Stage::of(self.word.load(Acquire), self.number);
            }
        }
    }

    /// Waits for the end of a child that does not run, so that the program sees nothing of it.
    /// `before`: what was pending before it was made.
    pub fn bury(&self, call: &Clone, before: Pending) {
        const HOW: i32 = libc::WEXITED | libc::__WALL;
        let args = [libc::P_PID as usize, self.pid as usize, 0, HOW as usize];
        // SAFETY: writes nothing.
        while unsafe { sys::call(libc::SYS_waitid, args) } == Err(libc::EINTR) {}
        before.take_back(self.pid);
        if let Some(word) = call.pidfd() {
            // SAFETY: the program's word, or ours in its place, into which the kernel has written a
            // descriptor that no other thread can know of.
            let _ = unsafe { sys::call(libc::SYS_close, [word.read() as usize]) };
        }
    }
}

/// Whether a child has ended. It stays to be waited for.
pub fn is_dead(pid: i32) -> bool {
    let how = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT | libc::__WALL;
    match ended(libc::P_PID, pid, how) {
        Ok(info) => info.is_some(),
        // It is none that this process may wait for, or is gone.
        Err(libc::ECHILD) => {
            // SAFETY: signal 0 sends nothing.
            let there = unsafe { sys::call(libc::SYS_kill, [pid as usize, 0]) };
            there == Err(libc::ESRCH)
        }
        Err(_) => false,
    }
}

/// What waitid tells of children, if there is one that has changed.
fn ended(which: u32, pid: i32, how: i32) -> Result<Option<siginfo_t>, i32> {
    let mut info = no_info();
    let to = &raw mut info as usize;
    let args = [which as usize, pid as usize, to, how as usize];
    // SAFETY: writes one structure.
    unsafe { sys::call(libc::SYS_waitid, args) }?;
    Ok((pid_of(&info) != 0).then_some(info))
}

fn no_info() -> siginfo_t {
    // SAFETY: plain data, for which zeros are a value.
    unsafe { core::mem::zeroed() }
}

fn pid_of(info: &siginfo_t) -> i32 {
    // SAFETY: plain data, filled in by the kernel or zero.
    unsafe { info.si_pid() }
}

/// The signal that the end of a child sends, before it is made.
#[derive(core::clone::Clone, Copy)]
pub struct Pending {
    signal: u64,
    was: bool,
}

impl Pending {
    /// Looks. All signals are blocked.
    pub fn of(call: &Clone) -> Pending {
        let (signal, mut set) = (call.exit_signal(), 0_u64);
        if DOOR.may(libc::SYS_rt_sigpending) {
            let args = [&raw mut set as usize, size_of::<u64>()];
            // SAFETY: writes one word.
            let _ = unsafe { sys::call(libc::SYS_rt_sigpending, args) };
        }
        let was = signal != 0 && set >> (signal - 1) & 1 == 1;
        Pending { signal, was }
    }

    /// Takes the signal of the end of child `pid` back. One that was pending before has kept it
    /// from being sent; one that another child has sent since is sent again.
    fn take_back(self, pid: i32) {
        const NEEDED: [libc::c_long; 2] = [libc::SYS_rt_sigtimedwait, libc::SYS_rt_sigqueueinfo];
        if self.signal == 0 || self.was || !NEEDED.iter().all(|call| DOOR.may(*call)) {
            return;
        }
        let Some(mut info) = self.take() else { return };
        if pid_of(&info) == pid {
            // It may have stood for that of another child, too.
            let how = libc::WEXITED | libc::WSTOPPED | libc::WCONTINUED;
            let how = how | libc::WNOHANG | libc::WNOWAIT | libc::__WALL;
            match ended(libc::P_ALL, 0, how) {
                Ok(Some(other)) => info = other,
                _ => return,
            }
        }
        let at = &raw const info as usize;
        let args = [sys::getpid() as usize, self.signal as usize, at];
        // SAFETY: reads one structure.
        let _ = unsafe { sys::call(libc::SYS_rt_sigqueueinfo, args) };
    }

    fn take(self) -> Option<siginfo_t> {
        let (set, mut info, time) = (1_u64 << (self.signal - 1), no_info(), [0_u64; 2]);
        let [set, time] = [&raw const set as usize, &raw const time as usize];
        let args = [set, &raw mut info as usize, time, size_of::<u64>()];
        // SAFETY: reads a word and a time, writes one structure.
        let taken = unsafe { sys::call(libc::SYS_rt_sigtimedwait, args) };
        taken.is_ok().then_some(info)
    }
}
