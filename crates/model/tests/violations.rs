//! Each pre-condition of the platform, broken on purpose, is found.

use deckle_mm::{
    BlockNr, Content, Flush, FrameRun, PAGE_SIZE, PageRun, Pfn, Platform, Prot, SpaceId, Stop, Vpn,
};
use deckle_model::{Broken, Chance, FIRST_FRAME, FrameState, Injection, Model, POISON};

const S: SpaceId = SpaceId(1);

fn model() -> Model {
    let m = Model::new(8 << 20, 2, 7);
    m.create_space(S).unwrap();
    m
}
fn f(n: u32) -> Pfn {
    FIRST_FRAME.add(n)
}
fn run(page: u64, pages: u32) -> PageRun {
    PageRun {
        space: S,
        start: Vpn(page),
        pages,
    }
}
fn map(m: &Model, page: u64, frame: u32, pages: u32) {
    m.map(run(page, pages), f(frame), Content::Zero, Prot::RW)
        .unwrap();
}
fn flush(m: &Model, token: Flush) {
    m.flush(&mut std::iter::once(token));
}
/// The rules broken since the last call.
fn broken(m: &Model) -> Vec<Broken> {
    let mut list: Vec<_> = m.take_violations().iter().map(|v| v.broken).collect();
    list.dedup();
    list
}

#[test]
fn right_use_breaks_nothing() {
    let m = model();
    map(&m, 3, 0, 4);
    let (_, t) = m.unmap(run(3, 4), f(0), Prot::RW).unwrap();
    flush(&m, t);
    assert_eq!(m.scan_zero(FrameRun::new(f(0), 4)).count(), 4);
    m.map(run(3, 4), f(0), Content::Parked, Prot::RW).unwrap();
    flush(&m, m.discard(run(0, 512)));
    m.release_block(S, BlockNr(0));
    m.destroy_space(S);
    m.assert_clean();
    assert!(m.used_frames().is_empty());
}

#[test]
fn map_over_a_translation() {
    let m = model();
    map(&m, 3, 0, 1);
    let e = m.map(run(2, 2), f(8), Content::Zero, Prot::RW).unwrap_err();
    assert_eq!((e.at, e.why), (1, Stop::Exists));
    assert_eq!(broken(&m), [Broken::MapOverTranslation]);
    assert_eq!(m.translation(S, Vpn(2)).unwrap().frame, Some(f(8)));
    // A zero mapping is a translation too.
    m.map_zero(run(10, 1)).unwrap();
    assert!(m.map(run(10, 1), f(20), Content::Zero, Prot::RW).is_err());
    assert_eq!(broken(&m), [Broken::MapOverTranslation]);
}

#[test]
fn map_before_the_flush_of_the_old_translation() {
    let m = model();
    map(&m, 3, 0, 1);
    let (_, token) = m.unmap(run(3, 1), f(0), Prot::RW).unwrap();
    map(&m, 3, 1, 1);
    assert_eq!(broken(&m), [Broken::UnflushedPage]);
    flush(&m, token);
    m.assert_clean();
}

#[test]
fn r98_zero_test_only_of_unmapped_and_flushed_frames() {
    let m = model();
    map(&m, 3, 0, 1);
    m.scan_zero(FrameRun::new(f(0), 1));
    assert_eq!(broken(&m), [Broken::FrameMapped]);
    let (_, token) = m.unmap(run(3, 1), f(0), Prot::RW).unwrap();
    m.scan_zero(FrameRun::new(f(0), 1));
    m.with_bytes(FrameRun::new(f(0), 1), &mut |_| {});
    assert_eq!(broken(&m), [Broken::UnflushedFrame]);
    flush(&m, token);
    m.scan_zero(FrameRun::new(f(0), 1));
    assert_eq!(broken(&m), []);
    m.scan_zero(FrameRun::new(f(1), 1));
    assert_eq!(broken(&m), [Broken::NothingAtRest]);
}

#[test]
fn r99_zero_scan_ends_at_the_first_other_byte() {
    let m = model();
    let mut page = [0; PAGE_SIZE];
    page[100] = 1;
    m.hold(run(0, 1));
    m.map(run(0, 1), f(0), Content::Bytes(&page), Prot::RW)
        .unwrap();
    let (_, token) = m.unmap(run(0, 1), f(0), Prot::RW).unwrap();
    flush(&m, token);
    assert_eq!(m.scan_zero(FrameRun::new(f(0), 1)).count(), 0);
    assert_eq!(m.counters().scanned_bytes, 101);
}

