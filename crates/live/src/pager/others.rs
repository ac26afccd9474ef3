//! How many handlers there are: all, or on demand one alone, as long as it has little to do.

use std::time::Duration;

use deckle_mm::{Charge, Store};

use super::Pager;
use super::cpu;
use super::crew::Role;

/// Messages that one handler serves before it wants the others. More than a forked child has that
/// ends or executes soon; few, since a fault costs up to three times as much where its handler
/// sleeps on another CPU.
const FEW: u32 = 8;

/// What a handler knows of the others.
pub(super) struct Others {
    number: usize,
    /// Those that come on demand.
    all: Vec<Role>,
    /// Where this one may run while it is alone.
    allowed: libc::cpu_set_t,
    is_bound: bool,
    served: u32,
}

impl Others {
    /// For the handler of this number, in whose task this is called.
    pub(super) fn of<C, S>(pager: &Pager<C, S>, number: usize) -> Others
    where
        C: Charge + 'static,
        S: Store + 'static,
    {
        let is_alone = number == 0 && pager.crew().is_on_demand();
        let count = if is_alone { cpu::handlers() } else { 1 };
        let allowed = cpu::allowed();
        if !is_alone {
            cpu::pin(number);
        }
        Others {
            number,
            all: (1..count).map(Role::handler).collect(),
            allowed,
            is_bound: !is_alone,
            served: 0,
        }
    }

    /// After how long without a message the handler may leave.
    pub(super) fn idle<C, S>(&self, pager: &Pager<C, S>) -> Option<Duration>
    where
        C: Charge + 'static,
        S: Store + 'static,
    {
        pager.crew().idle().filter(|_| self.number > 0)
    }

    /// A message was served. Alone, a handler runs where it likes; beside others on a CPU of its
    /// own.
    pub(super) fn served<C, S>(&mut self, pager: &Pager<C, S>)
    where
        C: Charge + 'static,
        S: Store + 'static,
    {
        let Some(first) = self.all.first() else {
            return;
        };
        if pager.crew().has(*first) {
            if !self.is_bound {
                self.is_bound = true;
                cpu::pin(0);
            }
            return;
        }
        if self.is_bound {
            (self.is_bound, self.served) = (false, 0);
            cpu::unpin(&self.allowed);
        }
        self.served += 1;
        if self.served == FEW {
            self.served = 0;
            self.all.iter().for_each(|role| pager.crew().want(*role));
        }
    }
}
