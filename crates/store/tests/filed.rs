//! A file behind the RAM: what is put is what is got, wherever it is, and whatever the file does.

use crate::common::{KINDS, Page, Rng, noise, page};
use deckle_mm::{PAGE_SIZE, Slot, Store, StoreStop};
use deckle_store::faulty::disk::{Disk, Fault, Handle, Plan};
use deckle_store::faulty::{EIO, ENOSPC};
use deckle_store::{Algorithm, Config, Encrypted, Heap, KEY, Ram};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

type Filed = Ram<Heap, Encrypted<Handle>>;

const SEGMENT: u32 = 16 << 10;

fn store(disk: &Arc<Disk>, ram_percent: u32) -> Filed {
    let config = Config {
        segment_bytes: SEGMENT,
        shards: 2,
        ram_percent,
        ..Config::new(Algorithm::Lz4)
    };
    Ram::with_file(config, Heap, Encrypted::new(Handle::new(disk, 1)))
}

/// A page of any kind, those among them that do not compress.
fn any(seed: u64) -> Page {
    match seed % (u64::from(KINDS) + 2) {
        kind if kind < u64::from(KINDS) => page(kind as u32, seed),
        _ => noise(seed),
    }
}

/// What each slot holds, by the seed of its page.
struct Held(Vec<Option<u64>>);

impl Held {
    /// A random operation; what was written to the file is so at once where the store wants it.
    /// Returns what a read has failed with.
    fn step(&mut self, store: &Filed, rng: &mut Rng, resident: u64) -> Option<StoreStop> {
        let slot = rng.below(self.0.len() as u64) as usize;
        let at = Slot(slot as u32);
        let mut failed = None;
        match (rng.below(8), self.0[slot]) {
            (0..4, _) => {
                store.free(at, 1);
                let seed = rng.next();
                let put = store.put(at, &any(seed));
                let refused = put.is_err_and(|e| e.why == StoreStop::Incompressible);
                assert!(put.is_ok() || refused, "{put:?}");
                self.0[slot] = (!refused).then_some(seed);
            }
            (4 | 5, Some(_)) => {
                store.free(at, 1);
                self.0[slot] = None;
            }
            (6, Some(_)) => failed = self.check(store, slot),
            (_, Some(_)) => failed = self.check_run(store, slot, 1 + rng.below(70) as usize),
            (_, None) => assert!(store.get(at, &mut [0; PAGE_SIZE]).is_err()),
        }
        while store.wants_writeback(resident) && store.writeback().is_some() {}
        failed
    }

    /// Reads a slot: its bytes, or an error and not its bytes.
    fn check(&self, store: &Filed, slot: usize) -> Option<StoreStop> {
        let mut bytes = [0xaa; PAGE_SIZE];
        let got = store.get(Slot(slot as u32), &mut bytes);
        match (got, self.0[slot]) {
            (Ok(()), Some(seed)) => assert!(bytes == any(seed), "slot {slot}"),
            (Ok(()), None) => panic!("slot {slot} holds what was freed"),
            (Err(e), Some(_)) => return Some(e.why),
            (Err(_), None) => {}
        }
        None
    }

    /// Reads slots in a row: those before the first that fails are right, and only an empty one or
    /// a broken file fails.
    fn check_run(&self, store: &Filed, first: usize, count: usize) -> Option<StoreStop> {
        let count = count.min(self.0.len() - first);
        let mut bytes = vec![0xaa; count * PAGE_SIZE];
        let got = store.get(Slot(first as u32), &mut bytes);
        let done = got.map_or_else(|e| e.done as usize, |()| count);
        for (k, page) in bytes.chunks(PAGE_SIZE).take(done).enumerate() {
            let seed = self.0[first + k].expect("something was put there");
            assert!(page == any(seed), "slot {first} and {k}");
        }
        let stopped = self.0.get(first + done).copied().flatten();
        got.err().filter(|_| stopped.is_some()).map(|e| e.why)
    }

    fn check_all(&self, store: &Filed) -> Vec<StoreStop> {
        (0..self.0.len())
            .filter_map(|slot| self.check(store, slot))
            .collect()
    }

    fn free_all(&self, store: &Filed) {
        store.free(Slot(0), self.0.len() as u32);
    }
}

