//! The platform alone against a naive oracle: a map from page to bytes.
//!
//! A small honest manager maps, unmaps, parks, discards, protects and forks at random, with
//! injected failures, while CPUs read and write through their TLBs. Every byte read must be
//! the oracle's. A manager that forgets flushes must be caught (the canary).

use deckle_mm::{
    BLOCK_ORDER, BLOCK_PAGES, BlockNr, Content, Flush, FrameRun, PAGE_SIZE, PageRun, Pfn, Platform,
    PlatformError, Prot, SpaceId, Stop, Vpn,
};
use deckle_model::{Chance, FIRST_FRAME, FaultKind, FrameState, Injection, Model, Rng};
use std::collections::BTreeMap;

const CPUS: usize = 3;
const FRAMES: u32 = 4096;
const S: SpaceId = SpaceId(4);
/// Pages that are used: three blocks.
const PAGES: u64 = 3 * BLOCK_PAGES as u64;

#[derive(Clone, Copy, PartialEq, Debug)]
enum Page {
    Zero,
    Mapped(Pfn, bool),
    Parked(Pfn),
}

struct Manager {
    m: Model,
    rng: Rng,
    pages: BTreeMap<u64, Page>,
    /// The oracle. A page that was never written holds zeros.
    bytes: BTreeMap<u64, Vec<u8>>,
    free: Vec<bool>,
    /// One flush in this many is forgotten.
    forget: Option<u64>,
    wrong: u32,
    partial: u32,
}

impl Manager {
    fn new(seed: u64) -> Manager {
        let m = Model::new(FRAMES as u64 * PAGE_SIZE as u64, CPUS, seed);
        m.create_space(S).unwrap();
        Manager {
            m,
            rng: Rng::new(seed ^ 0x5eed),
            pages: BTreeMap::new(),
            bytes: BTreeMap::new(),
            free: vec![true; FRAMES as usize],
            forget: None,
            wrong: 0,
            partial: 0,
        }
    }
    fn flush(&mut self, token: Flush) {
        if let Some(n) = self.forget
            && self.rng.below(n) == 0
        {
            return;
        }
        self.m.flush(&mut std::iter::once(token));
    }
    /// `pages` consecutive free frames, a multiple of `pages` if it is a whole block.
    fn alloc(&mut self, pages: u32) -> Option<Pfn> {
        let step = if pages == BLOCK_PAGES { 512 } else { 1 };
        let first = (0..=FRAMES - pages)
            .step_by(step)
            .find(|&f| (f..f + pages).all(|i| self.free[i as usize]))?;
        for f in first..first + pages {
            self.free[f as usize] = false;
        }
        Some(FIRST_FRAME.add(first))
    }
    fn put(&mut self, pfn: Pfn) {
        self.m.release(FrameRun::new(pfn, 1));
        self.free[(pfn.0 - FIRST_FRAME.0) as usize] = true;
    }
    fn at(&self, page: u64, pages: u32) -> PageRun {
        PageRun::new(S, Vpn(page), pages)
    }
    /// A random page and a run from it within its block over which `same` holds.
    fn pick(&mut self, most: u64, same: impl Fn(&Self, u64, u64) -> bool) -> Option<(u64, u32)> {
        let first = self.rng.below(PAGES);
        let end = (first / 512 + 1) * 512;
        let want = 1 + self.rng.below(most);
        let n = (first..end.min(first + want))
            .take_while(|&p| same(self, first, p))
            .count() as u32;
        (n > 0).then_some((first, n))
    }
    fn done(&mut self, run: u32, result: Result<(), PlatformError>) -> u32 {
        match result {
            Ok(()) => run,
            Err(e) => {
                assert!(
                    matches!(e.why, Stop::Busy | Stop::Retry | Stop::NoMemory),
                    "{e}"
                );
                assert!(e.at < run);
                self.partial += (e.at > 0) as u32;
                e.at
            }
        }
    }

