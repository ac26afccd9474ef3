//! The matrix that copy on write of the kernel is tested by: what a page is when a program forks,
//! times what the two sides do then. Nobody sees what the other wrote after the fork, and what is
//! pinned stays the page of who pinned it.

use crate::cow::machine::{BASE, Bare};
use deckle_mm::space::remap::Remap;
use deckle_mm::table::vma::OnFork;
use deckle_mm::{FaultOrder, Prot, Sizes, SpaceId, Tunables, Vpn};

/// Pages that are looked at, of a block.
const PAGES: [u64; 6] = [0, 1, 15, 255, 256, 511];

#[derive(Clone, Copy, PartialEq, Debug)]
enum State {
    Base,
    Huge,
    /// A table of entries over a huge page.
    HugeTable,
    /// One page of a huge page is left.
    SinglePage,
    /// The lower half of a huge page is left.
    HalfMapped,
    /// A part of it was moved away and back.
    Moved,
    /// The child has only one half.
    HalfForked,
    /// Small pages that were collapsed before the fork, or are by the parent after it, when all
    /// of it is shared, or only the lower or the upper half.
    CollapsedBefore,
    CollapsedAfter,
    CollapsedLower,
    CollapsedUpper,
}

const STATES: [State; 11] = [
    State::Base,
    State::Huge,
    State::HugeTable,
    State::SinglePage,
    State::HalfMapped,
    State::Moved,
    State::HalfForked,
    State::CollapsedBefore,
    State::CollapsedAfter,
    State::CollapsedLower,
    State::CollapsedUpper,
];

#[derive(Clone, Copy, PartialEq, Debug)]
enum Act {
    ParentWrites,
    ChildWrites,
    /// The same after rights that went and came: no writable page may come of that.
    ParentWritesAfterMprotect,
    ChildWritesAfterMprotect,
    /// The child reads for a device, and gives its pages up.
    PinInChild,
    /// The parent does, while its pages are shared; then it writes.
    PinInParent,
    /// It has pinned a page before the fork.
    PinBefore,
}

const ACTS: [Act; 7] = [
    Act::ParentWrites,
    Act::ChildWrites,
    Act::ParentWritesAfterMprotect,
    Act::ChildWritesAfterMprotect,
    Act::PinInChild,
    Act::PinInParent,
    Act::PinBefore,
];

fn page(i: u64) -> Vpn {
    BASE.add(i)
}

fn byte(i: u64) -> u8 {
    1 + (i % 200) as u8
}

/// Machine, block, and the pages of it that both sides have.
fn set_up(state: State, swapped: bool) -> (Bare, Vec<u64>) {
    let small = [
        State::Base,
        State::CollapsedBefore,
        State::CollapsedAfter,
        State::CollapsedLower,
        State::CollapsedUpper,
    ];
    let on = Tunables {
        fault_order: FaultOrder::Fixed,
        max_ptes_none: 511,
        max_ptes_shared: 511,
        max_ptes_swap: 511,
        ..Default::default()
    };
    let t = match small.contains(&state) {
        true => Tunables {
            sizes: Sizes::NEVER,
            ..on
        },
        false => on,
    };
    let m = Bare::new(32, 1, 1, true, t);
    m.map(0, 512);
    (0..512).for_each(|i| m.write(m.space, page(i), byte(i)));
    m.mm.set_tunables(on).unwrap();
    let mut pages = PAGES.to_vec();
    let mm = &m.mm;
    match state {
        State::Base | State::Huge => {}
        State::HugeTable => {
            // What is pinned is not split.
            let pin = mm.pin(m.space, page(200), true).unwrap();
            mm.mprotect(m.space, page(0), 1, Prot::R).unwrap();
            mm.mprotect(m.space, page(0), 1, Prot::RW).unwrap();
            mm.unpin(pin);
            assert_eq!(mm.folio_at(m.space, page(9)).unwrap().order, 9);
            assert!(!m.model.translation(m.space, page(9)).unwrap().huge);
        }
        State::SinglePage => {
            mm.munmap(m.space, page(1), 511).unwrap();
            pages.truncate(1);
        }
        State::HalfMapped => {
            mm.munmap(m.space, page(256), 256).unwrap();
            pages.truncate(4);
        }
        State::Moved => {
            for (from, to) in [(100, 700), (700, 100)] {
                let to = Remap::Fixed(page(to));
                mm.mremap(m.space, page(from), 300, 300, to).unwrap();
            }
        }
        State::HalfForked => {
            mm.advise_fork(m.space, page(256), 256, OnFork::Leave)
                .unwrap();
            pages.truncate(4);
        }
        State::CollapsedBefore => mm.collapse(m.space, page(0)).unwrap(),
        // The other half is the parent's alone.
        State::CollapsedLower => {
            mm.advise_fork(m.space, page(256), 256, OnFork::Leave)
                .unwrap();
            pages.truncate(4);
        }
        State::CollapsedUpper => {
            mm.advise_fork(m.space, page(0), 256, OnFork::Leave)
                .unwrap();
            pages.drain(..4);
        }
        State::CollapsedAfter => {}
    }
    if swapped {
        mm.page_out(m.space, page(0), 512).unwrap();
    }
    m.verify(&(state, swapped));
    (m, pages)
}

