//! Folios that several spaces map, and that move to other frames.

use crate::cow::machine::Bare;
use deckle_mm::{Item, MigrateError, ThpMode};

#[test]
fn r86_r98_a_shared_folio_moves_at_all_its_places_and_stays_shared() {
    for (thp, pages) in [(ThpMode::Never, 16), (ThpMode::Always, 512)] {
        let m = Bare::simple(thp);
        let start = m.map(0, 512);
        (0..pages).for_each(|i| m.write(m.space, start.add(i), 1 + i as u8 % 100));
        let child = m.mm.fork(m.space).unwrap();
        let other = m.mm.fork(child).unwrap();
        let spaces = [m.space, child, other];
        let before = m.frame(m.space, start).unwrap();
        let usage = (m.mm.frames_used(), m.get(Item::NrAnon));
        let done = m.mm.migrate_page(child, start, true).unwrap();
        assert!(done.moved > 0 && done.zeros == 0, "{done:?}");
        let now = m.frame(m.space, start).unwrap();
        assert_ne!(now, before);
        assert_eq!((m.mm.frames_used(), m.get(Item::NrAnon)), usage);
        for id in spaces {
            assert_eq!(m.frame(id, start), Some(now), "{id}");
            for i in 0..pages {
                assert_eq!(m.read(id, start.add(i))[0], 1 + i as u8 % 100, "{id} {i}");
            }
        }
        m.verify(&("moved", pages));
        // A write copies still, and only its own space sees it.
        m.write(child, start, 200);
        assert_eq!(spaces.map(|id| m.read(id, start)[0]), [1, 200, 1]);
        for id in [child, other] {
            m.mm.destroy_space(id).unwrap();
        }
        m.write(m.space, start, 201);
        assert!(m.mm.migrate_page(m.space, start, true).is_ok());
        assert_eq!(m.read(m.space, start)[0], 201);
        m.verify(&("alone", pages));
    }
}

#[test]
fn r135_a_pinned_folio_does_not_move_shared_or_not() {
    let m = Bare::simple(ThpMode::Never);
    let start = m.map(0, 16);
    m.write(m.space, start, 7);
    let pin = m.mm.pin(m.space, start, true).unwrap();
    let before = m.frame(m.space, start);
    let refused = |why| {
        assert_eq!(m.mm.migrate_page(m.space, start, true), Err(why));
        assert_eq!(m.frame(m.space, start), before);
        m.mm.compact(9);
        assert_eq!(m.frame(m.space, start), before);
        m.verify(&why);
    };
    refused(MigrateError::Pinned);
    let child = m.mm.fork(m.space).unwrap();
    assert_eq!(m.frame(m.space, start), before);
    m.mm.unpin(pin);
    assert!(m.mm.migrate_page(m.space, start, true).is_ok());
    assert_ne!(m.frame(m.space, start), before);
    assert_eq!([m.space, child].map(|id| m.read(id, start)[0]), [7, 7]);
    m.verify(&"unpinned");
}
