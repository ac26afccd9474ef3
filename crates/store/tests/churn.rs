//! RAM follows what is stored, whatever was stored before; and many threads at once.

use crate::common::{KINDS, Rng, page};
use deckle_mm::{PAGE_SIZE, Slot, Store};
use deckle_store::{Algorithm, Config, Heap, Ram, Segments};
use deckle_sys::Memory;
use std::collections::HashMap;
use std::sync::Mutex;

const SEGMENT: u64 = 64 << 10;
const SLOTS: u32 = 4096;

fn bounded(store: &Ram, when: &str) {
    let c = store.counts();
    let segments = c.segment_bytes;
    assert!(
        segments <= c.live_bytes * 113 / 100 + 4 * SEGMENT,
        "{when}: {segments} for {c:?}"
    );
    // The table, two middle levels, scratch memory.
    let rest = u64::from(SLOTS) * 13 + (64 << 10);
    let ram = store.ram_bytes();
    assert!(
        ram <= c.live_bytes * 121 / 100 + 4 * SEGMENT + rest,
        "{when}: {ram} for {c:?}"
    );
    assert_eq!(c.damaged_segments, 0);
}

fn small_segments() -> Ram {
    let config = Config::new(Algorithm::Lz4);
    Ram::with(
        Config {
            segment_bytes: SEGMENT as u32,
            ..config
        },
        Heap,
    )
}

#[test]
fn ram_is_at_most_1_21_of_live_bytes_after_any_churn() {
    churn(&small_segments());
}

/// What little is stored is in small segments, and when most has gone it is again.
#[test]
fn ram_follows_live_bytes_with_segments_of_two_sizes() {
    let config = Config {
        segment_bytes: 16 << 10,
        large_segment_bytes: SEGMENT as u32,
        ..Config::new(Algorithm::Lz4)
    };
    let store = Ram::with(config, Heap);
    for i in 0..16 {
        store.put(Slot(i), &page(3, u64::from(i))).unwrap();
    }
    let c = store.counts();
    assert!(
        c.segments * (16 << 10) <= c.live_bytes + (16 << 10),
        "{c:?}"
    );
    store.free(Slot(0), 16);
    churn(&store);
    let left = store.ram_bytes();
    assert!(left <= (16 << 10) + (48 << 10), "{left} bytes for nothing");
}

fn churn(store: &Ram) {
    let mut rng = Rng(1);
    let mut held = vec![None; SLOTS as usize];
    for round in 0..6u64 {
        // Fill at random places with sizes that change from round to round.
        for i in 0..3 * SLOTS {
            let slot = rng.below(u64::from(SLOTS)) as u32;
            if held[slot as usize].is_some() {
                store.free(Slot(slot), 1);
            }
            let kind = if round % 2 == 0 {
                3
            } else {
                rng.below(u64::from(KINDS)) as u32
            };
            store.put(Slot(slot), &page(kind, u64::from(i))).unwrap();
            held[slot as usize] = Some((kind, u64::from(i)));
            if i % 64 == 0 {
                bounded(store, "filling");
            }
        }
        // Free most, in three patterns: every other one, at random, all but a few.
        for slot in 0..SLOTS {
            let goes = match round % 3 {
                0 => slot % 2 == 0,
                1 => rng.below(4) != 0,
                _ => slot % 97 != 0,
            };
            if goes && held[slot as usize].take().is_some() {
                store.free(Slot(slot), 1);
            }
            if slot % 64 == 0 {
                bounded(store, "freeing");
            }
        }
        store.verify().unwrap();
        let mut back = [0; PAGE_SIZE];
        for (slot, what) in held.iter().enumerate() {
            if let Some((kind, seed)) = *what {
                store.get(Slot(slot as u32), &mut back).unwrap();
                assert!(back == page(kind, seed), "slot {slot} after round {round}");
            }
        }
    }
    assert!(store.counts().moved_bytes > 0, "the churn was none");
    store.free(Slot(0), SLOTS);
    let left = store.ram_bytes();
    assert!(left <= SEGMENT + (64 << 10), "{left} bytes for nothing");
}

#[test]
fn explicit_compaction_wins_back_what_the_bound_leaves() {
    let store = small_segments();
    for i in 0..2000 {
        store.put(Slot(i), &page(3, u64::from(i))).unwrap();
    }
    for i in (0..2000).step_by(8) {
        store.free(Slot(i), 1);
    }
    let before = store.counts();
    while store.compact(32 << 10) > 0 {
        store.verify().unwrap();
    }
    let after = store.counts();
    assert_eq!(after.live_bytes, before.live_bytes);
    assert!(after.segments < before.segments, "{before:?} {after:?}");
    assert!(
        after.dead_bytes <= after.live_bytes / 15 + SEGMENT,
        "{after:?}"
    );
}

