//! The swap cache: what comes back unchanged is not stored again, and no byte is lost whatever
//! the store does.

use super::P;
use super::common::hand::byte_of;
use super::common::{BASE, BELOW, Program, Rig, WINDOW};
use deckle_mm::{
    Advice, Charge, Env, FaultError, FaultMode, Item, Mm, PAGE_SIZE, Profile, Prot, SpaceId, Store,
    StoreStop, ThpMode, Tunables, Vpn,
};
use deckle_model::{Model, ModelCharge, ModelMachine, Rng};
use deckle_store::faulty::{EIO, ENOSPC, Faulty, Plan};
use deckle_store::{Algorithm, Ram};

fn small_pages() -> Tunables {
    Tunables {
        thp: ThpMode::Never,
        swap_cache: true,
        ..Tunables::of_profile(Profile::Deckle)
    }
}

/// `pages` pages that were written and paged out.
fn away(rig: &Rig, pages: u64) -> Vpn {
    let start = rig.mmap(0, pages);
    (0..pages).for_each(|i| rig.write(start.add(i), byte_of(i)));
    rig.advise(start, pages, Advice::PageOut);
    assert_eq!(rig.stat(Item::NrSwapped), pages);
    start
}

#[test]
fn r98_r110_what_was_only_read_is_not_stored_again() {
    let rig = Rig::new(64, 1, 1, true, small_pages());
    let start = away(&rig, 64);
    assert_eq!(
        (rig.stat(Item::Pswpout), rig.mm.store().stored_pages()),
        (64, 64)
    );
    for round in 1..4 {
        (0..64).for_each(|i| assert!(rig.holds(start.add(i), byte_of(i))));
        assert_eq!(rig.stat(Item::NrSwapcached), 64);
        assert_eq!(rig.mm.store().stored_pages(), 64);
        rig.verify(&round);
        rig.advise(start, 64, Advice::PageOut);
        assert_eq!(
            (rig.stat(Item::NrSwapped), rig.stat(Item::NrSwapcached)),
            (64, 0)
        );
        assert_eq!(rig.stat(Item::SwpoutUnchanged), 64 * round);
        rig.verify(&round);
    }
    assert_eq!(
        (rig.stat(Item::Pswpout), rig.stat(Item::SwpoutStale)),
        (64, 0)
    );
    (0..64).for_each(|i| assert!(rig.holds(start.add(i), byte_of(i))));
    rig.munmap(start, 64);
    assert_eq!(rig.mm.store().stored_pages(), 0);
    rig.verify(&"the end");
}

#[test]
fn r98_one_byte_that_changed_is_stored_in_the_same_place() {
    let rig = Rig::new(64, 1, 1, true, small_pages());
    let start = away(&rig, 16);
    (0..16).for_each(|i| assert!(rig.holds(start.add(i), byte_of(i))));
    // The last byte of one page changes; another becomes zeros.
    let addr = start.add(5).addr() + 4095;
    rig.model.store(0, rig.space, addr, &[7]).unwrap();
    rig.write(start.add(9), 0);
    rig.advise(start, 16, Advice::PageOut);
    assert_eq!(
        (rig.stat(Item::SwpoutUnchanged), rig.stat(Item::SwpoutStale)),
        (14, 1)
    );
    assert_eq!(
        (rig.stat(Item::Pswpout), rig.stat(Item::SwpoutZero)),
        (17, 1)
    );
    rig.verify(&"evicted");
    for i in 0..16 {
        let bytes = rig.read(start.add(i));
        let first = if i == 9 { 0 } else { byte_of(i) };
        let last = if i == 5 { 7 } else { 0 };
        assert_eq!((bytes[0], bytes[4095]), (first, last), "page {i}");
    }
    rig.verify(&"read");
}

#[test]
fn r98_what_comes_back_to_be_written_keeps_no_slot() {
    let rig = Rig::new(64, 1, 1, true, small_pages());
    let start = away(&rig, 16);
    (0..16).for_each(|i| rig.write(start.add(i), byte_of(i) + 1));
    assert_eq!(
        (rig.stat(Item::NrSwapcached), rig.mm.store().stored_pages()),
        (0, 0)
    );
    rig.verify(&"written");
}

