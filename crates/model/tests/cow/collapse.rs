//! Collapse of what forks have shared, and of what forks and moves have mixed up: the matrix that
//! khugepaged is tested by, each limit at the limit and one beyond.

use crate::cow::machine::{BASE, Bare};
use deckle_mm::space::remap::Remap;
use deckle_mm::{Advice, CollapseError, FaultOrder, Item, Sizes, SpaceId, ThpMode, Tunables, Vpn};

fn page(i: u64) -> Vpn {
    BASE.add(i)
}

fn byte(i: u64) -> u8 {
    1 + (i % 200) as u8
}

/// Single pages or 64 KiB folios, which khugepaged makes huge ones of.
fn machine(compound: bool, t: Tunables) -> Bare {
    let m = Bare::new(64, 1, 1, true, t);
    m.faults(compound);
    m
}

const NONE: Tunables = Tunables {
    fault_order: FaultOrder::Fixed,
    ..Tunables::of_profile(deckle_mm::Profile::Deckle)
};

impl Bare {
    fn faults(&self, compound: bool) {
        let mut t = self.mm.tunables();
        (t.thp, t.sizes) = match compound {
            true => (ThpMode::Never, NONE.sizes),
            false => (ThpMode::Never, Sizes::NEVER),
        };
        self.mm.set_tunables(t).unwrap();
    }

    fn fill_with(&self, id: SpaceId, first: u64, pages: u64) {
        (first..first + pages).for_each(|i| self.write(id, page(i), byte(i)));
    }

    fn collapse(&self, id: SpaceId) -> Result<(), CollapseError> {
        let t = self.mm.tunables();
        let on = Tunables {
            thp: ThpMode::Always,
            sizes: NONE.sizes,
            ..t
        };
        self.mm.set_tunables(on).unwrap();
        let done = self.mm.collapse(id, BASE);
        self.mm.set_tunables(t).unwrap();
        self.verify(&("collapse", &done));
        done
    }

    fn holds(&self, id: SpaceId, pages: u64) {
        for i in 0..512 {
            let want = if i < pages { byte(i) } else { 0 };
            assert_eq!(self.read(id, page(i))[0], want, "page {i} of {id}");
        }
    }

    fn is_huge(&self, id: SpaceId) -> bool {
        self.model.translation(id, BASE).is_some_and(|t| t.huge)
    }
}

#[test]
fn r140_an_empty_block_is_none_and_one_page_is_enough_at_511() {
    for compound in [false, true] {
        let t = Tunables {
            max_ptes_none: 511,
            ..NONE
        };
        let m = machine(compound, t);
        m.map(0, 512);
        assert_eq!(m.collapse(m.space), Err(CollapseError::Cold));
        m.write(m.space, page(0), byte(0));
        if compound {
            // One page of a large folio is left.
            m.mm.madvise(m.space, page(1), 15, Advice::DontNeed)
                .unwrap();
            assert_eq!(m.mm.folio_at(m.space, BASE).unwrap().order, 4);
        }
        assert_eq!(m.collapse(m.space), Ok(()));
        assert!(m.is_huge(m.space));
        m.holds(m.space, 1);
    }
}

#[test]
fn r140_what_a_fork_shares_is_copied_up_to_its_limit_and_no_further() {
    for compound in [false, true] {
        for limit in [0u64, 16, 256, 511] {
            for shared in [limit, limit + 1, limit.next_multiple_of(16)] {
                let t = Tunables {
                    max_ptes_shared: limit as u16,
                    ..NONE
                };
                let m = machine(compound, t);
                m.map(0, 512);
                m.fill_with(m.space, 0, 512);
                let child = m.mm.fork(m.space).unwrap();
                // The child writes from the end on, page by page.
                m.faults(false);
                let own = 512 - shared;
                (512 - own..512).for_each(|i| m.write(child, page(i), byte(i)));
                let frames: Vec<_> = (0..512).map(|i| m.frame(m.space, page(i))).collect();
                let used = m.model.used_frames().len();
                let done = m.collapse(child);
                if shared > limit {
                    assert_eq!(done, Err(CollapseError::ExceedShared(shared as u32)));
                    assert!(!m.is_huge(child));
                    assert_eq!(m.model.used_frames().len(), used);
                } else {
                    assert_eq!(done, Ok(()), "{shared} of {limit}");
                    assert!(m.is_huge(child));
                    assert_eq!(m.get(Item::ThpCollapseAlloc), 1);
                }
                // The parent has its pages still, the very same.
                for i in 0..512 {
                    assert_eq!(m.frame(m.space, page(i)), frames[i as usize], "page {i}");
                }
                m.holds(child, 512);
                m.holds(m.space, 512);
                m.write(m.space, page(3), 251);
                m.write(child, page(3), 252);
                assert_eq!(
                    (m.read(m.space, page(3))[0], m.read(child, page(3))[0]),
                    (251, 252)
                );
                m.verify(&(compound, limit, shared));
                for id in [child, m.space] {
                    m.mm.destroy_space(id).unwrap();
                    m.verify(&"the end");
                }
                assert!(m.model.used_frames().is_empty());
            }
        }
    }
}

