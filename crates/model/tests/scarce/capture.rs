//! Page capture inside of the whole manager: who captures, and what.

use super::common::{BASE, Rig, WINDOW};
use deckle_mm::frame::{CapturePolicy, CaptureStats, Cpuset, NodeMask, Watermarks};
use deckle_mm::{
    Advice, Charge, FaultError, FaultMode, Item, Machine, Placement, Profile, Prot, Served, Site,
    ThpMode, Tunables, Vpn,
};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

const BLOCK: u64 = 512;

/// A machine of four blocks, swap, and huge pages for who asks for them.
fn rig() -> Rig {
    rig_of(1, 7)
}

fn rig_of(cpus: usize, seed: u64) -> Rig {
    let t = Tunables {
        thp: ThpMode::Madvise,
        ..Tunables::of_profile(Profile::Linux)
    };
    let t = Tunables {
        max_ptes_none: 409,
        ..t
    };
    Rig::new(8, cpus, seed, true, t)
}

fn map(rig: &Rig, block: u64, blocks: u64, advice: Advice) -> Vpn {
    let (at, pages) = (BASE.add(block * BLOCK), blocks * BLOCK);
    rig.mm
        .mmap(rig.space, Some(at), pages, 1, Prot::RW)
        .unwrap();
    rig.mm.madvise(rig.space, at, pages, advice).unwrap();
    at
}

/// Writes one byte, as a program would.
fn touch(rig: &Rig, page: Vpn) -> Result<(), FaultError> {
    while let Err(f) = rig.model.store(0, rig.space, page.addr(), &[0xa5]) {
        rig.mm
            .fault(rig.space, f.page, f.write, FaultMode::MayWait)?;
    }
    Ok(())
}

/// Fills memory but for `left` frames: two huge pages with 41 pages touched in each, the rest
/// single pages.
fn fill(rig: &Rig, left: u64) {
    let huge = map(rig, 0, 2, Advice::HugePage);
    for k in 0..2 * 41 {
        touch(rig, huge.add(k / 41 * BLOCK + k % 41 * 12)).unwrap();
    }
    let small = map(rig, 2, 2, Advice::NoHugePage);
    (0..2 * BLOCK - left).for_each(|k| touch(rig, small.add(k)).unwrap());
    assert_eq!(rig.mm.stats().get(Item::NrThp), 2);
    assert_eq!(rig.mm.stats().get(Item::ThpUnderusedSplitPage), 0);
    rig.verify(&"filling");
}

#[test]
fn r144_r19_the_block_that_a_shatter_gives_back_is_captured() {
    let rig = rig();
    // Room for the copies of what is in use, so that the block stays whole.
    fill(&rig, 100);
    let wanted = map(&rig, 8, 1, Advice::HugePage);
    let served = rig.mm.fault(rig.space, wanted, true, FaultMode::MayWait);
    assert_eq!(served.unwrap(), Served::Mapped(512));
    let stats = rig.mm.capture_stats();
    assert_eq!((stats.begun, stats.successes, stats.now), (1, 1, 0));
    assert!(stats.own >= BLOCK, "{stats:?}");
    assert!(rig.mm.stats().get(Item::ThpUnderusedSplitPage) > 0);
    assert_eq!(rig.mm.stats().get(Item::Allocstall), 1);
    touch(&rig, wanted).unwrap();
    rig.verify(&"capturing");
}

#[test]
fn r5_r22_a_captured_block_is_refused_where_the_marks_forbid_it() {
    let rig = rig();
    fill(&rig, 100);
    rig.mm.set_watermarks(Watermarks {
        min: 4 * BLOCK,
        low: 4 * BLOCK,
        high: 4 * BLOCK,
    });
    let wanted = map(&rig, 8, 1, Advice::HugePage);
    let served = rig.mm.fault(rig.space, wanted, true, FaultMode::MayWait);
    assert_ne!(served.unwrap(), Served::Mapped(512));
    let stats = rig.mm.capture_stats();
    assert_eq!((stats.successes, stats.now), (0, 0));
    assert!(stats.refused > 0, "{stats:?}");
    let counted = [Item::CaptureBegin, Item::CaptureSuccess, Item::CapturePages];
    let pages = stats.own + stats.absorbed + stats.joined;
    let counted = counted.map(|item| rig.mm.stats().get(item));
    assert_eq!(counted, [stats.begun, 0, pages]);
    touch(&rig, wanted).unwrap();
    rig.verify(&"refused");
}

