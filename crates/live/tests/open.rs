//! Holes that are left to the kernel while memory is far from short: the limit holds, no byte is
//! lost, and what was never touched costs nothing once memory is wanted.

use crate::common::{PAGE, case, pss_anon};
use crate::service::Inside;
use crate::service::{MIB, Served, cell, close_all, opens, scattered, service_with};
use crate::service::{sound, stat, within, word};
use deckle_live::Limit;
use deckle_live::Place;
use deckle_mm::{Advice, Charge, Item, Prot, ThpMode};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::{Duration, Instant};

fn open_service(mib: u64, ratio: u8) -> (Served, Arc<Limit>) {
    service_with(mib, opens(ThpMode::Always, ratio))
}

#[test]
fn scattered_first_touches_far_from_the_limit_take_few_faults_and_little_memory() {
    case(|| {
        let (service, limit) = open_service(1024, 50);
        let region = service.map(64 * MIB).expect("map");
        let (base, all) = (region.as_ptr() as usize, 64 * MIB / PAGE);
        let faults = stat(&service, Item::Pgfault);
        let before = pss_anon();
        let touched = scattered(all).filter(|page| page % 8 == 3);
        let touched: Vec<usize> = touched.collect();
        for &page in &touched {
            cell(base, page).store(word(page, 1), Relaxed);
        }
        let resident = (pss_anon() - before) / 4;
        let faults = stat(&service, Item::Pgfault) - faults;
        let pages = touched.len() as u64;
        assert!(faults < pages / 4, "{faults} faults for {pages} pages");
        let charged = stat(&service, Item::NrOpen) + stat(&service, Item::NrAnon);
        assert_eq!(limit.usage(), charged);
        assert!(charged > 4 * pages, "{charged} charged");
        let own = pages / 16 + 64;
        assert!(
            (pages..pages + own).contains(&resident),
            "{resident} of {pages}"
        );
        sound(&service);
        // Closed: what was never touched is free, what was touched is known, every byte there.
        service.inside().mm().reclaim(charged - 2 * pages);
        assert!(limit.usage() <= 2 * pages, "{}", limit.usage());
        assert!(stat(&service, Item::NrAnon) > 0);
        for page in 0..all {
            let want = if page % 8 == 3 { word(page, 1) } else { 0 };
            assert_eq!(cell(base, page).load(Relaxed), want, "page {page}");
        }
        sound(&service);
        drop(region);
        service.inside().platform().nursery().drain();
        assert_eq!(limit.usage(), 0);
        sound(&service);
    });
}

/// As allocators use a reservation: piece by piece becomes writable, is filled, and forbidden
/// again. A large piece is left to the faults, and so is all of it where memory is short.
#[test]
fn small_pieces_of_a_reservation_that_become_writable_are_open_at_once() {
    const PIECE: usize = 64;
    case(|| {
        let (service, limit) = open_service(64, 50);
        let region = service.map(128 * MIB).expect("map");
        let base = region.as_ptr() as usize;
        let (pager, space) = (service.inside(), service.inside().space());
        let protect = |page: usize, n: usize, prot| {
            let start = region.start().add(page as u64);
            let done = pager.mm().mprotect(space, start, n as u64, prot);
            done.expect("mprotect");
        };
        let all = 128 * MIB / PAGE;
        protect(0, all, Prot::NONE);
        let half = limit.high() as usize / 2 / PIECE;
        let fill = |piece: usize| {
            let (first, faults) = (2 * piece * PIECE + 1, stat(&service, Item::Pgfault));
            match piece.is_multiple_of(2) {
                true => protect(first, PIECE, Prot::RW),
                false => {
                    let place = Place::At(base + first * PAGE);
                    // SAFETY: replaces what nobody has an interest in.
                    unsafe { pager.map(place, PIECE as u64, Prot::RW) }.expect("map");
                }
            }
            for page in first..first + PIECE {
                cell(base, page).store(word(page, 4), Relaxed);
            }
            if piece.is_multiple_of(4) {
                protect(first, PIECE, Prot::NONE);
            }
            stat(&service, Item::Pgfault) - faults
        };
        let taken: u64 = (0..half - 2).map(fill).sum();
        assert_eq!(taken, 0);
        let pages = ((half - 2) * PIECE) as u64;
        assert_eq!(stat(&service, Item::NrOpen), pages);
        assert_eq!(limit.usage(), pages);
        sound(&service);
        // A large one, and one more where half of what may be used is used.
        let last = all - 2 * PIECE;
        protect(last, PIECE + 1, Prot::RW);
        assert_eq!(limit.usage(), pages);
        protect(last, PIECE + 1, Prot::NONE);
        let taken: u64 = (half - 2..half + 8).map(fill).sum();
        assert!(taken > 0);
        assert!(stat(&service, Item::NrOpen) <= limit.high() / 2);
        protect(0, all, Prot::RW);
        close_all(&service, &region);
        for piece in 0..half + 8 {
            for page in 2 * piece * PIECE..2 * (piece + 1) * PIECE {
                let ours = (1..=PIECE).contains(&(page % (2 * PIECE)));
                let want = if ours { word(page, 4) } else { 0 };
                assert_eq!(cell(base, page).load(Relaxed), want, "page {page}");
            }
        }
        sound(&service);
    });
}