#[test]
fn r148_kept_slots_are_given_back_before_anything_is_out() {
    // Swap for 64 pages: all of it is slots that are kept, when others need it.
    let rig = Rig::new(64, 1, 1, true, small_pages());
    let start = away(&rig, 64);
    (0..64).for_each(|i| assert!(rig.holds(start.add(i), byte_of(i))));
    assert_eq!(rig.stat(Item::NrSwapcached), 64);
    rig.charge.set_swap_max(64);
    let more = rig.mmap(1024, 64);
    (0..64).for_each(|i| rig.write(more.add(i), byte_of(i)));
    rig.advise(more, 64, Advice::PageOut);
    assert_eq!(
        (rig.stat(Item::NrSwapped), rig.stat(Item::NrSwapcached)),
        (64, 0)
    );
    rig.verify(&"slots");
    // Memory: pages that cannot be stored take all there is, and what is kept goes for them.
    let rig = Rig::new(64, 1, 1, true, small_pages());
    let start = away(&rig, 512);
    (0..512).for_each(|i| assert!(rig.holds(start.add(i), byte_of(i))));
    let kept = rig.stat(Item::NrSwapcached);
    assert!(kept > 256, "{kept}");
    rig.mm.mlock(rig.space, start, 512).unwrap();
    rig.charge.set_max(rig.charge.usage() + 8);
    let more = rig.mmap(1024, 64);
    (0..64).for_each(|i| rig.write(more.add(i), 0xEE));
    assert!(rig.stat(Item::NrSwapcached) < kept);
    assert_eq!(rig.stat(Item::OomKill), 0);
    (0..512).for_each(|i| assert!(rig.holds(start.add(i), byte_of(i))));
    (0..64).for_each(|i| assert!(rig.holds(more.add(i), 0xEE)));
    rig.verify(&"memory");
}

#[test]
fn r148_copies_take_no_more_than_their_share_of_the_limit() {
    let rig = Rig::new(64, 1, 1, true, small_pages());
    // 4:1, so that a kept page takes a quarter of one: of 1024 pages an eighth are 512 copies.
    rig.charge.set_max(1024);
    let start = rig.mmap(0, 1536);
    (0..1536).for_each(|i| rig.write(start.add(i), byte_of(i)));
    for _ in 0..3 {
        (0..1536).for_each(|i| assert!(rig.holds(start.add(i), byte_of(i))));
        let kept = rig.stat(Item::NrSwapcached);
        assert!((1..=512).contains(&kept), "{kept}");
    }
    assert!(rig.stat(Item::SwpoutUnchanged) > 0);
    rig.verify(&"read");
}

#[test]
fn r148_r98_programs_that_read_more_than_they_write_lose_no_byte() {
    let mut unchanged = 0;
    for seed in 1..=24 {
        let mut rng = Rng::new(seed);
        let rig = Rig::new(64, 1, seed, true, small_pages());
        let limit = [3000, 1500, 900][rng.below(3) as usize];
        rig.charge.set_max(limit);
        rig.charge.set_high(limit - limit / 16);
        let mut program = Program::new(&rig, 0, seed, BASE, WINDOW / 6);
        program.may_fork = BELOW && rng.below(2) == 0;
        for step in 0..120 {
            let op = program.step();
            if step % 8 == 0 {
                rig.mm.reclaim(rng.below(600));
                program.check_all();
            }
            rig.verify(&(seed, step, op));
        }
        program.check_all();
        rig.verify(&seed);
        unchanged += rig.stat(Item::SwpoutUnchanged);
    }
    assert!(unchanged > 1000, "{unchanged}");
}

/// The model with the real store behind one that fails on purpose.
struct FaultyEnv;
impl Env for FaultyEnv {
    type P = Model<P>;
    type M = ModelMachine;
    type C = ModelCharge;
    type S = Faulty<Ram>;
    type Sharing = <P as deckle_model::Profile>::Sharing;
    type Frames = <P as deckle_model::Profile>::Frames;
}

struct Bench {
    model: Model<P>,
    mm: Mm<FaultyEnv>,
    space: SpaceId,
}

const PAGES: u64 = 256;

impl Bench {
    fn new(seed: u64) -> Bench {
        let machine = ModelMachine::single();
        let model = Model::of(16 << 20, 1, seed);
        model.attach(&machine);
        let store = Faulty::new(Ram::new(Algorithm::Lz4));
        let charge = ModelCharge::unlimited();
        let mm = Mm::new(model.clone(), machine, charge, store, small_pages()).unwrap();
        let space = mm.create_space(BASE, WINDOW).unwrap();
        mm.mmap(space, Some(BASE), PAGES, 1, Prot::RW).unwrap();
        Bench { model, mm, space }
    }

    /// Reads or writes a page; false if it cannot be read back now.
    fn access(&self, page: Vpn, bytes: &mut [u8; PAGE_SIZE], write: bool) -> bool {
        loop {
            let done = match write {
                true => self.model.store(0, self.space, page.addr(), bytes),
                false => self.model.load(0, self.space, page.addr(), bytes),
            };
            let Err(f) = done else { return true };
            match self
                .mm
                .fault(self.space, f.page, f.write, FaultMode::MayWait)
            {
                Ok(_) => {}
                Err(FaultError::Store(_)) => return false,
                Err(e) => panic!("{e}"),
            }
        }
    }

    fn verify(&self, when: &dyn std::fmt::Debug) {
        if let Err(lines) = self.mm.verify(true) {
            panic!("after {when:?}:\n{}", lines.join("\n"));
        }
        self.mm.store().inner().verify().unwrap();
        self.model.assert_clean();
    }
}

