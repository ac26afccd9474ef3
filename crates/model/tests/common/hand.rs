//! A program driven by hand.

use super::{BASE, Rig, WINDOW};
use deckle_mm::{
    Advice, FaultError, FaultMode, FolioView, Item, PAGE_SIZE, Profile, Prot, Served, SplitError,
    SplitFlags, Tunables, Vpn,
};
use deckle_model::Rng;

/// Pages of a block.
pub const BLOCK: u64 = 512;

impl Rig {
    /// Maps pages at `BASE + at`, read-write.
    pub fn mmap(&self, at: u64, pages: u64) -> Vpn {
        let start = BASE.add(at);
        let done = self.mm.mmap(self.space, Some(start), pages, 1, Prot::RW);
        done.unwrap()
    }

    pub fn munmap(&self, start: Vpn, pages: u64) {
        self.mm.munmap(self.space, start, pages).unwrap();
    }

    pub fn advise(&self, start: Vpn, pages: u64, advice: Advice) {
        self.mm.madvise(self.space, start, pages, advice).unwrap();
    }

    pub fn fault(&self, page: Vpn, write: bool) -> Result<Served, FaultError> {
        self.mm.fault(self.space, page, write, FaultMode::MayWait)
    }

    /// Stores a byte as CPU `cpu` does; faults are served.
    pub fn write_on(&self, cpu: usize, page: Vpn, byte: u8) {
        let store = || self.model.store(cpu, self.space, page.addr(), &[byte]);
        while let Err(f) = store() {
            self.fault(f.page, f.write).unwrap();
        }
    }

    pub fn write(&self, page: Vpn, byte: u8) {
        self.write_on(0, page, byte);
    }

    /// Reads a whole page; faults are served.
    pub fn read(&self, page: Vpn) -> [u8; PAGE_SIZE] {
        let mut bytes = [0; PAGE_SIZE];
        while let Err(f) = self.model.load(0, self.space, page.addr(), &mut bytes) {
            self.fault(f.page, f.write).unwrap();
        }
        bytes
    }

    /// Whether the page has this first byte and zeros else.
    pub fn holds(&self, page: Vpn, byte: u8) -> bool {
        let bytes = self.read(page);
        bytes[0] == byte && bytes[1..].iter().all(|b| *b == 0)
    }

    /// A huge page at `BASE + at`, of which `live` subpages hold `1 + i % 200`.
    pub fn huge(&self, at: u64, live: impl IntoIterator<Item = u64>) -> Vpn {
        let start = self.mmap(at, BLOCK);
        self.fault(start, true).unwrap();
        assert_eq!(self.folio(start).order, 9);
        live.into_iter()
            .for_each(|i| self.write(start.add(i), byte_of(i)));
        start
    }

    pub fn folio(&self, page: Vpn) -> FolioView {
        self.folio_at(page).expect("no folio there")
    }

    pub fn folio_at(&self, page: Vpn) -> Option<FolioView> {
        self.mm.folio_at(self.space, page)
    }

    pub fn stat(&self, item: Item) -> u64 {
        self.mm.stats().get(item)
    }

    /// Splits a folio somewhere in the window, as migration would or as a user asks; what
    /// became of it.
    pub fn split_somewhere(&self, rng: &mut Rng) -> String {
        let page = BASE.add(rng.below(WINDOW / 3));
        let (to, zero) = (rng.below(9) as u8, rng.below(2) == 0);
        let flags = if zero {
            SplitFlags::DROP_ZERO
        } else {
            SplitFlags::NONE
        };
        let done = if rng.below(2) == 0 {
            self.mm.split_page(self.space, page, to, flags)
        } else if let Some(mut list) = self.mm.isolate_page(self.space, page) {
            let done = self.mm.split_isolated(&mut list, to, flags);
            self.mm.putback_list(list);
            done
        } else {
            Err(SplitError::NoFolio)
        };
        assert_ne!(done, Err(SplitError::Listed));
        format!("split {page} to order {to}, {flags:?}: {done:?}")
    }

    /// Moves the folio somewhere in the window to other frames, or all that can be moved for a
    /// block; what became of it.
    pub fn migrate_somewhere(&self, rng: &mut Rng) -> String {
        let (page, order) = (BASE.add(rng.below(WINDOW / 3)), 1 + rng.below(9) as u8);
        match rng.below(4) {
            0 => format!("compact {order}: {:?}", self.mm.compact(order)),
            _ => {
                let zero = rng.below(2) == 0;
                let done = self.mm.migrate_page(self.space, page, zero);
                format!("migrate {page}, zeros {zero}: {done:?}")
            }
        }
    }

    /// Pages that the program has, mapped or inactive.
    pub fn resident(&self) -> u64 {
        self.stat(Item::NrAnon) + self.stat(Item::NrInactive)
    }
}

/// What subpage `i` of [`Rig::huge`] holds if it is live.
pub fn byte_of(i: u64) -> u8 {
    1 + (i % 200) as u8
}

/// The profile `deckle`, and how many zero pages leave a huge page alone.
pub fn tunables(max_ptes_none: u16) -> Tunables {
    Tunables {
        max_ptes_none,
        ..Tunables::of_profile(Profile::Deckle)
    }
}

/// Splits all that is underused; how many pages came free.
pub fn shrink(rig: &Rig) -> u64 {
    rig.mm.shrink_underused(100, 100_000)
}

/// Reads subpages as a program does; the live ones of [`Rig::huge`] hold their bytes.
pub fn intact(rig: &Rig, start: Vpn, live: impl Fn(u64) -> bool) {
    for i in 0..BLOCK {
        let byte = if live(i) { byte_of(i) } else { 0 };
        assert!(rig.holds(start.add(i), byte), "page {i}");
    }
}
