//! What a program tracks of its pages, soft-dirty and write-protection, through all that becomes
//! of a page.

use super::common::Rig;
use super::common::hand::{BLOCK, byte_of, tunables};
use deckle_mm::space::remap::Remap;
use deckle_mm::{
    Advice, CollapseError, FaultError, Item, MapError, PageInfo, Prot, Sizes, SplitFlags,
    SplitMode, ThpMode, Tunables, Vpn,
};

/// No huge pages: folios of 64 KiB.
fn small() -> Tunables {
    Tunables {
        thp: ThpMode::Never,
        ..tunables(409)
    }
}

fn rig(t: Tunables, swap: bool) -> Rig {
    Rig::new(64, 1, 1, swap, t)
}

impl Rig {
    fn info(&self, page: Vpn) -> PageInfo {
        self.mm.page_info(self.space, page).expect("not mapped")
    }
    fn dirty(&self, start: Vpn, pages: u64) -> Vec<u64> {
        (0..pages)
            .filter(|i| self.info(start.add(*i)).soft_dirty)
            .collect()
    }
    fn protected(&self, start: Vpn, pages: u64) -> Vec<u64> {
        (0..pages)
            .filter(|i| self.info(start.add(*i)).uffd_wp)
            .collect()
    }
    fn clear(&self) {
        self.mm.clear_soft_dirty(self.space).unwrap();
        self.verify(&"a clear");
    }
    fn protect(&self, start: Vpn, pages: u64, on: bool) {
        let done = self.mm.uffd_write_protect(self.space, start, pages, on);
        done.unwrap();
        self.verify(&("protect", on));
    }
    /// A write that the program is told of instead.
    fn is_told(&self, page: Vpn) -> bool {
        let before = self.read(page);
        let store = self.model.store(0, self.space, page.addr(), &[0xaa]);
        let told = match store {
            Ok(()) => false,
            Err(f) => matches!(self.fault(f.page, true), Err(FaultError::WriteProtected)),
        };
        told && self.read(page) == before
    }
}

#[test]
fn r126_zero_pages_of_a_protected_range_are_dropped_and_stay_protected() {
    for split_mode in [SplitMode::Shatter, SplitMode::InPlace] {
        let t = Tunables {
            split_mode,
            ..tunables(409)
        };
        let rig = rig(t, true);
        let start = rig.huge(0, [5, 77]);
        for k in 1..4 {
            rig.huge(k * BLOCK, []);
        }
        let pages = 4 * BLOCK;
        let registered = rig.mm.uffd_wp_register(rig.space, start, pages);
        registered.unwrap();
        rig.protect(start, pages, true);
        let all: Vec<u64> = (0..pages).collect();
        assert_eq!((rig.stat(Item::NrThp), rig.stat(Item::NrAnon)), (4, pages));
        rig.mm.shrink_underused(100, 100_000);
        rig.verify(&"split");
        assert_eq!((rig.stat(Item::NrThp), rig.resident()), (0, 2));
        assert_eq!(rig.protected(start, pages), all);
        for i in 0..pages {
            let byte = if [5, 77].contains(&i) { byte_of(i) } else { 0 };
            assert!(rig.holds(start.add(i), byte), "page {i}");
        }
        assert_eq!((rig.resident(), rig.protected(start, pages)), (2, all));
        for i in [0, 5, 6, 77, 511, 512, pages - 1] {
            assert!(rig.is_told(start.add(i)), "page {i}");
        }
        // Page by page the program lets its writers go on.
        for i in [5, 6] {
            rig.protect(start.add(i), 1, false);
            rig.write(start.add(i), 99);
            assert!(rig.holds(start.add(i), 99));
        }
        for i in [4, 7, 77] {
            assert!(rig.is_told(start.add(i)), "page {i}");
        }
        rig.verify(&split_mode);
        let ended = rig.mm.uffd_wp_unregister(rig.space, start, pages);
        ended.unwrap();
        assert_eq!(rig.protected(start, pages), []);
        rig.write(start.add(77), 3);
        rig.write(start.add(700), 4);
        assert!(rig.holds(start.add(77), 3) && rig.holds(start.add(700), 4));
        rig.verify(&"the end");
    }
}