/// A third random, so that it is stored as a block.
fn content(page: u64, version: u64) -> [u8; PAGE_SIZE] {
    let mut rng = Rng::new(page << 32 | version);
    let mut bytes = [version as u8; PAGE_SIZE];
    bytes[..1300].fill_with(|| rng.below(256) as u8);
    bytes
}

#[test]
fn r148_r98_a_store_that_fails_costs_a_second_copy_or_an_error_and_no_byte() {
    let (mut unchanged, mut stale, mut refused) = (0, 0, 0);
    for seed in 1..=16 {
        let mut rng = Rng::new(seed);
        let rig = Bench::new(seed);
        let mut version = [0u64; PAGES as usize];
        for p in 0..PAGES {
            assert!(rig.access(BASE.add(p), &mut content(p, 0), true));
        }
        for step in 0..200 {
            let why = [
                StoreStop::Full,
                StoreStop::Incompressible,
                StoreStop::NoMemory,
                StoreStop::Io(EIO),
                StoreStop::Io(ENOSPC),
                StoreStop::Corrupt,
            ][rng.below(6) as usize];
            let plan = Plan {
                after: rng.below(40),
                times: 1 + rng.below(3),
                why,
            };
            let store = rig.mm.store();
            store.fail_put((rng.below(3) == 0).then_some(plan));
            store.fail_get((rng.below(3) == 0).then_some(plan));
            let at = rng.below(PAGES);
            let n = (1 + rng.below(64)).min(PAGES - at);
            let writes = rng.below(4) == 0;
            match rng.below(3) {
                0 => drop(rig.mm.page_out(rig.space, BASE.add(at), n)),
                _ => {
                    for p in at..at + n {
                        let i = p as usize;
                        let mut bytes = content(p, version[i] + 1);
                        let page = BASE.add(p);
                        if writes && rig.access(page, &mut bytes, true) {
                            version[i] += 1;
                        } else if !writes && rig.access(page, &mut bytes, false) {
                            assert!(bytes == content(p, version[i]), "seed {seed} page {p}");
                        } else {
                            refused += 1;
                        }
                    }
                }
            }
            rig.verify(&(seed, step));
        }
        rig.mm.store().fail_put(None);
        rig.mm.store().fail_get(None);
        for p in 0..PAGES {
            let mut bytes = [0; PAGE_SIZE];
            assert!(rig.access(BASE.add(p), &mut bytes, false));
            assert!(
                bytes == content(p, version[p as usize]),
                "seed {seed} page {p}"
            );
        }
        rig.verify(&(seed, "the end"));
        unchanged += rig.mm.stats().get(Item::SwpoutUnchanged);
        stale += rig.mm.stats().get(Item::SwpoutStale);
    }
    let all = (unchanged, stale, refused);
    assert!(unchanged > 1000 && stale > 100 && refused > 0, "{all:?}");
}

#[test]
fn r98_a_copy_whose_bits_have_flipped_is_replaced_and_not_trusted() {
    let rig = Bench::new(1);
    for p in 0..16 {
        assert!(rig.access(BASE.add(p), &mut content(p, 0), true));
    }
    rig.mm.page_out(rig.space, BASE, 16).unwrap();
    let mut bytes = [0; PAGE_SIZE];
    assert!((0..16).all(|p| rig.access(BASE.add(p), &mut bytes, false)));
    assert_eq!(rig.mm.stats().get(Item::NrSwapcached), 16);
    for slot in 0..16 {
        assert!(
            rig.mm
                .store()
                .inner()
                .corrupt_for_test(deckle_mm::Slot(slot), 99)
        );
    }
    rig.mm.page_out(rig.space, BASE, 16).unwrap();
    assert_eq!(rig.mm.stats().get(Item::SwpoutStale), 16);
    for p in 0..16 {
        assert!(rig.access(BASE.add(p), &mut bytes, false));
        assert!(bytes == content(p, 0), "page {p}");
    }
}

#[test]
fn r98_a_page_that_nobody_asked_for_and_that_cannot_be_read_is_no_error() {
    let rig = Bench::new(1);
    for p in 0..16 {
        assert!(rig.access(BASE.add(p), &mut content(p, 0), true));
    }
    rig.mm.page_out(rig.space, BASE, 16).unwrap();
    assert!(
        rig.mm
            .store()
            .inner()
            .corrupt_for_test(deckle_mm::Slot(11), 99)
    );
    let mut bytes = [0; PAGE_SIZE];
    for p in 0..16 {
        let read = rig.access(BASE.add(p), &mut bytes, false);
        assert_eq!(read, p != 11, "page {p}");
        assert!(!read || bytes == content(p, 0), "page {p}");
    }
    rig.verify(&"read");
}