#[test]
fn frames_are_reused_only_empty_and_unreachable() {
    let m = model();
    map(&m, 3, 0, 1);
    assert!(m.fill_zero(FrameRun::new(f(0), 1)).is_err());
    assert_eq!(broken(&m), [Broken::FrameMapped]);
    assert!(m.map(run(4, 1), f(0), Content::Zero, Prot::RW).is_err());
    assert_eq!(broken(&m), [Broken::FrameMapped]);
    m.release(FrameRun::new(f(0), 1));
    assert_eq!(broken(&m), [Broken::FrameMapped]);

    let (_, token) = m.unmap(run(3, 1), f(0), Prot::RW).unwrap();
    m.release(FrameRun::new(f(0), 1));
    assert_eq!(broken(&m), [Broken::UnflushedFrame]);
    flush(&m, token);

    m.fill_zero(FrameRun::new(f(1), 1)).unwrap();
    assert!(m.fill_zero(FrameRun::new(f(1), 1)).is_err());
    assert!(m.map(run(4, 1), f(1), Content::Zero, Prot::RW).is_err());
    assert_eq!(broken(&m), [Broken::FrameNotEmpty]);
    assert!(m.map(run(4, 1), f(2), Content::Parked, Prot::RW).is_err());
    assert_eq!(broken(&m), [Broken::NothingAtRest]);
    assert!(m.copy(FrameRun::new(f(3), 1), f(2)).is_err());
    assert_eq!(broken(&m), [Broken::NothingAtRest]);
    assert!(m.copy(FrameRun::new(f(1), 1), f(1)).is_err());
    assert_eq!(broken(&m), [Broken::FrameNotEmpty]);
}

#[test]
fn copy_from_a_frame_that_somebody_can_write() {
    let m = model();
    map(&m, 3, 0, 1);
    assert!(m.copy(FrameRun::new(f(1), 1), f(0)).is_err());
    assert_eq!(broken(&m), [Broken::FrameMapped]);
    let token = m.write_protect(run(3, 1), true).unwrap();
    assert!(m.copy(FrameRun::new(f(1), 1), f(0)).is_err());
    assert_eq!(broken(&m), [Broken::UnflushedFrame]);
    flush(&m, token);
    m.copy(FrameRun::new(f(2), 1), f(0)).unwrap();
    assert_eq!(broken(&m), []);
}

#[test]
fn unmap_of_what_is_not_so() {
    let m = model();
    map(&m, 3, 0, 1);
    assert!(m.unmap(run(3, 1), f(1), Prot::RW).is_err());
    assert_eq!(broken(&m), [Broken::WrongFrame]);
    assert!(m.unmap(run(4, 1), f(1), Prot::RW).is_err());
    assert_eq!(broken(&m), [Broken::NotMapped]);
    let (_, token) = m.unmap(run(3, 1), f(0), Prot::R).unwrap();
    assert_eq!(broken(&m), [Broken::WrongProt]);
    flush(&m, token);
}

#[test]
fn a_dropped_token_is_found() {
    let m = model();
    map(&m, 3, 0, 2);
    let _ = m.discard(run(3, 2));
    assert_eq!(m.unflushed(), [(S, Vpn(3)), (S, Vpn(4))]);
    m.check_quiescent();
    assert_eq!(broken(&m), [Broken::TokenDropped]);
}

#[test]
fn zero_mappings_blocks_and_spaces() {
    let m = model();
    map(&m, 3, 0, 1);
    let _ = m.drop_zero(run(3, 1));
    assert_eq!(broken(&m), [Broken::NotZeroMapping]);
    m.release_block(S, BlockNr(0));
    assert_eq!(broken(&m), [Broken::BlockMapped]);
    m.destroy_space(S);
    assert_eq!(broken(&m), [Broken::SpaceMapped]);
    assert!(m.create_space(S).is_err());
    assert_eq!(broken(&m), [Broken::SpaceExists]);
    m.destroy_space(SpaceId(9));
    assert_eq!(broken(&m), [Broken::NoSuchSpace]);
    assert!(m.map_shared(run(3, 1), f(0), Prot::RW).is_err());
    assert_eq!(broken(&m), [Broken::MapOverTranslation]);
}

