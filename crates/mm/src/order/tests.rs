//! The policy against its requirements, the window against brute force.

use super::*;
use crate::Profile;
use crate::platform::Prot;
use crate::sizes::{SizeMode, Sizes, order_of_bytes};
use crate::table::block::{BlockState, Table};
use crate::table::entry::{Entry, Kind};
use crate::units::{BLOCK_PAGES, Pfn, Slot, Vpn, order_pages};
use alloc::vec::Vec;

const BASE: u64 = 64 * BLOCK_PAGES as u64;

fn vma(start: u64, pages: u64, advice: ThpAdvice) -> Vma {
    Vma {
        start: Vpn(start),
        pages,
        prot: Prot::RW,
        advice,
        locked: false,
        uffd_missing: false,
        uffd_wp: false,
        on_fork: Default::default(),
        touched: false,
        shift: 0,
        whole: false,
        soft_dirty: true,
    }
}

fn block_vma(advice: ThpAdvice) -> Vma {
    vma(BASE, 4 * u64::from(BLOCK_PAGES), advice)
}

fn deckle() -> Tunables {
    Tunables {
        fault_order: FaultOrder::Fixed,
        ..Tunables::of_profile(Profile::Deckle)
    }
}

/// Every size on, one cap for all VMAs.
fn every_size(bytes: u32) -> Tunables {
    let sizes = (LEAST_ORDER..=BLOCK_ORDER).fold(Sizes::NEVER, |s, o| s.with(o, SizeMode::Always));
    Tunables {
        sizes,
        fault_max: bytes,
        fault_max_advised: bytes,
        ..deckle()
    }
}

/// Small numbers from a seed (splitmix64).
struct Rng(u64);

impl Rng {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (x ^ (x >> 31)) % n
    }
}

fn kind_of(n: u64) -> Kind {
    match n {
        0 => Kind::Mapped(Pfn(1)),
        1 => Kind::Inactive(Pfn(1)),
        2 => Kind::Swapped(Slot(1)),
        3 => Kind::Busy,
        4 => Kind::Zero {
            mapped: true,
            dropped: false,
        },
        _ => Kind::Zero {
            mapped: false,
            dropped: true,
        },
    }
}

fn table(entries: &[(u32, Kind)]) -> BlockState {
    let mut state = BlockState::Empty;
    if let Some(table) = state.table() {
        fill(table, entries);
    }
    state
}

fn fill(table: &mut Table, entries: &[(u32, Kind)]) {
    for (i, kind) in entries {
        table.set(*i, Entry::new(*kind, Prot::RW, false));
    }
}

#[test]
fn r32_the_cap_of_other_vmas_is_64_kib_and_given_in_bytes() {
    // Linux has no such cap: what is enabled is taken.
    for (t, order) in [(deckle(), 4), (Tunables::of_profile(Profile::Linux), 9)] {
        assert_eq!(t.fault_max, 4096 << order);
        assert_eq!(order_of_bytes(t.fault_max), order);
    }
    let t = Tunables {
        thp: ThpMode::Madvise,
        ..deckle()
    };
    let w = window(
        &t,
        &block_vma(ThpAdvice::None),
        &BlockState::Empty,
        Vpn(BASE + 37),
        9,
    );
    assert_eq!((w.start, w.order), (Vpn(BASE + 32), 4));
    for (bytes, order) in [
        (0, 0),
        (4096, 0),
        (8192, 0),
        (16384, 2),
        (65535, 3),
        (1 << 20, 8),
    ] {
        assert_eq!(order_of_bytes(bytes), order, "{bytes}");
        let t = Tunables {
            fault_max: bytes,
            ..every_size(bytes)
        };
        let t = Tunables {
            thp: ThpMode::Never,
            sizes: t.sizes.with(9, SizeMode::Never),
            ..t
        };
        let w = window(
            &t,
            &block_vma(ThpAdvice::None),
            &BlockState::Empty,
            Vpn(BASE + 37),
            9,
        );
        assert_eq!(w.order, order, "{bytes}");
    }
}

