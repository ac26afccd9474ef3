//! A manager on the model, and a naive oracle beside it: a map from pages to bytes.

use deckle_mm::platform::Stop;
use deckle_mm::space::remap::Remap;
use deckle_mm::{
    Advice, BlockNr, FaultError, FaultMode, MapError, PAGE_SIZE, PageRun, Platform, Prot, Vpn,
};
use deckle_model::{Chance, Injection, Rng};
use std::collections::{BTreeMap, BTreeSet};

use super::P;

mod anew;
pub mod hand;
pub mod leave;
mod rig;
pub mod tracking;
mod unseen;

pub use rig::{BASE, BELOW, Rig, WINDOW};

/// What a program did to a page last.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Known {
    bytes: BTreeMap<u16, u8>,
    /// MADV_FREE: may read as zeros.
    lazy: bool,
}

/// One simulated program on one CPU, with its own part of the space.
pub struct Program<'a> {
    rig: &'a Rig,
    cpu: usize,
    rng: Rng,
    first: Vpn,
    pages: u64,
    /// Mapped pages with their rights.
    mapped: BTreeMap<u64, Prot>,
    known: BTreeMap<u64, Known>,
    /// Pages that were written since the last [`Program::track`] that cleared.
    dirty: BTreeSet<u64>,
    /// Whether the machine may refuse memory, so that an out-of-memory is no failure.
    pub may_oom: bool,
    /// Whether platform operations fail now and then (one CPU only).
    pub may_fail: bool,
    /// Whether the program is alone, so that everything may stand still for a fork.
    pub may_fork: bool,
    /// Whether it changes its memory by calls that the manager does not see.
    pub unseen: bool,
    pub ooms: u64,
    /// Mapped huge pages of which a part was given up.
    pub parts: u64,
}

