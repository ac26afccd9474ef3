//! Whatever a program asks for, in any order, while windows open and close: each page holds what
//! was last written to it, and the books are right. DECKLE_SEED=n replays one seed.

use crate::common::case;
use crate::service::Inside;
use crate::service::{Served, opens, reconciled, service_with, within};
use deckle_live::{Limit, Place};
use deckle_mm::space::remap::Remap;
use deckle_mm::{Advice, Charge, Item, Prot, SpaceId, Store, ThpMode, Vpn};
use std::collections::BTreeMap;

/// Operations of one seed.
const STEPS: u32 = 2500;
/// Pages that are mapped at most, about.
const MOST: usize = 6000;
/// Pages that are locked at most, about.
const LOCKED: usize = 300;
/// Where the kernel puts nothing by itself: a fixed place here replaces nobody's memory.
const ARENA: u64 = 1 << 32;
const ARENA_PAGES: u64 = 4096;

/// What the program knows of a page.
#[derive(Clone, Copy)]
struct Page {
    word: u64,
    /// It may have become zeros since (MADV_FREE).
    lazy: bool,
    prot: Prot,
    locked: bool,
}

impl Page {
    fn new(prot: Prot, locked: bool) -> Page {
        let (word, lazy) = (0, false);
        Page {
            word,
            lazy,
            prot,
            locked,
        }
    }
}

struct Program<'a> {
    service: &'a Served,
    limit: &'a Limit,
    pages: BTreeMap<u64, Page>,
    x: u64,
    ratio: u8,
    log: Vec<String>,
}

fn word_at(page: u64, k: usize) -> *mut u64 {
    (Vpn(page).addr() as usize + [8, 4000][k]) as *mut u64
}