/// No block is handed out, so that round follows round. One is for 512 pages: before the last
/// folio that it takes it has 511 at most, and that one has 512 at most. With them go the frames
/// that were free.
#[test]
fn r28_no_more_is_captured_at_once_than_one_round_frees() {
    let rig = rig();
    let free = 100;
    fill(&rig, free);
    let marks = 4 * BLOCK;
    rig.mm.set_watermarks(Watermarks {
        min: marks,
        low: marks,
        high: marks,
    });
    let wanted = map(&rig, 8, 1, Advice::HugePage);
    let served = rig.mm.fault(rig.space, wanted, true, FaultMode::MayWait);
    assert_ne!(served.unwrap(), Served::Mapped(512));
    let stats = rig.mm.capture_stats();
    assert!(
        stats.peak > 0 && stats.peak <= 511 + 512 + free,
        "{stats:?}"
    );
    assert!(stats.own > stats.peak, "one round alone: {stats:?}");
    assert_eq!(stats.now, 0);
    rig.verify(&"rounds");
}

#[test]
fn r144_r31_r8_frames_that_the_splitter_frees_are_captured() {
    let rig = rig();
    // No room for copies: the huge pages are split where they are, and the 471 empty frames
    // of each are freed by the splitter, one batch. They had an owner: it was cleared, or the
    // release check had refused them.
    fill(&rig, 0);
    let wanted = map(&rig, 8, 1, Advice::HugePage);
    let served = rig.mm.fault(rig.space, wanted, true, FaultMode::MayWait);
    assert!(served.is_ok(), "{served:?}");
    let stats = rig.mm.capture_stats();
    assert_eq!((stats.begun, stats.now), (1, 0));
    assert!(stats.own >= 471, "{stats:?}");
    assert!(stats.peak >= 471, "{stats:?}");
    assert_eq!(
        stats.own + stats.absorbed + stats.joined,
        stats.taken + stats.returned
    );
    assert!(rig.mm.stats().get(Item::ThpSplitFree) >= 471);
    rig.verify(&"capturing");
}

#[test]
fn r9_a_list_of_pages_is_uncharged_in_one_call() {
    // Single pages that are unmapped: one call for each block.
    let rig = rig();
    let small = map(&rig, 2, 2, Advice::NoHugePage);
    (0..600).for_each(|k| touch(&rig, small.add(k)).unwrap());
    let (usage, calls) = (rig.charge.usage(), rig.charge.uncharges());
    rig.mm.munmap(rig.space, small, 2 * BLOCK).unwrap();
    assert_eq!(usage - rig.charge.usage(), 600);
    assert_eq!(rig.charge.uncharges() - calls, 2);
    rig.verify(&"unmapping");
    // What the splitter frees: one call for each of two huge pages. The others are for the single
    // pages that are reclaimed beside them.
    let rig = self::rig();
    fill(&rig, 0);
    let (usage, calls) = (rig.charge.usage(), rig.charge.uncharges());
    let wanted = map(&rig, 8, 1, Advice::HugePage);
    let served = rig.mm.fault(rig.space, wanted, true, FaultMode::MayWait);
    assert!(served.is_ok(), "{served:?}");
    let split = rig.mm.stats().get(Item::ThpSplitFree);
    assert!(split >= 2 * 471 && rig.charge.usage() + split <= usage + BLOCK);
    let calls = rig.charge.uncharges() - calls;
    let single = rig.mm.stats().get(Item::PgstealDirect);
    assert!(
        calls <= 2 + single,
        "{calls} calls for {split} and {single} pages"
    );
    rig.verify(&"splitting");
}

