//! Damage gives an error and never wrong bytes; failures leave what was stored intact.

use crate::common::{Page, mixed, noise, page};
use deckle_mm::{PAGE_SIZE, Slot, Store, StoreError, StoreStop};
use deckle_store::faulty::{EIO, ENOSPC, Faulty, Plan};
use deckle_store::{Algorithm, Config, Heap, MAX_SPARSE_WORDS, Ram, Segments};
use deckle_sys::Memory;
use std::sync::atomic::{AtomicI64, Ordering};

fn algorithms() -> Vec<Algorithm> {
    vec![
        Algorithm::Lz4,
        #[cfg(feature = "zstd")]
        Algorithm::Zstd(1),
    ]
}

fn stop<T>(done: u32, why: StoreStop) -> Result<T, StoreError> {
    Err(StoreError { done, why })
}

#[test]
fn r110_zero_and_same_filled_pages_cost_only_the_table() {
    let store = Ram::new(Algorithm::Lz4);
    store.put(Slot(0), &page(0, 0)).unwrap();
    let before = store.ram_bytes();
    let pages: Vec<Page> = (0..512u64)
        .map(|i| page(u32::from(i % 2 == 1), i))
        .collect();
    store.put(Slot(512), pages.as_flattened()).unwrap();
    let counts = store.counts();
    assert_eq!(
        (counts.same_pages, counts.segments, counts.live_bytes),
        (513, 0, 0)
    );
    // 2 MiB of pages for one leaf of the table.
    assert!(
        store.ram_bytes() - before <= 512 * 12 + 8,
        "{} bytes",
        store.ram_bytes() - before
    );
    let mut back = vec![1; 512 * PAGE_SIZE];
    store.get(Slot(512), &mut back).unwrap();
    assert!(back == pages.as_flattened());
}

#[test]
fn mostly_zero_pages_cost_ten_bytes_a_word() {
    let store = Ram::new(Algorithm::Lz4);
    let mut page = [0; PAGE_SIZE];
    for i in 0..MAX_SPARSE_WORDS {
        page[i * 128..][..8].copy_from_slice(&(i as u64 + 1).to_le_bytes());
    }
    store.put(Slot(9), &page).unwrap();
    let counts = store.counts();
    assert_eq!(counts.sparse_pages, 1);
    assert!(counts.live_bytes <= 10 * MAX_SPARSE_WORDS as u64 + 16);
    let mut back = [1; PAGE_SIZE];
    store.get(Slot(9), &mut back).unwrap();
    assert_eq!(back, page);
}

#[test]
fn a_flipped_bit_is_corrupt_and_the_neighbours_are_not() {
    for algorithm in algorithms() {
        for kind in [1, 2, 3, 5] {
            // Every bit of header and checksum-relevant words, then samples of the rest.
            let bits = (0..128).chain((128..9000).step_by(61));
            for bit in bits {
                let store = Ram::new(algorithm);
                let pages = [page(kind, 1), page(kind, 2), page(kind, 3)];
                store.put(Slot(7), pages.as_flattened()).unwrap();
                if !store.corrupt_for_test(Slot(8), bit) {
                    continue;
                }
                let mut back = [[0; PAGE_SIZE]; 3];
                let result = store.get(Slot(7), back.as_flattened_mut());
                // Bits of padding or such that the decoder ignores give the page itself.
                if result.is_ok() {
                    assert_eq!(back, pages, "{algorithm} kind {kind} bit {bit}");
                    assert!(kind > 2, "{algorithm} kind {kind} bit {bit} not seen");
                    assert!(
                        bit >= 64,
                        "{algorithm} kind {kind}: header bit {bit} not seen"
                    );
                } else {
                    assert_eq!(result, stop(1, StoreStop::Corrupt));
                }
                store.get(Slot(9), back[2].as_mut()).unwrap();
                assert_eq!(back[2], pages[2]);
            }
        }
    }
}

#[test]
fn damage_survives_compaction_as_damage() {
    let config = Config {
        segment_bytes: 16 << 10,
        ..Config::new(Algorithm::Lz4)
    };
    for bit in [0, 33, 40, 50, 80] {
        let store = Ram::with(config, Heap);
        let n = 200u32;
        for i in 0..n {
            store.put(Slot(i), &page(3, u64::from(i))).unwrap();
        }
        assert!(store.corrupt_for_test(Slot(5), bit));
        for i in (0..n).filter(|i| i % 5 != 0) {
            store.free(Slot(i), 1);
        }
        while store.compact(1 << 20) > 0 {}
        assert_eq!(
            store.counts().damaged_segments,
            u64::from(bit < 48),
            "bit {bit}"
        );
        let mut back = [0; PAGE_SIZE];
        for i in (0..n).step_by(5) {
            let result = store.get(Slot(i), &mut back);
            if i == 5 {
                assert_eq!(result, stop(0, StoreStop::Corrupt), "bit {bit}");
            } else {
                assert_eq!(result, Ok(()), "bit {bit} slot {i}");
                assert_eq!(back, page(3, u64::from(i)));
            }
        }
        store.free(Slot(0), n);
        assert_eq!((store.stored_pages(), store.counts().live_bytes), (0, 0));
    }
}

