//! The rules of copy and reuse, one by one.

use crate::cow::machine::{BASE, Bare};
use deckle_mm::space::remap::Remap;
use deckle_mm::table::vma::OnFork;
use deckle_mm::{
    Advice, Charge, FaultError, FaultMode, FolioView, Item, MapError, Pfn, SpaceId, ThpMode, Vpn,
};
use deckle_model::{Chance, Injection, cpu};

fn page(i: u64) -> Vpn {
    BASE.add(i)
}

impl Bare {
    /// 64 KiB folios; `pages` of them filled, page `i` with `i + 1`.
    fn filled(pages: u64) -> Bare {
        let m = Bare::simple(ThpMode::Never);
        m.map(0, pages);
        (0..pages).for_each(|i| m.write(m.space, page(i), i as u8 + 1));
        m
    }

    fn folio(&self, id: SpaceId, i: u64) -> FolioView {
        self.mm.folio_at(id, page(i)).expect("no folio there")
    }

    fn order(&self, id: SpaceId, i: u64) -> u8 {
        self.folio(id, i).order
    }

    fn copies(&self) -> u64 {
        self.get(Item::Pgcopy)
    }

    /// Which of the first `n` pages may be written without a fault.
    fn writable(&self, id: SpaceId, n: u64) -> Vec<u64> {
        let may = |i: &u64| {
            let t = self.model.translation(id, page(*i));
            t.is_some_and(|t| t.prot.write && !t.wp && t.frame.is_some())
        };
        (0..n).filter(may).collect()
    }

    /// A fork that is refused when everything was shared: the pages are exclusive again, and
    /// still protected.
    fn aborted_fork(&self) {
        // A further block, whose turn comes last.
        self.map(512, 1);
        self.write(self.space, page(512), 1);
        let pin = self.mm.pin(self.space, page(512), true).unwrap();
        // Nothing can be reclaimed for the copy of the pinned page.
        let parts = self
            .mm
            .mapped_parts(self.space, BASE, crate::cow::machine::WINDOW);
        for v in &parts {
            self.mm.lock_present(self.space, v.start, v.pages).unwrap();
        }
        let max = self.charge.max();
        self.charge.set_max(self.charge.usage());
        let refused = self.mm.fork(self.space);
        assert_eq!(refused, Err(MapError::Limit));
        self.charge.set_max(max);
        for v in &parts {
            self.mm.munlock(self.space, v.start, v.pages).unwrap();
        }
        self.mm.unpin(pin);
        self.verify(&"a fork that failed");
    }
}

#[test]
fn r62_a_copy_is_no_larger_than_its_source_or_the_cap() {
    let m = Bare::simple(ThpMode::Always);
    m.map(0, 512);
    m.write(m.space, page(40), 1);
    assert_eq!(m.order(m.space, 40), 9);
    let child = m.mm.fork(m.space).unwrap();
    m.write(child, page(40), 2);
    assert_eq!(m.order(child, 40), 4, "the cap");
    let mut t = m.mm.tunables();
    (t.thp, t.fault_max) = (ThpMode::Never, 16 << 10);
    m.mm.set_tunables(t).unwrap();
    m.map(512, 64);
    m.write(m.space, page(520), 1);
    assert_eq!(m.order(m.space, 520), 2);
    t.fault_max = 64 << 10;
    m.mm.set_tunables(t).unwrap();
    let second = m.mm.fork(m.space).unwrap();
    m.write(second, page(520), 2);
    assert_eq!(m.order(second, 520), 2, "the source");
    m.verify(&"copies");
}

#[test]
fn r63_r64_a_window_holds_nothing_but_shared_pages_in_a_row() {
    let m = Bare::filled(16);
    let child = m.mm.fork(m.space).unwrap();
    m.mm.munmap(child, page(5), 1).unwrap();
    m.write(child, page(0), 9);
    assert_eq!(
        (m.order(child, 0), m.folio(child, 0).frame),
        (2, m.folio(child, 0).head)
    );
    m.write(child, page(12), 9);
    assert_eq!(m.order(child, 12), 3);
    m.write(child, page(4), 9);
    assert_eq!(m.order(child, 4), 0);
    // An exclusive page in the middle: a pinned one, which the fork has left the parent.
    let m = Bare::filled(16);
    let pin = m.mm.pin(m.space, page(5), true).unwrap();
    let child = m.mm.fork(m.space).unwrap();
    m.write(m.space, page(1), 9);
    m.write(m.space, page(9), 9);
    m.write(m.space, page(6), 9);
    let orders: Vec<u8> = [1, 9, 6].iter().map(|&i| m.order(m.space, i)).collect();
    assert_eq!(orders, [2, 3, 0]);
    assert_eq!(m.frame(m.space, page(5)), Some(pin.frame()));
    m.mm.unpin(pin);
    m.verify(&"copies");
    (0..16).for_each(|i| assert_eq!(m.read(child, page(i))[0], i as u8 + 1));
}

