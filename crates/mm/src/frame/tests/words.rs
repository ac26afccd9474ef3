//! What errors and frames say of themselves, and sets of flags.

use super::*;

#[test]
fn what_went_wrong_is_said_in_words() {
    let free = [3; ORDERS];
    let text = NoFrame { order: 10, free }.to_string();
    assert!(text.contains("order 10; free by order: [3, 3"), "{text}");
    let text = NoFrame { order: 11, free }.to_string();
    assert!(text.contains("order 11 (the largest is 10)"), "{text}");
    let p = Pfn(7);
    let said = [
        (FreeError::BadOrder(11), "order 11"),
        (FreeError::Outside(p), "outside"),
        (FreeError::Misaligned(p, 3), "of order 3"),
        (FreeError::NeverAllocated(p), "never allocated"),
        (FreeError::DoubleFree(p), "free already"),
        (FreeError::NotHead(p), "not the first"),
        (
            FreeError::WrongOrder(p, 2, 4),
            "as order 2, but has order 4",
        ),
        (FreeError::InUse(p, Flags::LRU), "in use (lru)"),
        (FreeError::Referenced(p, 5), "5 references"),
        (FreeError::BadFrame(p), "bad"),
        (FreeError::Mapped(p, SpaceId(3), Vpn(9)), "still belongs to"),
    ];
    for (why, says) in said {
        let text = why.to_string();
        assert!(text.contains(says), "{text}");
        let text = BulkFreeError { done: 3, why }.to_string();
        assert!(text.starts_with("after 3 frames: ") && text.contains(says));
    }
}

#[test]
fn a_frame_says_what_it_is_part_of() {
    let meta = FrameMeta::new();
    meta.set_folio_head(9, Mobility::Movable);
    assert_eq!(format!("{meta:?}"), "FolioHead order 9 refs 1 none");
    meta.set(Flags::ACTIVE);
    meta.set_owner(SpaceId(3), Vpn(0x200));
    let text = format!("{meta:?}");
    let owner = format!(" of {} {}", SpaceId(3), Vpn(0x200));
    assert_eq!(text, format!("FolioHead order 9 refs 1 active{owner}"));
}

#[test]
fn flags_are_added_and_taken_out() {
    let both = Flags::LRU | Flags::ACTIVE;
    assert_eq!(both.without(Flags::LRU | Flags::BAD), Flags::ACTIVE);
    assert_eq!(both.and(Flags::LRU | Flags::BAD), Flags::LRU);
    assert!(both.any(Flags::LRU | Flags::BAD) && !both.any(Flags::BAD));
    assert!(both.has(both) && !Flags::LRU.has(both));
    assert!(both.without(both).is_empty() && !both.is_empty());
    let waits = AllocFlags::DIRECT_RECLAIM;
    let patient = AllocFlags::WMARK_LOW | waits;
    assert_eq!(patient.without(waits), AllocFlags::WMARK_LOW);
    assert_eq!(AllocFlags::WMARK_LOW.without(waits), AllocFlags::WMARK_LOW);
}

#[test]
fn a_list_is_empty_until_something_is_on_it() {
    let m = Cpus::default();
    let zone = full(0, 1024);
    let pfn = zone.alloc(&m, 0).unwrap();
    let mut list = List::new(Link::Lru);
    assert!(list.is_empty());
    assert!(list.push_head(&zone, pfn) && !list.is_empty());
    assert!(list.remove(&zone, pfn) && list.is_empty());
}