#[test]
fn r33_huge_advised_vmas_have_a_cap_of_their_own() {
    let t = Tunables {
        thp: ThpMode::Madvise,
        fault_max: 16 << 10,
        fault_max_advised: 256 << 10,
        sizes: deckle().sizes.with(9, SizeMode::Never),
        ..deckle()
    };
    let order = |advice| window(&t, &block_vma(advice), &BlockState::Empty, Vpn(BASE + 5), 9).order;
    assert_eq!(order(ThpAdvice::None), 2);
    assert_eq!(order(ThpAdvice::Huge), 6);
}

#[test]
fn r34_no_cap_passes_the_huge_size() {
    assert_eq!(order_of_bytes(u32::MAX), BLOCK_ORDER);
    for bytes in [(2 << 20) + 1, u32::MAX] {
        let t = Tunables {
            fault_max: bytes,
            ..deckle()
        };
        assert!(t.validate().is_err(), "{bytes}");
        let t = Tunables {
            fault_max_advised: bytes,
            ..deckle()
        };
        assert!(t.validate().is_err(), "{bytes}");
    }
}

#[test]
fn r35_without_any_size_every_fault_gets_one_page() {
    let off = Tunables {
        sizes: Sizes::NEVER,
        ..deckle()
    };
    for advice in [ThpAdvice::None, ThpAdvice::Huge, ThpAdvice::NoHuge] {
        for page in [0, 1, 511, 600] {
            let w = window(
                &off,
                &block_vma(advice),
                &BlockState::Empty,
                Vpn(BASE + page),
                9,
            );
            assert_eq!((w.start, w.order), (Vpn(BASE + page), 0));
        }
    }
    // As the kernel has it, the advice against huge pages is one against every large size.
    let sizes = every_size(2 << 20).sizes;
    for profile in [Profile::Linux, Profile::Deckle] {
        let t = Tunables {
            sizes,
            ..Tunables::of_profile(profile)
        };
        let vma = block_vma(ThpAdvice::NoHuge);
        let w = window(&t, &vma, &BlockState::Empty, Vpn(BASE), 9);
        assert_eq!(w.order, 0);
    }
}

#[test]
fn r36_order_1_is_never_chosen_and_has_no_knob() {
    assert_eq!(Sizes::NEVER.with(1, SizeMode::Always), Sizes::NEVER);
    let t = every_size(8 << 10);
    let t = Tunables {
        sizes: t.sizes.with(9, SizeMode::Never),
        ..t
    };
    let w = window(
        &t,
        &block_vma(ThpAdvice::None),
        &BlockState::Empty,
        Vpn(BASE + 2),
        9,
    );
    assert_eq!(w.order, 0);
    // Room for two pages and no more.
    let state = table(&[(1, Kind::Mapped(Pfn(1))), (4, Kind::Mapped(Pfn(1)))]);
    let w = window(
        &every_size(2 << 20),
        &block_vma(ThpAdvice::None),
        &state,
        Vpn(BASE + 2),
        9,
    );
    assert_eq!(w.order, 0);
}

