//! The TLB really caches: what is not flushed is really stale.
//!
//! Most of these tests fail if the TLB does nothing.

use deckle_mm::{
    BLOCK_PAGES, BlockNr, Content, FrameRun, PAGE_SIZE, PageRun, Pfn, Platform, Prot, SpaceId, Vpn,
};
use deckle_model::{FIRST_FRAME, FaultKind, Model, POISON};

const S: SpaceId = SpaceId(1);
const F0: Pfn = FIRST_FRAME;

fn model() -> Model {
    let m = Model::new(8 << 20, 2, 7);
    m.create_space(S).unwrap();
    m
}
fn run(page: u64, pages: u32) -> PageRun {
    PageRun::new(S, Vpn(page), pages)
}
fn addr(page: u64) -> u64 {
    page * PAGE_SIZE as u64
}
fn read(m: &Model, cpu: usize, page: u64) -> Result<u8, FaultKind> {
    let mut b = [0];
    m.load(cpu, S, addr(page), &mut b).map_err(|f| f.kind)?;
    Ok(b[0])
}
fn write(m: &Model, cpu: usize, page: u64, byte: u8) -> Result<(), FaultKind> {
    m.store(cpu, S, addr(page), &[byte]).map_err(|f| f.kind)
}

#[test]
fn an_unmapped_page_is_still_read_and_written_until_the_flush() {
    let m = model();
    m.map(run(3, 1), F0, Content::Zero, Prot::RW).unwrap();
    write(&m, 0, 3, 11).unwrap();
    let (_, token) = m.unmap(run(3, 1), F0, Prot::RW).unwrap();
    // The CPU that used the page goes on, the other one faults.
    assert_eq!(read(&m, 0, 3), Ok(11));
    write(&m, 0, 3, 12).unwrap();
    assert_eq!(m.frame_bytes(F0)[0], 12);
    assert_eq!(read(&m, 1, 3), Err(FaultKind::Missing));
    m.flush(&mut std::iter::once(token));
    assert_eq!(read(&m, 0, 3), Err(FaultKind::Missing));
    assert_eq!(write(&m, 0, 3, 13), Err(FaultKind::Missing));
    m.assert_clean();
}

#[test]
fn a_forgotten_flush_reads_the_next_owner_of_the_frame() {
    let m = model();
    m.map(run(3, 1), F0, Content::Zero, Prot::RW).unwrap();
    write(&m, 0, 3, 11).unwrap();
    let _forgotten = m.discard(run(3, 1));
    assert_eq!(read(&m, 0, 3), Ok(POISON));
    m.hold(run(9, 1));
    m.map(run(9, 1), F0, Content::Bytes(&[77; PAGE_SIZE]), Prot::RW)
        .unwrap();
    assert_eq!(read(&m, 0, 3), Ok(77));
    write(&m, 0, 3, 1).unwrap();
    assert_eq!(read(&m, 1, 9), Ok(1));
    assert!(!m.violations().is_empty());
}

#[test]
fn a_huge_translation_is_stale_as_a_whole_until_it_is_flushed() {
    let m = model();
    m.map(run(512, BLOCK_PAGES), F0, Content::Zero, Prot::RW)
        .unwrap();
    assert!(m.is_huge(S, BlockNr(1)));
    write(&m, 0, 512 + 5, 1).unwrap();
    assert_eq!(m.tlb_len(0), 1);
    let (_, token) = m.unmap(run(512, BLOCK_PAGES), F0, Prot::RW).unwrap();
    // Never used before the unmap, reached through the huge entry.
    assert_eq!(read(&m, 0, 512 + 400), Ok(0));
    m.flush(&mut std::iter::once(token));
    assert_eq!(read(&m, 0, 512 + 400), Err(FaultKind::Missing));
    assert_eq!(m.tlb_len(0), 0);
}

#[test]
fn rights_and_write_protection_are_stale_too() {
    let m = model();
    m.map(run(0, 2), F0, Content::Zero, Prot::RW).unwrap();
    write(&m, 0, 0, 1).unwrap();
    write(&m, 0, 1, 1).unwrap();
    let wp = m.write_protect(run(0, 1), true).unwrap();
    let ro = m.protect(S, Vpn(1), 1, Prot::R).unwrap();
    assert_eq!(write(&m, 0, 0, 2), Ok(()));
    assert_eq!(write(&m, 0, 1, 2), Ok(()));
    m.flush(&mut [wp, ro].into_iter());
    assert_eq!(write(&m, 0, 0, 3), Err(FaultKind::WriteProtect));
    assert_eq!(write(&m, 0, 1, 3), Err(FaultKind::Protection));
    assert_eq!((read(&m, 0, 0), read(&m, 0, 1)), (Ok(2), Ok(2)));
    // More rights need no flush: the CPU walks again before it faults.
    let up = m.write_protect(run(0, 1), false).unwrap();
    assert!(up.pending.is_none());
    assert_eq!(write(&m, 0, 0, 4), Ok(()));
    let none = m.protect(S, Vpn(0), 1024, Prot::NONE).unwrap();
    assert!(none.pending.is_none(), "several blocks: flushed already");
    assert_eq!(read(&m, 0, 0), Err(FaultKind::Protection));
    m.assert_clean();
}