/// Counts calls.
#[derive(Default)]
struct Counting {
    mapped: Mutex<u64>,
    unmapped: Mutex<u64>,
}

impl Segments for &Counting {
    fn map(&self, bytes: usize) -> Option<Memory> {
        *self.mapped.lock().unwrap() += 1;
        Heap.map(bytes)
    }
    fn unmap(&self, memory: Memory) {
        *self.unmapped.lock().unwrap() += 1;
        drop(memory);
    }
}

/// A store that churns at a size takes no new memory for it: segments that it empties it fills
/// again, where they are large. It keeps one of them, and not when little is left.
#[test]
fn steady_churn_uses_emptied_segments_anew() {
    const SEGMENT: u64 = 64 << 10;
    const SLOTS: u64 = 2000;
    let count = Counting::default();
    let config = Config {
        segment_bytes: 16 << 10,
        large_segment_bytes: SEGMENT as u32,
        ..Config::new(Algorithm::Lz4)
    };
    let store = Ram::with(config, &count);
    let mut rng = Rng(7);
    for i in 0..SLOTS {
        store.put(Slot(i as u32), &page(3, i)).unwrap();
    }
    let appended = |store: &Ram<&Counting>, puts: u64| {
        let c = store.counts();
        c.moved_bytes + puts * (c.live_bytes / SLOTS)
    };
    let (before, began) = (*count.mapped.lock().unwrap(), appended(&store, 0));
    for i in 0..10 * SLOTS {
        let slot = Slot(rng.below(SLOTS) as u32);
        store.put(slot, &page(3, SLOTS + i)).unwrap();
    }
    let mapped = *count.mapped.lock().unwrap() - before;
    let filled = (appended(&store, 10 * SLOTS) - began) / SEGMENT;
    assert!(filled > 400, "{filled} segments filled");
    assert!(mapped * 10 < filled, "{mapped} mapped, {filled} filled");
    store.verify().unwrap();
    // What is neither live nor dead is the room of the open one, and the one that is kept.
    let keeps_one = || {
        let c = store.counts();
        c.segment_bytes - c.live_bytes - c.dead_bytes >= SEGMENT
    };
    let mut until_it_keeps_one = || {
        for i in 0..SLOTS {
            if keeps_one() {
                return;
            }
            let slot = Slot(rng.below(SLOTS) as u32);
            store.put(slot, &page(3, i)).unwrap();
        }
        panic!("none is kept");
    };
    until_it_keeps_one();
    store.lend();
    assert!(!keeps_one(), "a child would have it");
    store.unlend(None);
    until_it_keeps_one();
    let segments = store.counts().segments;
    while store.compact(1 << 20) > 0 {}
    assert!(!keeps_one() && store.counts().segments < segments);
    store.free(Slot(0), SLOTS as u32 - 3);
    assert!(store.counts().segment_bytes <= 2 * SEGMENT);
    drop(store);
    let mapped = *count.mapped.lock().unwrap();
    assert_eq!(mapped, *count.unmapped.lock().unwrap());
}

/// Remembers what sealed segments held.
#[derive(Default)]
struct Watching {
    sealed: Mutex<HashMap<usize, Vec<u8>>>,
    checked: Mutex<usize>,
}

impl Segments for &Watching {
    fn map(&self, bytes: usize) -> Option<Memory> {
        Heap.map(bytes)
    }
    fn unmap(&self, memory: Memory) {
        let at = memory.as_ptr().expose_provenance();
        if let Some(before) = self.sealed.lock().unwrap().remove(&at) {
            let wiped = before.iter().zip(&*memory).all(|(b, n)| b == n || *n == 0);
            assert!(wiped, "a sealed segment was written, not only wiped");
            *self.checked.lock().unwrap() += 1;
        }
    }
    fn sealed(&self, memory: &Memory) {
        let mut sealed = self.sealed.lock().unwrap();
        sealed.insert(memory.as_ptr().addr(), memory.to_vec());
    }
}

#[test]
fn sealed_segments_are_written_by_wiping_alone() {
    let watch = Watching::default();
    let config = Config {
        segment_bytes: 16 << 10,
        ..Config::new(Algorithm::Lz4)
    };
    let store = Ram::with(config, &watch);
    let mut rng = Rng(3);
    for i in 0..3000u64 {
        let slot = Slot(rng.below(300) as u32);
        store.free(slot, 1);
        store
            .put(slot, &page(rng.below(u64::from(KINDS)) as u32, i))
            .unwrap();
    }
    drop(store);
    let checked = *watch.checked.lock().unwrap();
    assert!(checked > 20, "{checked} segments");
    assert!(watch.sealed.lock().unwrap().is_empty(), "segments leaked");
}

