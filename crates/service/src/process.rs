//! The managed process, as its service sees it.

use crate::account::Account;
use crate::adopt::Glimpse;
use crate::look::Rest;
use crate::own::Own;
use crate::serve;
use crate::swap::Swap;
use crate::tables::Seen;
use crate::threads::Begun;
use crate::watch::Watch;
use core::sync::atomic::Ordering::{Acquire, Release};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64};
use deckle_door::Lock;
use deckle_group::Reservation;
use deckle_group::proto::Link;
use deckle_live::{LiveEnv, Pager, Ranges};
use deckle_mm::table::vma::Vma;
use deckle_mm::{Mm, SpaceId, Vpn};
use std::sync::Arc;

/// The manager.
pub type Manager = Mm<LiveEnv<Account, Swap>>;

/// One managed process, as its service sees it.
pub struct Process {
    /// Its process id.
    pub pid: i32,
    pub pager: Pager<Account, Swap>,
    pub account: Arc<Account>,
    pub link: Link,
    pub watch: Watch,
    /// The line in the group that is kept for the child of the fork that is on its way.
    pub reserved: Lock<Option<Reservation>>,
    /// Whether there was no room for the child at the last fork, or at one before it whose child
    /// lived then.
    pub short_of_room: AtomicBool,
    /// What the last look at the tables has found.
    pub tables_seen: Lock<Seen>,
    /// Threads that may have begun only just.
    pub begun: Lock<Vec<Begun>>,
    /// Whether who looks after it sleeps.
    pub rest: Rest,
    /// What was seen of its mappings.
    pub glimpse: Lock<Glimpse>,
    /// Pages that the program has mapped unseen, and that are the kernel's while memory is far from
    /// short; charged, roughly.
    pub left: AtomicU64,
    /// Resident pages of unmanaged anonymous memory at the last glance, charged or not.
    pub unmanaged: AtomicU64,
    /// Whether the next look adopts even while usage is low.
    pub wants_all: AtomicBool,
    /// How often all has been adopted for that.
    pub taken_all: AtomicU32,
    /// Whether every large mapping lies on huge pages.
    pub align_mappings: bool,
    /// What the age of inactive memory is told from.
    pub history: Lock<deckle_group::History>,
    /// What is mapped as room for its owner to fill. A forked child has its parent's.
    pub rooms: Lock<Ranges>,
    pub own: Own,
    /// Mappings that the kernel allows a process (`vm.max_map_count`).
    pub most_mappings: usize,
    /// What stays resident because the kernel touches it where it cannot wait, there too.
    pub held: Lock<Ranges>,
    /// Pages that are locked for the time of a fork.
    pub kept: Lock<Vec<Vpn>>,
}

impl Process {
    /// The manager, and the program's space in it.
    pub fn memory(&self) -> (&Manager, SpaceId) {
        (self.pager.mm(), self.pager.space())
    }

    /// What was noted of a range is of it no more.
    pub fn forget_notes(&self, addr: usize, bytes: usize) {
        self.rooms.lock().remove(addr, bytes);
        self.held.lock().remove(addr, bytes);
    }

    /// What was noted of a range (address, bytes) goes to another, with as much as fits there;
    /// `leave`: an empty mapping stays behind.
    pub fn move_notes(&self, (addr, whole): (usize, usize), to: (usize, usize), leave: bool) {
        let (to, bytes) = to;
        for (notes, stay) in [(&self.rooms, leave), (&self.held, false)] {
            let mut notes = notes.lock();
            let parts = notes.parts(addr, bytes.min(whole));
            if !stay {
                notes.remove(addr, whole);
            }
            for (start, len, _) in parts.into_iter().filter(|(.., outside)| !outside) {
                notes.insert(start - addr + to, len);
            }
        }
    }

    /// What the program has mapped in a range, in parts.
    pub fn mapped_parts(&self, addr: usize, bytes: usize) -> Vec<Vma> {
        let (mm, space) = self.memory();
        mm.mapped_parts(space, serve::vpn(addr), serve::pages(bytes))
    }
}

/// The process, once its service is set up. Never freed.
static PROCESS: AtomicPtr<Process> = AtomicPtr::new(core::ptr::null_mut());

/// The process, once there is one.
pub fn process() -> Option<&'static Process> {
    // SAFETY: null or a leaked value.
    unsafe { PROCESS.load(Acquire).as_ref() }
}

/// Makes `process` the one that [`process`] tells.
pub fn publish(process: *mut Process) {
    crate::heap::keep(process.cast());
    PROCESS.store(process, Release);
}