    fn map(&mut self, block: bool) {
        let picked = if block {
            let b = self.rng.below(3) * 512;
            (b..b + 512)
                .all(|p| !self.pages.contains_key(&p))
                .then_some((b, 512))
        } else {
            self.pick(16, |s, _, p| !s.pages.contains_key(&p))
        };
        let Some((page, n)) = picked else { return };
        let Some(frames) = self.alloc(n) else { return };
        let fill = self.rng.next_u64() as u8;
        let bytes = vec![fill; n as usize * PAGE_SIZE];
        let zero = fill < 100;
        let content = if zero {
            Content::Zero
        } else {
            Content::Bytes(&bytes)
        };
        self.m.hold(self.at(page, n));
        let result = self.m.map(self.at(page, n), frames, content, Prot::RW);
        let done = self.done(n, result.map(|_| ()));
        for i in 0..n {
            let pfn = frames.add(i);
            if i < done {
                let p = page + i as u64;
                self.pages.insert(p, Page::Mapped(pfn, false));
                let value = if zero { 0 } else { fill };
                self.bytes.insert(p, vec![value; PAGE_SIZE]);
            } else {
                self.put(pfn);
            }
        }
        if block && done == n {
            assert!(frames.is_aligned(BLOCK_ORDER));
            assert!(self.m.is_huge(S, BlockNr(page / 512)));
        }
    }
    fn unmap(&mut self) {
        let most = [1, 16, 512][self.rng.below(3) as usize];
        let Some((page, n)) = self.pick(most, |s, first, p| {
            match (s.pages.get(&first), s.pages.get(&p)) {
                (Some(Page::Mapped(a, _)), Some(Page::Mapped(b, _))) => {
                    b.0.wrapping_sub(a.0) as u64 == p - first
                }
                _ => false,
            }
        }) else {
            return;
        };
        let Some(&Page::Mapped(frames, _)) = self.pages.get(&page) else {
            return;
        };
        let done = match self.m.unmap(self.at(page, n), frames, Prot::RW) {
            Ok((done, token)) => {
                self.flush(token);
                done.pages
            }
            Err(e) => self.done(n, Err(e)),
        };
        for i in 0..done {
            let pfn = frames.add(i);
            self.pages.insert(page + i as u64, Page::Parked(pfn));
        }
        if done > 0 {
            let zero = self.m.scan_zero(FrameRun::new(frames, done));
            for i in 0..done {
                let truth = self.bytes[&(page + i as u64)].iter().all(|&b| b == 0);
                self.wrong += (zero.get(i) != truth) as u32;
            }
        }
    }
    /// Takes a parked page back, or copies it to another frame first, as migration does.
    fn unpark(&mut self) {
        let Some((page, _)) = self.pick(1, |s, _, p| {
            matches!(s.pages.get(&p), Some(Page::Parked(_)))
        }) else {
            return;
        };
        let Some(&Page::Parked(mut pfn)) = self.pages.get(&page) else {
            return;
        };
        if self.rng.chance(1, 2)
            && let Some(new) = self.alloc(1)
        {
            if self.m.copy(FrameRun::new(new, 1), pfn).is_ok() {
                self.put(pfn);
                pfn = new;
            } else {
                self.put(new);
            }
        }
        let result = self.m.map(self.at(page, 1), pfn, Content::Parked, Prot::RW);
        let now = match self.done(1, result.map(|_| ())) {
            1 => Page::Mapped(pfn, false),
            _ => Page::Parked(pfn),
        };
        self.pages.insert(page, now);
    }
    fn discard(&mut self) {
        // A whole block at times, so that there is room for huge mappings.
        let picked = match self.rng.below(3) {
            0 => Some((self.rng.below(3) * 512, BLOCK_PAGES)),
            _ => self.pick(64, |_, _, _| true),
        };
        let Some((page, n)) = picked else { return };
        let token = self.m.discard(self.at(page, n));
        self.flush(token);
        for p in page..page + n as u64 {
            self.bytes.remove(&p);
            if let Some(Page::Mapped(pfn, _) | Page::Parked(pfn)) = self.pages.remove(&p) {
                self.put(pfn);
            }
        }
    }
    fn zero(&mut self) {
        if self.rng.chance(1, 2) {
            let Some((page, n)) = self.pick(64, |s, _, p| !s.pages.contains_key(&p)) else {
                return;
            };
            let result = self.m.map_zero(self.at(page, n));
            let done = self.done(n, result.map(|_| ()));
            (page..page + done as u64).for_each(|p| {
                self.pages.insert(p, Page::Zero);
            });
        } else {
            let Some((page, n)) = self.pick(64, |s, _, p| s.pages.get(&p) == Some(&Page::Zero))
            else {
                return;
            };
            let token = self.m.drop_zero(self.at(page, n));
            self.flush(token);
            (page..page + n as u64).for_each(|p| {
                self.pages.remove(&p);
            });
        }
    }
    fn write_protect(&mut self) {
        let on = self.rng.chance(1, 2);
        let mapped = |s: &Self, _, p| matches!(s.pages.get(&p), Some(Page::Mapped(..)));
        let Some((page, n)) = self.pick(64, mapped) else {
            return;
        };
        let Ok(token) = self.m.write_protect(self.at(page, n), on) else {
            return;
        };
        self.flush(token);
        for p in page..page + n as u64 {
            if let Some(Page::Mapped(_, wp)) = self.pages.get_mut(&p) {
                *wp = on;
            }
        }
    }
    fn access(&mut self) {
        let cpu = self.rng.below(CPUS as u64) as usize;
        // Mostly a small hot set, so that translations are used again while cached.
        let page = match self.rng.below(4) {
            0 => self.rng.below(PAGES),
            _ => self.rng.below(3) * 512 + self.rng.below(8) * 60,
        };
        let offset = self.rng.below(PAGE_SIZE as u64 - 8) as usize;
        let addr = Vpn(page).addr() + offset as u64;
        let state = self.pages.get(&page).copied();
        if self.rng.chance(1, 2) {
            let bytes = self.rng.next_u64().to_le_bytes();
            let expected = match state {
                None | Some(Page::Parked(_)) => Err(FaultKind::Missing),
                Some(Page::Zero | Page::Mapped(_, true)) => Err(FaultKind::WriteProtect),
                Some(Page::Mapped(_, false)) => Ok(()),
            };
            let got = self.m.store(cpu, S, addr, &bytes).map_err(|f| f.kind);
            self.wrong += (got != expected) as u32;
            if expected.is_ok() {
                self.bytes.get_mut(&page).unwrap()[offset..offset + 8].copy_from_slice(&bytes);
            }
        } else {
            let mut bytes = [0; 8];
            let got = self.m.load(cpu, S, addr, &mut bytes).map_err(|f| f.kind);
            let (expected, value) = match state {
                None | Some(Page::Parked(_)) => (Err(FaultKind::Missing), &[0; 8][..]),
                Some(Page::Zero) => (Ok(()), &[0; 8][..]),
                Some(Page::Mapped(..)) => (Ok(()), &self.bytes[&page][offset..offset + 8]),
            };
            self.wrong += (got != expected || got.is_ok() && bytes != value) as u32;
        }
    }