#[test]
fn what_is_put_is_got_from_ram_and_file_and_the_books_agree_after_each_step() {
    for (seed, percent, resident) in [(1, 0, 0), (2, 20, 300), (3, 50, 100), (4, 0, 0)] {
        let disk = Disk::new(u64::MAX);
        let store = store(&disk, percent);
        if seed == 4 {
            store.file().encrypt(&[4; KEY]);
        }
        let (mut rng, mut held) = (Rng(seed), Held(vec![None; 1500]));
        for _ in 0..4000 {
            assert_eq!(held.step(&store, &mut rng, resident), None);
            store.verify().unwrap();
            let c = store.counts();
            assert_eq!(c.file_bytes, disk.charged());
            assert!(disk.used(1) <= c.file_bytes);
        }
        let c = store.counts();
        assert!(c.filed_pages > 100, "{c:?}");
        assert!(disk.calls()[1] > 100);
        assert_eq!(held.check_all(&store), []);
        held.free_all(&store);
        let c = store.counts();
        assert_eq!((c.filed_pages, c.file_bytes, disk.used(1)), (0, 0, 0));
        assert_eq!(disk.charged(), 0);
        store.verify().unwrap();
    }
}

#[test]
fn ram_stays_at_its_share_and_pages_that_do_not_compress_are_taken() {
    let disk = Disk::new(u64::MAX);
    let store = store(&disk, 25);
    for i in 0..4000 {
        let seed = u64::from(i);
        let bytes = if i % 64 < 32 {
            noise(seed)
        } else {
            page(4, seed)
        };
        store.put(Slot(i), &bytes).unwrap();
        while store.wants_writeback(1000) && store.writeback().is_some() {}
        // A third of what is resident, the open segments, and what a table and writers take.
        let most = (1000 * PAGE_SIZE / 3) as u64 + 4 * (256 << 10) + (80 << 10);
        assert!(store.ram_bytes() < most, "{} for {most}", store.ram_bytes());
    }
    let c = store.counts();
    assert!(c.filed_pages > 3000, "{c:?}");
    // Without a file they are refused.
    let none = Ram::new(Algorithm::Lz4);
    let refused = none.put(Slot(0), &noise(0)).unwrap_err();
    assert_eq!(refused.why, StoreStop::Incompressible);
    // What lies in a row is read by one read.
    let [_, before] = disk.calls();
    let mut back = vec![0; 4000 * PAGE_SIZE];
    store.get(Slot(0), &mut back).unwrap();
    for (i, back) in (0..).zip(back.chunks(PAGE_SIZE)) {
        let right = if i % 64 < 32 { noise(i) } else { page(4, i) };
        assert!(back == right, "slot {i}");
    }
    let reads = disk.calls()[1] - before;
    assert!(reads < 4000 / 6, "{reads} reads");
}

#[test]
fn a_file_of_which_most_was_freed_is_used_anew() {
    let disk = Disk::new(32 << 20);
    let store = store(&disk, 0);
    let (mut rng, mut held) = (Rng(7), vec![None; 4000]);
    // 16 MiB are live at most; random frees leave holes in every segment.
    for i in 0..40_000 {
        let slot = rng.below(4000) as usize;
        let (at, seed) = (Slot(slot as u32), rng.next());
        store.free(at, 1);
        held[slot] = store.put(at, &noise(seed)).is_ok().then_some(seed);
        assert!(held[slot].is_some(), "refused after {i}");
        while store.wants_writeback(0) && store.writeback().is_some() {}
        assert!(disk.charged() <= 32 << 20);
    }
    assert!(store.counts().moved_bytes > 1 << 20);
    store.verify().unwrap();
    for (slot, seed) in held.iter().enumerate() {
        let mut back = [0; PAGE_SIZE];
        let Some(seed) = *seed else { continue };
        store.get(Slot(slot as u32), &mut back).unwrap();
        assert!(back == noise(seed));
    }
}

#[test]
fn a_full_file_refuses_and_takes_again_when_there_is_room() {
    let disk = Disk::new(1 << 20);
    let store = store(&disk, 0);
    let put = |i: u32| {
        let done = store.put(Slot(i), &noise(u64::from(i)));
        while store.wants_writeback(0) && store.writeback().is_some() {}
        done.is_ok()
    };
    let taken = (0..2000).filter(|i| put(*i)).count();
    // Three in each segment of 16 KiB, and those that wait.
    assert!((192..1000).contains(&taken), "{taken}");
    for i in 0..2000 {
        let mut back = [0; PAGE_SIZE];
        if store.get(Slot(i), &mut back).is_ok() {
            assert!(back == noise(u64::from(i)));
        }
    }
    store.verify().unwrap();
    store.free(Slot(0), 2000);
    let taken = (0..2000).filter(|i| put(*i)).count();
    assert!(taken >= 192, "{taken} after room was made");
}