#[test]
fn numbers_out_of_range() {
    let m = model();
    assert!(m.map(run(511, 2), f(0), Content::Zero, Prot::RW).is_err());
    assert!(m.map_zero(run(0, 0)).is_err());
    assert_eq!(broken(&m), [Broken::BadRun]);
    m.release(FrameRun::new(Pfn(FIRST_FRAME.0 - 1), 1));
    m.release(FrameRun::new(f(m.frames()), 1));
    m.release(FrameRun::new(Pfn(u32::MAX), 2));
    assert_eq!(broken(&m), [Broken::NoSuchFrame]);
    let short = m.map(run(0, 1), f(0), Content::Bytes(&[1]), Prot::RW);
    assert!(short.is_err());
    assert_eq!(broken(&m), [Broken::WrongLength]);
}

#[test]
fn a_shared_frame_must_not_become_writable() {
    let m = model();
    map(&m, 3, 0, 1);
    let child = SpaceId(2);
    m.create_space(child).unwrap();
    let there = PageRun::new(child, Vpn(3), 1);
    assert!(m.map_shared(there, f(0), Prot::RW).is_err());
    assert_eq!(broken(&m), [Broken::FrameMapped], "it is writable");
    let token = m.write_protect(run(3, 1), true).unwrap();
    assert!(m.map_shared(there, f(0), Prot::RW).is_err());
    assert_eq!(broken(&m), [Broken::UnflushedFrame], "it was writable");
    flush(&m, token);
    m.map_shared(there, f(0), Prot::RW).unwrap();
    assert_eq!(m.map_count(f(0)), 2);
    assert!(m.translation(child, Vpn(3)).unwrap().wp);
    flush(&m, m.write_protect(run(3, 1), false).unwrap());
    assert_eq!(broken(&m), [Broken::SharedWritable]);
}

#[test]
fn a_violation_can_panic_where_it_happens() {
    let m = model();
    m.set_panic_on_violation(true);
    let call = std::panic::AssertUnwindSafe(|| m.release_block(SpaceId(5), BlockNr(0)));
    assert!(std::panic::catch_unwind(call).is_err());
    assert_eq!(broken(&m), [Broken::NoSuchSpace]);
}

#[test]
fn released_frames_are_poisoned() {
    let m = model();
    m.fill_zero(FrameRun::new(f(0), 1)).unwrap();
    assert_eq!(m.frame_bytes(f(0)), [0; PAGE_SIZE]);
    m.release(FrameRun::new(f(0), 1));
    assert_eq!(m.frame_bytes(f(0)), [POISON; PAGE_SIZE]);
    assert_eq!(m.frame_state(f(0)), Some(FrameState::Nothing));
}

#[test]
fn a_pinned_page_stops_unmap_after_the_pages_before_it() {
    let m = model();
    map(&m, 0, 0, 8);
    m.load(1, S, 0, &mut [0; 8 * PAGE_SIZE]).unwrap();
    m.pin(S, Vpn(5));
    let e = m.unmap(run(0, 8), f(0), Prot::RW).unwrap_err();
    assert_eq!((e.at, e.why), (5, Stop::Busy));
    for i in 0..8 {
        assert_eq!(m.translation(S, Vpn(i)).is_some(), i >= 5, "page {i}");
    }
    // No token came back, so nothing may be left to flush.
    assert_eq!((m.unflushed().len(), m.tlb_len(1)), (0, 3));
    m.unpin(S, Vpn(5));
    let (_, token) = m.unmap(run(5, 3), f(5), Prot::RW).unwrap();
    flush(&m, token);
    m.assert_clean();
}

#[test]
fn injected_failures_leave_the_rest_as_before() {
    let m = model();
    m.set_injection(Injection {
        retry: Chance::ALWAYS,
        ..Injection::default()
    });
    let mut stops = std::collections::BTreeSet::new();
    for block in 0..40 {
        let at = run(block * 512, 16);
        let first = block as u32 * 16;
        let e = m.map(at, f(first), Content::Zero, Prot::RW).unwrap_err();
        assert_eq!(e.why, Stop::Retry);
        stops.insert(e.at);
        for i in 0..16 {
            let there = m.translation(S, at.start.add(i as u64)).is_some();
            assert_eq!(there, i < e.at);
            let state = m.frame_state(f(first + i)).unwrap();
            assert_eq!(state == FrameState::Mapped, i < e.at);
        }
    }
    assert!(stops.len() > 5, "failures strike at many places: {stops:?}");
    m.set_injection(Injection {
        no_memory: Chance::ALWAYS,
        ..Injection::default()
    });
    let e = m.fill_zero(FrameRun::new(f(1500), 8)).unwrap_err();
    assert_eq!(e.why, Stop::NoMemory);
    assert_eq!(m.frame_state(f(1500 + e.at)), Some(FrameState::Nothing));
    m.assert_clean();
}
