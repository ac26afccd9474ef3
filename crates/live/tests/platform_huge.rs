//! Whole blocks: what stays huge, and by which road.

use crate::common::*;
use crate::skipped::skipped;
use deckle_live::platform::SPACE;
use deckle_live::{Account, Capability, LiveConfig, LiveMemory};
use deckle_mm::platform::{Content, Prot, Stop};
use deckle_mm::{FrameRun, PageRun, Platform};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

fn has_huge(p: &LiveMemory, test: &str) -> bool {
    let ok = p.capabilities().huge();
    if !ok {
        skipped(format_args!("{test}: no huge pages here"));
    }
    ok
}

fn is_huge(p: &LiveMemory, at: PageRun) -> bool {
    p.is_huge(SPACE, at.start.block())
}

#[test]
fn p14_a_zero_block_is_huge_and_stays_huge_out_and_in() {
    case(|| {
        let p = platform();
        if !has_huge(&p, "p14_a_zero_block_is_huge_and_stays_huge_out_and_in") {
            return;
        }
        open(&p, 1, Prot::RW);
        let (at, f, data) = (run(&p, 1, 0, 512), huge(&p, 2), bytes(1, 512));
        assert_eq!(map(&p, at, f, Content::Zero), Ok(512));
        assert!(is_huge(&p, at));
        assert_eq!((read(at), resting(&p, f, 512)), (vec![0; BLOCK], 0));
        write(at, &data);
        for _ in 0..3 {
            assert_eq!(unmap(&p, at, f), Ok(512));
            assert_eq!((present(at), resting(&p, f, 512)), (0, 512));
            assert!(!is_huge(&p, at));
            assert_eq!(map(&p, at, f, Content::Parked), Ok(512));
            assert!(is_huge(&p, at), "PMD mapping kept");
            assert_eq!(resting(&p, f, 512), 0);
        }
        assert_eq!(read(at), data);
    });
}

#[test]
fn p17_a_page_table_left_by_a_fault_does_not_split_the_block() {
    case(|| {
        let p = forever(platform());
        if !has_huge(
            p,
            "p17_a_page_table_left_by_a_fault_does_not_split_the_block",
        ) || !needs(
            p,
            "p17_a_page_table_left_by_a_fault_does_not_split_the_block",
            Capability::BlockRecipe,
        ) {
            return;
        }
        for block in 0..4 {
            open(p, block, Prot::RW);
        }
        // Real faults: a thread touches each block; the block is served as a whole.
        let toucher = std::thread::spawn(move || {
            for block in 0..4 {
                let to = addr(run(p, block, 77, 1)) as *mut u64;
                // SAFETY: served below.
                unsafe { to.write_volatile(block + 1) };
            }
        });
        for block in 0..4 {
            assert!(p.program_uffd().wait(10_000).unwrap());
            let mut msg = [deckle_uffd::Msg::empty()];
            assert_eq!(p.program_uffd().read_events(&mut msg).unwrap(), 1);
            let at = run(p, block, 0, 512);
            assert_eq!(map(p, at, huge(p, 0), Content::Zero), Ok(512));
            assert!(is_huge(p, at), "block {block}");
        }
        toucher.join().unwrap();
        for block in 0..4 {
            let page = read(run(p, block, 77, 1));
            assert_eq!(page[..8], (block + 1).to_ne_bytes());
        }
        // The same for a parked block that comes back on a fault.
        let at = run(p, 0, 0, 512);
        unmap(p, at, huge(p, 0)).unwrap();
        let reader = std::thread::spawn(move || {
            // SAFETY: served below.
            unsafe { (addr(run(p, 0, 77, 1)) as *const u64).read_volatile() }
        });
        assert!(p.program_uffd().wait(10_000).unwrap());
        assert_eq!(map(p, at, huge(p, 0), Content::Parked), Ok(512));
        assert!(is_huge(p, at));
        assert_eq!(reader.join().unwrap(), 1);
    });
}

#[test]
fn p14_a_parking_block_with_a_page_table_takes_a_huge_page_again() {
    case(|| {
        let p = platform();
        if !has_huge(
            &p,
            "p14_a_parking_block_with_a_page_table_takes_a_huge_page_again",
        ) {
            return;
        }
        open(&p, 0, Prot::RW);
        let (at, f) = (run(&p, 0, 0, 512), huge(&p, 0));
        // Parts come and go in the parking block, which leaves a page table there.
        let few = run(&p, 0, 0, 8);
        map(&p, few, f, Content::Bytes(&bytes(1, 8))).unwrap();
        unmap(&p, few, f).unwrap();
        p.release(FrameRun::new(f, 3));
        map(&p, run(&p, 0, 3, 5), f.add(3), Content::Parked).unwrap();
        drop(p.discard(at));
        map(&p, at, f, Content::Zero).unwrap();
        assert!(is_huge(&p, at));
        unmap(&p, at, f).unwrap();
        map(&p, at, f, Content::Parked).unwrap();
        assert!(
            is_huge(&p, at),
            "not split by the parking block's page table"
        );
    });
}

