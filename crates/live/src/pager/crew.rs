//! Who runs the loops: by default whoever was told to, for as long as the pager is used. On demand
//! a loop is left by who has found nothing to do for a while, and the owner of the pager starts
//! somebody for it when there is something again.
//!
//! Nothing is missed between the two: who has something to do for a role says so first and looks
//! then whether anybody has that role ([`Crew::want`]); who gives a role up says so first and looks
//! then whether there is something to do ([`Crew::leave`]). One of them sees the other.

use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU32, fence};
use std::time::Duration;

use deckle_sys::futex;

/// How long nothing comes before a loop is left.
const IDLE: Duration = Duration::from_secs(2);

/// Whoever runs a loop.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Role(u32);

impl Role {
    /// The two workers.
    pub const WORKERS: [Role; 2] = [Role(1), Role(1 << 1)];
    /// Who runs [`background_loop`](super::Pager::background_loop).
    pub const BACKGROUND: Role = Role(1 << 2);
    /// Who runs [`filler_loop`](super::Pager::filler_loop).
    pub const FILLER: Role = Role(1 << 3);
    /// One that the owner of the pager uses as it likes.
    pub const OWN: Role = Role(1 << 4);

    /// Who looks for what the program has mapped unseen
    /// ([`want_look`](super::Pager::want_look)): the owner's, too.
    pub const LOOKER: Role = Role(1 << 5);

    /// The handler of this number, at most 16. The first is always there.
    pub const fn handler(number: usize) -> Role {
        Role(1 << (8 + number % 16))
    }

    /// The number of a handler.
    pub fn handler_number(self) -> Option<usize> {
        (self.0 >> 8 != 0).then(|| self.0.trailing_zeros() as usize - 8)
    }
}

/// Who is there, and who is wanted.
pub struct Crew {
    on_demand: AtomicBool,
    there: AtomicU32,
    /// Futex word: roles that somebody is wanted for; 0: none.
    wanted: AtomicU32,
}

/// In the word of who is wanted: somebody has left, or the owner is called.
const LEFT: u32 = 1 << 31;

impl Crew {
    /// Everybody is there.
    pub(super) fn new() -> Crew {
        Crew {
            on_demand: AtomicBool::new(false),
            there: AtomicU32::new(u32::MAX),
            wanted: AtomicU32::new(0),
        }
    }

    /// `on`: nobody is there yet, and who has nothing to do leaves. Else everybody is. Before the
    /// loops run, and once more in a child of fork, which may not do what its parent may.
    pub(super) fn come_on_demand(&self, on: bool) {
        self.on_demand.store(on, Relaxed);
        self.there.store(if on { 0 } else { u32::MAX }, Relaxed);
        self.wanted.store(0, SeqCst);
    }

    /// Whether who has nothing to do leaves.
    pub fn is_on_demand(&self) -> bool {
        self.on_demand.load(Relaxed)
    }

    /// After how long somebody leaves who has nothing to do.
    pub fn idle(&self) -> Option<Duration> {
        self.is_on_demand().then_some(IDLE)
    }

    /// Whether somebody has that role.
    pub fn has(&self, role: Role) -> bool {
        self.there.load(SeqCst) & role.0 != 0
    }

    /// There is something to do for that role, which whoever has it can see by now.
    pub fn want(&self, role: Role) {
        if !self.is_on_demand() {
            return;
        }
        fence(SeqCst);
        if !self.has(role) && self.wanted.fetch_or(role.0, SeqCst) & role.0 == 0 {
            futex::wake(&self.wanted, 1);
        }
    }

    /// The word that the owner of the pager waits for: not 0 if there is something for it to
    /// [take](Self::take), or if somebody has left.
    pub fn wanted(&self) -> &AtomicU32 {
        &self.wanted
    }

    /// Wakes the owner of the pager. Atomics and a system call: also in a signal handler.
    pub fn call(&self) {
        self.wanted.fetch_or(LEFT, SeqCst);
        futex::wake(&self.wanted, 1);
    }