impl<'a> Program<'a> {
    pub fn new(rig: &'a Rig, cpu: usize, seed: u64, first: Vpn, pages: u64) -> Program<'a> {
        let rng = Rng::new(seed ^ (cpu as u64) << 32);
        let (mapped, known) = (BTreeMap::new(), BTreeMap::new());
        Program {
            rig,
            cpu,
            rng,
            first,
            pages,
            mapped,
            known,
            dirty: BTreeSet::new(),
            may_oom: true,
            may_fail: false,
            may_fork: false,
            unseen: false,
            ooms: 0,
            parts: 0,
        }
    }

    fn below(&mut self, n: u64) -> u64 {
        self.rng.below(n)
    }

    /// A range, more often than not a whole block or a few pages.
    fn range(&mut self) -> (Vpn, u64) {
        let (start, pages) = match self.below(4) {
            0 => (
                self.below(self.pages / 512) * 512,
                512 * (1 + self.below(2)),
            ),
            1 => (self.below(self.pages), 1),
            2 => (self.below(self.pages / 16) * 16, 16),
            _ => (self.below(self.pages), 1 + self.below(700)),
        };
        (self.first.add(start), pages.min(self.pages - start))
    }

    /// Counts the huge mappings of which a part is about to be given up.
    fn count_parts(&mut self, start: Vpn, pages: u64) {
        let last = start.add(pages - 1);
        let mut ends = vec![start.block(), last.block()];
        ends.dedup();
        let within = |b: &BlockNr| b.start() >= start && b.start().0 + 511 <= last.0;
        let huge = |b: &BlockNr| self.rig.model.is_huge(self.rig.space, *b);
        self.parts += ends.iter().filter(|b| !within(b) && huge(b)).count() as u64;
    }

    fn is_covered(&self, start: Vpn, pages: u64) -> bool {
        (start.0..start.0 + pages).all(|p| self.mapped.contains_key(&p))
    }

    fn touch(&mut self, page: Vpn, write: bool) -> bool {
        let mode = if self.below(2) == 0 {
            FaultMode::NoWait
        } else {
            FaultMode::MayWait
        };
        // The machine runs out of memory in the middle of some operations.
        let failing = self.may_fail && self.below(8) == 0;
        if failing {
            let no_memory = Chance(300);
            // Only what may be written has been, before its zeros were protected.
            let writable = self.mapped.get(&page.0).is_some_and(|p| p.write);
            let exists = Chance(if writable { 300 } else { 0 });
            self.rig.model.set_injection(Injection {
                no_memory,
                exists,
                ..Injection::default()
            });
        }
        let first = self.rig.mm.fault(self.rig.space, page, write, mode);
        self.rig.model.set_injection(Injection::default());
        let served = match first {
            Err(FaultError::Busy | FaultError::NeedReclaim) if mode == FaultMode::NoWait => self
                .rig
                .mm
                .fault(self.rig.space, page, write, FaultMode::MayWait),
            other => other,
        };
        match served {
            Ok(_) => true,
            Err(FaultError::Oom(report)) => {
                assert!(self.may_oom, "{report}");
                self.ooms += 1;
                false
            }
            // Somebody else may hold the page for long on this machine.
            Err(FaultError::Busy) => true,
            Err(FaultError::Platform(e)) if failing && e.why == Stop::NoMemory => true,
            Err(e) => panic!("fault on {page} write {write}: {e}"),
        }
    }

    /// Writes a byte; false if memory is out.
    fn write(&mut self, page: Vpn, at: u16, byte: u8) -> bool {
        loop {
            let addr = page.addr() + at as u64;
            match self
                .rig
                .model
                .store(self.cpu, self.rig.space, addr, &[byte])
            {
                Ok(()) => break,
                Err(f) => {
                    if !self.touch(f.page, f.write) {
                        return false;
                    }
                }
            }
        }
        let known = self.known.entry(page.0).or_insert(Known {
            bytes: BTreeMap::new(),
            lazy: false,
        });
        if known.lazy {
            // The write ends the offer, but whether it came before the drop only the page
            // can tell: look.
            known.lazy = false;
            let page_bytes = self.read(page).expect("just written");
            let known = self.known.get_mut(&page.0).unwrap();
            let intact = known
                .bytes
                .iter()
                .filter(|b| *b.0 != at)
                .all(|(&i, &b)| page_bytes[i as usize] == b);
            if !intact {
                known.bytes.clear();
            }
        }
        let shared = self.rig.mm.is_shared(self.rig.space, page);
        assert!(!shared, "{page} was written unheard");
        self.known.get_mut(&page.0).unwrap().bytes.insert(at, byte);
        self.dirty.insert(page.0);
        true
    }

    fn read(&mut self, page: Vpn) -> Option<[u8; PAGE_SIZE]> {
        let mut bytes = [0; PAGE_SIZE];
        loop {
            match self
                .rig
                .model
                .load(self.cpu, self.rig.space, page.addr(), &mut bytes)
            {
                Ok(()) => return Some(bytes),
                Err(f) => {
                    if !self.touch(f.page, f.write) {
                        return None;
                    }
                }
            }
        }
    }

    /// Reads a page and compares every byte.
    fn check(&mut self, page: Vpn) {
        let Some(bytes) = self.read(page) else { return };
        let mut should = [0u8; PAGE_SIZE];
        let mut lazy = false;
        if let Some(k) = self.known.get(&page.0) {
            k.bytes.iter().for_each(|(&i, &b)| should[i as usize] = b);
            lazy = k.lazy;
        }
        if lazy && bytes == [0; PAGE_SIZE] {
            return;
        }
        if let Some(i) = (0..PAGE_SIZE).find(|&i| bytes[i] != should[i]) {
            panic!(
                "{page} byte {i} is {:#x}, should be {:#x}",
                bytes[i], should[i]
            );
        }
    }

    /// Checks every page that may be read.
    pub fn check_all(&mut self) {
        let pages: Vec<u64> = self
            .mapped
            .iter()
            .filter(|(_, p)| p.read)
            .map(|(&p, _)| p)
            .collect();
        pages.into_iter().for_each(|p| self.check(Vpn(p)));
    }

    /// One random operation; its description.
    pub fn step(&mut self) -> String {
        let (start, pages) = self.range();
        let rig = self.rig;
        let (mm, space) = (&rig.mm, rig.space);
        if self.unseen && self.below(6) == 0 {
            return self.act_unseen(start, pages);
        }
        if self.below(12) == 0 {
            return self.take_block();
        }
        match self.below(if self.may_fork { 26 } else { 22 }) {
            0 | 1 => {
                let prot = if self.below(8) == 0 {
                    Prot::R
                } else {
                    Prot::RW
                };
                if !self.map_open(start, pages, prot) {
                    mm.mmap(space, Some(start), pages, 1, prot).unwrap();
                }
                for p in start.0..start.0 + pages {
                    self.mapped.insert(p, prot);
                    self.known.remove(&p);
                }
                format!("mmap {start} {pages}")
            }
            2 => {
                self.count_parts(start, pages);
                mm.munmap(space, start, pages).unwrap();
                for p in start.0..start.0 + pages {
                    self.mapped.remove(&p);
                    self.known.remove(&p);
                }
                format!("munmap {start} {pages}")
            }
            3 => {
                let prot = [Prot::R, Prot::RW, Prot::NONE][self.below(3) as usize];
                let covered = self.is_covered(start, pages);
                if self.may_fail && self.below(2) == 0 {
                    self.refused(start, pages, prot);
                }
                let result = mm.mprotect(space, start, pages, prot);
                assert_eq!(result.is_ok(), covered, "{result:?}");
                if covered {
                    for p in start.0..start.0 + pages {
                        self.mapped.insert(p, prot);
                    }
                }
                format!("mprotect {start} {pages} {prot:?}")
            }
            4..=9 => {
                let writable = |p: &u64| self.mapped.get(p).is_some_and(|r| r.write);
                let targets: Vec<u64> = (start.0..start.0 + pages)
                    .filter(writable)
                    .take(24)
                    .collect();
                for p in targets {
                    let (at, byte) = (self.below(4096) as u16, self.below(255) as u8 + 1);
                    if !self.write(Vpn(p), at, byte) {
                        break;
                    }
                }
                format!("write {start} {pages}")
            }
            10..=12 => {
                let readable = |p: &u64| self.mapped.get(p).is_some_and(|r| r.read);
                let targets: Vec<u64> = (start.0..start.0 + pages)
                    .filter(readable)
                    .take(24)
                    .collect();
                targets.into_iter().for_each(|p| self.check(Vpn(p)));
                format!("read {start} {pages}")
            }
            13 => {
                self.count_parts(start, pages);
                let zap = || mm.madvise(space, start, pages, Advice::DontNeed);
                let result = self.stopping(zap);
                assert_eq!(result.is_ok(), self.is_covered(start, pages), "{result:?}");
                (start.0..start.0 + pages).for_each(|p| drop(self.known.remove(&p)));
                format!("dontneed {start} {pages}")
            }
            14 => {
                let _ = mm.madvise(space, start, pages, Advice::Free);
                for p in start.0..start.0 + pages {
                    if let Some(k) = self.known.get_mut(&p) {
                        k.lazy = true;
                    }
                }
                format!("free {start} {pages}")
            }
            15 => {
                let advice = [Advice::Cold, Advice::PageOut, Advice::WillNeed];
                let advice = advice[self.below(3) as usize];
                let done = self.stopping(|| mm.madvise(space, start, pages, advice));
                format!("{advice:?} {start} {pages}: {done:?}")
            }
            16 => {
                let advice = [Advice::HugePage, Advice::NoHugePage][self.below(2) as usize];
                let _ = mm.madvise(space, start, pages, advice);
                format!("{advice:?} {start} {pages}")
            }
            17 => {
                let (to, _) = self.range();
                let room = self.pages - (to.0 - self.first.0);
                let new = (1 + self.below(pages + 40)).min(room);
                self.remap(start, pages, new, to)
            }
            18 => {
                let n = self.below(2000);
                let gone = self.stopping(|| mm.reclaim(n));
                format!("reclaim {n}: {gone}")
            }
            19 => {
                let more = self.stopping(|| mm.reclaim_background());
                format!("reclaim_background: {more}")
            }
            20 => {
                let result = mm.mlock(space, start, pages.min(40));
                if result.is_ok() {
                    mm.munlock(space, start, pages.min(40)).unwrap();
                }
                format!("mlock {start}")
            }
            22 => format!("fork: {}", rig.fork()),
            23 => format!("others are gone: {}", rig.others_are_gone()),
            24 => {
                let n = 1 + self.below(300);
                format!("reclaim {n} shared: {:?}", mm.reclaim_shared(n))
            }
            25 => self.guard_again(),
            _ => {
                rig.model.pin(space, start);
                mm.reclaim(600);
                rig.model.unpin(space, start);
                format!("pin {start} and reclaim")
            }
        }
    }

    /// Does something of which nobody waits, while platform operations may stop on the way.
    pub fn stopping<R>(&mut self, work: impl FnOnce() -> R) -> R {
        if self.may_fail && self.below(2) == 0 {
            self.rig.model.set_injection(Injection {
                unmap_busy: Chance(60),
                retry: Chance(120),
                ..Injection::default()
            });
        }
        let done = work();
        self.rig.model.set_injection(Injection::default());
        done
    }

    /// The platform refuses rights, as the kernel does that has no mapping left: whoever acts
    /// within the rights and the bytes of before meets nothing new.
    fn refused(&mut self, start: Vpn, pages: u64, prot: Prot) {
        let (mm, space) = (&self.rig.mm, self.rig.space);
        let parts = mm.mapped_parts(space, start, pages);
        // Rights that are there already are no call.
        let same = parts.iter().all(|v| v.prot == prot)
            && parts.iter().map(|v| v.pages).sum::<u64>() == pages;
        let no_memory = Chance::ALWAYS;
        self.rig.model.set_injection(Injection {
            no_memory,
            ..Injection::default()
        });
        let protected = mm.mprotect(space, start, pages, prot);
        let unmapped = mm.munmap(space, start, pages);
        self.rig.model.set_injection(Injection::default());
        assert_eq!(protected.is_err(), !same);
        assert_eq!(unmapped.is_err(), !parts.is_empty(), "{unmapped:?}");
    }

    /// What a fork's child begins with: nothing is write-protected, and nothing that is away is
    /// remembered. Its manager protects again what must be, and nothing that is shared can be
    /// written unheard.
    fn guard_again(&mut self) -> String {
        let rig = self.rig;
        rig.mm.activate_all(rig.space).unwrap();
        rig.model.forget(rig.space);
        for page in 0..WINDOW {
            let page = BASE.add(page);
            if rig.mm.is_shared(rig.space, page) {
                let run = PageRun::new(rig.space, page, 1);
                let token = rig.model.write_protect(run, false).unwrap();
                rig.model.flush(&mut std::iter::once(token));
            }
        }
        rig.mm.guard_all(rig.space).unwrap();
        "guard all again".to_owned()
    }

    fn remap(&mut self, old: Vpn, pages: u64, new: u64, to: Vpn) -> String {
        let rights: Vec<_> = (old.0..old.0 + pages)
            .filter_map(|p| self.mapped.get(&p).copied())
            .collect();
        let result = self
            .rig
            .mm
            .mremap(self.rig.space, old, pages, new, Remap::Fixed(to));
        match result {
            Ok(at) => {
                assert_eq!(at, to);
                assert!(rights.len() as u64 == pages, "moved a range with holes");
                let kept: Vec<_> = (0..pages.min(new))
                    .map(|i| self.known.remove(&(old.0 + i)))
                    .collect();
                for p in old.0..old.0 + pages {
                    self.mapped.remove(&p);
                    self.known.remove(&p);
                }
                for p in to.0..to.0 + new {
                    self.mapped.insert(p, rights[0]);
                    self.known.remove(&p);
                }
                for (i, k) in kept.into_iter().enumerate() {
                    if let Some(k) = k {
                        self.known.insert(to.0 + i as u64, k);
                    }
                }
            }
            // The destination is unmapped first, as in Linux, also when the move then fails.
            Err(MapError::Platform(_)) => {
                for p in to.0..to.0 + new {
                    self.mapped.remove(&p);
                    self.known.remove(&p);
                }
            }
            Err(_) => {}
        }
        format!("mremap {old} {pages} -> {to} {new}: {result:?}")
    }
}
