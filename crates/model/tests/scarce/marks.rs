//! Watermarks of a running manager, and what it says when there is no block.

use super::common::Rig;
use super::common::hand::BLOCK;
use deckle_mm::frame::Watermarks;
use deckle_mm::{FaultError, FaultMode, Profile, Sizes, ThpMode, Tunables};

fn rig(mib: u64, swap: bool) -> Rig {
    let tunables = Tunables {
        thp: ThpMode::Madvise,
        sizes: Sizes::NEVER,
        ..Tunables::of_profile(Profile::Linux)
    };
    Rig::new(mib, 1, 3, swap, tunables)
}

#[test]
fn r5_the_marks_are_the_kernels_and_can_be_set() {
    let rig = rig(64, true);
    // sqrt(16 * 65536 KiB) is 1024 KiB.
    let marks = rig.mm.watermarks();
    assert_eq!((marks.min, marks.low, marks.high), (256, 320, 384));
    let most = u64::MAX;
    rig.mm.set_watermarks(Watermarks {
        min: most,
        low: 0,
        high: 0,
    });
    let marks = rig.mm.watermarks();
    assert_eq!((marks.min, marks.low, marks.high), (most, most, most));
}

#[test]
fn r29_who_runs_out_of_frames_is_told_what_is_in_the_way() {
    let rig = rig(8, false);
    let pages = 5 * BLOCK;
    let start = rig.mmap(0, pages);
    let mut reports = (0..pages).filter_map(|i| {
        let got = rig
            .mm
            .fault(rig.space, start.add(i), true, FaultMode::MayWait);
        match got {
            Err(FaultError::Oom(report)) => Some(report),
            _ => None,
        }
    });
    let report = reports.next().expect("8 MiB are not enough");
    assert!(report.lacks_frames());
    let why = report.why.as_ref().expect("frames are memory here");
    assert_eq!((why.order, why.zones[0].free), (0, 0));
    let in_use = |c: &deckle_mm::frame::why::Candidate| c.in_use() == 1;
    assert!(!why.zones[0].candidates.is_empty() && why.zones[0].candidates.iter().all(in_use));
    let text = report.to_string();
    assert!(
        text.contains("no block of order 0: the free lists have none"),
        "{text}"
    );
    assert!(text.contains("0 pages free, mark 90"), "{text}");
}