/// Runs `steps` operations with faults by these plans, of writes and of reads; returns how many
/// calls of either there were, and how many reads of pages failed.
fn run(steps: u32, plans: [Option<Plan>; 2], disk: &Arc<Disk>) -> ([u64; 2], u64) {
    let store = store(disk, 10);
    let (mut rng, mut held) = (Rng(11), Held(vec![None; 800]));
    disk.plan(plans);
    let mut failed = 0;
    for _ in 0..steps {
        failed += u64::from(held.step(&store, &mut rng, 100).is_some());
    }
    disk.plan([None; 2]);
    let calls = disk.calls();
    store.verify().unwrap();
    // What a medium holds wrongly stays an error, all else is there.
    let lost = held.check_all(&store);
    assert!(
        lost.iter().all(|why| *why == StoreStop::Corrupt),
        "{lost:?}"
    );
    let wrong = plans[0].is_some_and(|p| p.fault == Fault::FlipWritten);
    assert!(lost.is_empty() || wrong, "{lost:?}");
    held.free_all(&store);
    assert_eq!(disk.charged(), 0);
    (calls, failed)
}

/// Every call on the file fails once, each in a run of its own; `DECKLE_EVERY=1`: all calls of a
/// long run, else a share of a short one's.
#[test]
fn each_fault_at_each_call_leaves_an_error_or_the_right_bytes() {
    let all = std::env::var_os("DECKLE_EVERY").is_some();
    let steps = if all { 10_000 } else { 3000 };
    let quiet = Disk::new(u64::MAX);
    let ([writes, reads], _) = run(steps, [None, None], &quiet);
    assert!(writes > 30 && reads > 100, "{writes} writes, {reads} reads");
    let (mut runs, mut noticed) = (0, 0);
    let faults = [
        (0, Fault::Errno(EIO), 1),
        (0, Fault::Errno(ENOSPC), 1),
        (0, Fault::Part, 1),
        (0, Fault::FlipWritten, 1),
        (1, Fault::Errno(EIO), 1),
        (1, Fault::Errno(EIO), 2),
        (1, Fault::FlipRead, 1),
        (1, Fault::FlipRead, 2),
    ];
    for (which, fault, times) in faults {
        let calls = [writes, reads][which];
        let stride = if all { 1 } else { calls / 12 };
        for after in (0..calls).step_by(stride as usize) {
            let plan = Some(Plan {
                after,
                times,
                fault,
            });
            let mut plans = [None; 2];
            plans[which] = plan;
            let (_, failed) = run(steps, plans, &Disk::new(u64::MAX));
            runs += 1;
            noticed += u64::from(failed > 0);
            // Once is tried again.
            assert!(which == 0 || times == 2 || failed == 0, "{plan:?}");
        }
    }
    println!("{runs} runs, {noticed} with a read that failed; {writes} writes, {reads} reads");
    assert!(noticed > 10);
}

#[test]
fn a_file_that_always_fails_costs_nothing_but_its_use() {
    for (which, fault) in [
        (0, Fault::Errno(EIO)),
        (0, Fault::Errno(ENOSPC)),
        (0, Fault::Part),
    ] {
        let disk = Disk::new(u64::MAX);
        let mut plans = [None; 2];
        plans[which] = Some(Plan {
            after: 20,
            times: u64::MAX,
            fault,
        });
        run(6000, plans, &disk);
        // It is asked now and then, not each time.
        assert!(disk.calls()[0] < 200);
    }
}

/// Parent and child of a fork: each reads what was in the parent's file at the fork, whatever the
/// other does, and no place that a child may read is written again before it has ended.
#[test]
fn a_child_reads_its_parents_file_and_writes_its_own() {
    let disk = Disk::new(u64::MAX);
    let fill = |store: &Filed| {
        for i in 0..1000_u32 {
            store.put(Slot(i), &any(u64::from(i))).unwrap();
            while store.wants_writeback(0) && store.writeback().is_some() {}
        }
    };
    let parent = store(&disk, 0);
    fill(&parent);
    // A copy of its memory.
    let copied = Disk::new(u64::MAX);
    let mut child = store(&copied, 0);
    fill(&child);
    assert_eq!(parent.files(), [1]);
    let fork = parent.lend();
    child.lend();
    child.borrow_lent();
    *child.file_mut() = Encrypted::new(Handle::new(&disk, 2));
    let in_use = disk.used(1);
    for i in 0..1000 {
        parent.free(Slot(i), 1);
    }
    assert_eq!(disk.used(1), in_use, "the child may read all of it");
    for i in 1000..2000_u32 {
        for store in [&parent, &child] {
            store.put(Slot(i), &any(u64::from(i))).unwrap();
            while store.wants_writeback(0) && store.writeback().is_some() {}
        }
    }
    assert!(disk.used(1) > in_use && disk.used(2) > 0);
    assert_eq!(child.files(), [1, 2]);
    let check = |store: &Filed, i: u32| {
        let mut back = [0; PAGE_SIZE];
        store.get(Slot(i), &mut back).unwrap();
        assert!(back == any(u64::from(i)), "slot {i}");
    };
    (0..2000).for_each(|i| check(&child, i));
    // The parent ends: the child goes on with both files, and gives back only what is its own.
    child.own();
    (0..2000).for_each(|i| check(&child, i));
    child.free(Slot(0), 2000);
    child.verify().unwrap();
    assert_eq!((disk.used(2), child.counts().file_bytes), (0, 0));
    // Or the child does.
    assert_eq!(disk.used(1) / in_use, 1);
    parent.unlend(None);
    assert!(parent.lends_file());
    assert_eq!(disk.used(1) / in_use, 1, "a grandchild may read it");
    parent.unlend_file(Some(fork));
    assert_eq!(disk.used(1) / in_use, 1);
    parent.unlend_file(Some(fork + 1));
    assert!(disk.used(1) < in_use && !parent.lends_file());
    (1000..2000).for_each(|i| check(&parent, i));
    parent.unlend_file(None);
    parent.free(Slot(0), 2000);
    parent.verify().unwrap();
    assert_eq!((disk.used(1), parent.counts().file_bytes), (0, 0));
    *child.file_mut() = Encrypted::new(Handle::new(&disk, 0));
    assert!(!child.wants_writeback(0) && child.writeback().is_none());
}