#[test]
fn r10_r12_only_a_fault_that_waits_for_a_huge_page_it_asked_for_captures() {
    for (advice, mode, enabled) in [
        (Advice::NoHugePage, FaultMode::MayWait, true),
        (Advice::HugePage, FaultMode::NoWait, true),
        (Advice::HugePage, FaultMode::MayWait, false),
    ] {
        let rig = rig();
        fill(&rig, 100);
        if !enabled {
            rig.mm.set_capture(CapturePolicy::OFF);
        }
        let wanted = map(&rig, 8, 1, advice);
        let served = rig.mm.fault(rig.space, wanted, true, mode);
        assert!(served.is_ok(), "{advice:?} {mode:?}: {served:?}");
        assert_eq!(rig.mm.capture_stats(), CaptureStats::default());
        rig.verify(&advice);
    }
}

#[test]
fn r11_r30_group_limit_and_background_reclaim_never_capture() {
    let t = Tunables::of_profile(Profile::Deckle);
    let rig = Rig::new(64, 1, 3, true, t);
    rig.charge.set_max(3000);
    rig.charge.set_high(2800);
    map(&rig, 0, WINDOW / BLOCK, Advice::HugePage);
    for k in (0..WINDOW).step_by(3) {
        touch(&rig, BASE.add(k)).unwrap();
        if k % 30 == 0 {
            rig.mm.reclaim_background();
        }
    }
    rig.mm.reclaim(1000);
    let stats = rig.mm.stats();
    assert!(stats.get(Item::PgstealDirect) > 1000 && stats.get(Item::PgstealKswapd) > 1000);
    assert_eq!(stats.get(Item::OomKill), 0);
    assert_eq!(rig.mm.capture_stats(), CaptureStats::default());
    rig.verify(&"reclaiming");
}

/// Touches every `step`th page of all the window, where huge pages are wanted and there is no
/// swap, until memory is out; how many were touched.
fn until_out(step: usize, capture: bool) -> (u64, CaptureStats) {
    let t = Tunables {
        max_ptes_none: 409,
        ..Tunables::of_profile(Profile::Linux)
    };
    let rig = Rig::new(8, 1, 7, false, t);
    if !capture {
        rig.mm.set_capture(CapturePolicy::OFF);
    }
    let start = map(&rig, 0, WINDOW / BLOCK, Advice::HugePage);
    let mut pages = (0..WINDOW).step_by(step);
    let touched = pages
        .by_ref()
        .take_while(|k| touch(&rig, start.add(*k)).is_ok());
    let touched = touched.count() as u64;
    assert_eq!(rig.stat(Item::OomKill), 1, "{touched} pages");
    rig.verify(&(step, capture));
    (touched, rig.mm.capture_stats())
}

#[test]
fn r30_memory_is_out_no_sooner_with_capture_than_without() {
    let mut captured = 0;
    for step in 1..=5 {
        let (with, stats) = until_out(step, true);
        let (without, off) = until_out(step, false);
        assert!(with >= without, "step {step}: {with} pages, {without}");
        assert_eq!(off, CaptureStats::default());
        captured += stats.own + stats.absorbed;
    }
    assert!(captured > 0, "nothing was captured");
}

/// Node 1, on which the machine has no memory.
const ELSEWHERE: NodeMask = NodeMask(0b10);

/// A fault that would get its huge page by reclaim and capture, where a rule says where memory may
/// come from: what it was served, what capture did, and what was reclaimed for it.
fn placed(placement: Placement) -> (Served, CaptureStats, u64) {
    let rig = rig();
    fill(&rig, 100);
    rig.mm.set_placement(placement);
    assert_eq!(rig.mm.placement(), placement);
    let wanted = map(&rig, 8, 1, Advice::HugePage);
    let served = rig.mm.fault(rig.space, wanted, true, FaultMode::MayWait);
    let reclaimed = rig.stat(Item::PgstealDirect);
    touch(&rig, wanted).unwrap();
    rig.verify(&placement);
    (served.unwrap(), rig.mm.capture_stats(), reclaimed)
}

