//! Tasks that come when they are needed. A service begins with three: who looks after the program
//! ([`look`](crate::look)), one handler, and who serves calls. The first starts the others, when
//! there is something for them, and does their work itself where the system refuses a task: a
//! program at its limit of tasks is slower, and goes on.

use crate::process::Process;
use crate::{tasks, threads};
use core::time::Duration;
use deckle_live::pager::Role;
use deckle_sys::futex::{Awaited, Scope};

/// Who reclaims for others: its role.
pub const DONOR: Role = Role::OWN;

/// How long an open gate is waited for between two looks at the program.
const GATE: Duration = Duration::from_millis(10);

/// Whether tasks can be started when a service runs, and it can be waited for who wants one.
pub fn may_come_on_demand(process: &Process) -> bool {
    crate::door().may(libc::SYS_clone) && process.watch.can_wait_with()
}

impl Process {
    /// Whether this service is asked for memory, and nobody is there for that.
    fn lacks_donor(&self) -> bool {
        let (group, line) = (self.account.group(), self.account.line());
        !self.pager.crew().has(DONOR) && group.is_asked(line)
    }

    /// Whether [`muster`](Self::muster) has something to do.
    pub fn lacks_somebody(&self) -> bool {
        use core::sync::atomic::Ordering::SeqCst;
        self.lacks_donor() || self.pager.crew().wanted().load(SeqCst) != 0
    }

    /// Starts all who are wanted. Past a closed gate nobody is started, since a fork may copy what
    /// a task that begins has of this memory; it is waited for a moment then.
    pub fn muster(&'static self) {
        let crew = self.pager.crew();
        if self.lacks_donor() {
            crew.want(DONOR);
        }
        self.glance();
        while let Some(role) = crew.take() {
            let Some(inside) = self.pager.gate().try_enter() else {
                crew.end(role);
                // Who has closed it may wait for messages.
                self.pager.stand_in(role);
                crew.want(role);
                self.pager.gate().wait_open(GATE);
                return;
            };
            let begun = threads::start(self, role);
            if let Ok(begun) = begun {
                begun.wait();
            } else {
                drop(inside);
                crew.end(role);
                self.stand_in(role);
            }
        }
    }

    fn stand_in(&self, role: Role) {
        match role {
            DONOR => while tasks::donate(self, &mut false, Duration::ZERO) {},
            // It asks, and may have to wait for the answer: the next fault has it tried again.
            Role::LOOKER => {}
            role => self.pager.stand_in(role),
        }
    }

    /// The words that tell that somebody is wanted.
    pub fn calls(&self) -> [Awaited<'_>; 2] {
        let (crew, line) = (self.pager.crew(), self.account.line());
        let wanted = (Scope::Private, crew.wanted(), 0);
        // Who has that role hears the bell itself.
        let bell = match crew.has(DONOR) {
            true => None,
            false => self.account.group().doorbell(line),
        };
        let bell = bell.map(|(bell, answered)| (Scope::Shared, bell, answered));
        [wanted, bell.unwrap_or(wanted)]
    }
}
