//! Loops that run on demand: what their owner has to know and to do. See [`Crew`](super::Crew).

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use deckle_mm::{Charge, Store};

use super::Pager;
use super::chores::Chores;
use super::crew::Role;
use super::machine::{FILL, MESSAGES, STOP};

impl<C: Charge + 'static, S: Store + 'static> Pager<C, S> {
    pub(super) fn chores(&self) -> std::sync::MutexGuard<'_, Chores> {
        // Plain numbers: whole between any two statements.
        let chores = self.chores.lock();
        chores.unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Says that something has changed that khugepaged may go by, beside faults: by a call, a knob,
    /// or the end of who shares memory with this process.
    pub fn note_change(&self) {
        self.changes.fetch_add(1, Relaxed);
    }

    /// How long there is nothing to do for who stands in for the background loop, if nobody calls;
    /// `None`: for ever, or somebody runs the loop.
    pub fn rest(&self) -> Option<Duration> {
        match self.crew().has(Role::BACKGROUND) {
            true => None,
            false => self.chores().rest(self),
        }
    }

    /// Does, without waiting, what there is to do for a role that nobody can be had for, or for the
    /// background loop when [`rest`](Self::rest) is over. A closed gate is not passed: messages
    /// alone are read then.
    pub fn stand_in(&self, role: Role) {
        if role == Role::BACKGROUND {
            self.stand_in_for_background();
        } else if role == Role::FILLER {
            // Huge pages are made when they are needed, then.
            self.mm.machine().filler.take_now(FILL);
        } else if Role::WORKERS.contains(&role) {
            while let Some(inside) = self.gate.try_enter() {
                if !self.work_one(inside, false) {
                    return;
                }
            }
            // The gate was closed meanwhile. Nobody else calls for what is left.
            if self.queue.has_now() {
                self.crew().want(role);
            }
        }
    }

    fn stand_in_for_background(&self) {
        let work = &self.mm.machine().work;
        if work.take_now(MESSAGES) != 0 {
            self.read_all();
        }
        if let Some(inside) = self.gate.try_enter() {
            let bits = work.take_now(!STOP);
            self.background_step(bits, inside);
        }
        let more = self.rest().is_some_and(|rest| rest.is_zero());
        if work.is_raised() || more {
            self.crew().want(Role::BACKGROUND);
        }
    }
}