#[test]
fn r140_holes_and_stored_pages_have_their_limits_in_a_child_too() {
    for (limit, over) in [(64, 0), (64, 1), (255, 0), (255, 1)] {
        for stored in [false, true] {
            let t = Tunables {
                max_ptes_none: if stored { 0 } else { limit },
                max_ptes_swap: if stored { limit } else { 0 },
                max_ptes_shared: 511,
                ..NONE
            };
            let m = machine(false, t);
            m.map(0, 512);
            let n = u64::from(limit) + over;
            m.fill_with(m.space, 0, 512);
            let pages = if stored { 512 } else { 512 - n };
            match stored {
                true => {
                    m.mm.page_out(m.space, page(512 - n), n).unwrap();
                }
                false => {
                    let gone = m.mm.madvise(m.space, page(512 - n), n, Advice::DontNeed);
                    gone.unwrap();
                }
            }
            let child = m.mm.fork(m.space).unwrap();
            // So that not all are shared.
            m.write(child, page(0), byte(0));
            let done = m.collapse(child);
            let want = match (over, stored) {
                (0, _) => Ok(()),
                (_, true) => Err(CollapseError::ExceedSwap(n as u32)),
                (_, false) => Err(CollapseError::ExceedNone(n as u32)),
            };
            assert_eq!(done, want);
            assert_eq!(m.is_huge(child), over == 0);
            m.holds(child, pages);
            m.holds(m.space, pages);
            m.verify(&(limit, over, stored));
        }
    }
}

#[test]
fn r140_when_the_other_side_has_ended_nothing_counts_as_shared() {
    for compound in [false, true] {
        let t = Tunables {
            max_ptes_shared: 0,
            ..NONE
        };
        let m = machine(compound, t);
        m.map(0, 512);
        m.fill_with(m.space, 0, 512);
        let child = m.mm.fork(m.space).unwrap();
        assert_eq!(m.collapse(m.space), Err(CollapseError::ExceedShared(512)));
        m.mm.destroy_space(child).unwrap();
        assert_eq!(m.collapse(m.space), Ok(()));
        m.holds(m.space, 512);
        // A fork of the huge page, collapsed in the child when a write has taken it apart.
        let child = m.mm.fork(m.space).unwrap();
        m.faults(compound);
        m.write(child, page(100), byte(100));
        assert!(m.is_huge(m.space) && !m.is_huge(child));
        let mut t = m.mm.tunables();
        t.max_ptes_shared = 511;
        m.mm.set_tunables(t).unwrap();
        assert_eq!(m.collapse(child), Ok(()));
        assert!(m.is_huge(m.space) && m.is_huge(child));
        m.holds(child, 512);
        m.holds(m.space, 512);
    }
}

#[test]
fn r140_a_pinned_page_is_not_moved_and_its_neighbours_are() {
    let t = Tunables {
        max_ptes_shared: 511,
        ..NONE
    };
    let m = machine(true, t);
    m.map(0, 512);
    m.fill_with(m.space, 0, 512);
    let pin = m.mm.pin(m.space, page(77), true).unwrap();
    let child = m.mm.fork(m.space).unwrap();
    let stuck = Err(CollapseError::Page(page(77)));
    assert_eq!(m.collapse(m.space), stuck);
    assert_eq!(m.frame(m.space, page(77)), Some(pin.frame()));
    // The child has a copy of that page, and shares the others.
    assert_eq!(m.collapse(child), Ok(()));
    m.mm.unpin(pin);
    assert_eq!(m.collapse(m.space), Ok(()));
    m.holds(child, 512);
    m.holds(m.space, 512);
}

#[test]
fn r140_a_block_of_512_pages_of_512_folios_is_collapsed() {
    let t = Tunables {
        max_ptes_shared: 511,
        ..NONE
    };
    let m = machine(true, t);
    m.map(0, 512);
    let child = m.mm.fork(m.space).unwrap();
    for i in 0..512 {
        // A large folio that stays whole when a page of it moves, since it is shared. All move by
        // as many pages, so that they come to be one mapping.
        let from = m.map(1024 + i / 16 * 16, 16);
        (0..16).for_each(|k| m.write(m.space, from.add(k), byte(i)));
        let other = m.mm.fork(m.space).unwrap();
        let odd = from.add(i % 16);
        let moved = m.mm.mremap(m.space, odd, 1, 1, Remap::Fixed(page(i)));
        assert_eq!(moved, Ok(page(i)));
        assert_eq!(m.mm.folio_at(m.space, page(i)).unwrap().order, 4);
        m.mm.munmap(m.space, from, 16).unwrap();
        m.mm.destroy_space(other).unwrap();
    }
    m.verify(&"mixed");
    let heads: std::collections::BTreeSet<_> = (0..512)
        .map(|i| m.mm.folio_at(m.space, page(i)).unwrap().head)
        .collect();
    assert_eq!(heads.len(), 512);
    assert_eq!(m.collapse(m.space), Ok(()));
    m.holds(m.space, 512);
    m.mm.destroy_space(child).unwrap();
    m.mm.destroy_space(m.space).unwrap();
    assert!(m.model.used_frames().is_empty());
}
