//! Protocols of the zone under a model checker: thousands of random schedules of a few threads,
//! which may switch at each access to an atomic of the allocator (`crate::atomic`), wherever a
//! machine may preempt, and where one waits for a lock. The threads run the zone itself.
//!
//! A failure prints its schedule; `shuttle::replay` runs that one again.

use super::*;
use crate::atomic::gate;
use core::sync::atomic::AtomicU64;
use shuttle::rand::Rng;
use std::cell::Cell;
use std::sync::Arc;

std::thread_local! {
    /// Accesses between two at which the threads may switch, and those made until now.
    static GRAIN: Cell<(u32, u32)> = const { Cell::new((1, 0)) };
}

fn switch() {
    let (grain, n) = GRAIN.get();
    GRAIN.set((grain, n + 1));
    if n % grain == 0 {
        shuttle::thread::yield_now();
    }
}

/// A thread of the checker that runs on this CPU, of two.
struct Cpu(usize);

impl Machine for Cpu {
    fn this_cpu(&self) -> usize {
        self.0
    }
    fn nr_cpus(&self) -> usize {
        2
    }
    fn park(&self, word: &AtomicU32, expected: u32) {
        while word.load(Relaxed) == expected {
            shuttle::thread::yield_now();
        }
    }
    fn unpark(&self, _: &AtomicU32, _: u32) {}
    fn kick(&self, _: Work) {}
    fn preempt(&self, _: Site) {
        shuttle::thread::yield_now();
    }
}

type Part = fn(&Zone, &Cpu, &[Pfn]);

/// Runs `parts`, each with the CPU it is on and frames that it owns, in `schedules` schedules.
/// `set_up` makes the zone and says which frames; `after` looks at it when all have ended.
fn explore<const N: usize>(
    schedules: usize,
    set_up: fn(&Cpu) -> (Zone, [Vec<Pfn>; N]),
    parts: [(usize, Part); N],
    after: impl Fn(&Zone) + Send + Sync + 'static,
) {
    let run = move || {
        gate(None);
        let (zone, owned) = set_up(&Cpu(0));
        let zone = Arc::new(zone);
        zone.verify().unwrap();
        // Fine, to stop within each step; coarse, to let others do much meanwhile.
        let grain = [1, 3, 20, 100][shuttle::rand::thread_rng().gen_range(0..4)];
        GRAIN.set((grain, shuttle::rand::thread_rng().gen_range(0..grain)));
        gate(Some(switch));
        let threads: Vec<_> = (parts.into_iter().zip(owned))
            .map(|((cpu, part), owned)| {
                let zone = zone.clone();
                shuttle::thread::spawn(move || part(&zone, &Cpu(cpu), &owned))
            })
            .collect();
        threads.into_iter().for_each(|t| t.join().unwrap());
        gate(None);
        zone.verify().unwrap();
        let idle = zone.free_pages() + zone.cached_pages() + zone.captured_pages();
        assert_eq!(idle + zone.allocated_pages(), zone.span().frames as u64);
        let events = zone.events();
        let given = events.pgalloc - events.pgfree;
        assert_eq!(given, zone.allocated_pages(), "{events:?}");
        after(&zone);
    };
    let mut config = shuttle::Config::new();
    config.stack_size = 256 << 10;
    let scheduler = shuttle::scheduler::RandomScheduler::new(schedules);
    shuttle::Runner::new(scheduler, config).run(run);
    gate(None);
}

/// 1024 frames for two CPUs, all in use but `left`: the per-CPU lists hold four small blocks.
fn nearly_full(m: &Cpu, left: u32) -> Zone {
    let span = FrameSpan {
        first: Pfn(0),
        frames: 1024,
    };
    let zone = Zone::with(span, ZoneConfig::contiguous(2));
    for order in (left.ilog2() as u8..10).rev() {
        zone.alloc(m, order).unwrap();
    }
    zone.drain(m);
    assert_eq!(zone.free_pages(), left as u64);
    zone
}

/// A block of nobody else's, marked as this one's.
fn get(zone: &Zone, m: &Cpu, order: u8) -> Option<Pfn> {
    let pfn = zone.alloc(m, order).ok()?;
    mark(zone, pfn, order);
    Some(pfn)
}

fn mark(zone: &Zone, pfn: Pfn, order: u8) {
    let meta = zone.get(pfn).unwrap();
    assert_eq!((meta.owner(), meta.folio_order()), (None, Some(order)));
    meta.set_owner(SpaceId(1), Vpn(pfn.0 as u64));
    // A frame of it that were given to somebody else too would have an owner, or be a head.
    for i in 1..order_pages(order) {
        let meta = zone.get(pfn.add(i)).unwrap();
        assert_eq!((meta.owner(), meta.kind()), (None, Kind::Tail));
    }
}

fn put(zone: &Zone, m: &Cpu, pfn: Pfn, order: u8) {
    let meta = zone.get(pfn).unwrap();
    assert_eq!(meta.owner(), Some((SpaceId(1), Vpn(pfn.0 as u64))));
    meta.clear_owner();
    zone.free(m, pfn, order).unwrap();
}