#[test]
fn r37_r38_r39_r40_r41_the_window_is_the_largest_that_brute_force_finds() {
    let mut rng = Rng(1);
    for round in 0..20_000 {
        let mut t = every_size(4096 << rng.below(10));
        if rng.below(2) == 0 {
            t.profile = Profile::Linux;
        }
        for order in LEAST_ORDER..=BLOCK_ORDER {
            if rng.below(4) == 0 {
                t.sizes = t.sizes.with(order, SizeMode::Never);
            }
        }
        let pages = u64::from(BLOCK_PAGES);
        let from = BASE + rng.below(pages);
        let end = from + 1 + rng.below(BASE + 2 * pages - from);
        let vma = vma(from, end - from, ThpAdvice::None);
        let page = Vpn(from + rng.below(end - from));
        let filled = rng.below(12);
        let mut others: Vec<(u32, Kind)> = (0..filled)
            .map(|_| (rng.below(pages) as u32, kind_of(rng.below(6))))
            .collect();
        others.retain(|(i, _)| *i != page.index());
        let state = table(&others);
        let cap = rng.below(10) as u8;
        let w = window(&t, &vma, &state, page, cap);
        // Of every order, large ones first: is its aligned window inside the VMA, and does
        // every other page of it allow it?
        let largest = order_of_bytes(t.fault_max).min(BLOCK_ORDER - 1);
        let free = |i: u32| match state.entry(i).kind() {
            Kind::None => true,
            Kind::Zero { dropped, .. } => t.profile == Profile::Deckle && !dropped,
            _ => false,
        };
        let whole = t.profile == Profile::Deckle || matches!(state, BlockState::Empty);
        let want = (LEAST_ORDER..=cap).rev().find(|order| {
            let n = u64::from(order_pages(*order));
            let start = page.0 / n * n;
            (*order <= largest || *order == BLOCK_ORDER && whole)
                && t.sizes.get(*order) == SizeMode::Always
                && start >= vma.start.0
                && start + n <= end
                && (start..start + n).all(|p| p == page.0 || free(Vpn(p).index()))
        });
        assert_eq!(w, Window::around(page, want.unwrap_or(0)), "round {round}");
        assert_eq!(w.start.block(), page.block());
        assert_eq!(w.start.0 % u64::from(order_pages(w.order)), 0);
    }
}

#[test]
fn r42_r44_a_failure_goes_down_the_orders_and_a_knob_bounds_the_attempts() {
    let v = block_vma(ThpAdvice::None);
    let chain = |t: &Tunables, from: u8| -> Vec<u8> {
        let mut tried = 0;
        let mut orders = Vec::from([from]);
        while let Some(&order) = orders.last().filter(|o| **o > 0) {
            tried += 1;
            orders.push(lower(t, &v, order, tried));
        }
        orders
    };
    assert_eq!(chain(&deckle(), 9), [9, 4, 2, 0]);
    assert_eq!(chain(&deckle(), 4), [4, 3, 2, 0]);
    let all = Tunables {
        fault_attempts: 9,
        ..every_size(1 << 20)
    };
    assert_eq!(chain(&all, 9), [9, 8, 7, 6, 5, 4, 3, 2, 0]);
    for attempts in 0..=9 {
        let t = Tunables {
            fault_attempts: attempts,
            ..all
        };
        // The first attempt is the window's own.
        assert!(
            chain(&t, 9).len() <= usize::from(attempts.max(1)) + 1,
            "{attempts}"
        );
        let off = Tunables {
            sizes: t.sizes.with(4, SizeMode::Never),
            ..t
        };
        assert!(!chain(&off, 9).contains(&4));
    }
    assert_eq!(chain(&Tunables::of_profile(Profile::Linux), 9), [9, 0]);
}

#[test]
fn r46_a_huge_advised_vma_gets_the_huge_size_at_its_first_fault() {
    for fault_order in [FaultOrder::Fixed, FaultOrder::Auto] {
        let t = Tunables {
            thp: ThpMode::Madvise,
            fault_order,
            ..deckle()
        };
        let w = window(
            &t,
            &block_vma(ThpAdvice::Huge),
            &BlockState::Empty,
            Vpn(BASE + 77),
            9,
        );
        assert_eq!((w.start, w.order), (Vpn(BASE), BLOCK_ORDER));
    }
}

/// A fault on `page`, served as the adaptive order says; the order.
fn adaptive(adapt: &Adapt, vma: u64, page: u64) -> u8 {
    let none = Beside::default();
    let order = adapt.cap(Vpn(vma), Vpn(page), none);
    adapt.note(Vpn(vma), Vpn(page), Window::around(Vpn(page), order), none);
    order
}