    /// A role that somebody is wanted for, and that nobody has: it is the caller's to give, or to
    /// say that it has [ended](Self::end).
    pub fn take(&self) -> Option<Role> {
        loop {
            let wanted = self.wanted.load(SeqCst);
            if wanted == 0 {
                return None;
            }
            let role = Role(wanted & wanted.wrapping_neg());
            self.wanted.fetch_and(!role.0, SeqCst);
            if role.0 != LEFT && self.begin(role) {
                return Some(role);
            }
        }
    }

    /// Somebody begins with that role; false: somebody has it.
    pub fn begin(&self, role: Role) -> bool {
        self.there.fetch_or(role.0, SeqCst) & role.0 == 0
    }

    /// Nobody has that role any more.
    pub fn end(&self, role: Role) {
        self.there.fetch_and(!role.0, SeqCst);
    }

    /// Who has found nothing to do gives its role up, and must not do anything more, unless there
    /// is `more`: then false.
    pub fn leave(&self, role: Role, more: impl FnOnce() -> bool) -> bool {
        self.end(role);
        fence(SeqCst);
        if more() && self.begin(role) {
            return false;
        }
        self.call();
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn by_default_everybody_is_there_and_nobody_is_wanted() {
        let crew = Crew::new();
        crew.want(Role::BACKGROUND);
        assert_eq!((crew.take(), crew.idle()), (None, None));
        crew.come_on_demand(true);
        assert!(!crew.has(Role::FILLER));
        crew.come_on_demand(false);
        assert!(crew.has(Role::FILLER));
    }

    #[test]
    fn who_is_wanted_is_told_once_and_who_leaves_can_come_again() {
        let crew = Crew::new();
        crew.come_on_demand(true);
        let [one, two] = Role::WORKERS;
        crew.want(two);
        crew.want(one);
        crew.want(one);
        assert_eq!(
            [crew.take(), crew.take(), crew.take()],
            [Some(one), Some(two), None]
        );
        // It is there: nobody more is wanted.
        crew.want(one);
        assert_eq!(crew.take(), None);
        assert!(!crew.leave(one, || true) && crew.has(one));
        assert!(crew.leave(one, || false) && !crew.has(one));
        // The owner hears of that.
        assert_ne!(crew.wanted().load(SeqCst), 0);
        assert_eq!((crew.take(), crew.wanted().load(SeqCst)), (None, 0));
        crew.want(one);
        assert_eq!(crew.take(), Some(one));
        assert_eq!(Role::handler(3).handler_number(), Some(3));
        assert_eq!(Role::OWN.handler_number(), None);
    }

    /// One makes work, one does it and leaves whenever there is none, one starts it again.
    #[test]
    fn whatever_is_put_down_is_done_whoever_leaves() {
        const WORK: u32 = 5_000;
        let crew = Crew::new();
        crew.come_on_demand(true);
        let (put, done, starts) = (AtomicU32::new(0), AtomicU32::new(0), AtomicU32::new(0));
        let role = Role::BACKGROUND;
        let body = || loop {
            let now = put.load(SeqCst);
            if done.swap(now, SeqCst) == now
                && crew.leave(role, || put.load(SeqCst) != done.load(SeqCst))
            {
                return;
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while done.load(SeqCst) < WORK {
                    if crew.take().is_some() {
                        starts.fetch_add(1, Relaxed);
                        body();
                    } else {
                        futex::wait(crew.wanted(), 0, Some(Duration::from_secs(60)));
                    }
                }
            });
            for n in 1..=WORK {
                put.store(n, SeqCst);
                crew.want(role);
                // Now and then it finds nothing more, and leaves or is about to.
                while n % 3 == 0 && done.load(SeqCst) < n {
                    std::thread::yield_now();
                }
            }
        });
        assert_eq!(done.load(SeqCst), WORK);
        // Or nothing was tried.
        assert!(starts.load(Relaxed) > 100, "{starts:?}");
    }
}
