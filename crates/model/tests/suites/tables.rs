//! What the manager's own tables take, and when they go.

use super::common::Rig;
use super::common::hand::BLOCK;
use deckle_mm::{
    Advice, Charge, FaultError, FaultMode, PAGE_SIZE, Profile, Prot, Sizes, SpaceId, Tunables, Vpn,
};
use std::sync::Arc;

/// Blocks from one touched page to the next.
const STRIDE: u64 = 256 * BLOCK;
/// Touched pages.
const PLACES: u64 = 64;
/// What a sparse block may cost.
const MOST: u64 = 4096;

/// A manager with a second space, of many blocks, in which all is mapped.
struct Wide {
    rig: Rig,
    space: SpaceId,
}

impl Wide {
    fn new(places: u64) -> Wide {
        let t = Tunables {
            sizes: Sizes::NEVER,
            ..Tunables::of_profile(Profile::Deckle)
        };
        let rig = Rig::new(64, 1, 1, true, t);
        let space = rig.mm.create_space(Self::place(0), places * STRIDE);
        let space = space.expect("a space");
        let wide = Wide { rig, space };
        wide.map(0, places * STRIDE);
        wide
    }

    /// One whose tables are charged.
    fn charged(places: u64, max: u64) -> Arc<Wide> {
        let wide = Arc::new(Wide::new(places));
        let weak = Arc::downgrade(&wide);
        let bytes = move || weak.upgrade().map_or(0, |wide| wide.tables());
        let pages = move || bytes().div_ceil(PAGE_SIZE as u64);
        wide.rig.charge.set_tables(pages);
        wide.rig.charge.set_max(max);
        wide
    }

    fn place(n: u64) -> Vpn {
        Vpn(1 << 20).add(n * STRIDE)
    }

    fn map(&self, at: u64, pages: u64) {
        let start = Some(Self::place(0).add(at));
        let mapped = self.rig.mm.mmap(self.space, start, pages, 1, Prot::RW);
        mapped.expect("mapped");
    }

    fn fault(&self, page: Vpn, write: bool) -> Result<(), FaultError> {
        let served = (self.rig.mm).fault(self.space, page, write, FaultMode::MayWait);
        served.map(drop)
    }

    fn touch(&self, page: Vpn, write: bool) {
        self.fault(page, write).expect("served");
    }

    /// The first byte of a page, if it is there.
    fn load(&self, page: Vpn) -> Option<u8> {
        let mut byte = [9];
        let loaded = self.rig.model.load(0, self.space, page.addr(), &mut byte);
        loaded.ok().map(|()| byte[0])
    }

    fn tables(&self) -> u64 {
        self.rig.mm.table_bytes()
    }

    /// As the service does, now and then.
    fn settle(&self) {
        self.rig.charge.settle_tables();
    }
}

#[test]
fn a_sparse_block_costs_less_than_a_page_of_tables() {
    for write in [true, false] {
        let wide = Wide::new(PLACES);
        (0..PLACES).for_each(|n| wide.touch(Wide::place(n), write));
        let each = wide.tables() / PLACES;
        assert!(each <= MOST, "{each} bytes a block, written: {write}");
        wide.rig.verify(&write);
    }
}

#[test]
fn tables_of_what_is_unmapped_or_discarded_are_freed() {
    let wide = Wide::new(PLACES);
    let before = wide.tables();
    for n in 0..PLACES {
        wide.touch(Wide::place(n), n % 2 == 0);
        let page = Wide::place(n);
        wide.rig
            .mm
            .munmap(wide.space, page, STRIDE)
            .expect("unmapped");
    }
    assert_eq!(wide.tables(), before);
    wide.map(0, PLACES * STRIDE);
    let touch_all = || (0..PLACES).for_each(|n| wide.touch(Wide::place(n), true));
    touch_all();
    let full = wide.tables();
    let all = (Wide::place(0), PLACES * STRIDE);
    let discarded = wide
        .rig
        .mm
        .madvise(wide.space, all.0, all.1, Advice::DontNeed);
    discarded.expect("discarded");
    assert!(wide.tables() < full);
    wide.rig.verify(&"discarded");
    touch_all();
    assert_eq!(wide.tables(), full);
    wide.rig.verify(&"touched again");
}

/// Places of which the tables take more than [`LIMIT`] pages several times.
const MANY: u64 = 4000;
const LIMIT: u64 = 128;

#[test]
fn tables_of_zeros_that_were_read_go_before_the_limit_is_passed() {
    let wide = Wide::charged(MANY, LIMIT);
    for n in 0..MANY {
        wide.touch(Wide::place(n), false);
        assert_eq!(wide.load(Wide::place(n)), Some(0));
        if n % 8 == 0 {
            wide.settle();
        }
    }
    // Eight tables of less than a page each are not charged yet.
    let peak = wide.rig.charge.peak();
    assert!(peak <= LIMIT + 8, "{peak} pages");
    wide.touch(Wide::place(0), false);
    assert_eq!(wide.load(Wide::place(0)), Some(0));
    wide.rig.mm.verify(false).expect("all is well");
}

#[test]
fn tables_of_zeros_go_alone_and_what_else_is_known_stays() {
    let wide = Wide::charged(MANY, LIMIT);
    let all = (Wide::place(0), STRIDE);
    let locked = wide.rig.mm.lock_present(wide.space, all.0, all.1);
    locked.expect("locked");
    let written = Wide::place(1);
    wide.touch(Wide::place(0), false);
    wide.touch(written, true);
    let stored = (wide.rig.model).store(0, wide.space, written.addr(), &[7]);
    stored.expect("there");
    for n in 2..MANY {
        wide.touch(Wide::place(n), false);
        if n % 8 == 0 {
            wide.settle();
        }
    }
    let there = (2..MANY).filter(|n| wide.load(Wide::place(*n)).is_some());
    assert!(there.count() < MANY as usize / 2, "no table was freed");
    assert_eq!(wide.load(Wide::place(0)), Some(0), "a locked page is gone");
    wide.touch(written, false);
    assert_eq!(wide.load(written), Some(7));
    wide.rig.mm.verify(false).expect("all is well");
}

#[test]
fn memory_is_out_where_no_table_can_go() {
    let wide = Wide::charged(MANY, LIMIT);
    let all = (Wide::place(0), MANY * STRIDE);
    let locked = wide.rig.mm.lock_present(wide.space, all.0, all.1);
    locked.expect("locked");
    let served = (0..MANY).find_map(|n| {
        wide.settle();
        wide.fault(Wide::place(n), false).err()
    });
    assert!(matches!(served, Some(FaultError::Oom(_))), "{served:?}");
    assert!(wide.rig.charge.peak() <= LIMIT + 1);
    // What is let go makes room again.
    let unlocked = wide.rig.mm.munlock(wide.space, all.0, all.1);
    unlocked.expect("unlocked");
    wide.touch(Wide::place(MANY - 1), false);
    wide.rig.mm.verify(false).expect("all is well");
}