#[test]
fn pages_that_do_not_compress_are_refused_and_nothing_else_is() {
    for algorithm in algorithms() {
        let store = Ram::new(algorithm);
        let pages = [page(3, 1), page(0, 0), noise(3), page(3, 4)];
        let result = store.put(Slot(0), pages.as_flattened());
        assert_eq!(result, stop(2, StoreStop::Incompressible));
        assert_eq!(store.stored_pages(), 2);
        // Just below and above the limit of 7/8.
        assert_eq!(store.put(Slot(10), &mixed(1, 78)), Ok(()));
        assert_eq!(
            store.put(Slot(11), &mixed(1, 92)),
            stop(0, StoreStop::Incompressible)
        );
        store.verify().unwrap();
    }
}

#[test]
fn empty_slots_and_ragged_buffers_are_errors() {
    let store = Ram::new(Algorithm::Lz4);
    let mut back = [[0; PAGE_SIZE]; 2];
    assert_eq!(
        store.get(Slot(0), back.as_flattened_mut()),
        stop(0, StoreStop::Corrupt)
    );
    store.put(Slot(0), &page(2, 1)).unwrap();
    assert_eq!(
        store.get(Slot(0), back.as_flattened_mut()),
        stop(1, StoreStop::Corrupt)
    );
    let ragged = &page(2, 1)[..4095];
    assert_eq!(store.put(Slot(1), ragged), stop(0, StoreStop::Io(22)));
    assert_eq!(
        store.get(Slot(0), &mut back[0][..100]),
        stop(0, StoreStop::Io(22))
    );
    store.free(Slot(0), 1);
    store.free(Slot(0), 1);
    assert_eq!(
        store.get(Slot(0), &mut back[0]),
        stop(0, StoreStop::Corrupt)
    );
    store.verify().unwrap();
}

#[test]
fn a_failing_medium_fails_exactly_the_planned_page() {
    let store = Faulty::new(Ram::new(Algorithm::Lz4));
    let pages: Vec<Page> = (0..4).map(|i| page(3, i)).collect();
    store.fail_put(Some(Plan {
        after: 6,
        times: 1,
        why: StoreStop::Io(ENOSPC),
    }));
    assert_eq!(store.put(Slot(0), pages.as_flattened()), Ok(()));
    let enospc = StoreStop::Io(ENOSPC);
    assert_eq!(store.put(Slot(4), pages.as_flattened()), stop(2, enospc));
    assert_eq!(store.stored_pages(), 6);
    assert_eq!(store.put(Slot(6), pages[2..].as_flattened()), Ok(()));
    store.fail_get(Some(Plan {
        after: 1,
        times: 2,
        why: StoreStop::Io(EIO),
    }));
    let mut back = [[0; PAGE_SIZE]; 4];
    assert_eq!(
        store.get(Slot(4), back.as_flattened_mut()),
        stop(1, StoreStop::Io(EIO))
    );
    assert_eq!(
        store.get(Slot(4), back.as_flattened_mut()),
        stop(0, StoreStop::Io(EIO))
    );
    assert_eq!(store.get(Slot(4), back.as_flattened_mut()), Ok(()));
    assert!(back[..] == pages[..]);
    assert_eq!(store.get(Slot(0), back.as_flattened_mut()), Ok(()));
    assert!(back[..] == pages[..]);
    store.inner().verify().unwrap();
}

/// Segments that run out.
struct Scarce(AtomicI64);

impl Segments for Scarce {
    fn map(&self, bytes: usize) -> Option<Memory> {
        if self.0.fetch_sub(1, Ordering::Relaxed) <= 0 {
            self.0.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        Heap.map(bytes)
    }
    fn unmap(&self, memory: Memory) {
        self.0.fetch_add(1, Ordering::Relaxed);
        drop(memory);
    }
}

#[test]
fn without_memory_puts_stop_and_nothing_is_lost() {
    let config = Config {
        segment_bytes: 16 << 10,
        ..Config::new(Algorithm::Lz4)
    };
    let store = Ram::with(config, Scarce(AtomicI64::new(4)));
    let mut stored = 0;
    while store.put(Slot(stored), &page(3, u64::from(stored))) == Ok(()) {
        stored += 1;
        assert!(stored < 1000);
    }
    assert!(stored >= 40, "{stored} pages in 64 KiB");
    let result = store.put(Slot(stored), &page(3, 0));
    assert_eq!(result, stop(0, StoreStop::NoMemory));
    store.verify().unwrap();
    // Every second page goes: compaction finds no segment to copy to and gives up quietly.
    for i in (0..stored).step_by(2) {
        store.free(Slot(i), 1);
        store.verify().unwrap();
    }
    store.compact(1 << 20);
    let mut back = [0; PAGE_SIZE];
    for i in (1..stored).step_by(2) {
        store.get(Slot(i), &mut back).unwrap();
        assert_eq!(back, page(3, u64::from(i)));
    }
    store.free(Slot(0), stored);
    assert_eq!(store.put(Slot(0), &page(3, 0)), Ok(()));
    store.verify().unwrap();
}
