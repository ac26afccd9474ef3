//! Random operations on spaces that fork, against a naive oracle: for each space a map from
//! page to bytes, cloned at each fork.

use crate::cow::machine::{BASE, Bare};
use deckle_mm::space::pin::Pin;
use deckle_mm::table::vma::OnFork;
use deckle_mm::{
    Advice, FaultError, FaultOrder, MapError, PAGE_SIZE, Pfn, Profile, Prot, SpaceId, ThpMode,
    Tunables, Vpn,
};
use deckle_model::{Chance, Injection, Rng};
use std::collections::BTreeMap;

#[path = "moves.rs"]
mod moves;
#[path = "tracking.rs"]
mod tracking;

use tracking::Guard;

/// Spaces that live at once, at most.
const SPACES: usize = 5;
/// Pages that programs use: four blocks, so that they meet often.
const PAGES: u64 = 4 * 512;

/// A page of the oracle.
#[derive(Clone, Default)]
struct Page {
    bytes: BTreeMap<u16, u8>,
    /// MADV_FREE: may read as zeros.
    lazy: bool,
    /// Written since the last look.
    dirty: bool,
}

#[derive(Clone, Copy, PartialEq)]
struct Rights {
    prot: Prot,
    on_fork: OnFork,
    locked: bool,
}

#[derive(Clone)]
struct Program {
    id: SpaceId,
    mapped: BTreeMap<u64, Rights>,
    pages: BTreeMap<u64, Page>,
    /// Pages that the program has protected against writes.
    guards: BTreeMap<u64, Guard>,
}

/// A pin, and the bytes that its frame must keep.
struct Held {
    pin: Pin,
    space: SpaceId,
    page: Vpn,
    /// Still what the program has at that page.
    attached: bool,
    frame: Pfn,
}

pub struct Fuzz<'a> {
    m: &'a Bare,
    /// The CPU that does it all.
    cpu: usize,
    rng: Rng,
    programs: Vec<Program>,
    pins: Vec<Held>,
    failing: bool,
    pub last: Vec<String>,
}

/// A machine whose settings the seed decides.
pub fn machine(seed: u64, cpus: usize) -> (Bare, String) {
    let mut rng = Rng::new(seed ^ 0x5eed);
    let mut t = Tunables::of_profile([Profile::Deckle, Profile::Linux][rng.below(2) as usize]);
    t.thp = [ThpMode::Always, ThpMode::Madvise, ThpMode::Never][rng.below(3) as usize];
    t.max_ptes_none = [64, 409, 511][rng.below(3) as usize];
    t.fault_order = [FaultOrder::Fixed, FaultOrder::Auto][rng.below(2) as usize];
    let swap = rng.below(3) > 0;
    let m = Bare::new(64, cpus, seed, swap, t);
    let limit = [u64::MAX, 5000, 2500][rng.below(3) as usize];
    m.charge.set_max(limit);
    m.charge.set_high(limit - limit / 16);
    (m, format!("{t:?}, swap {swap}, limit {limit}"))
}

impl<'a> Fuzz<'a> {
    /// The machine's one program, on CPU 0.
    pub fn new(m: &'a Bare, seed: u64) -> Fuzz<'a> {
        let mut rng = Rng::new(seed);
        let first = Program {
            id: m.space,
            mapped: BTreeMap::new(),
            pages: BTreeMap::new(),
            guards: BTreeMap::new(),
        };
        Fuzz {
            m,
            cpu: 0,
            failing: rng.below(3) == 0,
            rng,
            programs: vec![first],
            pins: Vec::new(),
            last: Vec::new(),
        }
    }

    /// Lets each program go on by itself, on a CPU of its own; there are `cpus` at least.
    pub fn scatter(mut self, cpus: usize) -> Vec<Fuzz<'a>> {
        while !self.pins.is_empty() {
            self.unpin();
        }
        while self.programs.len() < cpus {
            self.fork(0);
        }
        let programs = std::mem::take(&mut self.programs);
        let (last, rest) = (programs.len(), self.rng.below(1 << 40));
        let alone = programs.into_iter().enumerate().map(|(n, program)| Fuzz {
            m: self.m,
            cpu: n % cpus,
            failing: false,
            rng: Rng::new(rest + (n % last) as u64),
            programs: vec![program],
            pins: Vec::new(),
            last: Vec::new(),
        });
        alone.collect()
    }