    /// Everything the machine says against everything the manager knows.
    fn verify(&self) {
        let table: BTreeMap<u64, Option<Pfn>> = (self.m.translations(S).into_iter())
            .map(|(vpn, t)| (vpn.0, t.frame))
            .collect();
        let mut used = BTreeMap::new();
        for (&p, page) in &self.pages {
            match *page {
                Page::Zero => assert_eq!(table[&p], None),
                Page::Mapped(pfn, _) => {
                    assert_eq!(table[&p], Some(pfn));
                    used.insert(pfn, FrameState::Mapped);
                }
                Page::Parked(pfn) => {
                    assert!(!table.contains_key(&p));
                    used.insert(pfn, FrameState::Resting);
                }
            }
            if let Page::Mapped(pfn, _) | Page::Parked(pfn) = *page {
                assert_eq!(self.m.frame_bytes(pfn)[..], self.bytes[&p][..], "page {p}");
            }
        }
        let present = self
            .pages
            .values()
            .filter(|p| !matches!(p, Page::Parked(_)));
        assert_eq!(table.len(), present.count());
        assert_eq!(self.m.used_frames(), used.into_iter().collect::<Vec<_>>());
        self.m.assert_clean();
    }

    fn step(&mut self) {
        match self.rng.below(100) {
            0..=9 => self.map(false),
            10..=14 => self.map(true),
            15..=21 => self.unmap(),
            22..=29 => self.unpark(),
            30..=32 => self.discard(),
            33..=38 => self.zero(),
            39..=44 => self.write_protect(),
            _ => self.access(),
        }
    }
}

#[test]
fn random_operations_agree_with_a_map_of_pages() {
    for seed in 0..8 {
        let mut t = Manager::new(seed);
        if seed % 2 == 1 {
            t.m.set_injection(Injection {
                unmap_busy: Chance(100),
                retry: Chance(100),
                no_memory: Chance(60),
                ..Injection::default()
            });
        }
        for step in 0..10_000 {
            t.step();
            assert_eq!(t.wrong, 0, "seed {seed} step {step}");
            if step % 64 == 0 {
                t.verify();
            }
        }
        t.verify();
        let c = t.m.counters();
        assert!(
            c.tlb_hits > 0 && c.mapped_huge > 0 && c.huge_splits > 0,
            "{c:?}"
        );
        assert!(c.copied > 0 && c.zero_mapped > 0, "{c:?}");
        assert_eq!(
            t.partial > 0,
            seed % 2 == 1,
            "partial results: {}",
            t.partial
        );
    }
}

#[test]
fn canary_a_manager_that_forgets_flushes_is_caught_by_bytes_and_by_rules() {
    let (mut by_bytes, mut by_rules) = (0, 0);
    for seed in 0..8 {
        let mut t = Manager::new(seed);
        t.forget = Some(20);
        (0..10_000).for_each(|_| t.step());
        by_bytes += (t.wrong > 0) as u32;
        by_rules += (!t.m.violations().is_empty()) as u32;
    }
    assert_eq!((by_bytes, by_rules), (8, 8));
}

#[test]
fn canary_without_a_tlb_forgotten_flushes_show_no_wrong_byte() {
    // The other half of the proof above: it is the TLB that makes the bytes wrong.
    let mut t = Manager::new(1);
    t.m.set_tlb_entries(0);
    t.forget = Some(20);
    (0..10_000).for_each(|_| t.step());
    assert_eq!(t.wrong, 0);
    assert!(!t.m.violations().is_empty());
}
