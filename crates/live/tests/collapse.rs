//! Small pages of real memory that become huge ones in the background, while programs use them.

use crate::common::{PAGE, case, pss_anon};
use crate::service::Inside;
use crate::skipped::skipped;
use crate::trim::Trim;
use deckle_live::{Capability, Die, Limit, LiveConfig, Pager, Region, Service};
use deckle_mm::{Advice, BlockNr, Charge, CollapseError, Item, SplitFlags, ThpMode};
use deckle_mm::{Tunables, Vpn};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

const MIB: usize = 1 << 20;
const BLOCK: usize = 512;

type Managed = Region<Limit, Trim>;

/// Small pages only, and no khugepaged, until the knobs say otherwise.
fn knobs(thp: ThpMode) -> Tunables {
    Tunables {
        thp,
        sizes: deckle_mm::Sizes::NEVER.with(9, deckle_mm::SizeMode::Inherit),
        khugepaged_scan_sleep_millisecs: 100,
        khugepaged_alloc_sleep_millisecs: 100,
        ..Tunables::default()
    }
}

/// A service with a limit. `None`, said loudly: no huge page is to be had here.
fn service(test: &str, mib: u64) -> Option<(Service<Limit, Trim>, Arc<Limit>)> {
    let max = mib * 256;
    let limit = Arc::new(Limit::new(max, max - max / 32, u64::MAX));
    let config = LiveConfig {
        dont_fork: true,
        ..LiveConfig::default()
    };
    let tunables = knobs(ThpMode::Never);
    let store = Trim::default();
    let pager = Pager::new(config, limit.clone(), store, tunables, Box::new(Die)).expect("pager");
    let caps = pager.platform().capabilities();
    if !caps.has(Capability::Move) || !caps.huge() {
        skipped(format_args!("{test}: the system moves no huge page"));
        return None;
    }
    Some((Service::start(pager).expect("threads"), limit))
}

