//! The pager as a Rust program uses it: ordinary memory, more of it than the limit.

use crate::common::{PAGE, case, pss_anon};
use crate::service::Inside;
use crate::service::{MIB, Trim, check, fill, service_with, sound, within, word};
use crate::skipped::skipped;
use deckle_live::{Die, Limit, LiveConfig, Pager, Region, Service};
use deckle_mm::{Advice, Charge, Item, Prot, Store, ThpMode, Tunables, Vpn};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

fn service_of(mib: u64, thp: ThpMode) -> (Service<Limit, Trim>, Arc<Limit>) {
    service_with(
        mib,
        Tunables {
            thp,
            swap_cache: true,
            ..Tunables::default()
        },
    )
}

fn four_times_the_limit(thp: ThpMode) {
    let (service, limit) = service_of(32, thp);
    let mut region = service.map(128 * MIB).expect("map");
    for round in 0..2 {
        fill(&mut region, round * 1000);
        check(&region, round * 1000);
    }
    within(&limit);
    let stats = service.inside().mm().stats();
    assert!(stats.get(Item::Pswpin) > 0 && stats.get(Item::Pswpout) > 0);
    eprintln!(
        "{thp:?}: peak {} of {}, pswpout {}, pswpin {}, pgfault {}",
        limit.peak(),
        limit.max(),
        stats.get(Item::Pswpout),
        stats.get(Item::Pswpin),
        stats.get(Item::Pgfault)
    );
    sound(&service);
    drop(region);
    service.inside().platform().nursery().drain();
    assert_eq!(service.inside().mm().store().stored_pages(), 0);
    assert_eq!(limit.usage(), service.inside().mm().store_charged());
    sound(&service);
}

#[test]
fn memory_of_four_times_the_limit_with_huge_pages() {
    case(|| four_times_the_limit(ThpMode::Always));
}

#[test]
fn memory_of_four_times_the_limit_with_small_pages() {
    case(|| four_times_the_limit(ThpMode::Never));
}

