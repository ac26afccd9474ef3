//! The scenarios that the kernel's split is tested by: huge pages of zeros, every order that can
//! be asked for, and readers while holes are punched.

use super::common::Rig;
use super::common::hand::{BLOCK, byte_of};
use deckle_mm::{Advice, Item, PAGE_SIZE, Profile, Prot, SplitFlags, Tunables, Vpn};
use deckle_model::{Rng, cpu};

fn rig(cpus: usize, seed: u64) -> Rig {
    Rig::new(64, cpus, seed, true, Tunables::of_profile(Profile::Deckle))
}

#[test]
fn r124_huge_pages_of_zeros_that_are_split_leave_the_resident_set() {
    let rig = rig(1, 1);
    for k in 0..4 {
        let start = rig.huge(k * BLOCK, []);
        // Zeros that were written.
        (0..BLOCK).for_each(|i| rig.write(start.add(i), 0));
    }
    assert_eq!((rig.stat(Item::NrThp), rig.resident()), (4, 4 * BLOCK));
    for k in 0..4 {
        let page = super::common::BASE.add(k * BLOCK + 77);
        let flags = SplitFlags::DROP_ZERO;
        let done = rig.mm.split_page(rig.space, page, 0, flags).unwrap();
        assert_eq!(u64::from(done.dropped), BLOCK);
        assert_eq!(rig.resident(), (3 - k) * BLOCK);
        assert_eq!(rig.mm.resident(rig.space), (3 - k) * BLOCK);
        rig.verify(&k);
    }
    assert_eq!(rig.stat(Item::NrThp), 0);
    for i in 0..4 * BLOCK {
        assert!(rig.holds(super::common::BASE.add(i), 0), "page {i}");
    }
    assert_eq!(rig.resident(), 0);
    rig.verify(&"read");
}

#[test]
fn r96_r102_a_huge_page_is_split_to_every_order_and_keeps_every_byte() {
    for to in [0, 2, 3, 4, 5, 6, 7, 8] {
        // Whole, of which a page has other rights, and of which two parts are gone.
        for shape in ["whole", "entries", "partial"] {
            for flags in [SplitFlags::NONE, SplitFlags::DROP_ZERO] {
                let rig = rig(1, 1);
                let start = rig.huge(0, 0..BLOCK);
                match shape {
                    "entries" => {
                        let done = rig.mm.mprotect(rig.space, start.add(300), 1, Prot::R);
                        done.unwrap();
                    }
                    "partial" => {
                        rig.advise(start.add(64), 64, Advice::DontNeed);
                        rig.advise(start.add(301), 3, Advice::DontNeed);
                    }
                    _ => {}
                }
                let holes = [64..128, 301..304];
                let gone = |i| shape == "partial" && holes.iter().any(|h| h.contains(&i));
                let before = rig.resident();
                let most = |rig: &Rig| {
                    let order = |i| rig.folio_at(start.add(i)).map_or(0, |f| f.order);
                    (0..BLOCK).map(order).max().unwrap()
                };
                for i in 0..BLOCK {
                    let _ = rig.mm.split_page(rig.space, start.add(i), to, flags);
                }
                assert!(most(&rig) <= to, "{shape} to {to}: {}", most(&rig));
                assert_eq!(rig.resident(), before, "{shape} to {to}");
                rig.verify(&(shape, to));
                for i in 0..BLOCK {
                    let byte = if gone(i) { 0 } else { byte_of(i) };
                    assert!(rig.holds(start.add(i), byte), "{shape} to {to}: page {i}");
                }
                rig.verify(&(shape, to));
            }
        }
    }
}

/// Holes: three pages of fifty, not aligned to anything.
const STRIDE: u64 = 50;
const WIDE: u64 = 3;

fn punched(i: u64) -> bool {
    (i + STRIDE - 7) % STRIDE < WIDE
}

/// What a reader finds: its own page whole, or zeros where a hole is punched.
fn look(rig: &Rig, cpu: usize, page: Vpn, i: u64) -> Result<(), String> {
    let mut bytes = [0; PAGE_SIZE];
    while let Err(f) = rig.model.load(cpu, rig.space, page.addr(), &mut bytes) {
        rig.fault(f.page, f.write).unwrap();
    }
    let byte = byte_of(i);
    if bytes.iter().all(|b| *b == byte) {
        return Ok(());
    }
    match bytes == [0; PAGE_SIZE] {
        true if punched(i) => Ok(()),
        true => Err(format!("page {i} is all zeros")),
        false => Err(format!("page {i} is another, or torn: {:?}", &bytes[..4])),
    }
}

#[test]
fn r98_r85_readers_see_their_own_pages_while_holes_split_what_they_read() {
    const READERS: usize = 3;
    for seed in 1..=24 {
        let rig = rig(READERS + 1, seed);
        let pages = 2 * BLOCK;
        let start = rig.huge(0, []);
        rig.huge(BLOCK, []);
        for i in 0..pages {
            let bytes = [byte_of(i); PAGE_SIZE];
            let page = start.add(i);
            while let Err(f) = rig.model.store(0, rig.space, page.addr(), &bytes) {
                rig.fault(f.page, f.write).unwrap();
            }
        }
        let m = &rig;
        let mut jobs = Vec::new();
        for reader in 0..READERS {
            jobs.push(cpu(move || {
                let mut rng = Rng::new(seed << 8 | reader as u64);
                for _ in 0..400 {
                    let i = rng.below(pages);
                    look(m, reader, start.add(i), i).unwrap_or_else(|e| panic!("{seed}: {e}"));
                }
            }));
        }
        jobs.push(cpu(move || {
            let mut rng = Rng::new(seed);
            for i in (0..pages).filter(|i| punched(*i) && !punched(i.wrapping_sub(1))) {
                let n = WIDE.min(pages - i);
                m.mm.madvise(m.space, start.add(i), n, Advice::DontNeed)
                    .unwrap();
                let to = [0, 2, 4, 8][rng.below(4) as usize];
                let page = start.add(rng.below(pages));
                let _ = m.mm.split_page(m.space, page, to, SplitFlags::DROP_ZERO);
            }
        }));
        rig.machine
            .run(jobs)
            .unwrap_or_else(|e| panic!("{seed}: {e}"));
        rig.verify(&seed);
        for i in 0..pages {
            match punched(i) {
                true => assert!(rig.holds(start.add(i), 0), "{seed}: page {i}"),
                false => look(&rig, 0, start.add(i), i).unwrap(),
            }
        }
        assert_eq!(rig.stat(Item::NrThp), 0);
        rig.verify(&seed);
    }
}
