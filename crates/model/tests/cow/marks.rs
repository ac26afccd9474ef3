//! What is tracked of pages that forks share.

use crate::cow::machine::{BASE, Bare};
use deckle_mm::{FaultError, Item, PageInfo, SpaceId, ThpMode, Vpn};

fn page(i: u64) -> Vpn {
    BASE.add(i)
}

impl Bare {
    fn info(&self, id: SpaceId, i: u64) -> PageInfo {
        self.mm.page_info(id, page(i)).expect("not mapped")
    }
    fn dirty(&self, id: SpaceId, n: u64) -> Vec<u64> {
        (0..n).filter(|i| self.info(id, *i).soft_dirty).collect()
    }
    fn guarded(&self, id: SpaceId, n: u64) -> Vec<u64> {
        (0..n).filter(|i| self.info(id, *i).uffd_wp).collect()
    }
    fn bare(&self, id: SpaceId, n: u64) -> Vec<u64> {
        let may = |i: &u64| {
            let t = self.model.translation(id, page(*i));
            t.is_some_and(|t| t.prot.write && !t.wp && t.frame.is_some())
        };
        (0..n).filter(may).collect()
    }
    fn told(&self, id: SpaceId, i: u64) -> bool {
        let done = self.write_at(0, id, page(i), 0, 0xaa);
        matches!(done, Err(FaultError::WriteProtected))
    }
    /// 32 pages in 64 KiB folios, of which 2 and 18 are dirty and 4 to 6 protected.
    fn tracked() -> Bare {
        let m = Bare::simple(ThpMode::Never);
        m.map(0, 64);
        (0..32).for_each(|i| m.write(m.space, page(i), i as u8 + 1));
        m.mm.uffd_wp_register(m.space, BASE, 64).unwrap();
        m.mm.clear_soft_dirty(m.space).unwrap();
        [2, 18].iter().for_each(|i| m.write(m.space, page(*i), 50));
        m.mm.uffd_write_protect(m.space, page(4), 3, true).unwrap();
        m.verify(&"tracked");
        m
    }
}

#[test]
fn r68_a_copy_for_reading_keeps_soft_dirty_and_write_protection_of_each_page() {
    let m = Bare::tracked();
    let child = m.mm.fork(m.space).unwrap();
    // The child knows what is dirty, and has nobody who could be told.
    assert_eq!(
        (m.dirty(child, 32), m.guarded(child, 32)),
        (vec![2, 18], vec![])
    );
    let before = m.get(Item::Pgcopy);
    let pin = m.mm.pin(m.space, page(3), false).unwrap();
    assert_eq!(m.get(Item::Pgcopy) - before, 16, "one window");
    assert_ne!(m.frame(m.space, page(5)), m.frame(child, page(5)));
    let marks = || (m.dirty(m.space, 32), m.guarded(m.space, 32));
    assert_eq!(marks(), (vec![2, 18], vec![4, 5, 6]));
    assert_eq!(m.bare(m.space, 16), []);
    m.verify(&"unshared");
    assert!((4..7).all(|i| m.told(m.space, i)));
    // A write makes one page dirty, and those writable that nobody tracks.
    m.write(m.space, page(1), 60);
    assert_eq!(marks(), (vec![1, 2, 18], vec![4, 5, 6]));
    assert_eq!(m.bare(m.space, 16), [1, 2]);
    m.mm.unpin(pin);
    m.verify(&"written");
}

#[test]
fn r68_a_pinned_zero_page_keeps_its_marks_too() {
    let m = Bare::tracked();
    m.read(m.space, page(40));
    m.mm.uffd_write_protect(m.space, page(40), 1, true).unwrap();
    assert!(!m.info(m.space, 40).soft_dirty && !m.info(m.space, 40).present);
    let pin = m.mm.pin(m.space, page(40), false).unwrap();
    let info = m.info(m.space, 40);
    assert!(info.present && info.uffd_wp && !info.soft_dirty, "{info:?}");
    assert!(m.told(m.space, 40));
    assert!(matches!(
        m.mm.pin(m.space, page(40), true),
        Err(FaultError::WriteProtected)
    ));
    m.mm.uffd_write_protect(m.space, page(40), 1, false)
        .unwrap();
    m.write(m.space, page(40), 5);
    assert_eq!(m.model.frame_bytes(pin.frame())[0], 5);
    assert!(m.info(m.space, 40).soft_dirty);
    m.mm.unpin(pin);
    m.verify(&"the end");
}

#[test]
fn r68_a_copy_for_a_write_makes_only_that_page_dirty() {
    for first in [true, false] {
        let m = Bare::tracked();
        let child = m.mm.fork(m.space).unwrap();
        let (a, b) = match first {
            true => (m.space, child),
            false => (child, m.space),
        };
        // One copies, the other takes over what is left.
        m.write(a, page(9), 70);
        m.write(b, page(9), 71);
        for id in [a, b] {
            assert_eq!(m.dirty(id, 32), [2, 9, 18]);
            assert!(m.bare(id, 16).iter().all(|i| [2, 9].contains(i)));
        }
        assert_eq!(m.guarded(m.space, 32), [4, 5, 6]);
        assert!(m.told(m.space, 5) && !m.told(child, 5));
        assert_eq!(m.read(m.space, page(5))[0], 6);
        m.verify(&first);
    }
}

#[test]
fn a_huge_page_is_tracked_as_one_until_it_is_a_table() {
    let m = Bare::simple(ThpMode::Always);
    m.map(0, 512);
    (0..512).for_each(|i| m.write(m.space, page(i), i as u8));
    m.mm.uffd_wp_register(m.space, BASE, 512).unwrap();
    m.mm.clear_soft_dirty(m.space).unwrap();
    let child = m.mm.fork(m.space).unwrap();
    assert_eq!(
        (m.dirty(m.space, 512), m.dirty(child, 512)),
        (vec![], vec![])
    );
    // The child's write makes a table on its side, and a copy there.
    m.write(child, page(20), 1);
    assert_eq!(
        (m.dirty(m.space, 512), m.dirty(child, 512)),
        (vec![], vec![20])
    );
    // Protected in part the parent's becomes one as well; its folio stays whole.
    let head = m.mm.folio_at(m.space, page(0)).unwrap();
    m.mm.uffd_write_protect(m.space, page(100), 100, true)
        .unwrap();
    assert_eq!(m.mm.folio_at(m.space, page(0)).unwrap().head, head.head);
    assert_eq!(m.guarded(m.space, 512), (100..200).collect::<Vec<_>>());
    m.verify(&"a table");
    m.mm.destroy_space(child).unwrap();
    assert!(m.told(m.space, 150));
    m.write(m.space, page(99), 9);
    m.write(m.space, page(300), 9);
    assert_eq!(m.dirty(m.space, 512), [99, 300]);
    m.verify(&"alone");
}
