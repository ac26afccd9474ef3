//! Mapping managed memory: the kernel says where, the manager says what is there.
//!
//! What is managed and what the manager has mapped are the same ranges: a mapping is registered
//! before the manager knows of it, and unmapped when the manager has forgotten it.

use deckle_mm::space::remap::Remap;
use deckle_mm::table::vma::Vma;
use deckle_mm::{BLOCK_PAGES, Charge, FaultMode, MapError, PAGE_SIZE, Prot, Store, Vpn};
use deckle_uffd::Errno;

use super::{PAGES, Pager};
use crate::platform::{Place, refused};

fn platform(errno: Errno) -> MapError {
    MapError::Platform(refused(0, errno))
}

fn address(page: Vpn) -> usize {
    page.addr() as usize
}

fn bytes(pages: u64) -> usize {
    pages as usize * PAGE_SIZE
}

fn is_valid(start: Vpn, pages: u64) -> bool {
    pages > 0 && pages <= PAGES && start.0 <= PAGES - pages
}

impl<C: Charge + 'static, S: Store + 'static> Pager<C, S> {
    /// Maps `pages` pages of managed memory, holding zeros; says where.
    ///
    /// # Safety
    /// For [`Place::At`]: nobody counts on what is there, and no other mapping call of the
    /// program is under way in the range.
    ///
    /// # Errors
    /// [`MapError::Platform`] with the kernel's refusal; the manager's.
    pub unsafe fn map(&self, place: Place, pages: u64, prot: Prot) -> Result<Vpn, MapError> {
        let fixed = match place {
            Place::At(at) | Place::Free(at) => Vpn::of_addr(at as u64),
            Place::Near { .. } => Vpn(0),
        };
        if !is_valid(fixed, pages) {
            return Err(MapError::BadRange(fixed, pages));
        }
        let (mm, space, len) = (self.mm(), self.space(), bytes(pages));
        if let Place::At(at) = place
            && self.platform().managed().contains(at, len)
        {
            return mm.mmap(space, Some(fixed), pages, 1, prot);
        }
        let open = !matches!(place, Place::At(_)) && mm.charge_new(prot, pages);
        // SAFETY: the caller's promise.
        let start = match unsafe { self.map_empty(place, pages, open) } {
            Ok(start) => start,
            Err(error) => {
                if open {
                    mm.uncharge_new(pages);
                }
                return Err(error);
            }
        };
        let mapped = match open {
            true => mm.mmap_open(space, start, pages, prot),
            false => mm.mmap(space, Some(start), pages, 1, prot),
        };
        if mapped.is_err() {
            self.give_back(start, pages);
        }
        mapped
    }

    /// A managed range of which the manager does not know yet.
    ///
    /// # Safety
    /// As [`map`](Self::map).
    unsafe fn map_empty(&self, place: Place, pages: u64, open: bool) -> Result<Vpn, MapError> {
        let mut cleared = Vec::new();
        if let Place::At(at) = place {
            for (from, len, foreign) in self.platform().managed().parts(at, bytes(pages)) {
                if !foreign {
                    let part = (Vpn::of_addr(from as u64), (len / PAGE_SIZE) as u64);
                    self.mm().munmap(self.space(), part.0, part.1)?;
                    cleared.push(part);
                }
            }
        }
        // SAFETY: the caller's promise; the manager has just forgotten what was there.
        let made = unsafe { self.platform().map_new(place, bytes(pages), open) };
        match made {
            Err(_) => {
                for (start, pages) in cleared {
                    self.give_back(start, pages);
                }
            }
            Ok(at) if self.may_have_books(Vpn::of_addr(at as u64), pages) => {
                self.forget_replaced(at, bytes(pages), open);
            }
            Ok(_) => {}
        }
        made.map(|at| Vpn::of_addr(at as u64)).map_err(platform)
    }

    /// Whether the manager has something in a range that the kernel has just given away, since what
    /// was there has gone unseen, or will have when it follows a move.
    fn may_have_books(&self, start: Vpn, pages: u64) -> bool {
        let parts = || self.mm().mapped_parts(self.space(), start, pages);
        self.platform().adopts() && (self.follows() || !parts().is_empty())
    }

    /// Unmaps a managed range that the manager has forgotten. Where the kernel refuses it stays,
    /// empty and without access.
    fn give_back(&self, start: Vpn, pages: u64) {
        // SAFETY: the manager has nothing there, says the caller.
        let _ = unsafe { self.platform().unmap_old(address(start), bytes(pages)) };
    }

    /// Unmaps managed memory. What is not managed in the range stays as it is.
    ///
    /// # Safety
    /// Nobody counts on the bytes in the range.
    ///
    /// # Errors
    /// The manager's refusal.
    pub unsafe fn unmap(&self, start: Vpn, pages: u64) -> Result<(), MapError> {
        if !is_valid(start, pages) {
            return Err(MapError::BadRange(start, pages));
        }
        let parts = self
            .platform()
            .managed()
            .parts(address(start), bytes(pages));
        for (from, len, foreign) in parts {
            if !foreign {
                let (start, pages) = (Vpn::of_addr(from as u64), (len / PAGE_SIZE) as u64);
                self.platform().going(from, len);
                let forgotten = self.mm().munmap(self.space(), start, pages);
                self.platform().going(0, 0);
                forgotten?;
                self.give_back(start, pages);
            }
        }
        Ok(())
    }