impl Program<'_> {
    fn below(&mut self, n: u64) -> u64 {
        self.x = self.x.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.x ^ self.x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (x ^ x >> 31) % n
    }

    fn space(&self) -> SpaceId {
        self.service.inside().space()
    }

    /// A run of mapped pages, short or long.
    fn run(&mut self) -> (Vpn, u64) {
        let most = [1, 20, 64, 700][self.below(4) as usize];
        let (n, nth) = (1 + self.below(most), self.below(self.pages.len() as u64));
        let start = *self.pages.keys().nth(nth as usize).expect("a page");
        let rest = (start..start + n).take_while(|page| self.pages.contains_key(page));
        (Vpn(start), rest.count() as u64)
    }

    /// How many pages to map.
    fn size(&mut self) -> u64 {
        let most = [8, 64, 64, 64, 1100][self.below(5) as usize];
        1 + self.below(most)
    }

    fn write(&mut self, page: u64) {
        let word = self.below(u64::MAX) | 1;
        let Some(is) = self.pages.get_mut(&page).filter(|p| p.prot.write) else {
            return;
        };
        (is.word, is.lazy) = (word, false);
        for k in 0..2 {
            // SAFETY: a page of the program's that it may write, aligned; nobody else uses it.
            unsafe { word_at(page, k).write_volatile(word) };
        }
    }

    fn check(&mut self, page: u64) {
        let Some(is) = self.pages.get_mut(&page).filter(|p| p.prot.read) else {
            return;
        };
        for k in 0..2 {
            // SAFETY: a page of the program's that it may read, aligned; nobody else uses it.
            let got = unsafe { word_at(page, k).read_volatile() };
            let gone = is.lazy && got == 0;
            assert!(
                gone || got == is.word,
                "page {page:#x} word {k}: {got:#x}, not {:#x}",
                is.word
            );
            if gone {
                (is.word, is.lazy) = (0, false);
            }
        }
    }

    fn set(&mut self, start: Vpn, n: u64, change: impl Fn(&mut Page)) {
        self.pages
            .range_mut(start.0..start.0 + n)
            .for_each(|(_, p)| change(p));
    }

    fn locked(&self) -> usize {
        self.pages.values().filter(|p| p.locked).count()
    }

    /// Somewhere in the arena, as an address.
    fn place(&mut self, n: u64) -> Vpn {
        Vpn(ARENA + self.below(ARENA_PAGES - n))
    }

    fn map(&mut self) {
        let n = self.size();
        let to = self.place(n);
        let at = to.addr() as usize;
        let place = match self.below(4) {
            0 => Place::At(at),
            1 => Place::Free(at),
            _ => Place::aligned(4096),
        };
        self.log.push(format!("map {place:x?} {n}"));
        // SAFETY: the arena is this test's, which counts on nothing that it replaces.
        let got = unsafe { self.service.inside().map(place, n, Prot::RW) };
        let Ok(start) = got else {
            assert!(matches!(place, Place::Free(_)), "{got:?}");
            return;
        };
        for page in start.0..start.0 + n {
            self.pages.insert(page, Page::new(Prot::RW, false));
        }
    }

    fn unmap(&mut self) {
        let (start, n) = self.run();
        self.log.push(format!("unmap {start} {n}"));
        // SAFETY: the test counts on these bytes no more.
        unsafe { self.service.inside().unmap(start, n) }.expect("unmap");
        self.pages
            .retain(|page, _| !(start.0..start.0 + n).contains(page));
    }

    fn remap(&mut self) {
        let (start, n) = self.run();
        let pager = self.service.inside();
        let parts = pager.mm().mapped_parts(self.space(), start, n);
        let (start, old) = (parts[0].start, parts[0].pages);
        let new = match self.below(3) {
            0 => old,
            1 => self.size().min(old),
            _ => old + self.size(),
        };
        let to = self.place(new);
        let (how, new) = match self.below(5) {
            0 => (Remap::InPlace, new),
            1 => (Remap::Fixed(to), new),
            2 => (Remap::Leave(None), old),
            _ => (Remap::MayMove, new),
        };
        self.log.push(format!("remap {start} {old} {new} {how:?}"));
        // SAFETY: the test counts on nothing that is cut off or replaced.
        let got = unsafe { pager.remap(start, old, new, how) };
        let Ok(at) = got else {
            let apart = to.0 + new <= start.0 || start.0 + old <= to.0;
            let may = match how {
                Remap::InPlace => true,
                Remap::Fixed(_) => !apart,
                _ => false,
            };
            assert!(may, "{got:?}");
            return;
        };
        let like = self.pages[&start.0];
        let moved: Vec<Page> = (start.0..start.0 + old).map(|p| self.pages[&p]).collect();
        for page in start.0..start.0 + old {
            match how {
                Remap::Leave(_) => self.pages.insert(page, Page::new(like.prot, false)),
                _ => self.pages.remove(&page),
            };
        }
        let blank = Page::new(like.prot, like.locked);
        for (k, page) in (at.0..at.0 + new).enumerate() {
            self.pages
                .insert(page, moved.get(k).copied().unwrap_or(blank));
        }
    }

    fn advise(&mut self) {
        let (start, n) = self.run();
        let advice = [
            Advice::DontNeed,
            Advice::DontNeed,
            Advice::Free,
            Advice::Cold,
            Advice::WillNeed,
            Advice::PopulateRead,
            Advice::PopulateWrite,
            Advice::HugePage,
            Advice::NoHugePage,
        ][self.below(9) as usize];
        let parts = self.pages.range(start.0..start.0 + n);
        let writable = parts.clone().all(|(_, p)| p.prot.read && p.prot.write);
        if matches!(advice, Advice::PopulateRead | Advice::PopulateWrite) && !writable {
            return;
        }
        self.log.push(format!("advise {start} {n} {advice:?}"));
        let mm = self.service.inside().mm();
        mm.madvise(self.space(), start, n, advice).expect("madvise");
        match advice {
            Advice::DontNeed => self.set(start, n, |p| {
                if !p.locked {
                    (p.word, p.lazy) = (0, false);
                }
            }),
            Advice::Free => self.set(start, n, |p| p.lazy = true),
            _ => {}
        }
    }

    fn protect(&mut self) {
        let (start, n) = self.run();
        let prot = [Prot::RW, Prot::RW, Prot::R, Prot::NONE][self.below(4) as usize];
        self.log.push(format!("mprotect {start} {n} {prot:?}"));
        let mm = self.service.inside().mm();
        mm.mprotect(self.space(), start, n, prot).expect("mprotect");
        self.set(start, n, |p| p.prot = prot);
    }

    fn lock(&mut self) {
        let (start, n) = self.run();
        let (mm, space) = (self.service.inside().mm(), self.space());
        let lock = self.below(2) == 0 && self.locked() + n as usize <= LOCKED;
        self.log.push(format!("mlock {start} {n} {lock}"));
        let locked = |all: bool| match all {
            true => mm.mlock(space, start, n),
            false => mm.lock_present(space, start, n),
        };
        let all = self.below(2) == 0;
        match lock {
            true if locked(all).is_ok() => {}
            _ => {
                mm.munlock(space, start, n).expect("munlock");
                self.set(start, n, |p| p.locked = false);
                return;
            }
        }
        self.set(start, n, |p| p.locked = true);
    }

    /// As a fork does whose child ends before the program goes on; what it holds would be charged
    /// to this account. Meanwhile some of what both share is given up.
    fn fork(&mut self) {
        let (ahead, n) = (self.below(2) == 0, self.below(1000));
        self.log.push(format!("fork {ahead} {n}"));
        let pager = self.service.inside();
        pager.freeze(ahead).expect("freeze");
        assert_eq!(pager.mm().stats().get(Item::NrOpen), 0);
        pager.thaw();
        let given = pager.mm().reclaim_shared(n);
        // The child's end.
        self.limit.uncharge(given.pages());
        pager.mm().unshare_all();
    }

    fn step(&mut self) {
        if self.pages.is_empty() {
            return self.map();
        }
        if self.pages.len() > MOST {
            return self.unmap();
        }
        match self.below(64) {
            0..20 => {
                let (start, n) = self.run();
                let every = 1 + self.below(9);
                self.log.push(format!("write {start} {n} every {every}"));
                (start.0..start.0 + n)
                    .filter(|page| page % every == 0)
                    .for_each(|page| self.write(page));
            }
            20..30 => {
                let (start, n) = self.run();
                self.log.push(format!("check {start} {n}"));
                (start.0..start.0 + n).for_each(|page| self.check(page));
            }
            30..40 => self.advise(),
            40..44 => self.protect(),
            44..48 => self.remap(),
            48..51 => self.unmap(),
            51..56 => self.map(),
            56..58 => self.lock(),
            58..60 => {
                let (start, n) = self.run();
                self.log.push(format!("page_out {start} {n}"));
                self.service.inside().page_out(start, n).expect("page_out");
            }
            60 => {
                let n = 1 + self.below(500);
                self.log.push(format!("reclaim {n}"));
                self.service.inside().mm().reclaim(n);
            }
            61..63 => self.fork(),
            _ => {
                self.ratio = [0, 20, 60, 100][self.below(4) as usize];
                self.log.push(format!("ratio {}", self.ratio));
                let mm = self.service.inside().mm();
                mm.set_tunables(opens(ThpMode::Always, self.ratio))
                    .expect("tunables");
            }
        }
    }

    fn end(mut self) {
        let (pager, space) = (self.service.inside(), self.space());
        for v in pager.mm().mapped_parts(space, Vpn(0), 1 << 35) {
            let all = pager.mm().mprotect(space, v.start, v.pages, Prot::RW);
            all.expect("mprotect");
        }
        self.pages.values_mut().for_each(|p| p.prot = Prot::RW);
        let all: Vec<u64> = self.pages.keys().copied().collect();
        all.iter().for_each(|&page| self.check(page));
        reconciled(self.service, true);
        for page in all {
            // SAFETY: the test is done with it.
            unsafe { pager.unmap(Vpn(page), 1) }.expect("unmap");
        }
        reconciled(self.service, true);
        assert_eq!(pager.mm().stats().get(Item::NrOpen), 0);
        assert_eq!(pager.mm().store().stored_pages(), 0);
    }
}