#[test]
fn p16_a_partial_discard_leaves_the_rest_readable() {
    case(|| {
        let p = platform();
        open(&p, 0, Prot::RW);
        let (at, f, data) = (run(&p, 0, 0, 512), huge(&p, 0), bytes(3, 512));
        map(&p, at, f, Content::Zero).unwrap();
        write(at, &data);
        drop(p.discard(run(&p, 0, 100, 1)));
        assert!(!is_huge(&p, at), "the PMD mapping is split");
        assert_eq!((present(at), present(run(&p, 0, 100, 1))), (511, 0));
        let e = unmap(&p, at, f).unwrap_err();
        assert_eq!((e.at, e.why), (100, Stop::Gone));
        assert_eq!(unmap(&p, at.tail(101), f.add(101)), Ok(411));
        assert_eq!(rest(&p, f, 100), data[..100 * PAGE]);
        assert_eq!(rest(&p, f.add(101), 411), data[101 * PAGE..]);
    });
}

#[test]
fn p6_a_block_without_write_rights_goes_by_copy() {
    case(|| {
        let p = platform();
        let (at, f, data) = (run(&p, 3, 0, 512), huge(&p, 1), bytes(4, 512));
        open(&p, 3, Prot::R);
        p.map(at, f, Content::Zero, Prot::R).unwrap();
        assert_eq!(read(at), vec![0; BLOCK]);
        open(&p, 3, Prot::RW);
        write(at, &data);
        open(&p, 3, Prot::R);
        assert_eq!(p.unmap(at, f, Prot::R).unwrap().0.pages, 512);
        assert_eq!((present(at), rest(&p, f, 512)), (0, data.clone()));
        assert_eq!(p.map(at, f, Content::Parked, Prot::R).unwrap().pages, 512);
        assert_eq!((read(at), resting(&p, f, 512)), (data, 0));
    });
}

struct Purse {
    spent: AtomicU64,
    most: u64,
}

struct Handle(Arc<Purse>);

impl Account for Handle {
    fn try_charge(&self, pages: u64) -> bool {
        let spent = self.0.spent.load(Ordering::Relaxed);
        let ok = spent + pages <= self.0.most;
        if ok {
            self.0.spent.fetch_add(pages, Ordering::Relaxed);
        }
        ok
    }
    fn uncharge(&self, pages: u64) {
        self.0.spent.fetch_sub(pages, Ordering::Relaxed);
    }
}

fn with_purse(most: u64, limit: Option<u64>) -> (LiveMemory, Arc<Purse>) {
    let purse = Arc::new(Purse {
        spent: AtomicU64::new(0),
        most,
    });
    let p = platform_of(LiveConfig {
        parking_bytes: Some(256 << 20),
        limit_pages: limit,
        account: Some(Box::new(Handle(purse.clone()))),
        ..LiveConfig::default()
    });
    (p, purse)
}

#[test]
fn the_nursery_is_filled_while_huge_faults_are_frequent_and_paid_for() {
    case(|| {
        let (p, purse) = with_purse(3 * 512, None);
        if !has_huge(
            &p,
            "the_nursery_is_filled_while_huge_faults_are_frequent_and_paid_for",
        ) {
            return;
        }
        assert_eq!(p.fill_nursery(8), 0, "nothing before the first huge fault");
        // Soon one after the other: on a busy machine some are late, and in a virtual machine
        // that has given its memory back most are.
        let mut tries = 0..2000;
        let mut fault = || {
            let block = tries.next().expect("huge faults in quick succession") % 32;
            let at = run(&p, block, 0, 512);
            drop(p.discard(at));
            open(&p, block, Prot::RW);
            map(&p, at, huge(&p, block as u32), Content::Zero).unwrap();
            assert!(is_huge(&p, at));
        };
        while !p.nursery().wants() {
            fault();
        }
        // Wants more by now than the account pays for.
        let mut made = p.fill_nursery(8);
        while made < 3 || p.nursery().hits_and_misses().0 < 2 {
            fault();
            made += p.fill_nursery(8);
        }
        let ready = p.nursery().ready_pages();
        assert_eq!(purse.spent.load(Ordering::Relaxed), ready);
        assert!(ready <= 3 * 512);
        assert_eq!(p.nursery().drain(), ready);
        assert_eq!(purse.spent.load(Ordering::Relaxed), 0);
        assert!(!p.nursery().wants());
    });
}

