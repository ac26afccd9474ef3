//! What a program does to its memory by calls that the manager does not see, and what the manager
//! is told of it afterwards.

use super::{Known, P, Program};
use deckle_mm::platform::Made;
use deckle_mm::{PageMask, PageRun, Prot, Vpn};
use deckle_model::Profile;
use std::collections::BTreeMap;

impl Program<'_> {
    /// One such act, with what follows. To adopt, to forget and to follow is the live platform's:
    /// its frames are slots.
    pub fn act_unseen(&mut self, start: Vpn, pages: u64) -> String {
        // While the program moves what others work on the platform does that elsewhere.
        let acts = match self.may_fork {
            _ if P::RAM => 1,
            true => 4,
            false => 3,
        };
        match self.below(acts) {
            0 => self.discard_unseen(start, pages),
            1 => self.map_unseen(start, pages),
            2 => self.unmap_unseen(start, pages),
            _ => self.move_unseen(start, pages),
        }
    }

    fn discard_unseen(&mut self, start: Vpn, pages: u64) -> String {
        for p in (start.0..start.0 + pages).map(Vpn) {
            if self.mapped.contains_key(&p.0) {
                let run = PageRun::new(self.rig.space, p, 1);
                self.rig.model.discard_unseen(run);
                self.known.remove(&p.0);
            }
        }
        format!("dontneed unseen {start} {pages}")
    }

    fn is_free(&self, start: Vpn, pages: u64) -> bool {
        (start.0..start.0 + pages).all(|p| !self.mapped.contains_key(&p))
    }

    /// What is mapped anew, in part written, is adopted.
    fn map_unseen(&mut self, start: Vpn, pages: u64) -> String {
        if !self.is_free(start, pages) {
            return self.unmap_unseen(start, pages);
        }
        let (rig, density) = (self.rig, self.below(4));
        let (mut there, mut written): (Vec<(PageRun, Made)>, Vec<_>) = (Vec::new(), Vec::new());
        for page in (start.0..start.0 + pages).map(Vpn) {
            let byte = (self.below(4096) as usize, 1 + self.below(255) as u8);
            if self.below(4) < density && rig.model.map_unseen(rig.space, page, byte) {
                written.push((page, byte));
            }
        }
        for block in start.block().0..=start.add(pages - 1).block().0 {
            let in_block: Vec<Vpn> = written
                .iter()
                .map(|w| w.0)
                .filter(|p| p.block().0 == block)
                .collect();
            let (Some(first), Some(last)) = (in_block.first(), in_block.last()) else {
                continue;
            };
            let run = PageRun::new(rig.space, *first, (last.0 - first.0 + 1) as u32);
            let pages: PageMask = in_block.iter().map(|p| (p.0 - first.0) as u32).collect();
            there.push((
                run,
                Made {
                    pages,
                    ..Made::default()
                },
            ));
        }
        let adopted = rig
            .mm
            .adopt(rig.space, (start, pages), (Prot::RW, false), &there);
        adopted.expect("nothing was there");
        for p in start.0..start.0 + pages {
            self.mapped.insert(p, Prot::RW);
            self.known.remove(&p);
        }
        for (page, (at, byte)) in written {
            let bytes = BTreeMap::from([(at as u16, byte)]);
            self.known.insert(page.0, Known { bytes, lazy: false });
            self.dirty.insert(page.0);
        }
        format!("adopt {start} {pages}, {} there", there.len())
    }

    fn unmap_unseen(&mut self, start: Vpn, pages: u64) -> String {
        let rig = self.rig;
        rig.model.unmap_unseen(rig.space, start, pages);
        rig.mm.forget(rig.space, start, pages).expect("forgotten");
        rig.model.end_unmap(rig.space, start, pages);
        for p in start.0..start.0 + pages {
            self.mapped.remove(&p);
            self.known.remove(&p);
        }
        format!("forget {start} {pages}")
    }

    /// What is moved is one mapping, of which nothing is left to the system, to where nothing is.
    fn move_unseen(&mut self, from: Vpn, pages: u64) -> String {
        let (to, _) = self.range();
        let (rig, pages) = (self.rig, pages.min(self.pages - (to.0 - self.first.0)));
        let is_open = |p| rig.model.is_open(rig.space, Vpn(p));
        let apart = to.0 >= from.0 + pages || to.0 + pages <= from.0;
        if !apart || !self.is_covered(from, pages) || (from.0..from.0 + pages).any(is_open) {
            return self.discard_unseen(from, pages);
        }
        self.unmap_unseen(to, pages);
        rig.model.move_unseen(rig.space, (from, to), pages);
        let moved = rig.mm.moved(rig.space, (from, to), pages);
        moved.expect("nothing was there");
        rig.model.end_move();
        for i in 0..pages {
            let rights = self.mapped.remove(&(from.0 + i)).expect("covered");
            self.mapped.insert(to.0 + i, rights);
            if let Some(known) = self.known.remove(&(from.0 + i)) {
                self.known.insert(to.0 + i, known);
            }
        }
        format!("moved {from} {pages} -> {to}")
    }
}
