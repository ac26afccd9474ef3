mod capture;
mod check;
mod inputs;
mod oracle;
mod pageblocks;
mod pcp;
mod request;
mod rounds;
mod schedules;
mod words;

use super::*;
use crate::machine::{Machine, Site, Work};
use crate::platform::FrameSpan;
use crate::sync::testing::Threads;
use crate::units::{MAX_ORDER, SpaceId, Vpn, order_pages};
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::collections::BTreeMap;
use std::format;
use std::string::ToString;
use std::vec::Vec;

fn zone(first: u32, frames: u32) -> Zone {
    Zone::new(FrameSpan {
        first: Pfn(first),
        frames,
    })
}

/// CPUs of which the test says which one runs: one thread, nothing waits.
#[derive(Default)]
struct Cpus {
    cpu: std::sync::atomic::AtomicUsize,
    kicks: std::sync::atomic::AtomicU64,
}

impl Cpus {
    fn on(&self, cpu: usize) -> &Cpus {
        self.cpu.store(cpu, Relaxed);
        self
    }
    fn kicks(&self) -> u64 {
        self.kicks.load(Relaxed)
    }
}

impl Machine for Cpus {
    fn this_cpu(&self) -> usize {
        self.cpu.load(Relaxed)
    }
    fn nr_cpus(&self) -> usize {
        4
    }
    fn park(&self, _: &AtomicU32, _: u32) {
        panic!("a deadlock: one thread waits for itself");
    }
    fn unpark(&self, _: &AtomicU32, _: u32) {}
    fn kick(&self, _: Work) {
        self.kicks.fetch_add(1, Relaxed);
    }
    fn preempt(&self, _: Site) {}
}

/// A zone with everything on, for four CPUs.
fn full(first: u32, frames: u32) -> Zone {
    let span = FrameSpan {
        first: Pfn(first),
        frames,
    };
    Zone::with(span, ZoneConfig::contiguous(4))
}

struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((self.0 >> 16) % n as u64) as usize
    }
}

/// Whether the bitmap has an aligned run of free frames for `order`.
fn naive_has(free: &[bool], first: usize, order: u8) -> bool {
    let n = order_pages(order) as usize;
    let start = first.next_multiple_of(n) - first;
    (start..free.len())
        .step_by(n)
        .any(|i| i + n <= free.len() && free[i..i + n].iter().all(|f| *f))
}

fn torture(first: u32, frames: u32, steps: u32, seed: u64) {
    let m = Threads::default();
    let zone = zone(first, frames);
    let mut random = Random(seed);
    let mut free = std::vec![true; frames as usize];
    let mut live: BTreeMap<u32, u8> = BTreeMap::new();
    for step in 0..steps {
        let say = || format!("seed {seed:#x}, zone {first}+{frames}, step {step}");
        let pick = |r: &mut Random, live: &BTreeMap<u32, u8>| {
            let i = r.below(live.len().max(1));
            live.iter().nth(i).map(|(p, o)| (Pfn(*p), *o))
        };
        // Long phases of growth and of decline, so that both ends are reached.
        let growing = step / 500 % 2 == 0;
        match random.below(10) {
            0 => {
                if let Some((pfn, order)) = pick(&mut random, &live) {
                    zone.split_allocated(pfn, order).unwrap();
                    live.extend((0..order_pages(order)).map(|i| (pfn.0 + i, 0)));
                }
            }
            1 => {
                // Wrong frees change nothing.
                let pfn = Pfn(first.wrapping_add(random.below(frames as usize + 9) as u32));
                let order = random.below(13) as u8;
                if live.get(&pfn.0) != Some(&order) {
                    assert!(zone.free(&m, pfn, order).is_err(), "{}", say());
                }
            }
            2 => {
                let mut out = std::vec![Pfn(0); random.below(20)];
                let n = zone.alloc_bulk(&m, &mut out);
                let left = free.iter().filter(|f| **f).count();
                assert_eq!(n, out.len().min(left), "{}", say());
                for p in &out[..n] {
                    assert!(std::mem::replace(&mut free[(p.0 - first) as usize], false));
                    live.insert(p.0, 0);
                }
            }
            3 => {
                let start = random.below(frames as usize) as u32 + first;
                let some: Vec<Pfn> = live
                    .range(start..)
                    .filter(|(_, order)| **order == 0)
                    .take(20)
                    .map(|(p, _)| Pfn(*p))
                    .collect();
                zone.free_bulk(&m, &some).unwrap();
                for p in some {
                    free[(p.0 - first) as usize] = true;
                    live.remove(&p.0);
                }
            }
            k if (k < 8) == growing => {
                let order = (random.below(12).min(random.below(12))) as u8;
                match zone.alloc(&m, order) {
                    Ok(pfn) => {
                        assert!(pfn.is_aligned(order), "{}", say());
                        for i in 0..order_pages(order) {
                            let f = &mut free[(pfn.0 - first + i) as usize];
                            assert!(std::mem::replace(f, false), "overlap, {}", say());
                        }
                        live.insert(pfn.0, order);
                    }
                    Err(e) => {
                        let has = order <= MAX_ORDER && naive_has(&free, first as usize, order);
                        assert!(!has, "{e}, {}", say());
                    }
                }
            }
            _ => {
                if let Some((pfn, order)) = pick(&mut random, &live) {
                    zone.free(&m, pfn, order).unwrap();
                    for i in 0..order_pages(order) {
                        free[(pfn.0 - first + i) as usize] = true;
                    }
                    live.remove(&pfn.0);
                }
            }
        }
        zone.verify().unwrap_or_else(|e| panic!("{e}, {}", say()));
        let naive = free.iter().filter(|f| **f).count() as u64;
        assert_eq!(zone.free_pages(), naive, "{}", say());
        let by_order = zone.free_by_order();
        let sum: u64 = (0..by_order.len()).map(|o| by_order[o] << o).sum();
        assert_eq!(sum, naive, "{}", say());
    }
    for (p, order) in live {
        zone.free(&m, Pfn(p), order).unwrap();
    }
    zone.verify().unwrap();
    assert_eq!(
        zone.free_by_order(),
        self::zone(first, frames).free_by_order(),
        "all merged again"
    );
}