#[test]
fn r65_of_a_misaligned_source_an_aligned_part_is_copied() {
    let m = Bare::filled(16);
    let child = m.mm.fork(m.space).unwrap();
    m.mm.mmap(child, Some(page(64)), 64, 1, deckle_mm::Prot::RW)
        .unwrap();
    m.mm.mremap(child, page(0), 16, 16, Remap::Fixed(page(81)))
        .unwrap();
    m.verify(&"a move");
    // The folio lies at 81..97 now.
    m.write(child, page(85), 9);
    assert_eq!(m.order(child, 85), 2, "84..88: 80 is not of it");
    m.write(child, page(89), 9);
    assert_eq!(m.order(child, 89), 3, "88..96");
    m.write(child, page(96), 9);
    assert_eq!(m.order(child, 96), 0);
    for i in [81, 82, 83] {
        assert_eq!(m.read(child, page(i))[0], (i - 80) as u8);
    }
    assert_eq!(m.read(child, page(86))[0], 6);
    m.verify(&"copies");
}

#[test]
fn r67_r71_a_copy_costs_one_flush_and_the_source_as_many_references_as_pages() {
    let m = Bare::filled(16);
    let child = m.mm.fork(m.space).unwrap();
    assert_eq!(m.folio(m.space, 0).refs, 32);
    let flushes = m.model.counters().flushes;
    m.mm.fault(child, page(7), true, FaultMode::NoWait).unwrap();
    assert_eq!(m.model.counters().flushes - flushes, 1);
    assert_eq!((m.folio(m.space, 0).refs, m.folio(child, 0).refs), (16, 16));
    assert_eq!(m.writable(child, 16), (0..16).collect::<Vec<_>>());
    assert_eq!(m.writable(m.space, 16), []);
    m.verify(&"a copy");
}

#[test]
fn r68_an_unshared_page_is_its_own_and_stays_read_only() {
    let m = Bare::filled(16);
    let child = m.mm.fork(m.space).unwrap();
    let pin = m.mm.pin(child, page(3), false).unwrap();
    assert_ne!(m.frame(m.space, page(3)), Some(pin.frame()));
    assert_eq!((m.copies(), m.writable(child, 16)), (16, vec![]));
    m.verify(&"unshared");
    // A write makes it writable, and does not replace it.
    m.write(child, page(3), 99);
    assert_eq!((m.copies(), m.writable(child, 16).len()), (16, 16));
    assert_eq!(m.model.frame_bytes(pin.frame())[0], 99);
    // Of a page that nobody shares any more, reuse stops before the right to write.
    m.mm.destroy_space(child).unwrap();
    let second = m.mm.pin(m.space, page(3), false).unwrap();
    assert_eq!((m.copies(), m.writable(m.space, 16)), (16, vec![]));
    m.mm.unpin(pin);
    m.mm.unpin(second);
    m.verify(&"the end");
}

#[test]
fn r69_from_a_frame_that_has_failed_nothing_is_copied() {
    let m = Bare::filled(16);
    let child = m.mm.fork(m.space).unwrap();
    let bad = m.frame(m.space, page(5)).unwrap();
    assert!(m.mm.poison(bad));
    let usage = m.charge.usage();
    let failed = m.mm.fault(child, page(5), true, FaultMode::MayWait);
    assert!(
        matches!(failed, Err(FaultError::Poisoned(p)) if p == bad),
        "{failed:?}"
    );
    assert_eq!(
        (m.copies(), m.charge.usage()),
        (0, usage),
        "the new folio is freed"
    );
    m.verify(&"a copy that failed");
    // Its neighbours are well.
    m.write(child, page(4), 9);
    m.write(child, page(12), 9);
    assert_eq!((m.order(child, 4), m.order(child, 12)), (0, 3));
    m.verify(&"copies beside it");
    m.mm.destroy_space(child).unwrap();
    m.mm.destroy_space(m.space).unwrap();
    m.verify(&"the end");
    assert_eq!(m.charge.usage(), 0);
}