/// Orders of faults in sequence from `page` on, until `count` pages are filled.
fn filled(adapt: &Adapt, vma: u64, from: u64, count: u64) -> Vec<u8> {
    let (mut page, mut orders) = (from, Vec::new());
    while page < from + count {
        let order = adaptive(adapt, vma, page);
        page = Window::around(Vpn(page), order).start.0 + u64::from(order_pages(order));
        orders.push(order);
    }
    orders
}

#[test]
fn r48_a_sequence_raises_the_order_as_it_grows() {
    let adapt = Adapt::default();
    let block = u64::from(BLOCK_PAGES);
    let orders = filled(&adapt, BASE, BASE, 8 * block);
    let repeat = |order, times| core::iter::repeat_n(order, times);
    let mut want: Vec<u8> = repeat(0, 8).chain(repeat(2, 6)).collect();
    want.extend((3..=8).flat_map(|order| repeat(order, 4)));
    want.extend(repeat(9, 4));
    assert_eq!(orders, want);
    // No folio has more than half of what the stream has then.
    let mut had = 0;
    for order in orders {
        let more = u64::from(order_pages(order));
        assert!(more <= (had / 2).max(1), "{more} pages after {had}");
        had += more;
    }
    // Downwards, too.
    let (mut page, mut down) = (BASE - 1, Vec::new());
    let adapt = Adapt::default();
    while down.len() < want.len() {
        let order = adaptive(&adapt, BASE, page);
        page = Window::around(Vpn(page), order).start.0 - 1;
        down.push(order);
    }
    assert_eq!(down, want);
}

#[test]
fn r48_what_stands_alone_is_one_page_also_beside_a_sequence() {
    let adapt = Adapt::default();
    let block = u64::from(BLOCK_PAGES);
    let mut rng = Rng(7);
    let mut at = BASE;
    for _ in 0..2000 {
        let order = adaptive(&adapt, BASE, at);
        at = Window::around(Vpn(at), order).start.0 + u64::from(order_pages(order));
        // Somewhere else, not next to anything.
        let alone = BASE + 10_000 * block + rng.below(100_000) * 3;
        let order = adaptive(&adapt, BASE, alone);
        assert!(order <= 3, "order {order} alone");
    }
    assert_eq!(adaptive(&adapt, BASE, at), BLOCK_ORDER);
    // Another VMA knows nothing of it.
    assert_eq!(
        adapt.cap(Vpn(BASE + 9 * block), Vpn(at), Beside::default()),
        0
    );
}

#[test]
fn r48_first_faults_earn_what_streams_come_to_and_lose_it() {
    let adapt = Adapt::default();
    let block = u64::from(BLOCK_PAGES);
    let firsts: Vec<u8> = (0..5)
        .map(|_| filled(&adapt, BASE, BASE, 8 * block)[0])
        .collect();
    assert_eq!(firsts, [0, 3, 6, 9, 9], "the same mapping, again and again");
    // Touched once each time: what malloc does with a page of its own.
    let alone: Vec<u8> = (0..5).map(|_| adaptive(&adapt, BASE, BASE)).collect();
    assert_eq!(alone[0], 9);
    let far: Vec<u8> = (1..30)
        .map(|n| adaptive(&adapt, BASE, BASE + n * 1000 * block))
        .collect();
    assert_eq!(far.last(), Some(&0), "{far:?}");
}

#[test]
fn r48_streams_side_by_side_grow_each_by_itself() {
    let adapt = Adapt::default();
    let mut at: Vec<u64> = (1..=8).map(|n| BASE + n * 1_000_000 / 512 * 512).collect();
    let mut orders = Vec::new();
    // They grow four times as slowly as one that is alone.
    for _ in 0..200 {
        for page in &mut at {
            let order = adaptive(&adapt, BASE, *page);
            *page = Window::around(Vpn(*page), order).start.0 + u64::from(order_pages(order));
            orders.push(order);
        }
    }
    assert!(
        orders[orders.len() - 8..].iter().all(|o| *o == BLOCK_ORDER),
        "{orders:?}"
    );
}