#[test]
fn r24_nothing_is_captured_on_a_node_that_the_request_does_not_name() {
    let on = |nodes| {
        placed(Placement {
            nodes,
            ..Placement::default()
        })
    };
    let (served, stats, reclaimed) = on(ELSEWHERE);
    assert_ne!(served, Served::Mapped(512));
    assert_eq!((stats, reclaimed), (CaptureStats::default(), 0));
    let (served, stats, reclaimed) = on(NodeMask(0b11));
    assert_eq!((served, stats.successes), (Served::Mapped(512), 1));
    assert!(reclaimed > 0);
}

#[test]
fn r4_pages_of_programs_come_from_the_nodes_of_their_own_cpuset_alone() {
    // The wall of an enclosing set is for requests that are not the program's own.
    for (mems, hardwall, may) in [
        (ELSEWHERE, NodeMask::ALL, false),
        (ELSEWHERE, ELSEWHERE, false),
        (NodeMask(1), NodeMask(1), true),
        (NodeMask::ALL, ELSEWHERE, true),
    ] {
        let (served, stats, _) = placed(Placement {
            cpuset: Cpuset { mems, hardwall },
            ..Placement::default()
        });
        assert_eq!(served == Served::Mapped(512), may, "{mems:?} {hardwall:?}");
        assert_eq!(stats.begun > 0, may);
    }
}

#[test]
fn r6_in_zone_reclaim_mode_the_zone_is_reclaimed_from_first_and_nothing_captured() {
    for zone_reclaim in [false, true] {
        let (served, stats, reclaimed) = placed(Placement {
            zone_reclaim,
            ..Placement::default()
        });
        assert_eq!(served, Served::Mapped(512));
        assert!(reclaimed > 0);
        // In that mode nobody waits for the block: what comes free is free for all.
        assert_eq!(stats.begun, u64::from(!zone_reclaim));
        assert_eq!(stats.own > 0, !zone_reclaim);
    }
}

/// The program is moved to another cpuset while it waits.
#[test]
fn r22_r28_a_captured_block_is_refused_if_the_cpuset_has_changed_meanwhile() {
    let (mut refused, mut taken, mut seen) = (0, 0, 0);
    for seed in 1..60 {
        let rig = rig_of(2, seed);
        fill(&rig, 100);
        rig.machine.set_switch_of([1, 4, 16][seed as usize % 3]);
        let wanted = map(&rig, 8, 1, Advice::HugePage);
        let over = AtomicBool::new(false);
        let mut served = None;
        let fault = || {
            served = Some(rig.mm.fault(rig.space, wanted, true, FaultMode::MayWait));
            over.store(true, SeqCst);
        };
        let mover = || {
            while rig.mm.capture_stats().begun == 0 && !over.load(SeqCst) {
                rig.machine.preempt(Site::Relock);
            }
            // Sometimes too late.
            for _ in 0..seed % 6 * 2000 {
                rig.machine.preempt(Site::Relock);
                seen = seen.max(rig.stat(Item::NrCaptured));
            }
            rig.mm.set_placement(Placement {
                cpuset: Cpuset {
                    mems: ELSEWHERE,
                    hardwall: ELSEWHERE,
                },
                ..Placement::default()
            });
        };
        let jobs = vec![deckle_model::cpu(fault), deckle_model::cpu(mover)];
        if let Err(e) = rig.machine.run(jobs) {
            panic!("seed {seed}: {e}");
        }
        let stats = rig.mm.capture_stats();
        let huge = matches!(served, Some(Ok(Served::Mapped(512))));
        assert_eq!((stats.successes, stats.now), (u64::from(huge), 0));
        refused += stats.refused;
        taken += stats.successes;
        // What was refused is free, and one page is to be had in any case.
        touch(&rig, wanted).unwrap();
        rig.verify(&seed);
    }
    assert!(refused > 0 && taken > 0, "{refused} refused, {taken} taken");
    // Who looks from another CPU sees what is kept together (R28).
    assert!(seen >= BLOCK, "{seen} pages at most");
}