#[test]
fn buddy_agrees_with_a_bitmap() {
    torture(1024, 3072, 20_000, 0x1234_5678_9abc_def1);
}

#[test]
fn buddy_agrees_with_a_bitmap_in_ragged_zones() {
    for (i, (first, frames)) in [(1024, 1), (1024, 1023), (1024, 1700), (1021, 1500), (3, 70)]
        .into_iter()
        .enumerate()
    {
        torture(first, frames, 2000, 0xfeed_0000_0001 + i as u64);
    }
}

#[test]
fn r1_order_of_a_free_block_is_not_read_as_a_folio_order() {
    let m = Threads::default();
    let zone = zone(0, 1024);
    let pfn = zone.alloc(&m, 3).unwrap();
    assert_eq!(zone.get(pfn).unwrap().folio_order(), Some(3));
    assert_eq!(zone.get(pfn.add(1)).unwrap().folio_order(), None);
    zone.free(&m, pfn, 3).unwrap();
    assert_eq!(zone.get(pfn).unwrap().folio_order(), None);
    assert_eq!(zone.get(pfn).unwrap().free_order(), Some(10));
}

#[test]
fn r2_one_bad_frame_refuses_the_whole_block() {
    let m = Threads::default();
    let zone = zone(0, 2048);
    let pfn = zone.alloc(&m, 4).unwrap();
    let free = zone.free_pages();
    zone.mark_bad(pfn.add(9)).unwrap();
    let bad = FreeError::BadFrame(pfn.add(9));
    assert_eq!(zone.free(&m, pfn, 4), Err(bad));
    assert_eq!(zone.split_allocated(pfn, 4), Err(bad));
    assert_eq!(zone.free_pages(), free);
    zone.verify().unwrap();
    zone.get(pfn.add(9)).unwrap().clear(Flags::BAD);
    assert_eq!(zone.free(&m, pfn, 4), Ok(()));
    // A frame that is itself the bad one, one that is free, and one that does not exist.
    let pfn = zone.alloc(&m, 0).unwrap();
    assert_eq!(
        zone.mark_bad(pfn.add(1)),
        Err(FreeError::DoubleFree(pfn.add(1)))
    );
    assert_eq!(zone.mark_bad(Pfn(2048)), Err(FreeError::Outside(Pfn(2048))));
    assert_eq!(
        zone.mark_bad(Pfn(1024)),
        Err(FreeError::NeverAllocated(Pfn(1024)))
    );
    zone.mark_bad(pfn).unwrap();
    assert_eq!(zone.free(&m, pfn, 0), Err(FreeError::BadFrame(pfn)));
    zone.verify().unwrap();
}