/// Forks cut the open segment where it is written: whatever size it has then, its place in the file
/// is as large, and goes on to no segment that is larger.
#[test]
fn what_a_fork_has_cut_has_a_place_in_the_file_for_itself() {
    const PAGES: [u32; 9] = [4, 1, 11, 8, 2, 3, 9, 5, 15];
    let disk = Disk::new(u64::MAX);
    let config = Config {
        segment_bytes: 64 << 10,
        shards: 1,
        ram_percent: 0,
        ..Config::new(Algorithm::Lz4)
    };
    let mut store = Ram::with_file(config, Heap, Encrypted::new(Handle::new(&disk, 1)));
    let slots = |i: usize| (0..PAGES[i]).map(move |k| i as u32 * 16 + k);
    let check = |store: &Filed, i: usize| {
        for slot in slots(i) {
            let mut back = [0; PAGE_SIZE];
            store.get(Slot(slot), &mut back).unwrap();
            assert!(back == noise(u64::from(slot)), "slot {slot}");
        }
    };
    for i in 0..PAGES.len() {
        for slot in slots(i) {
            store.put(Slot(slot), &noise(u64::from(slot))).unwrap();
        }
        store.lend();
        store.borrow_lent();
        *store.file_mut() = Encrypted::new(Handle::new(&disk, 2));
        store.own();
    }
    for (i, pages) in PAGES.into_iter().enumerate() {
        let written = store.writeback().unwrap();
        assert_eq!(written.pages, u64::from(pages));
        store.verify().unwrap();
        let is_there = |&k: &usize| k % 3 != 0 || k == i;
        (0..=i).filter(is_there).for_each(|k| check(&store, k));
        if i % 3 == 0 {
            store.free(Slot(i as u32 * 16), 16);
        }
    }
    store.free(Slot(0), PAGES.len() as u32 * 16);
    assert_eq!(disk.charged(), 0);
}

#[test]
fn threads_that_put_read_and_free_while_others_write_to_the_file() {
    let disk = Disk::new(48 << 20);
    let store = store(&disk, 5);
    let stop = AtomicBool::new(false);
    std::thread::scope(|s| {
        let users: Vec<_> = (0..3_u32)
            .map(|t| {
                let store = &store;
                s.spawn(move || {
                    let mut rng = Rng(u64::from(t) + 1);
                    let (base, mut held) = (t * 2048, vec![None; 2048]);
                    for _ in 0..30_000 {
                        let i = rng.below(2048) as usize;
                        let at = Slot(base + i as u32);
                        if let Some(seed) = held[i] {
                            let mut back = [0; PAGE_SIZE];
                            store.get(at, &mut back).unwrap();
                            assert!(back == any(seed), "slot {at:?}");
                        }
                        store.free(at, 1);
                        let seed = rng.next();
                        held[i] = store.put(at, &any(seed)).is_ok().then_some(seed);
                    }
                })
            })
            .collect();
        for _ in 0..2 {
            s.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    while store.wants_writeback(200) && store.writeback().is_some() {}
                    store.compact(64 << 10);
                    std::thread::yield_now();
                }
            });
        }
        for user in users {
            let done = user.join();
            if done.is_err() {
                stop.store(true, Ordering::Relaxed);
            }
            done.unwrap();
        }
        stop.store(true, Ordering::Relaxed);
    });
    store.verify().unwrap();
    assert!(disk.calls()[1] > 10_000);
    assert!(store.counts().moved_bytes > 0);
    store.free(Slot(0), 3 * 2048);
    assert_eq!(disk.charged(), 0);
}
