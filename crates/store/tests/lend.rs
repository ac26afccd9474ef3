//! What is charged for a store that a fork has copied.

use crate::common::{KINDS, Rng, page};
use deckle_mm::{Slot, Store};
use deckle_store::{Algorithm, Config, Heap, Ram};

const SEGMENT: u64 = 64 << 10;
const SLOTS: u32 = 2000;
/// Bytes of the table of so many slots: each leaf is copied when one side writes it.
const TABLE: i64 = SLOTS.div_ceil(512) as i64 * 512 * 12;

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

/// Bytes that are charged for segments, and for what is lent, borrowed or copied of the table.
fn charged(store: &Ram) -> i64 {
    let rest = store.ram_bytes() - store.counts().segment_bytes;
    store.charged_bytes() as i64 - rest as i64
}

fn mapped(store: &Ram) -> i64 {
    store.counts().segment_bytes as i64
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
        let shared = mapped(&parent);
        assert_eq!((parent.lend(), child.lend()), (1, 1));
        let borrowed = child.borrow_lent() as i64;
        assert_eq!(charged(&parent), shared);
        // The child pays for nothing yet, and has given back what is not written.
        assert_eq!(charged(&child), -TABLE);
        assert_eq!(mapped(&child), borrowed - TABLE);
        assert!((0..2 * SEGMENT as i64).contains(&(shared - mapped(&child))));
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
            let left = mapped(&child) - charged(&child);
            assert!((0..=borrowed).contains(&left), "borrowed: {left}");
            assert!(charged(&parent) >= shared.max(mapped(&parent)));
        }
        parent.verify().unwrap();
        child.verify().unwrap();
        // The child ends: the parent pays for its own alone.
        parent.unlend(None);
        assert_eq!(parent.charged_bytes(), parent.ram_bytes());
        // Or the parent does: the child pays for all it has.
        child.own();
        assert_eq!(child.charged_bytes(), child.ram_bytes());
        for side in 0..2 {
            let store = [&parent, &child][side];
            store.verify().unwrap();
            store.free(Slot(0), SLOTS);
            assert!(store.counts().segments <= 1);
            assert_eq!(store.charged_bytes(), store.ram_bytes());
        }
    }
}

/// To copy what is shared takes memory and gives none back.
#[test]
fn p20_what_is_shared_is_not_compacted_before_half_of_it_is_dead() {
    let (parent, child) = (filled(&mut Rng(7)), filled(&mut Rng(7)));
    parent.lend();
    child.lend();
    child.borrow_lent();
    let before = [charged(&parent), charged(&child)];
    let moved = parent.counts().moved_bytes;
    for slot in (0..SLOTS).filter(|s| s % 5 < 2) {
        parent.free(Slot(slot), 1);
        child.free(Slot(slot), 1);
    }
    assert_eq!((parent.compact(1 << 20), child.compact(1 << 20)), (0, 0));
    assert_eq!(parent.counts().moved_bytes, moved);
    // Both have written all of the table: the parent is charged for the child's, too, which has it
    // as long as it does not say otherwise.
    let copied = before.map(|bytes| bytes + TABLE);
    assert_eq!([charged(&parent), charged(&child)], copied);
    for slot in (0..SLOTS).filter(|s| s % 5 == 2 || s % 5 == 3) {
        parent.free(Slot(slot), 1);
        child.free(Slot(slot), 1);
    }
    // A fifth is live: of what it lent the parent has copied that, the child has copied nothing.
    assert!(parent.counts().moved_bytes > moved);
    assert_eq!(child.counts().moved_bytes, moved);
    assert!(charged(&parent) <= before[0] * 3 / 2 + 2 * SEGMENT as i64);
    assert_eq!(charged(&child), copied[1]);
    for (store, own) in [(&parent, false), (&child, true)] {
        match own {
            true => store.own(),
            false => store.unlend(None),
        }
        while store.compact(1 << 20) > 0 {}
        let live = store.counts().live_bytes as i64;
        assert!(charged(store) <= live * 113 / 100 + 4 * SEGMENT as i64);
        store.verify().unwrap();
    }
}

/// What neither side has written is charged once, and the table is written a leaf at a time.
#[test]
fn p20_a_leaf_of_the_table_is_charged_to_a_child_when_one_of_its_slots_changes() {
    let (parent, child) = (filled(&mut Rng(9)), filled(&mut Rng(9)));
    let whole = charged(&parent);
    parent.lend();
    child.lend();
    child.borrow_lent();
    assert_eq!(charged(&parent), whole);
    let (before, mut buffer) = (charged(&child), [0; deckle_mm::PAGE_SIZE]);
    for slot in 0..SLOTS {
        child.get(Slot(slot), &mut buffer).unwrap();
    }
    assert_eq!(charged(&child), before, "a read copies nothing");
    let leaf = 512 * 12;
    for (slot, leaves) in [(0, 1), (511, 1), (1999, 2), (513, 3)] {
        child.free(Slot(slot), 1);
        parent.free(Slot(slot), 1);
        assert_eq!(charged(&child), before + leaves * leaf);
        assert_eq!(charged(&parent), whole + leaves * leaf);
    }
    parent.unlend(None);
    assert_eq!(parent.charged_bytes(), parent.ram_bytes());
    child.own();
    assert_eq!(child.charged_bytes(), child.ram_bytes());
}

/// Where children come and go and some child always is, what is unmapped is charged only while
/// a child lives that has it.
#[test]
fn p20_the_charge_of_what_was_lent_goes_with_the_children_of_its_time() {
    let parent = filled(&mut Rng(3));
    let mut rng = Rng(4);
    let first = mapped(&parent);
    for fork in 1..50 {
        assert_eq!(parent.lend(), fork);
        let lent = mapped(&parent);
        // Everything anew, while this child and the one before it live.
        for slot in 0..SLOTS {
            put(&parent, &mut rng, slot);
        }
        assert!(charged(&parent) >= lent + mapped(&parent) - SEGMENT as i64);
        // The one before ends.
        parent.unlend(Some(fork));
        let most = lent + mapped(&parent) + TABLE;
        assert!(charged(&parent) <= most, "{} of {most}", charged(&parent));
        assert!(
            mapped(&parent) < 3 * first,
            "no more than is live and shared"
        );
        parent.verify().unwrap();
    }
    parent.unlend(None);
    assert_eq!(parent.charged_bytes(), parent.ram_bytes());
}
