//! How large the folios of faults are, and what that costs.

use super::common::{BASE, Rig, WINDOW};
use deckle_mm::{
    FaultMode, FaultOrder, Item, Profile, Prot, SizeItem, SizeMode, Sizes, ThpMode, Tunables, Vpn,
};

fn auto() -> Tunables {
    Tunables {
        fault_order: FaultOrder::Auto,
        ..Tunables::of_profile(Profile::Deckle)
    }
}

fn base_pages() -> Tunables {
    Tunables {
        sizes: Sizes::NEVER,
        ..auto()
    }
}

/// Writes to every `stride`-th page of the window; how many faults that took and how many
/// pages are resident then.
fn touch(t: Tunables, stride: usize) -> (u64, u64) {
    let rig = Rig::new(64, 1, 1, false, t);
    rig.mm
        .mmap(rig.space, Some(BASE), WINDOW, 1, Prot::RW)
        .unwrap();
    for page in (0..WINDOW).step_by(stride) {
        let addr = BASE.add(page).addr();
        while let Err(f) = rig.model.store(0, rig.space, addr, &[1]) {
            rig.mm
                .fault(rig.space, f.page, f.write, FaultMode::NoWait)
                .unwrap();
        }
    }
    rig.verify(&"touching");
    let stats = rig.mm.stats();
    (stats.get(Item::Pgfault), stats.get(Item::NrAnon))
}

#[test]
fn r47_one_touch_in_64_kib_costs_one_page_where_the_order_adapts() {
    let (_, base) = touch(base_pages(), 16);
    assert_eq!(base, WINDOW / 16);
    let madvise = Tunables {
        thp: ThpMode::Madvise,
        fault_order: FaultOrder::Fixed,
        ..Tunables::of_profile(Profile::Deckle)
    };
    let (_, fixed) = touch(madvise, 16);
    assert_eq!(fixed, 16 * base, "64 KiB for each");
    let (_, adaptive) = touch(auto(), 16);
    // Each stands alone, and such a fault gets one page.
    assert_eq!(adaptive, base);
}

#[test]
fn r32_r48_a_sequence_is_filled_by_ever_larger_folios() {
    let (base, pages) = touch(base_pages(), 1);
    assert_eq!((base, pages), (WINDOW, WINDOW));
    let madvise = Tunables {
        thp: ThpMode::Madvise,
        fault_order: FaultOrder::Fixed,
        ..Tunables::of_profile(Profile::Deckle)
    };
    assert_eq!(touch(madvise, 1), (WINDOW / 16, WINDOW));
    // Eight pages alone, and six folios of four; then four of each next size, until the stream is
    // four blocks long. Each of the 20 other blocks takes one fault.
    let (faults, pages) = touch(auto(), 1);
    assert_eq!(pages, WINDOW);
    assert_eq!(faults, 8 + 6 + 4 * 6 + 20);
    // Without huge pages the cap of 64 KiB holds, whatever the faults show.
    let capped = Tunables {
        thp: ThpMode::Madvise,
        ..auto()
    };
    let (faults, _) = touch(capped, 1);
    // 64 pages are there when the first folio of 64 KiB comes.
    assert_eq!(faults, 8 + 6 + 4 + (WINDOW - 64) / 16);
}

#[test]
fn r45_a_charge_that_fails_gets_a_smaller_folio_not_an_end() {
    let fixed = Tunables {
        fault_order: FaultOrder::Fixed,
        ..Tunables::of_profile(Profile::Deckle)
    };
    let rig = Rig::new(64, 1, 1, false, fixed);
    rig.charge.set_max(300);
    rig.mm
        .mmap(rig.space, Some(BASE), WINDOW, 1, Prot::RW)
        .unwrap();
    let fault = |page: Vpn| rig.mm.fault(rig.space, page, true, FaultMode::MayWait);
    fault(BASE).unwrap();
    let stats = rig.mm.stats();
    assert_eq!(stats.get(Item::ThpFaultFallbackCharge), 1);
    assert_eq!(stats.get(Item::NrAnon), 16, "64 KiB instead of 2 MiB");
    assert_eq!(stats.get(Item::OomKill), 0);
    rig.verify(&"a fault at the limit");
}

#[test]
fn r42_r44_a_fault_tries_as_many_sizes_as_the_knob_says() {
    for attempts in 0..=9u8 {
        let sizes = (2..=9).fold(Sizes::NEVER, |s, o| s.with(o, SizeMode::Always));
        let t = Tunables {
            sizes,
            fault_attempts: attempts,
            fault_max: 1 << 20,
            ..Tunables::of_profile(Profile::Deckle)
        };
        let rig = Rig::new(64, 1, 1, false, t);
        // Only a page can be charged.
        rig.charge.set_max(3);
        let start = rig.mmap(0, 512);
        rig.fault(start.add(77), true).unwrap();
        assert_eq!(rig.folio(start.add(77)).order, 0);
        let tried = |o: u8| rig.mm.stats().size(o, SizeItem::AnonFaultFallback);
        let all: Vec<u8> = (2..=9).rev().filter(|o| tried(*o) > 0).collect();
        // The first is the window's own; there are eight sizes. The last is the smallest.
        let want = usize::from(attempts.clamp(1, 8));
        assert_eq!(all.len(), want, "{attempts}: {all:?}");
        assert!((2..=9).all(|o| tried(o) <= 1));
        assert_eq!(all[0], 9);
        assert!(want == 1 || all[want - 1] == 2, "{attempts}: {all:?}");
        rig.verify(&attempts);
    }
}
