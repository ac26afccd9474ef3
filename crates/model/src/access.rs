//! The program's side: loads and stores of a simulated CPU.

use crate::model::Model;
use crate::profile::Profile;
use crate::state::State;
use crate::table::Target;
use crate::tlb::Entry;
use deckle_mm::{PAGE_SIZE, Pfn, SpaceId, Vpn};
use std::fmt;

/// Why an access faults.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FaultKind {
    /// No translation, or no such space.
    Missing,
    /// The page may be written by its rights, but it is write-protected or the zero page.
    WriteProtect,
    /// The page's rights forbid the access.
    Protection,
}

/// An access that the page table does not permit; the core resolves it and the program tries
/// again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fault {
    /// The space.
    pub space: SpaceId,
    /// The page.
    pub page: Vpn,
    /// Whether it was a write.
    pub write: bool,
    /// Why.
    pub kind: FaultKind,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = if self.write { "write to" } else { "read of" };
        write!(f, "{what} {} {}: {:?}", self.space, self.page, self.kind)
    }
}

impl std::error::Error for Fault {}

impl State {
    /// The frame that CPU `cpu` reaches at the page, by its TLB or by a walk; `None` inside
    /// is the zero page.
    fn reach(
        &mut self,
        cpu: usize,
        space: SpaceId,
        vpn: Vpn,
        write: bool,
    ) -> Result<Option<Pfn>, FaultKind> {
        if let Some((i, e)) = self.tlbs[cpu].find(space, vpn) {
            let usable = if write { e.write && e.dirty } else { e.read };
            if usable {
                self.counters.tlb_hits += 1;
                return Ok(e.frame(vpn));
            }
            // A missing right or a clean entry that is written: hardware walks again.
            self.tlbs[cpu].remove(i);
        }
        self.counters.tlb_misses += 1;
        self.make_open(space, vpn, write);
        let (pte, huge) = self.lookup(space, vpn).ok_or(FaultKind::Missing)?;
        if write && !pte.prot.write || !write && !pte.prot.read {
            return Err(FaultKind::Protection);
        }
        if write && !pte.can_write() {
            return Err(FaultKind::WriteProtect);
        }
        let first = if huge { vpn.block().start() } else { vpn };
        let entry = (self.spaces.get_mut(&space))
            .and_then(|s| s.entry(vpn))
            .expect("the entry was just found");
        entry.dirty |= write;
        let cached = Entry {
            space,
            vpn: first,
            huge,
            pfn: match entry.target {
                Target::Frame(pfn) => Some(pfn),
                Target::Zero => None,
            },
            read: entry.prot.read,
            write: entry.can_write(),
            dirty: entry.dirty,
        };
        self.tlbs[cpu].insert(cached, &mut self.rng);
        Ok(cached.frame(vpn))
    }
}

impl<P: Profile> Model<P> {
    /// Reads `bytes.len()` bytes of the program's memory at `addr` as CPU `cpu` does.
    ///
    /// On a fault the pages before it have been read; resolve it and read again. Panics if
    /// there is no such CPU.
    pub fn load(
        &self,
        cpu: usize,
        space: SpaceId,
        addr: u64,
        bytes: &mut [u8],
    ) -> Result<(), Fault> {
        self.turn("load");
        let mut state = self.lock();
        let mut done = 0;
        while done < bytes.len() {
            let (vpn, from, len) = piece(addr, done, bytes.len());
            let frame = (state.reach(cpu, space, vpn, false)).map_err(|kind| Fault {
                space,
                page: vpn,
                write: false,
                kind,
            })?;
            let to = &mut bytes[done..done + len];
            match frame {
                // A stale translation reads whatever the frame's bytes are now.
                Some(pfn) => to.copy_from_slice(&state.frames.page(pfn)[from..from + len]),
                None => to.fill(0),
            }
            done += len;
        }
        Ok(())
    }

    /// Writes `bytes` into the program's memory at `addr` as CPU `cpu` does.
    ///
    /// On a fault the pages before it have been written; resolve it and write again. Panics
    /// if there is no such CPU.
    pub fn store(&self, cpu: usize, space: SpaceId, addr: u64, bytes: &[u8]) -> Result<(), Fault> {
        self.turn("store");
        let mut state = self.lock();
        let mut done = 0;
        while done < bytes.len() {
            let (vpn, from, len) = piece(addr, done, bytes.len());
            let frame = (state.reach(cpu, space, vpn, true)).map_err(|kind| Fault {
                space,
                page: vpn,
                write: true,
                kind,
            })?;
            // A writable translation is never the zero page.
            let pfn = frame.expect("zero pages are not writable");
            state.frames.page_mut(pfn)[from..from + len].copy_from_slice(&bytes[done..done + len]);
            done += len;
        }
        Ok(())
    }
}

/// The page of byte `addr + done`, the offset in it, and how many bytes of it to take.
fn piece(addr: u64, done: usize, len: usize) -> (Vpn, usize, usize) {
    let at = addr + done as u64;
    let from = (at % PAGE_SIZE as u64) as usize;
    (Vpn::of_addr(at), from, (PAGE_SIZE - from).min(len - done))
}