/// Of three huge pages one is clean, one was written to since, one is protected as well.
#[test]
fn r126_r127_marks_are_the_same_after_the_shrinker_has_taken_huge_pages_apart() {
    for split_mode in [SplitMode::Shatter, SplitMode::InPlace] {
        let t = Tunables {
            split_mode,
            ..tunables(409)
        };
        let rig = rig(t, true);
        let start = rig.huge(0, 0..10);
        for k in 1..3 {
            rig.huge(k * BLOCK, 0..10);
        }
        let (pages, guarded) = (3 * BLOCK, start.add(2 * BLOCK));
        rig.mm.uffd_wp_register(rig.space, start, pages).unwrap();
        rig.clear();
        rig.write(start.add(BLOCK + 5), 77);
        rig.protect(guarded, BLOCK, true);
        let before = (rig.dirty(start, pages), rig.protected(start, pages));
        assert_eq!(before.0, (BLOCK..2 * BLOCK).collect::<Vec<_>>());
        assert_eq!(before.1, (2 * BLOCK..pages).collect::<Vec<_>>());
        assert_eq!(rig.stat(Item::NrThp), 3, "the shrinker has nothing to do");
        assert_eq!(rig.mm.shrink_underused(100, 100_000), 3 * 502);
        assert_eq!(rig.stat(Item::ThpUnderusedSplitPage), 3);
        rig.verify(&"shrunk");
        let marks = || (rig.dirty(start, pages), rig.protected(start, pages));
        assert_eq!(marks(), before);
        for i in 0..pages {
            rig.read(start.add(i));
        }
        assert_eq!(marks(), before, "read");
        for i in [3, 300] {
            assert!(rig.is_told(guarded.add(i)));
            rig.write(start.add(i), 1);
        }
        assert_eq!(rig.dirty(start, BLOCK), [3, 300]);
        rig.verify(&split_mode);
    }
}

/// Ways in which pages of zeros are dropped.
const DROPS: [&str; 4] = ["shrinker", "reclaim", "split", "isolated split"];

#[test]
fn r127_soft_dirty_and_write_protection_survive_the_zero_page() {
    for how in DROPS {
        for huge in [false, true] {
            let rig = rig(if huge { tunables(409) } else { small() }, false);
            let start = rig.mmap(0, BLOCK);
            // Pages of zeros, each written, but for one.
            (0..64).for_each(|i| rig.write(start.add(i), if i == 20 { 9 } else { 0 }));
            let registered = rig.mm.uffd_wp_register(rig.space, start, BLOCK);
            registered.unwrap();
            rig.clear();
            assert_eq!(rig.dirty(start, BLOCK), []);
            rig.protect(start.add(16), 8, true);
            // Of small pages each has marks of its own, of a huge one they are all alike.
            (0..4).for_each(|i| rig.write(start.add(i), 0));
            let dirty = rig.dirty(start, 64);
            assert!((0..4).all(|i| dirty.contains(&i)) && !dirty.contains(&17));
            let there = rig.resident();
            // Rights of a part may have made single pages of it, which are not split.
            let large = rig.folio(start).order > 0;
            match how {
                "shrinker" => {
                    rig.mm.shrink_underused(100, 10_000);
                }
                "reclaim" => {
                    rig.mm.reclaim(1000);
                }
                "split" => {
                    for k in 0..64 {
                        let flags = SplitFlags::DROP_ZERO;
                        let _ = rig.mm.split_page(rig.space, start.add(k), 0, flags);
                    }
                }
                _ => {
                    for k in 0..64 {
                        if let Some(mut list) = rig.mm.isolate_page(rig.space, start.add(k)) {
                            let flags = SplitFlags::DROP_ZERO;
                            let _ = rig.mm.split_isolated(&mut list, 0, flags);
                            rig.mm.putback_list(list);
                        }
                    }
                }
            }
            rig.verify(&(how, huge));
            // The shrinker takes whole huge pages: r126_r127 has those.
            if how == "reclaim" || how != "shrinker" && large {
                assert!(rig.resident() < there, "{how} {huge}: nothing was dropped");
            }
            let protected: Vec<u64> = (16..24).collect();
            for round in 0..2 {
                assert_eq!(rig.dirty(start, 64), dirty, "{how} {huge} {round}");
                assert_eq!(rig.protected(start, 64), protected, "{how} {huge} {round}");
                // Showing the zero page changes neither.
                for i in 0..64 {
                    rig.read(start.add(i));
                }
            }
            assert!(rig.is_told(start.add(17)) && rig.is_told(start.add(20)));
            rig.write(start.add(40), 7);
            assert!(rig.info(start.add(40)).soft_dirty);
            assert!(!rig.info(start.add(20)).soft_dirty);
            rig.verify(&(how, huge));
        }
    }
}