#[test]
fn a_zero_mapping_reads_zeros_after_it_was_replaced_without_a_flush() {
    let m = model();
    m.map_zero(run(0, 4)).unwrap();
    assert_eq!(read(&m, 0, 2), Ok(0));
    assert_eq!(write(&m, 1, 2, 1), Err(FaultKind::WriteProtect));
    let token = m.drop_zero(run(2, 1));
    m.hold(run(2, 1));
    m.map(run(2, 1), F0, Content::Bytes(&[9; PAGE_SIZE]), Prot::RW)
        .unwrap();
    assert_eq!((read(&m, 0, 2), read(&m, 1, 2)), (Ok(0), Ok(9)));
    m.flush(&mut std::iter::once(token));
    assert_eq!(read(&m, 0, 2), Ok(9));
}

#[test]
fn a_clean_entry_does_not_write_after_the_unmap() {
    // As on x86: to set the dirty bit the CPU walks, and finds the page gone.
    let m = model();
    m.map(run(0, 1), F0, Content::Zero, Prot::RW).unwrap();
    assert_eq!(read(&m, 0, 0), Ok(0));
    let (_, token) = m.unmap(run(0, 1), F0, Prot::RW).unwrap();
    assert_eq!(write(&m, 0, 0, 1), Err(FaultKind::Missing));
    m.flush(&mut std::iter::once(token));
    assert_eq!(m.scan_zero(FrameRun::new(F0, 1)).count(), 1);
}

#[test]
fn the_tlb_is_bounded_and_replaces_at_random() {
    let m = model();
    m.set_tlb_entries(8);
    m.map(run(0, 64), F0, Content::Zero, Prot::RW).unwrap();
    for page in 0..64 {
        read(&m, 0, page).unwrap();
    }
    assert_eq!(m.tlb_len(0), 8);
    m.set_tlb_entries(0);
    let _ = m.discard(run(0, 64));
    assert_eq!(read(&m, 0, 0), Err(FaultKind::Missing));
}

#[test]
fn a_part_of_a_huge_mapping_splits_it() {
    let m = model();
    m.map(run(512, BLOCK_PAGES), F0, Content::Zero, Prot::RW)
        .unwrap();
    write(&m, 0, 600, 5).unwrap();
    let (_, token) = m.unmap(run(522, 2), F0.add(10), Prot::RW).unwrap();
    assert!(!m.is_huge(S, BlockNr(1)));
    assert_eq!(m.counters().huge_splits, 1);
    m.flush(&mut std::iter::once(token));
    assert_eq!(read(&m, 0, 522), Err(FaultKind::Missing));
    assert_eq!(read(&m, 0, 600), Ok(5));
    // The table is in the way of a huge mapping only while something is in it.
    m.flush(&mut std::iter::once(m.discard(run(512, BLOCK_PAGES))));
    m.release(FrameRun::new(F0.add(10), 2));
    assert_eq!(m.tables(S), 1);
    m.map(run(512, BLOCK_PAGES), F0, Content::Zero, Prot::RW)
        .unwrap();
    assert!(m.is_huge(S, BlockNr(1)));
    assert_eq!(m.tables(S), 0);
    m.assert_clean();
}

#[test]
fn fork_shares_frames_and_leaves_no_writable_entry() {
    let m = model();
    m.map(run(0, 2), F0, Content::Zero, Prot::RW).unwrap();
    write(&m, 0, 0, 1).unwrap();
    let child = SpaceId(2);
    m.create_space(child).unwrap();
    let token = m.write_protect(run(0, 2), true).unwrap();
    m.flush(&mut std::iter::once(token));
    m.map_shared(PageRun::new(child, Vpn(0), 2), F0, Prot::RW)
        .unwrap();
    assert_eq!(write(&m, 0, 0, 2), Err(FaultKind::WriteProtect));
    let mut b = [0];
    m.load(1, child, 0, &mut b).unwrap();
    assert_eq!(b, [1]);
    // Copy on write by the core: copy, take the old one away, map the new one.
    m.copy(FrameRun::new(F0.add(8), 1), F0).unwrap();
    let (_, token) = m.unmap(run(0, 1), F0, Prot::RW).unwrap();
    m.flush(&mut std::iter::once(token));
    m.map(run(0, 1), F0.add(8), Content::Parked, Prot::RW)
        .unwrap();
    write(&m, 0, 0, 2).unwrap();
    m.load(1, child, 0, &mut b).unwrap();
    assert_eq!((b, read(&m, 0, 0)), ([1], Ok(2)));
    m.assert_clean();
}
