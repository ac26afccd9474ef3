//! Random puts, gets and frees against a map from slot to bytes, with the store's own
//! accounting checked after every step.

use crate::common::{KINDS, Page, noise, page};
use deckle_mm::{PAGE_SIZE, Slot, Store, StoreError, StoreStop};
use deckle_store::{Algorithm, Config, Heap, Ram};
use proptest::prelude::*;
use std::collections::HashMap;

#[derive(Clone, Debug)]
enum Step {
    /// A run of pages; every kind above KINDS is one that does not compress.
    Put {
        first: u32,
        kinds: Vec<u32>,
        seed: u64,
    },
    Free {
        first: u32,
        count: u32,
    },
    Get {
        first: u32,
        count: u32,
    },
    Compact {
        budget: u64,
    },
}

/// Slots around the borders of leaves, of the table's middle level and of the number range.
fn slot() -> impl Strategy<Value = u32> {
    prop_oneof![
        4 => 0u32..600,
        1 => (1u32 << 20) - 20..(1 << 20) + 20,
        1 => u32::MAX - 40..=u32::MAX,
    ]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (slot(), proptest::collection::vec(0..=KINDS, 1..12), any::<u64>())
            .prop_map(|(first, kinds, seed)| Step::Put { first, kinds, seed }),
        3 => (slot(), 1u32..40).prop_map(|(first, count)| Step::Free { first, count }),
        2 => (slot(), 1u32..12).prop_map(|(first, count)| Step::Get { first, count }),
        1 => (1u64..100_000).prop_map(|budget| Step::Compact { budget }),
    ]
}

struct Pair {
    store: Ram,
    oracle: HashMap<u32, Page>,
}

impl Pair {
    /// Checks that `count` slots read as the oracle says, up to the first empty one.
    fn check_get(&self, first: u32, count: u32) {
        let held: Vec<&Page> = (0..count)
            .map_while(|i| first.checked_add(i).and_then(|s| self.oracle.get(&s)))
            .collect();
        let mut back = vec![0xa5; count as usize * PAGE_SIZE];
        let result = self.store.get(Slot(first), &mut back);
        if held.len() == count as usize {
            assert_eq!(result, Ok(()));
        } else {
            let done = held.len() as u32;
            assert_eq!(
                result,
                Err(StoreError {
                    done,
                    why: StoreStop::Corrupt
                })
            );
        }
        for (i, page) in held.iter().enumerate() {
            assert!(
                back[i * PAGE_SIZE..][..PAGE_SIZE] == page[..],
                "slot {first} + {i}"
            );
        }
    }

    fn apply(&mut self, step: &Step) {
        match step {
            Step::Put { first, kinds, seed } => {
                let slots = (0..kinds.len() as u32).map_while(|i| first.checked_add(i));
                let slots: Vec<u32> = slots.collect();
                for slot in &slots {
                    if self.oracle.remove(slot).is_some() {
                        self.store.free(Slot(*slot), 1);
                    }
                }
                let make = |(i, &kind): (usize, &u32)| match kind {
                    KINDS => noise(seed.wrapping_add(i as u64)),
                    _ => page(kind, seed.wrapping_add(i as u64)),
                };
                let pages: Vec<Page> = kinds.iter().enumerate().map(make).collect();
                let refused = kinds
                    .iter()
                    .position(|&k| k == KINDS)
                    .unwrap_or(kinds.len());
                let done = refused.min(slots.len());
                let expected = if refused < slots.len() {
                    Err(StoreError {
                        done: done as u32,
                        why: StoreStop::Incompressible,
                    })
                } else if slots.len() < kinds.len() {
                    Err(StoreError {
                        done: done as u32,
                        why: StoreStop::Full,
                    })
                } else {
                    Ok(())
                };
                assert_eq!(self.store.put(Slot(*first), pages.as_flattened()), expected);
                self.oracle.extend(slots.into_iter().zip(pages).take(done));
            }
            Step::Free { first, count } => {
                self.store.free(Slot(*first), *count);
                for i in 0..*count {
                    first.checked_add(i).and_then(|s| self.oracle.remove(&s));
                }
            }
            Step::Get { first, count } => self.check_get(*first, *count),
            Step::Compact { budget } => {
                self.store.compact(*budget);
            }
        }
    }
}

fn run(config: Config, steps: &[Step]) {
    let mut pair = Pair {
        store: Ram::with(config, Heap),
        oracle: HashMap::new(),
    };
    for step in steps {
        pair.apply(step);
        pair.store.verify().unwrap();
        assert_eq!(pair.store.stored_pages(), pair.oracle.len() as u64);
    }
    for &slot in pair.oracle.keys() {
        pair.check_get(slot, 1);
    }
    for (first, count) in [(0, 2000), ((1 << 20) - 50, 200), (u32::MAX - 100, 200)] {
        pair.store.free(Slot(first), count);
    }
    pair.store.verify().unwrap();
    assert_eq!(
        (pair.store.stored_pages(), pair.store.counts().live_bytes),
        (0, 0)
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn no_byte_lost_lz4(steps in proptest::collection::vec(step(), 1..120)) {
        run(Config { segment_bytes: 16 << 10, ..Config::new(Algorithm::Lz4) }, &steps);
    }

    #[test]
    fn no_byte_lost_sharded(steps in proptest::collection::vec(step(), 1..120)) {
        let config = Config::new(Algorithm::Lz4);
        run(Config { segment_bytes: 16 << 10, shards: 4, ..config }, &steps);
        let large_segment_bytes = 32 << 10;
        run(Config { segment_bytes: 16 << 10, large_segment_bytes, ..config }, &steps);
    }

    #[cfg(feature = "zstd")]
    #[test]
    fn no_byte_lost_zstd(steps in proptest::collection::vec(step(), 1..60)) {
        run(Config { segment_bytes: 16 << 10, ..Config::new(Algorithm::Zstd(3)) }, &steps);
    }
}