/// What may have become of a page between a clear and a write.
type Change = (&'static str, fn(&Rig, Vpn));
const CHANGES: &[Change] = &[
    ("nothing", |_, _| {}),
    ("aged", |r, s| r.advise(s, BLOCK, Advice::Cold)),
    ("stored", |r, s| r.advise(s, BLOCK, Advice::PageOut)),
    ("read back", |r, s| {
        r.advise(s, BLOCK, Advice::PageOut);
        r.advise(s, BLOCK, Advice::WillNeed);
    }),
    ("split", |r, s| {
        (0..BLOCK).for_each(|i| {
            let _ = r.mm.split_page(r.space, s.add(i), 0, SplitFlags::NONE);
        });
    }),
    ("split large", |r, s| {
        let _ = r.mm.split_page(r.space, s, 3, SplitFlags::NONE);
    }),
    ("partly unmapped", |r, s| {
        r.advise(s.add(100), 50, Advice::DontNeed)
    }),
    ("rights", |r, s| {
        r.mm.mprotect(r.space, s, BLOCK, Prot::R).unwrap();
        r.mm.mprotect(r.space, s.add(1), 3, Prot::NONE).unwrap();
        r.mm.mprotect(r.space, s, BLOCK, Prot::RW).unwrap();
    }),
    ("locked", |r, s| {
        r.mm.lock_present(r.space, s, BLOCK).unwrap();
        r.mm.reclaim(600);
        r.mm.munlock(r.space, s, BLOCK).unwrap();
    }),
    ("held", |r, s| {
        // The machine holds one page while reclaim tries to take them all.
        r.model.pin(r.space, s.add(10));
        r.mm.reclaim(600);
        r.advise(s, BLOCK, Advice::Cold);
        r.model.unpin(r.space, s.add(10));
    }),
    ("the core's part of a fork", |r, _| {
        assert!(r.fork());
        r.others_are_gone();
    }),
];

#[test]
fn r127_no_write_after_a_clear_is_lost_and_none_is_invented_whatever_the_page_is() {
    for (what, change) in CHANGES {
        for huge in [false, true] {
            let rig = rig(if huge { tunables(409) } else { small() }, true);
            let start = rig.mmap(0, BLOCK);
            (0..96).for_each(|i| rig.write(start.add(i), byte_of(i)));
            let registered = rig.mm.uffd_wp_register(rig.space, start, BLOCK);
            registered.unwrap();
            assert_eq!(rig.dirty(start, BLOCK).len() as u64, BLOCK, "a new mapping");
            rig.clear();
            rig.protect(start.add(64), 32, true);
            change(&rig, start);
            rig.verify(what);
            assert_eq!(rig.dirty(start, BLOCK), [], "{what}, {huge}");
            (0..96).for_each(|i| assert!(rig.holds(start.add(i), byte_of(i)), "{what} {i}"));
            assert_eq!(rig.dirty(start, BLOCK), [], "{what}, {huge}: read");
            let protected: Vec<u64> = (64..96).collect();
            assert_eq!(rig.protected(start, 96), protected, "{what}, {huge}");
            for i in [0, 10, 15, 40] {
                rig.write(start.add(i), 200);
                assert!(rig.info(start.add(i)).soft_dirty, "{what}, {huge}: {i}");
            }
            if !huge {
                assert_eq!(rig.dirty(start, 96), [0, 10, 15, 40], "{what}");
            }
            for i in [64, 80, 95] {
                assert!(rig.is_told(start.add(i)), "{what}, {huge}: {i}");
            }
            rig.verify(what);
            // And again.
            rig.clear();
            assert_eq!(rig.dirty(start, BLOCK), [], "{what}, {huge}: second clear");
            rig.write(start.add(10), 1);
            assert!(rig.info(start.add(10)).soft_dirty);
        }
    }
}

#[test]
fn r127_a_huge_page_swapped_whole_keeps_its_marks_in_one_record() {
    let rig = rig(tunables(511), true);
    let start = rig.huge(0, 0..300);
    rig.mm.uffd_wp_register(rig.space, start, BLOCK).unwrap();
    rig.clear();
    rig.protect(start, BLOCK, true);
    rig.advise(start, BLOCK, Advice::PageOut);
    assert_eq!(rig.resident(), 0);
    let all: Vec<u64> = (0..BLOCK).collect();
    assert_eq!(
        (rig.protected(start, BLOCK), rig.dirty(start, BLOCK)),
        (all, vec![])
    );
    // A part of it differs from now on.
    rig.protect(start.add(8), 8, false);
    rig.write(start.add(9), 77);
    assert!(rig.is_told(start.add(7)) && rig.is_told(start.add(400)));
    assert_eq!(rig.protected(start, BLOCK).len(), 504);
    assert_eq!(rig.dirty(start, BLOCK), [9]);
    rig.verify(&"parts");
}

#[test]
fn what_moves_is_dirty_and_stays_protected() {
    for huge in [false, true] {
        let rig = rig(if huge { tunables(409) } else { small() }, true);
        let start = rig.mmap(0, BLOCK);
        (0..96).for_each(|i| rig.write(start.add(i), byte_of(i)));
        rig.mm.uffd_wp_register(rig.space, start, BLOCK).unwrap();
        rig.clear();
        rig.protect(start.add(32), 32, true);
        // A whole block, then to an odd place.
        for to in [3 * BLOCK, 5 * BLOCK + 3] {
            let from = rig.mm.mapped_parts(rig.space, start, 8 * BLOCK)[0].start;
            let to = super::common::BASE.add(to);
            let done = rig
                .mm
                .mremap(rig.space, from, BLOCK, BLOCK, Remap::Fixed(to));
            assert_eq!(done, Ok(to));
            assert_eq!(rig.dirty(to, BLOCK).len() as u64, BLOCK);
            assert_eq!(rig.protected(to, BLOCK), (32..64).collect::<Vec<_>>());
            assert!(rig.is_told(to.add(40)));
            (0..96).for_each(|i| assert!(rig.holds(to.add(i), byte_of(i))));
            rig.clear();
            assert_eq!(rig.dirty(to, BLOCK), []);
        }
        // What is mapped anew beside it makes no page of it dirty: they are different VMAs.
        rig.mmap(0, 16);
        assert_eq!(rig.dirty(start, 16).len(), 16);
        rig.verify(&huge);
    }
}

#[test]
fn a_collapse_keeps_what_is_clean_and_leaves_alone_what_is_protected() {
    let single = Tunables {
        sizes: Sizes::NEVER,
        ..tunables(409)
    };
    let with = |rig: &Rig, t: Tunables| rig.mm.set_tunables(t).unwrap();
    let rig = rig(single, true);
    let start = rig.mmap(0, BLOCK);
    (0..300).for_each(|i| rig.write(start.add(i), byte_of(i)));
    rig.read(start.add(400));
    rig.mm.uffd_wp_register(rig.space, start, BLOCK).unwrap();
    rig.clear();
    rig.protect(start.add(299), 1, true);
    with(&rig, tunables(409));
    let done = rig.mm.collapse(rig.space, start);
    assert_eq!(done, Err(CollapseError::Protected(start.add(299))));
    rig.protect(start, BLOCK, false);
    rig.mm.collapse(rig.space, start).unwrap();
    assert_eq!(
        (rig.folio(start).order, rig.dirty(start, BLOCK)),
        (9, vec![])
    );
    rig.verify(&"clean");
    rig.write(start.add(3), 50);
    assert_eq!(
        rig.dirty(start, BLOCK).len() as u64,
        BLOCK,
        "one bit for all"
    );
    // One dirty page makes all of it dirty.
    rig.mm
        .split_page(rig.space, start, 0, SplitFlags::NONE)
        .unwrap();
    rig.clear();
    rig.write(start.add(7), 51);
    assert_eq!(rig.dirty(start, BLOCK), [7]);
    rig.mm.collapse(rig.space, start).unwrap();
    assert_eq!(rig.dirty(start, BLOCK).len() as u64, BLOCK);
    rig.verify(&"dirty");
}

#[test]
fn holes_are_not_protected_and_what_is_not_registered_is_refused() {
    let rig = rig(small(), true);
    let start = rig.mmap(0, 64);
    let protect = |at: u64, n| rig.mm.uffd_write_protect(rig.space, start.add(at), n, true);
    assert_eq!(protect(0, 1), Err(MapError::Hole(start)));
    rig.mm.uffd_wp_register(rig.space, start, 32).unwrap();
    assert_eq!(protect(16, 17), Err(MapError::Hole(start.add(32))));
    let beyond = rig.mm.uffd_wp_register(rig.space, start, 65);
    assert_eq!(beyond, Err(MapError::Hole(start.add(64))));
    rig.write(start, 1);
    protect(0, 32).unwrap();
    // The folio came with 16 pages.
    assert_eq!(rig.protected(start, 32), (0..16).collect::<Vec<_>>());
    rig.write(start.add(16), 1);
    rig.advise(start, 4, Advice::DontNeed);
    assert_eq!(rig.protected(start, 32), (4..16).collect::<Vec<_>>());
    rig.write(start, 2);
    assert!(rig.is_told(start.add(4)) && rig.holds(start, 2));
    // A zero page that was read is a page.
    rig.read(start.add(48));
    rig.mm.uffd_wp_register(rig.space, start, 64).unwrap();
    protect(32, 32).unwrap();
    assert!(rig.is_told(start.add(48)));
    // To have it locked in memory it must be there, not be written.
    rig.mm.mlock(rig.space, start, 64).unwrap();
    assert!(rig.is_told(start.add(48)));
    rig.verify(&"registered");
    assert_eq!(rig.mm.page_info(rig.space, start.add(64)), None);
}

#[test]
fn what_the_machine_cannot_protect_stays_dirty() {
    use deckle_model::{Chance, Injection};
    let rig = rig(small(), true);
    let start = rig.mmap(0, 64);
    rig.write(start, 1);
    rig.mm.uffd_wp_register(rig.space, start, 64).unwrap();
    rig.model.set_injection(Injection {
        no_memory: Chance::ALWAYS,
        ..Injection::default()
    });
    rig.mm.clear_soft_dirty(rig.space).unwrap();
    let refused = rig.mm.uffd_write_protect(rig.space, start, 64, true);
    rig.model.set_injection(Injection::default());
    assert!(matches!(refused, Err(MapError::Platform(_))), "{refused:?}");
    assert_eq!(rig.dirty(start, 64), (0..16).collect::<Vec<_>>());
    assert_eq!(rig.protected(start, 64), []);
    rig.verify(&"refused");
}
