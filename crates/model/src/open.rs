//! Holes that are left to the system, and the frames that are its own.
//!
//! Where frames are slots the machine has more of them than its zones tell the core: what the
//! system makes of an open page lies in one of those until the core unmaps it, which carries the
//! bytes to the frame that the core says. As a kernel does, it flushes such a page by itself.

use crate::state::{Place, State};
use crate::table::{Pte, Target};
use crate::translate::{INVALID, stop};
use crate::violation::Broken;
use deckle_mm::platform::Made;
use deckle_mm::{PageRun, Pfn, PlatformError, Prot, SpaceId, Stop, Vpn};

impl State {
    /// Whether frames are slots, and the system has others of its own.
    pub fn is_sparse(&self) -> bool {
        !self.own.is_empty()
    }

    /// Whether the frame is the system's own.
    pub fn is_own(&self, pfn: Pfn) -> bool {
        pfn.0 >= self.own.start
    }

    /// Whether the system has made the page by itself.
    pub fn is_made(&self, pte: Pte) -> bool {
        matches!(pte.target, Target::Frame(pfn) if self.is_own(pfn))
    }

    /// A frame of the system's that holds nothing and that no CPU can reach; zeros from now on.
    fn own_frame(&mut self) -> Option<Pfn> {
        let (frames, from) = (self.own.clone(), self.own_next);
        let free = (from..frames.end).chain(frames.start..from).find(|&n| {
            let frame = self.frames.look(Pfn(n));
            frame.is_some_and(|f| f.maps == 0 && f.stale == 0 && !f.resting)
        })?;
        self.own_next = free + 1;
        self.frames.page_mut(Pfn(free)).fill(0);
        Some(Pfn(free))
    }

    /// Maps a page of zeros of the system's own.
    pub fn make(&mut self, space: SpaceId, vpn: Vpn, prot: Prot, wp: bool) -> Option<Pte> {
        let pte = Pte {
            wp,
            ..Pte::new(Target::Frame(self.own_frame()?), prot)
        };
        self.set("make", space, vpn, Some(pte));
        self.counters.made += 1;
        Some(pte)
    }

    /// What the system does about an access to an open page, of which the core hears nothing.
    pub fn make_open(&mut self, space: SpaceId, vpn: Vpn, write: bool) {
        let Some(&prot) = self.open.get(&(space, vpn)) else {
            return;
        };
        if self.is_gone(space, vpn) {
            return;
        }
        let (old, _) = self.lookup(space, vpn).unzip();
        let zero = old.is_some_and(|pte| pte.target == Target::Zero);
        if (old.is_some() && !(zero && write)) || !(if write { prot.write } else { prot.read }) {
            return;
        }
        match write {
            true => {
                self.make(space, vpn, prot, false);
                // Other CPUs may have the zero page still, which the kernel does not allow.
                self.flush_run(space, vpn, 1);
            }
            false => self.set("make", space, vpn, Some(Pte::new(Target::Zero, prot))),
        }
    }

    fn check_open(&mut self, op: &'static str, at: PageRun) -> Result<(), PlatformError> {
        if !self.check_run(op, at) {
            return Err(stop(0, INVALID));
        }
        if !self.spaces.contains_key(&at.space) {
            return Err(stop(0, Stop::Gone));
        }
        Ok(())
    }

    pub fn open(&mut self, at: PageRun) -> Result<(), PlatformError> {
        self.check_open("open", at)?;
        if self.inject(self.injection.no_memory, 1).is_some() {
            return Err(stop(0, Stop::NoMemory));
        }
        for vpn in (0..at.pages).map(|i| at.start.add(u64::from(i))) {
            let page = (at.space, vpn);
            // What the system has made itself may be left to it again.
            let (there, _) = self.lookup(at.space, vpn).unzip();
            if there.is_some_and(|pte| !self.is_made(pte)) {
                let place = Place::page(at.space, vpn);
                self.broken("open", Broken::MapOverTranslation, place);
            }
            let prot = there.map_or(Prot::RW, |pte| pte.prot);
            self.remembered.remove(&page);
            self.open.insert(page, prot);
        }
        Ok(())
    }

    pub fn close(&mut self, at: PageRun) -> Result<Made, PlatformError> {
        let op = "close";
        self.check_open(op, at)?;
        if self.inject(self.injection.retry, 1).is_some() {
            return Err(stop(0, Stop::Retry));
        }
        let mut made = Made::default();
        for i in 0..at.pages {
            let vpn = at.start.add(u64::from(i));
            if self.open.remove(&(at.space, vpn)).is_none() {
                self.broken(op, Broken::NotOpen, Place::page(at.space, vpn));
            }
            match self.lookup(at.space, vpn).map(|(pte, _)| pte.target) {
                Some(Target::Frame(_)) => made.pages.set(i),
                Some(Target::Zero) => made.zeros.set(i),
                None => {}
            }
        }
        Ok(made)
    }

    pub fn close_empty(&mut self, at: PageRun) -> Result<(), PlatformError> {
        self.check_open("close_empty", at)?;
        let refused = self.inject(self.injection.retry, 1).is_some();
        for i in 0..at.pages {
            let vpn = at.start.add(u64::from(i));
            if !self.open.contains_key(&(at.space, vpn)) {
                self.broken("close_empty", Broken::NotOpen, Place::page(at.space, vpn));
            }
            self.empty_open(at.space, vpn);
            if !refused {
                self.open.remove(&(at.space, vpn));
            }
        }
        match refused {
            true => Err(stop(0, Stop::Retry)),
            false => Ok(()),
        }
    }

    /// Takes the page away with its bytes; it is untouched, and open if it was.
    fn empty_open(&mut self, space: SpaceId, vpn: Vpn) {
        let _ = self.discard(PageRun::new(space, vpn, 1), false);
        self.flush_run(space, vpn, 1);
    }

    /// The system drops what nobody needs, or not yet.
    pub fn free_open(&mut self, at: PageRun) {
        for vpn in (0..at.pages).map(|i| at.start.add(u64::from(i))) {
            if self.rng.below(2) == 0 {
                self.empty_open(at.space, vpn);
            }
        }
    }
}