fn limit_holds(ratio: u8) {
    let (service, limit) = open_service(32, ratio);
    let region = service.map(128 * MIB).expect("map");
    let (base, all) = (region.as_ptr() as usize, 128 * MIB / PAGE);
    let most = limit.high() * u64::from(ratio) / 100;
    let (done, seen) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|s| {
        let writers: Vec<_> = (0..2)
            .map(|half| {
                s.spawn(move || {
                    for page in scattered(all).filter(|page| page / 8 % 2 == half) {
                        cell(base, page).store(word(page, 7), Relaxed);
                    }
                })
            })
            .collect();
        s.spawn(|| {
            while !done.load(Relaxed) {
                seen.fetch_max(stat(&service, Item::NrOpen), Relaxed);
                std::thread::yield_now();
            }
        });
        writers.into_iter().for_each(|w| w.join().expect("writer"));
        done.store(true, Relaxed);
    });
    within(&limit);
    let seen = seen.load(Relaxed);
    assert!(seen > 64, "nothing was open");
    assert!(seen <= most, "{seen} open, {most} may be");
    assert!(stat(&service, Item::Pswpout) > 0);
    for (page, bytes) in region.chunks(PAGE).enumerate() {
        let got = u64::from_ne_bytes(bytes[64..72].try_into().unwrap());
        assert_eq!(got, word(page, 7), "page {page}");
        let others = bytes[..64].iter().chain(&bytes[72..]);
        assert!(others.copied().all(|b| b == 0), "page {page}");
    }
    within(&limit);
    sound(&service);
    close_all(&service, &region);
    assert_eq!(stat(&service, Item::NrOpen), 0);
    sound(&service);
    drop(region);
    service.inside().platform().nursery().drain();
    assert_eq!(limit.usage(), service.inside().mm().store_charged());
    sound(&service);
}

#[test]
fn memory_of_four_times_the_limit_with_all_of_it_open_keeps_the_limit() {
    case(|| limit_holds(100));
}

#[test]
fn memory_of_four_times_the_limit_with_half_of_it_open_keeps_the_limit() {
    case(|| limit_holds(50));
}

/// Two threads write, read and discard their own pages, which lie side by side in the same
/// windows, while a third closes these again and again.
#[test]
fn no_byte_is_lost_while_windows_close_and_open_under_writers() {
    case(|| {
        let (service, limit) = open_service(256, 100);
        let region = service.map(8 * MIB).expect("map");
        let (base, all) = (region.as_ptr() as usize, 8 * MIB / PAGE);
        let pager = service.inside();
        let space = pager.space();
        const STEPS: u64 = 60_000;
        let mut reopened = 0;
        std::thread::scope(|s| {
            let writer = |t: usize| {
                let start = region.start();
                s.spawn(move || {
                    let mut is = vec![0_u64; all];
                    let mut x = t as u64 + 1;
                    for step in 1..=STEPS {
                        x = x
                            .wrapping_mul(6364136223846793005)
                            .wrapping_add(1442695040888963407);
                        let page = (x >> 33) as usize % (all / 2) * 2 + t;
                        match x >> 60 {
                            0..3 => {
                                let at = start.add(page as u64);
                                let gone = pager.mm().madvise(space, at, 1, Advice::DontNeed);
                                gone.expect("discard");
                                is[page] = 0;
                            }
                            3..10 => {
                                cell(base, page).store(step, Relaxed);
                                is[page] = step;
                            }
                            _ => {}
                        }
                        assert_eq!(cell(base, page).load(Relaxed), is[page], "page {page}");
                    }
                    for page in (t..all).step_by(2) {
                        assert_eq!(cell(base, page).load(Relaxed), is[page], "page {page}");
                    }
                })
            };
            let writers = [writer(0), writer(1)];
            let mut round = 0_u64;
            while !writers.iter().all(|w| w.is_finished()) {
                round += 1;
                reopened += u64::from(stat(&service, Item::NrOpen) > 0);
                match round % 3 {
                    0 => close_all(&service, &region),
                    1 => drop(pager.mm().reclaim(64)),
                    _ => drop(
                        pager
                            .mm()
                            .page_out(space, region.start().add(round % 2048), 1),
                    ),
                }
                std::thread::yield_now();
            }
        });
        eprintln!("{reopened} rounds found open windows");
        assert!(reopened > 100, "{reopened} rounds met the race");
        within(&limit);
        sound(&service);
    });
}