    /// What is mapped of a range that is to be moved. The books have all pages that are present
    /// there then: others would be lost.
    fn whole_parts(&self, start: Vpn, pages: u64) -> Vec<Vma> {
        let (mm, space) = (self.mm(), self.space());
        for at in self.platform().strays(address(start), bytes(pages)) {
            let page = Vpn::of_addr(at as u64);
            // What is read as a page of zeros is found to be none.
            let _ = mm.fault(space, page, false, FaultMode::MayWait);
        }
        mm.mapped_parts(space, start, pages)
    }

    /// mremap of a managed range, all of which lies in one mapping, or in several without a gap if
    /// it only moves to a fixed place.
    ///
    /// # Safety
    /// Nobody counts on the bytes that are cut off, nor on what is at a fixed destination, and no
    /// other mapping call of the program is under way in these ranges.
    ///
    /// # Errors
    /// [`MapError::Hole`] if the range is no such mapping; no room; the kernel's or the
    /// manager's refusal.
    pub unsafe fn remap(
        &self,
        old: Vpn,
        old_pages: u64,
        new_pages: u64,
        how: Remap,
    ) -> Result<Vpn, MapError> {
        if !is_valid(old, old_pages) || !is_valid(Vpn(0), new_pages) {
            return Err(MapError::BadRange(old, old_pages));
        }
        let (mm, space) = (self.mm(), self.space());
        let parts = self.whole_parts(old, old_pages);
        let shrinks = matches!(how, Remap::InPlace | Remap::MayMove) && new_pages <= old_pages;
        if shrinks && parts.first().is_some_and(|v| v.start == old) {
            if new_pages < old_pages {
                // SAFETY: the caller's promise.
                unsafe { self.unmap(old.add(new_pages), old_pages - new_pages) }?;
            }
            return Ok(old);
        }
        let fixed = matches!(how, Remap::Fixed(_) | Remap::Leave(Some(_)));
        let several = fixed && old_pages == new_pages && parts.len() > 1;
        let all: u64 = parts.iter().map(|v| v.pages).sum();
        if all != old_pages || parts.len() != 1 && !several {
            return Err(MapError::Hole(old));
        }
        let leave = matches!(how, Remap::Leave(_));
        if leave && old_pages != new_pages {
            return Err(MapError::BadRange(old, new_pages));
        }
        if let Remap::Fixed(to) | Remap::Leave(Some(to)) = how {
            let apart = to.0 + new_pages <= old.0 || old.0 + old_pages <= to.0;
            if !is_valid(to, new_pages) || !apart {
                return Err(MapError::BadRange(to, new_pages));
            }
            if several {
                // SAFETY: the caller's promise.
                return unsafe { self.remap_each(&parts, to, leave) };
            }
            let place = Place::At(address(to));
            // SAFETY: the caller's promise.
            return unsafe { self.remap_to(old, old_pages, place, new_pages, leave) };
        }
        let (grown, more) = (old.add(old_pages), new_pages.saturating_sub(old_pages));
        if !leave && is_valid(grown, more) {
            // SAFETY: replaces nothing.
            let behind = unsafe { self.map_empty(Place::Free(address(grown)), more, false) };
            if behind.is_ok() {
                let done = mm.mremap(space, old, old_pages, new_pages, Remap::InPlace);
                if done.is_err() {
                    self.give_back(grown, more);
                }
                return done;
            }
        }
        if how == Remap::InPlace {
            return Err(MapError::NoRoom(new_pages));
        }
        // With the same offset in its block, so that huge pages stay whole.
        let place = match new_pages >= u64::from(BLOCK_PAGES) {
            true => Place::Near {
                hint: 0,
                align: BLOCK_PAGES as usize * PAGE_SIZE,
                offset: bytes(u64::from(old.index())),
            },
            false => Place::aligned(PAGE_SIZE),
        };
        // SAFETY: replaces nothing.
        unsafe { self.remap_to(old, old_pages, place, new_pages, leave) }
    }

    /// Moves mappings without a gap one after the other, as Linux does since 6.17. On an error
    /// those before have moved.
    ///
    /// # Safety
    /// As [`remap`](Self::remap).
    unsafe fn remap_each(&self, parts: &[Vma], to: Vpn, leave: bool) -> Result<Vpn, MapError> {
        for v in parts {
            let place = Place::At(address(to.add(v.start.0 - parts[0].start.0)));
            // SAFETY: the caller's promise.
            unsafe { self.remap_to(v.start, v.pages, place, v.pages, leave) }?;
        }
        Ok(to)
    }

    /// Moves a range to a place that is mapped first, and unmaps the old one after.
    ///
    /// # Safety
    /// As [`remap`](Self::remap).
    unsafe fn remap_to(
        &self,
        old: Vpn,
        old_pages: u64,
        place: Place,
        new_pages: u64,
        leave: bool,
    ) -> Result<Vpn, MapError> {
        // SAFETY: the caller's promise.
        let to = unsafe { self.map_empty(place, new_pages, false) }?;
        let how = match leave {
            true => Remap::Leave(Some(to)),
            false => Remap::Fixed(to),
        };
        let done = self
            .mm()
            .mremap(self.space(), old, old_pages, new_pages, how);
        match &done {
            // Else a part has moved: the range is kept from everybody.
            Err(_) if self.mm().is_mapped(self.space(), old, old_pages) => {
                self.give_back(to, new_pages);
            }
            Err(_) => {}
            Ok(_) if leave => {}
            Ok(_) => self.give_back(old, old_pages),
        }
        done
    }
}