#[test]
fn what_huge_pages_waste_is_kept_within_its_budget_while_memory_is_plenty() {
    case(|| {
        let tunables = Tunables {
            thp_waste_max: 0,
            ..Tunables::default()
        };
        let (service, limit) = service_with(256, tunables);
        let mut region = service.map(32 * MIB).unwrap();
        region.advise(Advice::HugePage).unwrap();
        // Ten pages of each huge one are in use, of every fourth all.
        let used = |page: usize| page / 512 % 4 == 3 || page % 512 < 10;
        for page in (0..32 * MIB / PAGE).filter(|p| used(*p)) {
            region[page * PAGE..][..8].copy_from_slice(&word(page, 7).to_ne_bytes());
        }
        let stats = service.inside().mm().stats();
        let before = stats.get(Item::NrThp);
        if before == 0 {
            skipped("no huge page to be had");
            return;
        }
        // However long that takes on a busy machine; what is ready ahead of need counts, too.
        let nursery = service.inside().platform().nursery();
        let spare = 4 * 512 + 12 * 10 + 64;
        for tries in 0.. {
            let usage = limit.usage();
            if usage <= spare + nursery.ready_pages() {
                break;
            }
            assert!(tries < 10_000, "{usage} pages in use");
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        assert!(stats.get(Item::ThpUnderusedSplitPage) > 0);
        assert_eq!(stats.get(Item::Pswpout) + stats.get(Item::Allocstall), 0);
        for (page, bytes) in region.chunks(PAGE).enumerate() {
            let want = if used(page) { word(page, 7) } else { 0 };
            let got = u64::from_ne_bytes(bytes[..8].try_into().unwrap());
            assert_eq!(got, want, "page {page}");
            assert!(bytes[8..].iter().all(|b| *b == 0), "page {page}");
        }
        sound(&service);
    });
}

#[test]
fn p1_system_calls_reach_memory_that_is_away() {
    case(|| {
        let (service, _) = service_of(32, ThpMode::Always);
        if !service
            .inside()
            .platform()
            .capabilities()
            .has(deckle_live::Capability::KernelFaults)
        {
            skipped("user-mode only");
            return;
        }
        let mut region = service.map(8 * MIB).unwrap();
        fill(&mut region, 5);
        region.advise(Advice::PageOut).unwrap();
        assert!(service.inside().mm().store().stored_pages() > 2000);
        let mut pipe = [0; 2];
        let at = region.as_ptr();
        // SAFETY: a page of the region through a pipe, into another page of it.
        unsafe {
            assert_eq!(libc::pipe(pipe.as_mut_ptr()), 0);
            assert_eq!(
                libc::write(pipe[1], at.add(PAGE).cast(), PAGE),
                PAGE as isize
            );
            let to = region.as_mut_ptr().add(4 * PAGE);
            assert_eq!(libc::read(pipe[0], to.cast(), PAGE), PAGE as isize);
        }
        assert_eq!(region[PAGE..2 * PAGE], region[4 * PAGE..5 * PAGE]);
        region.copy_within(0..PAGE, 4 * PAGE);
        assert_eq!(region[..PAGE], region[4 * PAGE..5 * PAGE]);
        sound(&service);
    });
}

#[test]
fn r98_threads_share_memory_under_pressure_without_losing_a_byte() {
    case(|| {
        let (service, limit) = service_of(24, ThpMode::Always);
        let region = service.map(96 * MIB).unwrap();
        let base = region.as_ptr() as usize;
        let pages = region.len() / PAGE;
        let done = AtomicU64::new(0);
        std::thread::scope(|s| {
            for t in 0..4u64 {
                let done = &done;
                s.spawn(move || {
                    let mut x = t + 1;
                    for _ in 0..30_000 {
                        x = x
                            .wrapping_mul(6364136223846793005)
                            .wrapping_add(1442695040888963407);
                        let page = (x >> 33) as usize % pages;
                        for k in [0, 7] {
                            let at = (base + page * PAGE + 8 * k) as *const AtomicU64;
                            // SAFETY: inside the region, aligned, only used as atomics.
                            unsafe { &*at }.fetch_add(1, Ordering::Relaxed);
                        }
                        done.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            s.spawn(|| {
                // Somebody pages everything out again and again.
                let pager = service.inside();
                while done.load(Ordering::Relaxed) < 120_000 {
                    pager
                        .mm()
                        .page_out(pager.space(), region.start(), region.pages())
                        .unwrap();
                    std::thread::sleep(std::time::Duration::from_millis(3));
                }
            });
        });
        for k in [0, 7] {
            let sum: u64 = (0..pages)
                .map(|p| {
                    let at = p * PAGE + 8 * k;
                    u64::from_ne_bytes(region[at..at + 8].try_into().unwrap())
                })
                .sum();
            assert_eq!(sum, 120_000, "word {k}");
        }
        let stats = service.inside().mm().stats();
        assert!(stats.get(Item::Pswpin) > 0, "nobody touched what was away");
        within(&limit);
        sound(&service);
    });
}

#[test]
fn reading_untouched_memory_costs_nothing_until_it_is_written() {
    case(|| {
        let (service, limit) = service_of(32, ThpMode::Always);
        let mut region = service.map(256 * MIB).unwrap();
        assert!(region.iter().step_by(PAGE).all(|b| *b == 0));
        assert!(limit.usage() < 64, "{}", limit.usage());
        for page in region.chunks_mut(PAGE).step_by(512) {
            page[9] = 1;
        }
        let ones = region.chunks(PAGE).filter(|p| p[9] == 1).count();
        assert_eq!(ones, 128);
        within(&limit);
        sound(&service);
    });
}

#[test]
fn r98_what_was_only_read_is_not_stored_again_and_walks_take_few_faults() {
    case(|| {
        let (service, _) = service_of(256, ThpMode::Never);
        let mut region = service.map(16 * MIB).unwrap();
        let pages = (16 * MIB / PAGE) as u64;
        fill(&mut region, 3);
        let stats = service.inside().mm().stats();
        region.advise(Advice::PageOut).unwrap();
        let stored = stats.get(Item::Pswpout);
        assert_eq!((stats.get(Item::NrSwapped), stored), (pages, pages));
        for round in 1..4 {
            let faults = stats.get(Item::Pgmajfault);
            check(&region, 3);
            let faults = stats.get(Item::Pgmajfault) - faults;
            assert!(faults < pages / 32, "{faults}");
            // Who waits for a page goes on before it is booked, and its copy after that.
            let booked = || [Item::NrSwapped, Item::NrSwapcached].map(|item| stats.get(item));
            let late = (0..1000).take_while(|_| booked() != [0, pages]);
            late.for_each(|_| std::thread::sleep(std::time::Duration::from_millis(1)));
            assert_eq!(booked(), [0, pages]);
            region.advise(Advice::PageOut).unwrap();
            assert_eq!(stats.get(Item::SwpoutUnchanged), round * pages);
        }
        assert_eq!(stats.get(Item::Pswpout), stored);
        // One byte of each page differs: all are stored anew.
        check(&region, 3);
        region.chunks_mut(PAGE).for_each(|page| page[600] ^= 1);
        region.advise(Advice::PageOut).unwrap();
        assert_eq!(stats.get(Item::Pswpout), stored + pages);
        region.chunks_mut(PAGE).for_each(|page| page[600] ^= 1);
        check(&region, 3);
        sound(&service);
        drop(region);
        assert_eq!(service.inside().mm().store().stored_pages(), 0);
    });
}

#[test]
fn r150_growth_far_above_high_reclaims_for_itself() {
    case(|| {
        // High far below max: 32 MiB, and 4 MiB of reserve.
        let (high, reserve) = (32 * 256, 1024);
        let limit = Arc::new(Limit::new(1024 * 256, high, u64::MAX));
        let config = LiveConfig {
            dont_fork: true,
            ..LiveConfig::default()
        };
        let tunables = Tunables {
            thp: ThpMode::Never,
            ..Tunables::default()
        };
        let store = Trim::default();
        let pager = Pager::new(config, limit.clone(), store, tunables, Box::new(Die));
        let service = Service::start(pager.expect("pager")).expect("threads");
        let mut region = service.map(128 * MIB).unwrap();
        let begin = std::time::Instant::now();
        fill(&mut region, 1);
        check(&region, 1);
        let took = begin.elapsed().as_micros() as u64;
        // A fault in progress on each of a few threads, and what the store grows by.
        let peak = limit.peak();
        assert!(peak <= high + reserve + 512, "{peak}");
        let stats = service.inside().mm().stats();
        let some = stats.get(Item::PressureSome);
        assert!(some > 0 && some <= took, "{some} of {took} us");
        // Who serves is in the same process: what the program does is not told apart.
        assert_eq!(stats.get(Item::PressureFull), 0);
        sound(&service);
    });
}

/// Readers and writers start on untouched memory together, so that some writes hit a page in
/// the moment between its becoming a zero page and its protection. None is lost, and each is
/// charged.
#[test]
fn p13_writes_into_zero_pages_in_the_making_are_kept_and_charged() {
    case(|| {
        let (service, limit) = service_of(64, ThpMode::Never);
        let mut met = 0;
        for _ in 0..20 {
            let region = service.map(8 * MIB).unwrap();
            let base = region.as_ptr() as usize;
            let pages = region.len() / PAGE;
            // Pages that the reader came to first.
            let first = AtomicU64::new(0);
            std::thread::scope(|s| {
                let first = &first;
                s.spawn(move || {
                    for page in 0..pages {
                        let at = (base + page * PAGE) as *const AtomicU64;
                        // SAFETY: inside the region, aligned, only used as atomics.
                        let is = unsafe { &*at }.load(Ordering::Relaxed);
                        first.fetch_add(u64::from(is == 0), Ordering::Relaxed);
                    }
                });
                s.spawn(move || {
                    for page in 0..pages {
                        let at = (base + page * PAGE) as *const AtomicU64;
                        // SAFETY: as above.
                        unsafe { &*at }.fetch_add(page as u64 + 1, Ordering::Relaxed);
                    }
                });
            });
            for page in 0..pages {
                let at = page * PAGE;
                let got = u64::from_ne_bytes(region[at..at + 8].try_into().unwrap());
                assert_eq!(got, page as u64 + 1);
            }
            assert!(limit.usage() >= pages as u64);
            sound(&service);
            // Each was before the other somewhere.
            met += u64::from((1..pages as u64).contains(&first.into_inner()));
        }
        eprintln!("{met} of 20 rounds met the race");
        assert!(met > 0);
    });
}

#[test]
fn the_self_test_and_an_idle_pager_cost_little() {
    case(|| {
        let before = pss_anon();
        let (service, limit) = service_of(256, ThpMode::Always);
        let after = pss_anon();
        assert_eq!(limit.usage(), 0);
        // Five threads with their stacks included.
        assert!(after - before <= 512, "{before} to {after} KiB");
        drop(service);
    });
}

#[test]
fn p20_first_writes_to_what_a_fork_shares_are_delivered_whatever_became_of_it_meanwhile() {
    case(|| {
        for thp in [ThpMode::Never, ThpMode::Always] {
            let (service, _) = service_of(128, thp);
            let mut region = service.map(32 * MIB).expect("map");
            fill(&mut region, 3);
            let (pager, base) = (service.inside(), Vpn::of_addr(region.as_ptr() as u64));
            let (mm, space) = (pager.mm(), pager.space());
            let shared = || mm.stats().get(Item::NrShared);
            let fork = || {
                mm.activate_all(space).expect("activate");
                mm.share_all(space).expect("share");
            };
            fork();
            let all = shared();
            assert_eq!(all, 32 * MIB as u64 / PAGE as u64);
            check(&region, 3);
            assert_eq!(shared(), all, "reading is free");
            let write = |region: &mut Region<Limit, Trim>, page: usize| {
                let before = shared();
                let byte = &raw mut region[page * PAGE];
                // SAFETY: a byte of the region, which nobody else uses; volatile, so that it is
                // written although it does not change.
                unsafe { byte.write_volatile(byte.read_volatile()) };
                before - shared()
            };
            assert_eq!(write(&mut region, 5), 1);
            assert_eq!(write(&mut region, 5), 0);
            // Ahead of who writes one page after the other.
            let ahead: u64 = (100..200).map(|page| write(&mut region, page)).sum();
            assert!((100..164).contains(&ahead), "{ahead}");
            // Rights come and go.
            for prot in [Prot::R, Prot::NONE, Prot::RW] {
                mm.mprotect(space, base.add(1000), 600, prot)
                    .expect("protect");
            }
            assert_eq!(write(&mut region, 1024), 1);
            assert_eq!(write(&mut region, 1100), 1);
            // Nobody shares it any more; the next fork finds what is protected still.
            mm.unshare_all();
            assert_eq!(shared(), 0);
            assert_eq!(write(&mut region, 3000), 0);
            fork();
            assert_eq!(shared(), all);
            for page in [5, 3000, 3001, 4000, 1024] {
                assert_eq!(write(&mut region, page), 1, "page {page}");
            }
            // Out and in again: its own.
            mm.reclaim_shared(512);
            assert!(shared() < all - 512);
            check(&region, 3);
            assert!(mm.stats().get(Item::Pswpin) > 0);
            let before = shared();
            mm.madvise(space, base.add(6000), 700, Advice::DontNeed)
                .expect("zap");
            assert_eq!(before - shared(), 700);
            mm.unshare_all();
            mm.verify(false).expect("reconciled");
        }
    });
}