    fn below(&mut self, n: u64) -> u64 {
        self.rng.below(n)
    }

    fn range(&mut self) -> (Vpn, u64) {
        let (start, pages) = match self.below(5) {
            0 => (self.below(PAGES / 512) * 512, 512 * (1 + self.below(2))),
            1 => (self.below(PAGES), 1),
            2 => (self.below(PAGES / 16) * 16, 16),
            3 => (self.below(PAGES / 4) * 4, 4 + self.below(60)),
            _ => (self.below(PAGES), 1 + self.below(600)),
        };
        (BASE.add(start), pages.min(PAGES - start))
    }

    /// Lets the machine run out of memory now and then, while `f` runs.
    fn shaky<R>(&mut self, f: impl FnOnce(&Bare) -> R) -> (R, bool) {
        let shaken = self.failing && self.rng.below(6) == 0;
        if shaken {
            self.m.model.set_injection(Injection {
                no_memory: Chance(200),
                ..Injection::default()
            });
        }
        let r = f(self.m);
        if shaken {
            self.m.model.set_injection(Injection::default());
        }
        (r, shaken)
    }

    fn write(&mut self, n: usize, page: u64) {
        let (at, byte) = (self.below(4096) as u16, self.below(255) as u8 + 1);
        let (id, cpu) = (self.programs[n].id, self.cpu);
        let (done, shaken) = self.shaky(|m| m.write_at(cpu, id, Vpn(page), u64::from(at), byte));
        match done {
            Ok(()) => {}
            Err(FaultError::Oom(_)) => return,
            Err(FaultError::Platform(_)) if shaken => return,
            Err(FaultError::WriteProtected) => {
                let guard = self.programs[n].guards.get(&page);
                assert!(guard.is_some(), "{} is protected by nobody", Vpn(page));
                return;
            }
            Err(e) => panic!("write to {} of {id}: {e}", Vpn(page)),
        }
        let guard = self.programs[n].guards.get(&page);
        assert_ne!(guard, Some(&Guard::Must), "{} was written", Vpn(page));
        let lazy = self.programs[n].pages.get(&page).is_some_and(|p| p.lazy);
        if lazy {
            // Whether the write came before the drop only the page can tell.
            let bytes = self.m.read_on(cpu, id, Vpn(page)).unwrap();
            let known = self.programs[n].pages.get_mut(&page).unwrap();
            known.lazy = false;
            let intact = (known.bytes.iter())
                .filter(|b| *b.0 != at)
                .all(|(&i, &b)| bytes[usize::from(i)] == b);
            if !intact {
                known.bytes.clear();
            }
        }
        let known = self.programs[n].pages.entry(page).or_default();
        known.bytes.insert(at, byte);
        known.dirty = true;
        // Whoever pinned this page sees the write.
        for h in &self.pins {
            if h.attached && (h.space, h.page) == (id, Vpn(page)) {
                let seen = self.m.model.frame_bytes(h.frame)[usize::from(at)];
                assert_eq!(seen, byte, "a pinned page was replaced: {}", Vpn(page));
            }
        }
    }

    fn check(&mut self, n: usize, page: u64) {
        let (id, cpu) = (self.programs[n].id, self.cpu);
        let (bytes, shaken) = self.shaky(|m| m.read_on(cpu, id, Vpn(page)));
        let bytes = match bytes {
            Ok(bytes) => bytes,
            Err(FaultError::Oom(_)) => return,
            Err(FaultError::Platform(_)) if shaken => return,
            Err(e) => panic!("read of {} of {id}: {e}", Vpn(page)),
        };
        let mut should = [0; PAGE_SIZE];
        let known = self.programs[n].pages.get(&page);
        if let Some(k) = known {
            k.bytes
                .iter()
                .for_each(|(&i, &b)| should[usize::from(i)] = b);
        }
        let dropped = known.is_some_and(|k| k.lazy) && bytes == [0; PAGE_SIZE];
        let wrong = (0..PAGE_SIZE).find(|&i| bytes[i] != should[i]);
        if let (Some(i), false) = (wrong, dropped) {
            panic!(
                "{} of {id} byte {i} is {:#x}, should be {:#x}",
                Vpn(page),
                bytes[i],
                should[i]
            );
        }
    }

    fn detach(&mut self, id: SpaceId, start: u64, pages: u64) {
        for h in &mut self.pins {
            if h.space == id && (start..start + pages).contains(&h.page.0) {
                h.attached = false;
            }
        }
    }