/// Segments at known places, none of which is given back.
#[derive(Default)]
struct Kept(Mutex<Vec<(usize, usize)>>);

impl Segments for &Kept {
    fn map(&self, bytes: usize) -> Option<Memory> {
        let memory = Heap.map(bytes)?;
        let place = (memory.as_ptr().expose_provenance(), bytes);
        self.0.lock().unwrap().push(place);
        Some(memory)
    }
    fn unmap(&self, memory: Memory) {
        let here = memory.as_ptr().expose_provenance();
        self.0.lock().unwrap().retain(|(at, _)| *at != here);
        std::mem::forget(memory);
    }
}

impl Kept {
    /// Whether the bytes are in any segment.
    fn has(&self, what: &[u8]) -> bool {
        let all = self.0.lock().unwrap().clone();
        all.into_iter().any(|(base, bytes)| {
            // SAFETY: mapped above and not given back; no other thread uses the store.
            let memory = unsafe { std::slice::from_raw_parts(base as *const u8, bytes) };
            memory.windows(what.len()).any(|part| part == what)
        })
    }
}

/// Defect 17: what was freed stayed in memory as long as its segment.
#[test]
fn d17_what_is_freed_is_wiped() {
    let secret = *b"a secret that does not compress: 8#kQ!z0~";
    let stored = |seed: u64, secret: &[u8]| {
        let mut page = page(4, seed);
        page[100..100 + secret.len()].copy_from_slice(secret);
        page
    };
    let kept = Kept::default();
    let config = Config {
        segment_bytes: 16 << 10,
        ..Config::new(Algorithm::Lz4)
    };
    let store = Ram::with(config, &kept);
    let put = |slot: u32, secret: &[u8]| {
        let page = stored(u64::from(slot), secret);
        store.put(Slot(slot), &page).unwrap();
    };
    // In a sealed segment and in the open one; freed, and replaced.
    for slot in 0..64 {
        put(slot, if slot % 21 == 3 { &secret } else { b"" });
    }
    assert!(kept.has(&secret), "the search finds nothing");
    store.free(Slot(3), 1);
    store.free(Slot(24), 1);
    put(45, b"");
    assert!(!kept.has(&secret));
    // What a fork shares would cost a copy of its page.
    put(24, &secret);
    store.lend();
    store.free(Slot(24), 1);
    assert!(kept.has(&secret));
    store.verify().unwrap();
}

fn threads(config: Config) {
    let store = Ram::with(config, Heap);
    let store = &store;
    std::thread::scope(|s| {
        for t in 0..4u64 {
            s.spawn(move || {
                let mut rng = Rng(t);
                let mut held: HashMap<u32, (u32, u64)> = HashMap::new();
                let mut back = [0; PAGE_SIZE];
                for i in 0..4000u64 {
                    // Threads use neighbouring slots: same leaves, same segments.
                    let slot = rng.below(600) as u32 * 4 + t as u32;
                    if let Some((kind, seed)) = held.get(&slot).copied() {
                        store.get(Slot(slot), &mut back).unwrap();
                        assert!(back == page(kind, seed), "slot {slot}");
                        if rng.below(2) == 0 {
                            store.free(Slot(slot), 1);
                            held.remove(&slot);
                        }
                    } else {
                        let kind = rng.below(u64::from(KINDS)) as u32;
                        store.put(Slot(slot), &page(kind, i)).unwrap();
                        held.insert(slot, (kind, i));
                    }
                    if i % 256 == t {
                        store.compact(64 << 10);
                    }
                }
                for slot in held.into_keys() {
                    store.free(Slot(slot), 1);
                }
            });
        }
    });
    store.verify().unwrap();
    assert_eq!((store.stored_pages(), store.counts().live_bytes), (0, 0));
    assert!(
        store.counts().moved_bytes > 0,
        "nothing was moved meanwhile"
    );
}

#[test]
fn no_byte_lost_between_threads() {
    let config = Config::new(Algorithm::Lz4);
    threads(Config {
        segment_bytes: 16 << 10,
        ..config
    });
    threads(Config {
        segment_bytes: 16 << 10,
        shards: 4,
        ..config
    });
    threads(Config {
        segment_bytes: 16 << 10,
        large_segment_bytes: 64 << 10,
        shards: 2,
        ..config
    });
}

#[cfg(feature = "zstd")]
#[test]
fn no_byte_lost_between_threads_zstd() {
    threads(Config {
        segment_bytes: 16 << 10,
        ..Config::new(Algorithm::Zstd(1))
    });
}