/// What was only read is closed as the zero page, which costs nothing; a write to it is charged.
#[test]
fn what_was_only_read_is_free_once_closed_and_charged_when_it_is_written() {
    case(|| {
        let (service, limit) = open_service(256, 100);
        let region = service.map(8 * MIB).expect("map");
        let (base, all) = (region.as_ptr() as usize, 8 * MIB / PAGE);
        for page in scattered(all) {
            assert_eq!(cell(base, page).load(Relaxed), 0);
        }
        let open = stat(&service, Item::NrOpen);
        assert!(open > all as u64 / 2, "{open} open");
        cell(base, 100).store(5, Relaxed);
        service.inside().mm().reclaim(1 << 20);
        assert_eq!(stat(&service, Item::NrOpen), 0);
        assert!(
            limit.usage() <= 1 + service.inside().mm().store_charged(),
            "{}",
            limit.usage()
        );
        sound(&service);
        // To be read still, without a fault; nothing opens a zero page.
        let faults = stat(&service, Item::Pgfault);
        for page in (0..all).filter(|page| *page != 100) {
            assert_eq!(cell(base, page).load(Relaxed), 0);
        }
        assert!(stat(&service, Item::Pgfault) <= faults + 64);
        assert_eq!(cell(base, 100).load(Relaxed), 5);
        for page in 0..all {
            cell(base, page).fetch_add(word(page, 3), Relaxed);
        }
        sound(&service);
        assert_eq!(stat(&service, Item::NrOpen), 0);
        assert_eq!(stat(&service, Item::NrAnon), all as u64);
        assert!(limit.usage() >= all as u64);
        for page in 0..all {
            let was = if page == 100 { 5 } else { 0 };
            let want = word(page, 3).wrapping_add(was);
            assert_eq!(cell(base, page).load(Relaxed), want);
        }
        sound(&service);
    });
}

/// A writer goes over zero pages while they are closed, so that some writes fall between the look
/// at a page and its protection. None is lost, and each is charged.
#[test]
fn writes_into_zero_pages_that_are_being_closed_are_kept_and_charged() {
    case(|| {
        let (service, limit) = open_service(256, 100);
        let mut met = 0;
        for round in 0..40 {
            let region = service.map(4 * MIB).expect("map");
            let (base, all) = (region.as_ptr() as usize, 4 * MIB / PAGE);
            for page in scattered(all) {
                assert_eq!(cell(base, page).load(Relaxed), 0);
            }
            let written = AtomicU64::new(0);
            std::thread::scope(|s| {
                let written = &written;
                s.spawn(move || {
                    for page in scattered(all) {
                        cell(base, page).fetch_add(word(page, round), Relaxed);
                        written.fetch_add(1, Relaxed);
                    }
                });
                let start = written.load(Relaxed);
                let pager = service.inside();
                while stat(&service, Item::NrOpen) > 0 {
                    pager.mm().reclaim(1 << 20);
                }
                let end = written.load(Relaxed);
                met += u64::from(start < end && end < all as u64);
            });
            for page in 0..all {
                assert_eq!(cell(base, page).load(Relaxed), word(page, round));
            }
            // Who waits for a page goes on before it is booked.
            let items = [Item::NrAnon, Item::NrInactive, Item::NrSwapped];
            let known = || items.iter().map(|i| stat(&service, *i)).sum::<u64>();
            let begin = Instant::now();
            while known() < all as u64 {
                let late = begin.elapsed() > Duration::from_secs(1);
                assert!(!late, "{} of {all} pages are known", known());
            }
            if round % 8 == 0 {
                sound(&service);
            }
        }
        assert!(met > 10, "{met} rounds met the race");
        within(&limit);
        sound(&service);
    });
}