    fn covered(&self, n: usize, start: Vpn, pages: u64) -> bool {
        (start.0..start.0 + pages).all(|p| self.programs[n].mapped.contains_key(&p))
    }

    /// One random operation of one random program.
    pub fn step(&mut self) {
        let n = self.below(self.programs.len() as u64) as usize;
        let id = self.programs[n].id;
        let (start, pages) = self.range();
        let end = start.0 + pages;
        let op = match self.below(38) {
            0 | 1 => {
                let prot = [Prot::RW, Prot::RW, Prot::RW, Prot::R][self.below(4) as usize];
                self.m.mm.mmap(id, Some(start), pages, 1, prot).unwrap();
                let rights = Rights {
                    prot,
                    on_fork: OnFork::Copy,
                    locked: false,
                };
                for p in start.0..end {
                    self.programs[n].mapped.insert(p, rights);
                    self.programs[n].pages.remove(&p);
                }
                self.forget_guards(n, start.0, end);
                self.detach(id, start.0, pages);
                "mmap".into()
            }
            2 => {
                self.m.mm.munmap(id, start, pages).unwrap();
                for p in start.0..end {
                    self.programs[n].mapped.remove(&p);
                    self.programs[n].pages.remove(&p);
                }
                self.forget_guards(n, start.0, end);
                self.detach(id, start.0, pages);
                "munmap".into()
            }
            3 => {
                let prot = [Prot::R, Prot::RW, Prot::RW, Prot::NONE][self.below(4) as usize];
                let done = self.m.mm.mprotect(id, start, pages, prot);
                assert_eq!(done.is_ok(), self.covered(n, start, pages), "{done:?}");
                if done.is_ok() {
                    for p in start.0..end {
                        self.programs[n].mapped.get_mut(&p).unwrap().prot = prot;
                    }
                }
                format!("mprotect {prot:?}")
            }
            4..=10 => {
                let writable =
                    |p: &u64| self.programs[n].mapped.get(p).is_some_and(|r| r.prot.write);
                let targets: Vec<u64> = (start.0..end).filter(writable).take(20).collect();
                targets.into_iter().for_each(|p| self.write(n, p));
                "write".into()
            }
            11..=13 => {
                let readable =
                    |p: &u64| self.programs[n].mapped.get(p).is_some_and(|r| r.prot.read);
                let targets: Vec<u64> = (start.0..end).filter(readable).take(20).collect();
                targets.into_iter().for_each(|p| self.check(n, p));
                "read".into()
            }
            14..=16 => self.fork(n),
            17 | 18 => self.exit(n),
            19 => {
                let done = self.m.mm.madvise(id, start, pages, Advice::DontNeed);
                assert_eq!(done.is_ok(), self.covered(n, start, pages), "{done:?}");
                for p in start.0..end {
                    // Locked pages stay.
                    if self.programs[n].mapped.get(&p).is_some_and(|r| !r.locked) {
                        self.programs[n].pages.remove(&p);
                        self.detach(id, p, 1);
                    }
                }
                self.may_be_gone(n, start.0, end);
                "dontneed".into()
            }
            20 => {
                let _ = self.m.mm.madvise(id, start, pages, Advice::Free);
                for p in start.0..end {
                    if let Some(k) = self.programs[n].pages.get_mut(&p) {
                        k.lazy = true;
                    }
                }
                self.may_be_gone(n, start.0, end);
                "free".into()
            }
            21 => {
                let advice = [
                    Advice::Cold,
                    Advice::PageOut,
                    Advice::WillNeed,
                    Advice::HugePage,
                    Advice::NoHugePage,
                ][self.below(5) as usize];
                let _ = self.m.mm.madvise(id, start, pages, advice);
                format!("{advice:?}")
            }
            22 | 23 => self.remap(n, start, pages),
            24 => {
                let k = self.below(2000);
                self.m.mm.reclaim(k);
                format!("reclaim {k}")
            }
            25 => {
                let few = pages.min(40);
                let keep = self.below(4) == 0;
                if self.covered(n, start, few) {
                    let locked = self.m.mm.mlock(id, start, few).is_ok() && keep;
                    if !keep {
                        self.m.mm.munlock(id, start, few).unwrap();
                    }
                    for p in start.0..start.0 + few {
                        self.programs[n].mapped.get_mut(&p).unwrap().locked = locked;
                    }
                }
                format!("mlock {few} {keep}")
            }
            26 => self.pin(n, start),
            27 => self.unpin(),
            28 => {
                let on_fork = [OnFork::Copy, OnFork::Leave, OnFork::Wipe][self.below(3) as usize];
                let done = self.m.mm.advise_fork(id, start, pages, on_fork);
                assert_eq!(done.is_ok(), self.covered(n, start, pages), "{done:?}");
                if done.is_ok() {
                    for p in start.0..end {
                        self.programs[n].mapped.get_mut(&p).unwrap().on_fork = on_fork;
                    }
                }
                format!("advise fork {on_fork:?}")
            }
            29 => {
                let done = self.m.mm.collapse(id, start);
                format!("collapse: {:?}", done.is_ok())
            }
            30 => {
                self.m.mm.shrink_underused(64, 600);
                "shrink".into()
            }
            31 => self.clear(n),
            32 | 33 => self.protect(n, start, pages.min(700)),
            34 => self.look(n, start, pages),
            35 => {
                let (zero, few) = (self.below(2) == 0, pages.min(20));
                let (done, _) = self.shaky(|m| {
                    let moved = (0..few).filter(|i| {
                        let page = start.add(*i);
                        m.mm.migrate_page(id, page, zero).is_ok()
                    });
                    moved.count()
                });
                format!("migrate, {done} moved")
            }
            36 => {
                let order = 1 + self.below(9) as u8;
                format!("compact {order}: {:?}", self.m.mm.compact(order))
            }
            _ => {
                self.m.model.pin(id, start);
                self.m.mm.reclaim(600);
                self.m.model.unpin(id, start);
                "reclaim with a page that the machine holds".into()
            }
        };
        self.last.push(format!("{id} {start} {pages}: {op}"));
    }