#[test]
fn no_nursery_below_64_mib() {
    case(|| {
        let (p, purse) = with_purse(u64::MAX, Some((64 << 20) / 4096 - 1));
        for block in 0..3 {
            open(&p, block, Prot::RW);
            map(
                &p,
                run(&p, block, 0, 512),
                huge(&p, block as u32),
                Content::Zero,
            )
            .unwrap();
        }
        assert_eq!(
            (p.fill_nursery(8), purse.spent.load(Ordering::Relaxed)),
            (0, 0)
        );
    });
}

#[test]
fn p24_without_move_everything_goes_by_copy() {
    case(|| {
        let caps = deckle_live::self_test().without(Capability::Move);
        let p = platform_of(LiveConfig {
            parking_bytes: Some(256 << 20),
            capabilities: Some(caps),
            ..LiveConfig::default()
        });
        open(&p, 0, Prot::RW);
        let (at, f, data) = (run(&p, 0, 0, 512), huge(&p, 0), bytes(5, 512));
        map(&p, at, f, Content::Zero).unwrap();
        write(at, &data);
        assert_eq!(unmap(&p, at, f), Ok(512));
        assert_eq!((present(at), rest(&p, f, 512)), (0, data.clone()));
        assert_eq!(map(&p, at, f, Content::Parked), Ok(512));
        assert_eq!((read(at), resting(&p, f, 512)), (data.clone(), 0));
        write(at, &data);
        drop(p.discard(run(&p, 0, 2, 1)));
        let e = unmap(&p, at, f).unwrap_err();
        assert_eq!((e.at, e.why), (2, Stop::Gone));
        assert_eq!((present(at), resting(&p, f, 512)), (509, 2));
        write(at.tail(3), &data[3 * PAGE..]);
    });
}

#[test]
fn p4_the_self_test_survives_its_journey_as_a_number() {
    case(|| {
        let caps = deckle_live::self_test();
        eprintln!("{caps:?}");
        assert!(caps.has(Capability::Tested), "{caps:?}");
        let same = deckle_live::Capabilities::from_bits(caps.bits());
        assert_eq!(same, caps);
        for (c, why) in caps.missing() {
            assert!(!caps.has(c) && !why.is_empty());
        }
        let none = deckle_live::Capabilities::default();
        assert_eq!(none.missing().count(), Capability::ALL.len());
    });
}

/// Whether the kernel holds the page as a part of a huge one (root; `KPF_THP`).
fn part_of_huge(at: usize) -> bool {
    use std::os::unix::fs::FileExt;
    let mut flags = [0u8; 8];
    std::fs::File::open("/proc/kpageflags")
        .expect("kpageflags: run as root")
        .read_exact_at(&mut flags, kernel_frame(at) * 8)
        .expect("flags of a frame");
    u64::from_ne_bytes(flags) >> 22 & 1 == 1
}

#[test]
fn r95_p17_the_kernel_takes_a_split_huge_page_apart() {
    case(|| {
        let p = platform();
        if !has_huge(&p, "r95_p17_the_kernel_takes_a_split_huge_page_apart") {
            return;
        }
        if std::fs::File::open("/proc/kpageflags").is_err() {
            return skipped("the kernel shows its pages to root only");
        }
        let data = bytes(3, 512);
        for (block, parked, gone) in [(0, true, 1), (1, true, 8), (2, false, 1), (3, false, 8)] {
            open(&p, block, Prot::RW);
            let (at, f) = (run(&p, block, 0, 512), huge(&p, block as u32));
            map(&p, at, f, Content::Zero).unwrap();
            write(at, &data);
            if parked {
                unmap(&p, at, f).unwrap();
            }
            let (slot, _) = p.parking().place(f, 512).expect("frames");
            let place = if parked { slot } else { addr(at) };
            assert!(part_of_huge(place + BLOCK - PAGE));
            match parked {
                true => p.release(FrameRun::new(f, gone)),
                false => drop(p.discard(run(&p, block, 0, gone))),
            }
            assert!(part_of_huge(place + BLOCK - PAGE), "kept, whatever went");
            p.split(run(&p, block, gone, 1), f.add(gone));
            assert!(!part_of_huge(place + BLOCK - PAGE), "block {block}");
            let found = match parked {
                true => rest(&p, f.add(gone), 512 - gone),
                false => read(run(&p, block, gone, 512 - gone)),
            };
            assert_eq!(found, data[gone as usize * 4096..]);
        }
    });
}
