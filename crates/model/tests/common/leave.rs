//! Pages that leave: to the kernel for good (`disown`), or elsewhere while their range stays
//! mapped (`Remap::Leave`).

use super::{Known, Program};
use deckle_mm::space::remap::Remap;
use deckle_mm::{BlockNr, MapError, PAGE_SIZE, PageRun, Platform, Vpn};

impl Program<'_> {
    /// A page as the kernel alone has it; it gives zeros where nothing is.
    fn shown(&self, page: Vpn) -> [u8; PAGE_SIZE] {
        let there = self.rig.model.translation(self.rig.space, page);
        match there.and_then(|t| t.frame) {
            Some(frame) => self.rig.model.frame_bytes(frame),
            None => [0; PAGE_SIZE],
        }
    }

    /// The range becomes the kernel's with all its bytes; then the program unmaps it.
    pub fn give_away(&mut self) -> String {
        let (start, pages) = self.range();
        let (rig, covered) = (self.rig, self.is_covered(start, pages));
        let done = rig.mm.disown(rig.space, start, pages);
        match &done {
            Ok(()) => assert!(covered, "a hole was given away"),
            Err(MapError::Hole(_)) => assert!(!covered, "{done:?}"),
            // It does not fit: nothing has changed, which the steps to come will check.
            Err(MapError::Limit) => assert!(self.may_oom),
            Err(error) => panic!("{error}"),
        }
        if done.is_err() {
            return format!("disown {start} {pages}: {done:?}");
        }
        for p in start.0..start.0 + pages {
            let (page, known) = (Vpn(p), self.known.remove(&p));
            self.mapped.remove(&p).expect("covered");
            let Some(Known { bytes, lazy }) = known else {
                continue;
            };
            let there = self.rig.model.translation(self.rig.space, page);
            assert!(lazy || there.is_some(), "{page} is a hole for the kernel");
            let shown = self.shown(page);
            let mut should = [0; PAGE_SIZE];
            bytes.iter().for_each(|(&i, &b)| should[usize::from(i)] = b);
            let gone = lazy && shown == [0; PAGE_SIZE];
            assert!(gone || shown == should, "{page} has other bytes");
        }
        // What the kernel has now is none of the core's business: frames of the model are free
        // to be used again, and so must not be mapped.
        let end = start.0 + pages;
        for block in start.block().0..=Vpn(end - 1).block().0 {
            let first = start.0.max(BlockNr(block).start().0);
            let n = end.min(BlockNr(block + 1).start().0) - first;
            let token = rig
                .model
                .discard(PageRun::new(rig.space, Vpn(first), n as u32));
            rig.model.flush(&mut std::iter::once(token));
        }
        rig.mm.munmap(rig.space, start, pages).expect("unmap");
        format!("disown {start} {pages}")
    }

    /// The pages move; their range stays mapped and reads as zeros.
    pub fn leave_behind(&mut self) -> String {
        let (old, pages) = self.range();
        let (to, _) = self.range();
        let pages = pages.min(self.pages - (to.0 - self.first.0));
        let rights = self.mapped.get(&old.0).copied();
        let how = Remap::Leave(Some(to));
        let done = self.rig.mm.mremap(self.rig.space, old, pages, pages, how);
        if done.is_ok() {
            for i in 0..pages {
                let known = self.known.remove(&(old.0 + i));
                self.known.remove(&(to.0 + i));
                self.mapped.insert(to.0 + i, rights.expect("one mapping"));
                if let Some(known) = known {
                    self.known.insert(to.0 + i, known);
                }
            }
            let writable = rights.is_some_and(|r| r.write);
            if writable && self.below(2) == 0 {
                self.write(old, 7, 9);
            }
        } else if matches!(done, Err(MapError::Platform(_))) {
            for p in to.0..to.0 + pages {
                self.mapped.remove(&p);
                self.known.remove(&p);
            }
        }
        format!("leave {old} {pages} -> {to}: {done:?}")
    }
}