    fn fork(&mut self, n: usize) -> String {
        if self.programs.len() >= SPACES {
            return "no fork".into();
        }
        let id = self.programs[n].id;
        let (child, shaken) = self.shaky(|m| m.mm.fork(id));
        let child = match child {
            Ok(child) => child,
            Err(MapError::Limit) if self.pins.iter().any(|h| h.space == id) => {
                return "fork: no memory for a pinned page".into();
            }
            Err(_) if shaken => return "fork: refused".into(),
            Err(e) => panic!("fork: {e}"),
        };
        let mut new = self.programs[n].clone();
        new.id = child;
        new.guards.clear();
        new.mapped.values_mut().for_each(|r| r.locked = false);
        for (&p, rights) in &self.programs[n].mapped {
            match rights.on_fork {
                OnFork::Copy => {}
                OnFork::Leave => {
                    new.mapped.remove(&p);
                    new.pages.remove(&p);
                }
                OnFork::Wipe => drop(new.pages.remove(&p)),
            }
        }
        self.programs.push(new);
        format!("fork {child}")
    }

    fn exit(&mut self, n: usize) -> String {
        if self.programs.len() == 1 {
            return "no exit".into();
        }
        let gone = self.programs.swap_remove(n);
        self.m.mm.destroy_space(gone.id).unwrap();
        self.detach(gone.id, 0, u64::MAX);
        "exit".into()
    }

    pub fn verify(&mut self, step: u64) {
        let last = self.last.last().cloned();
        for h in self.pins.iter().filter(|h| h.attached) {
            let now = self.m.frame(h.space, h.page);
            assert_eq!(now, Some(h.frame), "{} was replaced: {last:?}", h.page);
        }
        self.m.verify(&(step, last));
    }

    /// Checks every byte of every program; then all end.
    pub fn finish(mut self) {
        self.cpu = 0;
        for n in 0..self.programs.len() {
            let readable = |(&p, r): (&u64, &Rights)| r.prot.read.then_some(p);
            let pages: Vec<u64> = (self.programs[n].mapped.iter())
                .filter_map(readable)
                .collect();
            pages.into_iter().for_each(|p| self.check(n, p));
        }
        self.verify(u64::MAX);
        while !self.pins.is_empty() {
            self.unpin();
        }
        for program in std::mem::take(&mut self.programs) {
            self.m.mm.destroy_space(program.id).unwrap();
        }
        self.verify(u64::MAX);
    }
}

/// When all programs have ended, nothing may be left.
pub fn nothing_is_left(m: &Bare) {
    let used = m.model.used_frames();
    assert!(used.is_empty(), "left: {used:?}");
    assert_eq!(m.charge.underflow(), 0);
}