fn word(page: usize, round: u64) -> u64 {
    (page as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ round
}

fn write(region: &mut Managed, page: usize, round: u64) {
    for k in 0..8 {
        let at = page * PAGE + k * 512;
        region[at..at + 8].copy_from_slice(&word(page, round + k as u64).to_ne_bytes());
    }
}

fn holds(region: &Managed, page: usize, round: u64) {
    for k in 0..8 {
        let at = page * PAGE + k * 512;
        let got = u64::from_ne_bytes(region[at..at + 8].try_into().unwrap());
        assert_eq!(got, word(page, round + k as u64), "page {page} word {k}");
    }
}

fn huge(service: &Service<Limit, Trim>, region: &Managed) -> usize {
    let platform = service.inside().platform();
    let blocks = region.start().block().0..region.start().block().0 + region.pages() / 512;
    blocks
        .filter(|b| platform.is_huge(service.inside().space(), BlockNr(*b)))
        .count()
}

/// However long it takes on a busy machine.
fn until(what: &str, mut done: impl FnMut() -> bool) {
    for _ in 0..4000 {
        if done() {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("{what}");
}

fn sound(service: &Service<Limit, Trim>) {
    service
        .inside()
        .set_tunables(knobs(ThpMode::Never))
        .unwrap();
    // Quiescent: nobody faults, and the background has nothing to do; a huge page made ahead of
    // need is paid for until it is given back.
    let mut broken = Vec::new();
    for _ in 0..400 {
        std::thread::sleep(Duration::from_millis(50));
        service.inside().platform().nursery().drain();
        match service.inside().mm().verify(true) {
            Ok(()) => return,
            Err(lines) => broken = lines,
        }
    }
    panic!("{broken:?}");
}

#[test]
fn r140_khugepaged_makes_huge_pages_of_small_ones() {
    case(|| {
        let test = "r140_khugepaged_makes_huge_pages_of_small_ones";
        let Some((service, limit)) = service(test, 256) else {
            return;
        };
        let mut region = service.map(32 * MIB).expect("map");
        let pages = region.pages() as usize;
        // Of the last block more is missing than may be; of the one before as much as may be.
        let used = |page: usize| match page / BLOCK {
            15 => page % BLOCK < 512 - 410,
            14 => page % BLOCK < 512 - 409,
            _ => true,
        };
        (0..pages)
            .filter(|p| used(*p))
            .for_each(|p| write(&mut region, p, 3));
        assert_eq!(huge(&service, &region), 0);
        let pager = service.inside();
        let stats = pager.mm().stats();
        pager.set_tunables(knobs(ThpMode::Always)).unwrap();
        until("15 blocks become huge", || {
            huge(&service, &region) == 15 && stats.get(Item::ThpScanExceedNonePte) > 0
        });
        assert_eq!(stats.get(Item::ThpCollapseAlloc), 15);
        assert_eq!(stats.get(Item::NrThp), 15);
        pager.platform().nursery().drain();
        let charged = 15 * BLOCK as u64 + 102;
        assert!(limit.usage() - pager.mm().store_charged() - charged <= 512);
        (0..pages)
            .filter(|p| used(*p))
            .for_each(|p| holds(&region, p, 3));
        // What no page was for reads as zeros, and is the program's to write.
        let last = 14 * BLOCK + 511;
        assert!(region[last * PAGE..][..PAGE].iter().all(|b| *b == 0));
        write(&mut region, last, 4);
        holds(&region, last, 4);
        assert_eq!(huge(&service, &region), 15);
        sound(&service);
    });
}

#[test]
fn r140_what_is_trimmed_is_not_collapsed_again_nor_the_other_way_round() {
    case(|| {
        let test = "r140_what_is_trimmed_is_not_collapsed_again_nor_the_other_way_round";
        let Some((service, _)) = service(test, 256) else {
            return;
        };
        let mut region = service.map(32 * MIB).expect("map");
        let both = Tunables {
            thp_waste_max: 0,
            ..knobs(ThpMode::Always)
        };
        service.inside().set_tunables(both).unwrap();
        region.advise(Advice::HugePage).unwrap();
        // At the limit, one page less, and one more.
        let used = |page: usize| page % BLOCK < 102 + page / BLOCK % 3;
        let pages = region.pages() as usize;
        (0..pages)
            .filter(|p| used(*p))
            .for_each(|p| write(&mut region, p, 5));
        let stats = service.inside().mm().stats();
        let now = || {
            (
                stats.get(Item::ThpUnderusedSplitPage),
                stats.get(Item::ThpCollapseAlloc),
            )
        };
        // Blocks of 102 pages in use have 410 zeros.
        until("underused blocks are split", || now().0 >= 6);
        std::thread::sleep(Duration::from_millis(500));
        let settled = now();
        assert_eq!(settled.0, 6);
        let looked = stats.get(Item::ThpScanExceedNonePte);
        until("khugepaged has looked again and again", || {
            stats.get(Item::ThpScanExceedNonePte) >= looked + 4 * 6
        });
        assert_eq!(now(), settled);
        assert_eq!(huge(&service, &region), 10);
        (0..pages)
            .filter(|p| used(*p))
            .for_each(|p| holds(&region, p, 5));
        sound(&service);
    });
}

/// Threads write all the time, one byte of a word here and there and whole pages, while blocks
/// become huge and are taken apart again.
#[test]
fn r98_r140_writers_lose_no_byte_to_collapse_and_split() {
    case(|| {
        let test = "r98_r140_writers_lose_no_byte_to_collapse_and_split";
        let Some((service, _)) = service(test, 64) else {
            return;
        };
        let mut region = service.map(16 * MIB).expect("map");
        let pages = region.pages() as usize;
        (0..pages).for_each(|p| write(&mut region, p, 0));
        let knobs = Tunables {
            thp_waste_max: 0,
            ..knobs(ThpMode::Always)
        };
        service.inside().set_tunables(knobs).unwrap();
        let (stop, writes) = (AtomicBool::new(false), AtomicU64::new(0));
        let base = region.as_mut_ptr() as usize;
        let mm = service.inside().mm();
        let collapsed = || mm.stats().get(Item::ThpCollapseAlloc);
        std::thread::scope(|s| {
            for t in 0..3 {
                let (stop, writes) = (&stop, &writes);
                s.spawn(move || {
                    // How often each word was written.
                    let mut rounds = vec![0u64; pages * 8];
                    let mut x = 88_172_645_463_325_252u64 + t as u64;
                    while !stop.load(Relaxed) {
                        x ^= x << 13;
                        x ^= x >> 7;
                        x ^= x << 17;
                        let page = (x as usize >> 8) % pages / 3 * 3 + t;
                        if page >= pages {
                            continue;
                        }
                        let k = x as usize & 7;
                        let at = (base + page * PAGE + k * 512) as *mut u64;
                        let round = &mut rounds[page * 8 + k];
                        let value = |round: u64| word(page, k as u64) ^ round << 3;
                        // SAFETY: a word of a page of the region that only this thread uses.
                        let got = unsafe { at.read_volatile() };
                        assert_eq!(got, value(*round), "page {page} word {k}");
                        *round += 1;
                        // SAFETY: as above.
                        unsafe { at.write_volatile(value(*round)) };
                        writes.fetch_add(1, Relaxed);
                    }
                });
            }
            let space = service.inside().space();
            let start = region.start();
            let mut splits = 0;
            for round in 0.. {
                let block = start.add(round % 8 * 512);
                if mm.shatter_page(space, block).is_ok() {
                    splits += 1;
                }
                let (c, w) = (collapsed(), writes.load(Relaxed));
                if c >= 60 && splits >= 60 && w >= 100_000 {
                    break;
                }
                let again = mm.collapse(space, block);
                let fine = matches!(
                    again,
                    Ok(())
                        | Err(CollapseError::Huge | CollapseError::Page(_) | CollapseError::Cold)
                );
                assert!(fine, "{again:?}");
            }
            stop.store(true, Relaxed);
        });
        sound(&service);
    });
}

/// Pages that a fork shares stay small until they are the process's own again.
#[test]
fn p20_r140_what_a_fork_shares_is_not_collapsed() {
    case(|| {
        let test = "p20_r140_what_a_fork_shares_is_not_collapsed";
        let Some((service, _)) = service(test, 128) else {
            return;
        };
        let mut region = service.map(8 * MIB).expect("map");
        let pages = region.pages() as usize;
        (0..pages).for_each(|p| write(&mut region, p, 9));
        let pager = service.inside();
        let (mm, space) = (pager.mm(), pager.space());
        mm.activate_all(space).expect("activate");
        mm.share_all(space).expect("share");
        pager.set_tunables(knobs(ThpMode::Always)).unwrap();
        let stats = mm.stats();
        until("khugepaged has looked", || {
            stats.get(Item::ThpScanExceedSharePte) >= 8
        });
        assert_eq!(huge(&service, &region), 0);
        let shared = mm.collapse(space, Vpn(region.start().0 + 600));
        assert_eq!(shared, Err(CollapseError::ExceedShared(512)));
        // Written here, it is this process's own.
        (0..BLOCK).for_each(|p| write(&mut region, p, 10));
        until("a block of its own becomes huge", || {
            huge(&service, &region) == 1
        });
        mm.unshare_all();
        until("all become huge", || huge(&service, &region) == 4);
        for p in 0..pages {
            holds(&region, p, if p < BLOCK { 10 } else { 9 });
        }
        // What was written is charged beside what the fork left, which a group settles.
        pager.set_tunables(knobs(ThpMode::Never)).unwrap();
        mm.verify(false).expect("reconciled");
    });
}

/// Pages in the store are read back for a huge page as long as there are no more of them than
/// `max_ptes_swap`.
#[test]
fn r140_pages_in_the_store_are_read_back_up_to_their_limit_and_no_further() {
    case(|| {
        let test = "r140_pages_in_the_store_are_read_back_up_to_their_limit_and_no_further";
        let Some((service, _)) = service(test, 128) else {
            return;
        };
        let mut region = service.map(8 * MIB).expect("map");
        let pages = region.pages() as usize;
        // The store takes what has nothing in its second half.
        for p in 0..pages {
            region[p * PAGE..][..8].copy_from_slice(&word(p, 6).to_ne_bytes());
        }
        let pager = service.inside();
        let (mm, space) = (pager.mm(), pager.space());
        let at_limit = u32::from(knobs(ThpMode::Always).max_ptes_swap);
        let away = |block: usize| at_limit + block as u32 % 2;
        for block in 0..4 {
            let first = region.start().add((block * BLOCK) as u64);
            let n = u64::from(away(block));
            assert_eq!(mm.page_out(space, first, n), Ok(n));
        }
        let reads = mm.stats().get(Item::Pswpin);
        // Asked for here, since khugepaged, in time, would look at them too.
        let always = Tunables {
            khugepaged_scan_sleep_millisecs: u32::MAX,
            ..knobs(ThpMode::Always)
        };
        pager.set_tunables(always).unwrap();
        for block in 0..4 {
            let first = region.start().add((block * BLOCK) as u64);
            let should = match away(block) > at_limit {
                true => Err(CollapseError::ExceedSwap(at_limit + 1)),
                false => Ok(()),
            };
            assert_eq!(mm.collapse(space, first), should, "block {block}");
        }
        let read = mm.stats().get(Item::Pswpin) - reads;
        assert_eq!(
            (read, huge(&service, &region)),
            (2 * u64::from(at_limit), 2)
        );
        for p in 0..pages {
            let got = u64::from_ne_bytes(region[p * PAGE..][..8].try_into().unwrap());
            assert_eq!(got, word(p, 6), "page {p}");
        }
        sound(&service);
    });
}

/// What huge pages of zeros held is the system's again once they are split, in truth: by what
/// the kernel says of this process.
#[test]
fn r97_r104_huge_pages_of_zeros_that_are_split_give_their_memory_back() {
    case(|| {
        let test = "r97_r104_huge_pages_of_zeros_that_are_split_give_their_memory_back";
        let Some((service, limit)) = service(test, 128) else {
            return;
        };
        let pager = service.inside();
        let (mm, space) = (pager.mm(), pager.space());
        let always = Tunables {
            khugepaged_scan_sleep_millisecs: u32::MAX,
            ..knobs(ThpMode::Always)
        };
        pager.set_tunables(always).unwrap();
        let mut region = service.map(8 * MIB).expect("map");
        (0..4).for_each(|block| region[block * BLOCK * PAGE] = 0);
        assert_eq!(huge(&service, &region), 4);
        let anon = || {
            pager.platform().nursery().drain();
            pss_anon()
        };
        let (before, charged) = (anon(), limit.usage());
        for block in 0..4 {
            let first = region.start().add((block * BLOCK) as u64);
            mm.split_page(space, first, 0, SplitFlags::DROP_ZERO)
                .expect("split");
        }
        let (after, left) = (anon(), limit.usage());
        assert!(before >= after + 7 * 1024, "{before} to {after} KiB");
        assert!(charged >= left + 4 * BLOCK as u64, "{charged} to {left}");
        assert_eq!(mm.stats().get(Item::NrZero), 4 * BLOCK as u64);
        assert!(region.iter().all(|b| *b == 0));
        let pages = region.pages() as usize;
        (0..pages).step_by(7).for_each(|p| write(&mut region, p, 8));
        (0..pages).step_by(7).for_each(|p| holds(&region, p, 8));
        sound(&service);
    });
}