/// What a copy of 16 pages came to while another thread wrote one of them: its order, for many
/// interleavings.
fn orders_beside(other: u64) -> Vec<u8> {
    let mut orders: Vec<u8> = (1..400)
        .map(|seed| {
            let mut t = deckle_mm::Tunables::default();
            (t.thp, t.fault_order) = (ThpMode::Never, deckle_mm::FaultOrder::Fixed);
            let m = Bare::new(16, 2, seed, true, t);
            m.map(0, 16);
            (0..16).for_each(|i| m.write(m.space, page(i), i as u8 + 1));
            let child = m.mm.fork(m.space).unwrap();
            let unmap = other == 12;
            let jobs = vec![
                cpu(|| m.write_at(0, child, page(2), 0, 77).unwrap()),
                cpu(|| match unmap {
                    true => m.mm.munmap(child, page(other), 1).unwrap(),
                    false => m.write_at(1, child, page(other), 1, 88).unwrap(),
                }),
            ];
            if let Err(e) = m.machine.run(jobs) {
                panic!("seed {seed}: {e}");
            }
            m.verify(&seed);
            let (a, b) = (m.read(child, page(2)), m.read(m.space, page(2)));
            assert_eq!((a[0], b[0]), (77, 3));
            assert!(unmap || m.read(child, page(other))[1] == 88, "seed {seed}");
            assert_eq!(m.read(m.space, page(other))[1], 0);
            m.order(child, 2)
        })
        .collect();
    orders.sort();
    orders.dedup();
    orders
}

#[test]
fn r70_a_copy_that_lost_a_race_is_tried_smaller_or_was_done_by_the_other() {
    // A page of the window went: before the estimate, or between it and the lock. The page
    // itself was as it was, so a smaller window was copied; or the copy came first.
    assert_eq!(orders_beside(12), [3, 4]);
    // The other thread's copy brought this page, too.
    assert_eq!(orders_beside(3), [4]);
}

#[test]
fn r72_r77_reuse_ends_with_the_folio_and_counts_its_pages() {
    let m = Bare::filled(48);
    let child = m.mm.fork(m.space).unwrap();
    m.mm.destroy_space(child).unwrap();
    m.write(m.space, page(20), 9);
    assert_eq!(m.writable(m.space, 48), (16..32).collect::<Vec<_>>());
    assert_eq!((m.get(Item::Pgreuse), m.copies()), (16, 0));
    // Before anybody writes to the others.
    let dirty = |i| m.model.translation(m.space, page(i)).unwrap().dirty;
    assert!((16..32).all(dirty));
    let faults = m.get(Item::Pgfault);
    (16..32).for_each(|i| m.write(m.space, page(i), 10));
    assert_eq!(m.get(Item::Pgfault), faults);
    m.verify(&"reuse");
}

#[test]
fn r72_r73_exclusive_pages_are_reused_without_a_look_at_references() {
    let m = Bare::filled(16);
    m.aborted_fork();
    assert_eq!(m.writable(m.space, 16), [], "protected still");
    // A reference more, and a range that ends inside the folio.
    let pin = m.mm.pin(m.space, page(2), false).unwrap();
    m.mm.madvise(m.space, page(8), 8, Advice::NoHugePage)
        .unwrap();
    m.write(m.space, page(5), 9);
    assert_eq!(m.writable(m.space, 16), (0..8).collect::<Vec<_>>());
    assert_eq!((m.get(Item::Pgreuse), m.copies()), (8, 0));
    m.mm.unpin(pin);
    m.verify(&"reuse");
}