#[test]
fn r8_r18_schedules_of_refill_overflow_and_drain_lose_no_frame() {
    /// Empties its CPU's list and fills it beyond its limit.
    fn churn(zone: &Zone, m: &Cpu, _: &[Pfn]) {
        let mine: Vec<Pfn> = (0..6).filter_map(|_| get(zone, m, 0)).collect();
        mine.into_iter().for_each(|pfn| put(zone, m, pfn, 0));
        if let Some(pfn) = get(zone, m, 1) {
            put(zone, m, pfn, 1);
        }
    }
    /// Empties the lists of both, and passes them by.
    fn drain(zone: &Zone, m: &Cpu, _: &[Pfn]) {
        let mut out = [Pfn(0); 5];
        let n = zone.alloc_bulk(m, &mut out);
        out[..n].iter().for_each(|pfn| mark(zone, *pfn, 0));
        zone.drain(m);
        out[..n]
            .iter()
            .for_each(|pfn| zone.get(*pfn).unwrap().clear_owner());
        zone.free_bulk(m, &out[..n]).unwrap();
        zone.drain(m);
    }
    explore(
        10_000,
        |m| (nearly_full(m, 16), [const { Vec::new() }; 3]),
        // Two on one CPU: it is a hint.
        [(0, churn), (0, churn), (1, drain)],
        |zone| {
            zone.drain(&Cpu(0));
            assert_eq!(zone.free_pages(), 16);
            assert_eq!(zone.free_by_order()[4], 1, "all merged again");
        },
    );
}

/// A block of order 5 whose every frame is in use, and the frames that `whose` says are of
/// each; 16 more frames are free.
fn one_block<const N: usize>(m: &Cpu, whose: fn(u32) -> usize) -> (Zone, [Vec<Pfn>; N]) {
    let zone = nearly_full(m, 64);
    let block = zone.alloc(m, 5).unwrap();
    let taken = zone.alloc(m, 4).unwrap();
    zone.split_allocated(block, 5).unwrap();
    zone.drain(m);
    assert_eq!(
        (zone.free_pages(), taken.0 >> 5 == block.0 >> 5),
        (16, false)
    );
    let mut owned = [const { Vec::new() }; N];
    for i in 0..32 {
        owned[whose(i)].push(block.add(i));
    }
    (zone, owned)
}

/// One pass of direct reclaim that frees `owned`, the first half in one round.
fn reclaim(zone: &Zone, m: &Cpu, order: u8, owned: &[Pfn]) {
    let mut capture = zone.begin_capture(m, order).unwrap();
    let mut got = None;
    for round in owned.chunks(owned.len().div_ceil(2)) {
        round.iter().for_each(|pfn| zone.free(m, *pfn, 0).unwrap());
        if got.is_none() {
            zone.drain(m);
            got = capture.consult(Mobility::Movable, |_| true);
            got.into_iter().for_each(|pfn| mark(zone, pfn, order));
        }
    }
    drop(capture);
    if let Some(pfn) = got {
        put(zone, m, pfn, order);
    }
}

/// Takes pages, as many as there are, and gives them back.
fn thief(zone: &Zone, m: &Cpu, _: &[Pfn]) {
    let mine: Vec<Pfn> = (0..20).map_while(|_| get(zone, m, 0)).collect();
    mine.into_iter().for_each(|pfn| put(zone, m, pfn, 0));
}

/// What captures of all schedules did, which must not be nothing; and nothing stays captured.
struct Tally([AtomicU64; 4]);

impl Tally {
    fn new() -> Arc<Tally> {
        Arc::new(Tally([const { AtomicU64::new(0) }; 4]))
    }
    fn add(&self, zone: &Zone) {
        let s = zone.capture_stats(&Cpu(0));
        assert_eq!((s.now, zone.captured_pages()), (0, 0));
        assert_eq!(s.own + s.absorbed + s.joined, s.taken + s.returned, "{s:?}");
        assert_eq!(zone.allocated_pages(), 1024 - 48);
        zone.drain(&Cpu(0));
        assert_eq!(zone.free_by_order()[4..6], [1, 1], "all merged again");
        let failed = s.begun - s.successes;
        for (sum, n) in (self.0.iter()).zip([s.joined, s.handed_over, s.successes, failed]) {
            sum.fetch_add(n, Relaxed);
        }
    }
    fn get(&self) -> [u64; 4] {
        [0, 1, 2, 3].map(|i: usize| self.0[i].load(Relaxed))
    }
}

#[test]
fn r12_r15_r18_schedules_of_frees_by_others_into_a_capture_list() {
    let tally = Tally::new();
    let after = tally.clone();
    explore(
        6000,
        |m| one_block(m, |i| (i % 3 / 2) as usize),
        [
            (0, |zone, m, owned| reclaim(zone, m, 4, owned)),
            (1, |zone, m, owned| {
                owned.iter().for_each(|p| zone.free(m, *p, 0).unwrap());
            }),
            (1, thief),
        ],
        move |zone| after.add(zone),
    );
    let [joined, _, successes, failed] = tally.get();
    assert!(
        joined > 0 && successes > 0 && failed > 0,
        "{:?}",
        tally.get()
    );
}

#[test]
fn r16_r17_r18_schedules_of_a_block_between_two_capturing_reclaimers() {
    let tally = Tally::new();
    let after = tally.clone();
    explore(
        6000,
        |m| one_block(m, |i| (i % 2) as usize),
        [
            (0, |zone, m, owned| reclaim(zone, m, 4, owned)),
            (1, |zone, m, owned| reclaim(zone, m, 5, owned)),
            (1, thief),
        ],
        move |zone| after.add(zone),
    );
    let [_, handed_over, successes, failed] = tally.get();
    assert!(
        handed_over > 0 && successes > 0 && failed > 0,
        "{:?}",
        tally.get()
    );
}