fn run(seed: u64) {
    // Sometimes little of it fits, sometimes all.
    let (service, limit) = service_with([12, 40][seed as usize % 2], opens(ThpMode::Always, 100));
    let mut program = Program {
        service: &service,
        limit: &limit,
        pages: BTreeMap::new(),
        x: seed,
        ratio: 100,
        log: Vec::new(),
    };
    let (mut opened, mut before) = (0, 0);
    for step in 0..STEPS {
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            program.step();
            if step % 5 == 0 {
                reconciled(program.service, true);
            }
        }));
        let open = service.inside().mm().stats().get(Item::NrOpen);
        opened += u32::from(open > before);
        before = open;
        if done.is_err() {
            let from = program.log.len().saturating_sub(40);
            let last = program.log[from..].join("\n");
            panic!("DECKLE_SEED={seed}, step {step}; last operations:\n{last}");
        }
    }
    eprintln!("seed {seed}: opened in {opened} steps");
    assert!(opened > STEPS / 50, "windows opened in {opened} steps only");
    program.end();
    within(&limit);
}

fn seeds(seeds: &[u64]) {
    match std::env::var("DECKLE_SEED") {
        Ok(seed) => run(seed.parse().expect("a number")),
        Err(_) => seeds.iter().for_each(|&seed| run(seed)),
    }
}

#[test]
fn every_page_holds_what_was_last_written_where_little_fits() {
    case(|| seeds(&[2, 4]));
}

#[test]
fn every_page_holds_what_was_last_written_where_all_fits() {
    case(|| seeds(&[1, 3]));
}