#[test]
fn r74_r80_r89_a_shared_folio_is_taken_over_only_with_all_its_references_and_its_lock() {
    let m = Bare::filled(16);
    let (one, two) = (m.mm.fork(m.space).unwrap(), m.mm.fork(m.space).unwrap());
    m.mm.destroy_space(one).unwrap();
    m.write(m.space, page(0), 9);
    assert_eq!(
        (m.copies(), m.get(Item::Pgreuse)),
        (16, 0),
        "another space has it"
    );
    // It is the second child's alone now, but isolated, which is its lock.
    let isolated = m.mm.isolate_page(two, page(0)).unwrap();
    m.write(two, page(0), 9);
    assert_eq!((m.copies(), m.get(Item::Pgreuse)), (32, 0));
    m.mm.putback_list(isolated);
    m.verify(&"copies");

    let m = Bare::filled(16);
    let child = m.mm.fork(m.space).unwrap();
    m.mm.destroy_space(child).unwrap();
    m.mm.munmap(m.space, page(12), 4).unwrap();
    // Maybe shared: advice does not reach it.
    m.mm.madvise(m.space, page(0), 12, Advice::Cold).unwrap();
    assert_eq!(m.get(Item::NrInactive), 0);
    m.write(m.space, page(3), 9);
    assert_eq!((m.copies(), m.get(Item::Pgreuse)), (0, 12));
    m.verify(&"taken over");
    // Its owner is this place again, and its 12 pages are exclusive.
    m.mm.madvise(m.space, page(0), 12, Advice::Cold).unwrap();
    assert_eq!(m.get(Item::NrInactive), 12);
    m.verify(&"cold");
}

#[test]
fn r76_what_is_left_of_a_folio_after_unmap_and_move_is_reused_as_one_range() {
    let m = Bare::filled(16);
    let child = m.mm.fork(m.space).unwrap();
    m.mm.destroy_space(child).unwrap();
    m.mm.munmap(m.space, page(0), 3).unwrap();
    m.mm.mremap(m.space, page(3), 13, 13, Remap::Fixed(page(100)))
        .unwrap();
    m.verify(&"moved");
    m.write(m.space, page(104), 9);
    assert_eq!((m.copies(), m.get(Item::Pgreuse)), (0, 13));
    for i in 0..13 {
        let first = if i == 4 { 9 } else { i as u8 + 4 };
        assert_eq!(m.read(m.space, page(100 + i))[0], first);
    }
    m.verify(&"reuse");
}

#[test]
fn r78_an_exclusive_page_beside_a_shared_one_is_never_copied() {
    let m = Bare::filled(16);
    let pin = m.mm.pin(m.space, page(5), true).unwrap();
    let child = m.mm.fork(m.space).unwrap();
    let copied = m.copies();
    assert_eq!(copied, 1, "for the child");
    m.mm.unpin(pin);
    let frame = m.frame(m.space, page(5));
    m.write(m.space, page(5), 9);
    assert_eq!((m.copies(), m.frame(m.space, page(5))), (copied, frame));
    assert_eq!(
        m.writable(m.space, 16),
        [5],
        "its neighbours are shared still"
    );
    assert_eq!(m.read(child, page(5))[0], 6);
    m.verify(&"reuse");
}

fn pinned_stays(m: &Bare, i: u64, frame: Pfn) {
    m.write(m.space, page(i), 123);
    assert_eq!(m.frame(m.space, page(i)), Some(frame));
    assert_eq!(m.model.frame_bytes(frame)[0], 123);
}

#[test]
fn r79_a_pinned_page_is_never_replaced() {
    for thp in [ThpMode::Never, ThpMode::Always] {
        // The fork copies it for the child at once.
        let m = Bare::simple(thp);
        m.map(0, 512);
        (0..16).for_each(|i| m.write(m.space, page(i), i as u8 + 1));
        let pin = m.mm.pin(m.space, page(5), true).unwrap();
        let child = m.mm.fork(m.space).unwrap();
        assert_eq!(m.read(child, page(5))[0], 6);
        assert_ne!(m.frame(child, page(5)), Some(pin.frame()));
        assert_eq!(m.frame(child, page(4)), m.frame(m.space, page(4)));
        pinned_stays(&m, 5, pin.frame());
        assert_eq!(m.read(child, page(5))[0], 6);
        // Neither do unmapping, reclaim or a move touch its bytes.
        m.mm.reclaim(1000);
        m.mm.mremap(m.space, page(5), 1, 1, Remap::Fixed(page(700)))
            .unwrap();
        pinned_stays(&m, 700, pin.frame());
        m.mm.munmap(m.space, page(700), 1).unwrap();
        assert_eq!(m.model.frame_bytes(pin.frame())[0], 123);
        m.verify(&"pinned");
        m.mm.unpin(pin);
        m.verify(&"unpinned");
        // Nor is a page of a range that the child does not get.
        let m = Bare::simple(thp);
        m.map(0, 512);
        (0..16).for_each(|i| m.write(m.space, page(i), i as u8 + 1));
        m.mm.advise_fork(m.space, page(4), 4, OnFork::Leave)
            .unwrap();
        let child = m.mm.fork(m.space).unwrap();
        let pin = m.mm.pin(m.space, page(5), false).unwrap();
        assert_eq!(m.copies(), 0, "it is exclusive");
        m.write(m.space, page(3), 9);
        pinned_stays(&m, 5, pin.frame());
        assert!(m.frame(child, page(5)).is_none());
        m.mm.unpin(pin);
        m.verify(&"left out");
        // Nor after a fork that failed.
        let m = Bare::simple(thp);
        m.map(0, 512);
        (0..16).for_each(|i| m.write(m.space, page(i), i as u8 + 1));
        m.aborted_fork();
        let pin = m.mm.pin(m.space, page(5), false).unwrap();
        pinned_stays(&m, 5, pin.frame());
        assert_eq!(m.copies(), 0);
        m.mm.unpin(pin);
    }
}

