//! The zone's own check finds what is wrong and says it. Each case breaks one thing.

use super::super::meta::link_set;
use super::*;

const FIRST: u32 = 1024;

fn meta(zone: &Zone, i: u32) -> &FrameMeta {
    zone.get(Pfn(FIRST + i)).unwrap()
}

/// A zone in use: frames 8 to 11 are a free block, 20 and 22 single ones, 40 is on a per-CPU list,
/// 64 to 79 are a folio of order 4, the others single folios.
fn in_use() -> Zone {
    let m = Cpus::default();
    let zone = full(FIRST, 4096);
    let all = fill(&zone, &m);
    let part = |from: usize, n: usize| zone.free_bulk(&m, &all[from..from + n]).unwrap();
    part(64, 16);
    assert_eq!(zone.alloc(&m, 4), Ok(all[64]));
    for (from, n) in [(8, 4), (20, 1), (22, 1)] {
        part(from, n);
    }
    zone.free(&m, all[40], 0).unwrap();
    zone.verify().unwrap();
    assert_eq!(zone.cached_pages(), 1);
    zone
}

/// What is broken, how, and a part of what the check says.
type Case = (&'static str, fn(&Zone), &'static str);

const CASES: [Case; 24] = [
    ("marks", |z| z.counts.bump.store(1023, Relaxed), "bump mark"),
    ("marks", |z| z.counts.bump.store(5121, Relaxed), "bump mark"),
    (
        "kinds",
        |z| meta(z, 8).set_kind(Kind::Untouched, 0),
        "never used",
    ),
    (
        "kinds",
        |z| meta(z, 8).set_kind(Kind::Tail, 0),
        "should start",
    ),
    (
        "sizes",
        |z| meta(z, 40).set_kind(Kind::Cached, 11),
        "bad block",
    ),
    (
        "sizes",
        |z| meta(z, 41).set_kind(Kind::Cached, 1),
        "bad block",
    ),
    ("sizes", |z| z.counts.bump.store(1033, Relaxed), "bad block"),
    (
        "inner",
        |z| meta(z, 9).set_kind(Kind::Cached, 0),
        "is Some(Cached)",
    ),
    (
        "inner",
        |z| meta(z, 79).set_kind(Kind::Cached, 0),
        "is Some(Cached)",
    ),
    ("users", |z| meta(z, 8).set_refs(1), "is free but"),
    ("users", |z| meta(z, 40).set_refs(1), "is free but"),
    (
        "users",
        |z| meta(z, 20).set_owner(SpaceId(1), Vpn(1)),
        "is free but",
    ),
    (
        "merge",
        |z| meta(z, 21).set_kind(Kind::FreeHead, 0),
        "should be merged",
    ),
    (
        "types",
        |z| z.pageblocks.set(Pfn(FIRST), Mobility::Unmovable),
        "is in a Unmovable",
    ),
    (
        "lists",
        |z| link_set(&z.counts.heads[0][2], None),
        "order 2 has 1 free blocks, 0 listed",
    ),
    (
        "lists",
        |z| z.counts.blocks[0][0].store(3, Relaxed),
        "2 listed, 3 counted",
    ),
    (
        "lists",
        |z| link_set(&z.counts.heads[0][2], Some(Pfn(5))),
        "but no frame",
    ),
    (
        "lists",
        |z| link_set(&z.counts.heads[0][2], Some(Pfn(FIRST + 20))),
        "on the list of order 2",
    ),
    (
        "lists",
        |z| link_set(&z.counts.heads[1][2], Some(Pfn(FIRST + 8))),
        "on the list of order 2",
    ),
    (
        "lists",
        |z| link_set(meta(z, 20).links(false).0, None),
        "on the list of order 0",
    ),
    (
        "lists",
        |z| link_set(meta(z, 20).links(false).1, Some(Pfn(FIRST + 22))),
        "of order 0",
    ),
    (
        "count",
        |z| z.counts.captured.store(1, Relaxed),
        "0 captured, but counted (1, 1)",
    ),
    (
        "count",
        |z| meta(z, 40).set_folio_head(0, Mobility::Movable),
        "0 pages cached",
    ),
    (
        "count",
        |z| z.counts.listed.store(5, Relaxed),
        "5 pages free",
    ),
];

#[test]
fn r148_the_check_of_a_zone_says_what_is_wrong_with_it() {
    for (i, (what, spoil, says)) in CASES.into_iter().enumerate() {
        let zone = in_use();
        spoil(&zone);
        let found = zone.verify();
        let text = found.expect_err(what);
        assert!(text.contains(says), "case {i}, {what}: {text}");
    }
}