#[test]
fn r3_a_folio_that_is_active_or_unevictable_is_not_freed() {
    let m = Threads::default();
    let zone = zone(0, 1024);
    let pfn = zone.alloc(&m, 0).unwrap();
    let meta = zone.get(pfn).unwrap();
    for flag in [Flags::ACTIVE, Flags::UNEVICTABLE, Flags::LRU, Flags::QUEUED] {
        meta.set(flag | Flags::PARTIAL);
        assert_eq!(zone.free(&m, pfn, 0), Err(FreeError::InUse(pfn, flag)));
        meta.clear(flag);
    }
    assert!(meta.try_get());
    assert_eq!(zone.free(&m, pfn, 0), Err(FreeError::Referenced(pfn, 2)));
    meta.put();
    assert_eq!(zone.free(&m, pfn, 0), Ok(()));
}

#[test]
fn r8_a_batch_is_freed_in_one_call_and_counts_stay_exact() {
    let m = Threads::default();
    let zone = zone(1024, 1024);
    let mut batch = [Pfn(0); 100];
    assert_eq!(zone.alloc_bulk(&m, &mut batch), 100);
    assert_eq!(zone.free_pages(), 924);
    // A frame twice in one batch: the frames before it are free, those after are not.
    let mut twice = batch;
    twice[60] = twice[10];
    let why = FreeError::DoubleFree(twice[10]);
    let failed = Err(BulkFreeError { done: 60, why });
    assert_eq!(zone.free_bulk(&m, &twice), failed);
    assert_eq!(zone.free_pages(), 984);
    zone.verify().unwrap();
    zone.free_bulk(&m, &batch[60..]).unwrap();
    assert_eq!(zone.free_by_order()[10], 1);
    zone.verify().unwrap();
}

#[test]
fn wrong_frees_are_told_apart() {
    let m = Threads::default();
    let zone = zone(1024, 3072).named("small");
    let pfn = zone.alloc(&m, 2).unwrap();
    assert_eq!(zone.free(&m, pfn, 11), Err(FreeError::BadOrder(11)));
    assert_eq!(zone.free(&m, pfn, 255), Err(FreeError::BadOrder(255)));
    let wrong = FreeError::WrongOrder(pfn, 1, 2);
    assert_eq!(zone.free(&m, pfn, 1), Err(wrong));
    let odd = pfn.add(1);
    assert_eq!(zone.free(&m, odd, 1), Err(FreeError::Misaligned(odd, 1)));
    assert_eq!(zone.free(&m, odd, 0), Err(FreeError::NotHead(odd)));
    for out in [Pfn(0), Pfn(4096), Pfn(u32::MAX)] {
        assert_eq!(zone.free(&m, out, 0), Err(FreeError::Outside(out)));
    }
    let far = Pfn(3072);
    assert_eq!(zone.free(&m, far, 0), Err(FreeError::NeverAllocated(far)));
    zone.free(&m, pfn, 2).unwrap();
    assert_eq!(zone.free(&m, pfn, 2), Err(FreeError::DoubleFree(pfn)));
    let top = zone.alloc(&m, MAX_ORDER).unwrap();
    zone.free(&m, top, MAX_ORDER).unwrap();
    let twice = zone.free(&m, top, MAX_ORDER);
    assert_eq!(twice, Err(FreeError::DoubleFree(top)));
    zone.verify().unwrap();
}

#[test]
fn how_far_a_block_fails_for_want_of_a_large_one_follows_what_is_free() {
    let m = Threads::default();
    let zone = zone(0, 1024);
    let mut all = std::vec![Pfn(0); 1024];
    assert_eq!(zone.alloc_bulk(&m, &mut all), 1024);
    all.sort();
    assert_eq!(zone.fragmentation(9), 0, "nothing is free");
    // Half of a block, in pages: (1000 + 500) / 256 of a thousand short of it.
    let single: Vec<Pfn> = all[..512].iter().copied().step_by(2).collect();
    zone.free_bulk(&m, &single).unwrap();
    assert_eq!((zone.fragmentation(9), zone.fragmentation(4)), (995, 934));
    // Half a block beside them, in one piece: (1000 + 1000) / 257.
    zone.free_bulk(&m, &all[512..768]).unwrap();
    assert_eq!(zone.fragmentation(9), 993);
    // A whole one.
    zone.free_bulk(&m, &all[768..]).unwrap();
    assert_eq!(zone.fragmentation(9), 991);
}