#[test]
fn r79_a_fork_that_the_machine_refuses_changes_nothing() {
    let mut refused = 0;
    for seed in 0..60 {
        let m = Bare::filled(40);
        m.mm.madvise(m.space, page(20), 8, Advice::PageOut).unwrap();
        m.model.set_injection(Injection {
            no_memory: Chance(100 + seed * 10),
            ..Injection::default()
        });
        let child = m.mm.fork(m.space);
        m.model.set_injection(Injection::default());
        m.verify(&seed);
        if child.is_ok() {
            continue;
        }
        refused += 1;
        (0..40).for_each(|i| assert_eq!(m.read(m.space, page(i))[0], i as u8 + 1));
        (0..40).for_each(|i| m.write(m.space, page(i), 9));
        assert_eq!(m.copies(), 0, "seed {seed}");
        m.verify(&seed);
    }
    assert!(refused > 20, "{refused}");
}

#[test]
fn r82_foreign_pages_and_shuffled_ones_end_a_run() {
    // Slot 2 is another folio's.
    let m = Bare::filled(16);
    let child = m.mm.fork(m.space).unwrap();
    let mut t = m.mm.tunables();
    t.fault_max = 4 << 10;
    m.mm.set_tunables(t).unwrap();
    m.write(m.space, page(2), 9);
    assert_eq!(m.order(m.space, 2), 0);
    m.mm.destroy_space(child).unwrap();
    t.fault_max = 64 << 10;
    m.mm.set_tunables(t).unwrap();
    // The run 0..2 does not hold all references: a copy, as large as fits.
    m.write(m.space, page(1), 9);
    assert_eq!(
        (m.order(m.space, 1), m.writable(m.space, 16)),
        (0, vec![1, 2])
    );
    m.write(m.space, page(9), 9);
    assert_eq!(m.order(m.space, 9), 3, "8..16");
    // What is left behind it: 0, and 3..8; all of one run, but for the foreign ones.
    m.write(m.space, page(4), 9);
    assert_eq!(m.order(m.space, 4), 2, "4..8");
    assert_eq!(m.read(m.space, page(3))[0], 4);
    m.verify(&"foreign");

    // Two pages have changed places.
    let m = Bare::filled(16);
    let child = m.mm.fork(m.space).unwrap();
    let swap = |a: u64, b: u64| {
        let go = |from: u64, to: u64| {
            let how = Remap::Fixed(page(to));
            m.mm.mremap(child, page(from), 1, 1, how).unwrap();
        };
        go(a, 300);
        go(b, a);
        go(300, b);
    };
    swap(9, 10);
    m.verify(&"shuffled");
    m.write(child, page(12), 9);
    assert_eq!(m.order(child, 12), 2, "8..16 is not in a row");
    m.write(child, page(9), 9);
    assert_eq!(m.order(child, 9), 0);
    assert_eq!(m.read(child, page(10))[0], 10, "what was at 9");
    m.mm.destroy_space(m.space).unwrap();
    m.write(child, page(1), 9);
    assert_eq!(m.order(child, 1), 3, "0..8");
    m.verify(&"copies");
}
