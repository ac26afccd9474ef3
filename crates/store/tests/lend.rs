//! What is charged for a store that a fork has copied.

mod common;

use common::{KINDS, Rng, page};
use deckle_mm::{Slot, Store};
use deckle_store::{Algorithm, Config, Heap, Ram};

const SEGMENT: u64 = 64 << 10;
const SLOTS: u32 = 2000;

fn filled(rng: &mut Rng) -> Ram {
    let segment_bytes = SEGMENT as u32;
    let config = Config::new(Algorithm::Lz4);
    let store = Ram::with(
        Config {
            segment_bytes,
            ..config
        },
        Heap,
    );
    for slot in 0..SLOTS {
        put(&store, rng, slot);
    }
    store
}

fn put(store: &Ram, rng: &mut Rng, slot: u32) {
    let kind = rng.below(u64::from(KINDS)) as u32;
    store.put(Slot(slot), &page(kind, u64::from(slot))).unwrap();
}

/// Segments that are charged.
fn segments(store: &Ram) -> i64 {
    let rest = store.ram_bytes() - store.counts().segments * SEGMENT;
    (store.charged_bytes() as i64 - rest as i64) / SEGMENT as i64
}

/// The same operations on two copies of one store, as a fork makes them: all segments that
/// exist in either are charged, those of the fork once.
#[test]
fn p20_parent_and_child_together_are_charged_for_every_segment_that_either_has() {
    for seed in 1..20 {
        let mut rng = Rng(seed);
        // Two stores with the same history: memory and copy.
        let (parent, child) = (filled(&mut Rng(seed)), filled(&mut Rng(seed)));
        assert_eq!(parent.counts(), child.counts());
        let shared = parent.counts().segments as i64 - 1;
        parent.lend();
        child.lend();
        assert_eq!(child.borrow_lent(), shared as u64 * SEGMENT);
        assert_eq!(segments(&parent), shared + 1);
        // The open one is charged to both.
        assert_eq!(segments(&child), 1);
        let mut held = [vec![true; SLOTS as usize], vec![true; SLOTS as usize]];
        for _ in 0..4000 {
            let side = rng.below(2) as usize;
            let slot = rng.below(u64::from(SLOTS)) as u32;
            let store = [&parent, &child][side];
            match held[side][slot as usize] {
                true => store.free(Slot(slot), 1),
                false => put(store, &mut rng, slot),
            }
            held[side][slot as usize] ^= true;
            // The parent pays for the shared ones whatever it unmaps, and for its new ones;
            // the child for its own only.
            let own = child.counts().segments as i64 - segments(&child);
            assert!((0..=shared).contains(&own), "borrowed: {own}");
            assert!(segments(&parent) >= shared, "the shared ones are paid for");
            assert!(segments(&parent) >= parent.counts().segments as i64);
        }
        parent.verify().unwrap();
        child.verify().unwrap();
        // The child ends: the parent pays for its own alone.
        parent.unlend();
        assert_eq!(parent.charged_bytes(), parent.ram_bytes());
        // Or the parent does: the child pays for all it has.
        child.own();
        assert_eq!(child.charged_bytes(), child.ram_bytes());
        for side in 0..2 {
            let store = [&parent, &child][side];
            store.free(Slot(0), SLOTS);
            assert!(store.counts().segments <= 1);
            assert_eq!(store.charged_bytes(), store.ram_bytes());
        }
    }
}
