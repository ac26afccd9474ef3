//! Pages that move, and pages that must not.

use super::{Fuzz, Held, PAGES};
use crate::cow::machine::BASE;
use deckle_mm::space::remap::Remap;
use deckle_mm::{FaultError, MapError, Vpn};

impl Fuzz<'_> {
    pub(super) fn remap(&mut self, n: usize, old: Vpn, pages: u64) -> String {
        let (to, _) = self.range();
        let room = PAGES - (to.0 - BASE.0);
        let new = (1 + self.below(pages + 40)).min(room);
        let id = self.programs[n].id;
        let done = self.m.mm.mremap(id, old, pages, new, Remap::Fixed(to));
        let program = &mut self.programs[n];
        let rights: Vec<_> = (old.0..old.0 + pages)
            .filter_map(|p| program.mapped.get(&p).copied())
            .collect();
        match &done {
            Ok(_) => {
                assert_eq!(rights.len() as u64, pages, "moved a range with holes");
                let kept: Vec<_> = (0..pages.min(new))
                    .map(|i| program.pages.remove(&(old.0 + i)))
                    .collect();
                let guards: Vec<_> = (0..pages.min(new))
                    .map(|i| program.guards.remove(&(old.0 + i)))
                    .collect();
                for p in old.0..old.0 + pages {
                    program.mapped.remove(&p);
                    program.pages.remove(&p);
                    program.guards.remove(&p);
                }
                for p in to.0..to.0 + new {
                    program.mapped.insert(p, rights[0]);
                    program.pages.remove(&p);
                    program.guards.remove(&p);
                }
                for (i, k) in kept.into_iter().enumerate() {
                    if let Some(mut k) = k {
                        k.dirty = true;
                        program.pages.insert(to.0 + i as u64, k);
                    }
                }
                for (i, guard) in guards.into_iter().enumerate() {
                    if let Some(guard) = guard {
                        program.guards.insert(to.0 + i as u64, guard);
                    }
                }
                self.detach(id, to.0, new);
                for h in &mut self.pins {
                    let at = h.page.0.wrapping_sub(old.0);
                    if h.space == id && at < pages {
                        h.attached &= at < new;
                        h.page = Vpn(to.0 + at);
                    }
                }
            }
            Err(MapError::Platform(e)) => panic!("mremap: {e}"),
            Err(_) => {}
        }
        format!("mremap to {to} {new}: {done:?}")
    }

    pub(super) fn pin(&mut self, n: usize, page: Vpn) -> String {
        let id = self.programs[n].id;
        let write = self.below(2) == 0;
        let lazy = self.programs[n].pages.get(&page.0).is_some_and(|p| p.lazy);
        if self.pins.len() >= 6 || lazy {
            return "no pin".into();
        }
        let allowed = (self.programs[n].mapped.get(&page.0))
            .is_some_and(|r| if write { r.prot.write } else { r.prot.read });
        match self.m.mm.pin(id, page, write) {
            Ok(pin) => {
                assert!(allowed, "a page without rights was pinned");
                let frame = pin.frame();
                assert_eq!(self.m.frame(id, page), Some(frame));
                self.pins.push(Held {
                    pin,
                    space: id,
                    page,
                    attached: true,
                    frame,
                });
                format!("pin for writing {write}: {frame}")
            }
            Err(FaultError::NoMapping | FaultError::Access) if !allowed => "no right to pin".into(),
            Err(FaultError::WriteProtected) => {
                assert!(write && self.programs[n].guards.contains_key(&page.0));
                "the program is told of the pin".into()
            }
            Err(FaultError::Oom(_)) => "no memory to pin".into(),
            Err(e) => panic!("pin: {e}"),
        }
    }

    pub(super) fn unpin(&mut self) -> String {
        if self.pins.is_empty() {
            return "no unpin".into();
        }
        let n = self.below(self.pins.len() as u64) as usize;
        let held = self.pins.swap_remove(n);
        if held.attached {
            let now = self.m.frame(held.space, held.page);
            assert_eq!(now, Some(held.frame), "{} was replaced", held.page);
        }
        self.m.mm.unpin(held.pin);
        format!("unpin {}", held.frame)
    }
}