/// After the fork, where the parent collapses.
fn after_fork(m: &Bare, state: State) {
    let whole = m.mm.mapped_parts(m.space, page(0), 512);
    match state {
        State::CollapsedAfter => {
            // All but one page is the most that may be shared, or stored.
            m.write(m.space, page(300), byte(300));
            m.mm.collapse(m.space, page(0)).unwrap();
        }
        State::CollapsedLower | State::CollapsedUpper => {
            for v in whole {
                let both = m.mm.advise_fork(m.space, v.start, v.pages, OnFork::Copy);
                both.unwrap();
            }
            m.write(m.space, page(300), byte(300));
            m.mm.collapse(m.space, page(0)).unwrap();
        }
        _ => {}
    }
    m.verify(&state);
}

fn rights_go_and_come(m: &Bare, id: SpaceId) {
    for prot in [Prot::R, Prot::RW] {
        for v in m.mm.mapped_parts(id, page(0), 512) {
            m.mm.mprotect(id, v.start, v.pages, prot).unwrap();
        }
    }
}

fn run(state: State, swapped: bool, act: Act) {
    let (m, pages) = set_up(state, swapped);
    let case = (state, swapped, act);
    let before = match act {
        Act::PinBefore => {
            let pin = m.mm.pin(m.space, page(pages[0]), true).unwrap();
            Some((pages[0], pin))
        }
        _ => None,
    };
    let child = m.mm.fork(m.space).unwrap();
    m.verify(&(case, "fork"));
    if before.is_none() {
        after_fork(&m, state);
    }
    let written = |i: u64| byte(i).wrapping_add(40);
    let writes = |id: SpaceId, other: SpaceId| {
        for &i in &pages {
            m.write(id, page(i), written(i));
            m.verify(&(case, i));
            assert_eq!(
                m.read(other, page(i))[0],
                byte(i),
                "{case:?}: page {i} leaks"
            );
            assert_eq!(m.read(id, page(i))[0], written(i), "{case:?}: page {i}");
        }
    };
    match act {
        Act::ParentWrites => writes(m.space, child),
        Act::ChildWrites => writes(child, m.space),
        Act::ParentWritesAfterMprotect => {
            rights_go_and_come(&m, m.space);
            writes(m.space, child);
        }
        Act::ChildWritesAfterMprotect => {
            rights_go_and_come(&m, child);
            writes(child, m.space);
        }
        Act::PinInChild => {
            let pins = pages.iter().map(|&i| m.mm.pin(child, page(i), false));
            let pins: Vec<_> = pins.map(Result::unwrap).collect();
            m.mm.munmap(child, page(0), 512).unwrap();
            for (&i, pin) in pages.iter().zip(&pins) {
                m.write(m.space, page(i), written(i));
                let seen = m.model.frame_bytes(pin.frame())[0];
                assert_eq!(seen, byte(i), "{case:?}: page {i} leaks to a pin");
            }
            m.verify(&case);
            pins.into_iter().for_each(|pin| m.mm.unpin(pin));
        }
        Act::PinInParent | Act::PinBefore => {
            let pins: Vec<_> = match before {
                Some(pin) => vec![pin],
                None => (pages.iter())
                    .map(|&i| (i, m.mm.pin(m.space, page(i), false).unwrap()))
                    .collect(),
            };
            for (i, pin) in &pins {
                m.write(m.space, page(*i), written(*i));
                let seen = m.model.frame_bytes(pin.frame())[0];
                assert_eq!(seen, written(*i), "{case:?}: page {i} was replaced");
                assert_eq!(m.read(child, page(*i))[0], byte(*i), "{case:?}: page {i}");
            }
            m.verify(&case);
            pins.into_iter().for_each(|(_, pin)| m.mm.unpin(pin));
        }
    }
    m.verify(&case);
    for id in [child, m.space] {
        m.mm.destroy_space(id).unwrap();
        m.verify(&(case, "the end"));
    }
    assert!(m.model.used_frames().is_empty(), "{case:?}");
}

#[test]
fn r79_r80_no_side_of_a_fork_sees_the_others_writes_whatever_the_page_was() {
    for state in STATES {
        for swapped in [false, true] {
            ACTS.into_iter().for_each(|act| run(state, swapped, act));
        }
    }
}
