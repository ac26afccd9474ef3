//! What a program tracks: which pages were written, and which must not be without a word.

use super::Fuzz;
use deckle_mm::{MapError, Vpn};

/// What the oracle knows of a page's protection by its program.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Guard {
    /// It had bytes when it was protected, and has them still: protected.
    Must,
    /// It may have been a hole, or have become one.
    May,
}

impl Fuzz<'_> {
    /// The program gives up what it had in a range, or may.
    pub(super) fn may_be_gone(&mut self, n: usize, start: u64, end: u64) {
        for (_, guard) in self.programs[n].guards.range_mut(start..end) {
            *guard = Guard::May;
        }
    }

    /// The mapping is new.
    pub(super) fn forget_guards(&mut self, n: usize, start: u64, end: u64) {
        for p in start..end {
            self.programs[n].guards.remove(&p);
        }
    }

    pub(super) fn clear(&mut self, n: usize) -> String {
        let id = self.programs[n].id;
        self.m.mm.clear_soft_dirty(id).unwrap();
        let program = &mut self.programs[n];
        program.pages.values_mut().for_each(|p| p.dirty = false);
        let pages = program.mapped.keys().step_by(37);
        for page in pages {
            let info = self.m.mm.page_info(id, Vpn(*page)).unwrap();
            assert!(!info.soft_dirty, "{} is dirty after a clear", Vpn(*page));
        }
        "clear soft-dirty".into()
    }

    pub(super) fn protect(&mut self, n: usize, start: Vpn, pages: u64) -> String {
        let (id, on) = (self.programs[n].id, self.below(3) > 0);
        let covered = self.covered(n, start, pages);
        let registered = self.m.mm.uffd_wp_register(id, start, pages);
        assert_eq!(registered.is_ok(), covered, "{registered:?}");
        let done = self.m.mm.uffd_write_protect(id, start, pages, on);
        assert_eq!(done.is_ok(), covered, "{done:?}");
        if !covered {
            assert!(matches!(done, Err(MapError::Hole(_))), "{done:?}");
            return "protect a hole".into();
        }
        let program = &mut self.programs[n];
        for p in start.0..start.0 + pages {
            let has = |k: &super::Page| !k.bytes.is_empty() && !k.lazy;
            let there = program.pages.get(&p).is_some_and(has);
            match on {
                true if there => {
                    program.guards.insert(p, Guard::Must);
                }
                true => {
                    program.guards.entry(p).or_insert(Guard::May);
                }
                false => {
                    program.guards.remove(&p);
                }
            }
        }
        if !on && self.below(2) == 0 {
            self.m.mm.uffd_wp_unregister(id, start, pages).unwrap();
        }
        format!("protect: {on}")
    }

    /// Compares what the program is told of its pages.
    pub(super) fn look(&mut self, n: usize, start: Vpn, pages: u64) -> String {
        let program = &self.programs[n];
        for p in start.0..start.0 + pages {
            let info = self.m.mm.page_info(program.id, Vpn(p));
            assert_eq!(info.is_some(), program.mapped.contains_key(&p));
            let Some(info) = info else { continue };
            let known = program.pages.get(&p).filter(|k| !k.lazy);
            let dirty = known.is_some_and(|k| k.dirty);
            assert!(info.soft_dirty || !dirty, "a write to {} is lost", Vpn(p));
            match program.guards.get(&p) {
                Some(Guard::Must) => assert!(info.uffd_wp, "{} is unprotected", Vpn(p)),
                Some(Guard::May) => {}
                None => assert!(!info.uffd_wp, "{} is protected", Vpn(p)),
            }
        }
        "look".into()
    }
}