#[test]
fn top_order_blocks_do_not_merge_further() {
    let m = Threads::default();
    let zone = zone(0, 4096);
    let all: Vec<Pfn> = (0..4).map(|_| zone.alloc(&m, 10).unwrap()).collect();
    let none = zone.alloc(&m, 0).unwrap_err();
    assert_eq!((none.order, none.free), (0, [0; 11]));
    assert!(zone.alloc(&m, 11).unwrap_err().to_string().contains("11"));
    for pfn in &all {
        zone.free(&m, *pfn, 10).unwrap();
        zone.verify().unwrap();
    }
    assert_eq!(zone.free_by_order()[10], 4);
    // The block freed last is given out first.
    assert_eq!(zone.alloc(&m, 10), Ok(all[3]));
}

#[test]
fn used_blocks_go_before_untouched_ones_and_size_costs_nothing() {
    let m = Threads::default();
    let zone = zone(0, 24 << 20);
    assert_eq!(zone.metadata_bytes(), 0);
    assert_eq!(zone.free_by_order()[10], (24 << 20) >> 10);
    for _ in 0..100 {
        let pfn = zone.alloc(&m, 9).unwrap();
        zone.free(&m, pfn, 9).unwrap();
    }
    assert!(zone.metadata_bytes() < 34 << 10, "one top-order block");
    assert_eq!(zone.free_pages(), 24 << 20);
}

#[test]
fn an_empty_zone_gives_and_takes_nothing() {
    let m = Threads::default();
    let zone = zone(1024, 0);
    assert!(zone.alloc(&m, 0).is_err());
    assert_eq!(zone.alloc_bulk(&m, &mut [Pfn(0); 3]), 0);
    let out = Err(FreeError::Outside(Pfn(1024)));
    assert_eq!(zone.free(&m, Pfn(1024), 0), out);
    zone.verify().unwrap();
}

#[test]
fn a_split_folio_passes_its_owner_on_page_by_page() {
    let m = Threads::default();
    let zone = zone(0, 1024);
    let pfn = zone.alloc(&m, 9).unwrap();
    zone.get(pfn).unwrap().set_owner(SpaceId(3), Vpn(0x200));
    zone.split_allocated(pfn, 9).unwrap();
    for i in [0, 1, 511] {
        let meta = zone.get(pfn.add(i)).unwrap();
        assert_eq!(meta.owner(), Some((SpaceId(3), Vpn(0x200 + i as u64))));
        assert_eq!((meta.folio_order(), meta.refs()), (Some(0), 1));
    }
    let all: Vec<Pfn> = (0..512).map(|i| pfn.add(i)).collect();
    all.iter().for_each(|p| zone.get(*p).unwrap().clear_owner());
    zone.free_bulk(&m, &all).unwrap();
    zone.verify().unwrap();
    assert_eq!(zone.free_by_order()[10], 1);
}

#[test]
fn threads_share_a_zone() {
    fn run<M: Machine>(zone: &Zone, m: &M, seed: u64) {
        let mut random = Random(seed);
        let mut live = Vec::new();
        for _ in 0..4000 {
            if random.below(2) == 0 {
                let order = random.below(6) as u8;
                if let Ok(pfn) = zone.alloc(m, order) {
                    assert_eq!(zone.get(pfn).unwrap().owner(), None);
                    zone.get(pfn).unwrap().set_owner(SpaceId(1), Vpn(seed));
                    live.push((pfn, order));
                }
            } else if !live.is_empty() {
                let (pfn, order) = live.swap_remove(random.below(live.len()));
                let meta = zone.get(pfn).unwrap();
                assert_eq!(meta.owner(), Some((SpaceId(1), Vpn(seed))));
                meta.clear_owner();
                zone.free(m, pfn, order).unwrap();
            }
        }
        for (pfn, order) in live {
            zone.get(pfn).unwrap().clear_owner();
            zone.free(m, pfn, order).unwrap();
        }
    }
    let m = Threads::default();
    let zone = zone(0, 2048);
    std::thread::scope(|s| {
        for seed in 1..=4 {
            let (zone, m) = (&zone, &m);
            s.spawn(move || run(zone, m, seed));
        }
    });
    zone.verify().unwrap();
    assert_eq!(zone.free_pages(), 2048);
}

/// Allocates all of a zone as single pages; the frames in ascending order.
fn fill(zone: &Zone, m: &Cpus) -> Vec<Pfn> {
    let mut all = std::vec![Pfn(0); zone.free_pages() as usize];
    assert_eq!(zone.alloc_bulk(m, &mut all), all.len());
    all.sort();
    all
}
