//! Mappings that take the place of what was there.

use super::Program;
use deckle_mm::{Advice, Prot, Vpn};

impl Program<'_> {
    /// A block anew, where huge pages are wanted, of which a few pages are written.
    pub(super) fn take_block(&mut self) -> String {
        let start = self.first.add(self.below(self.pages / 512) * 512);
        let (mm, space) = (&self.rig.mm, self.rig.space);
        mm.mmap(space, Some(start), 512, 1, Prot::RW).unwrap();
        let _ = mm.madvise(space, start, 512, Advice::HugePage);
        for p in start.0..start.0 + 512 {
            self.mapped.insert(p, Prot::RW);
            self.known.remove(&p);
        }
        let tries = 1 + self.below(6);
        for _ in 0..tries {
            let (p, at) = (start.add(self.below(512)), self.below(4096) as u16);
            let byte = self.below(255) as u8 + 1;
            if !self.write(p, at, byte) {
                break;
            }
        }
        format!("a block {start}")
    }

    /// Maps a small range whose holes are left to the system from the beginning, if it may be.
    pub(super) fn map_open(&mut self, start: Vpn, pages: u64, prot: Prot) -> bool {
        let rig = self.rig;
        if self.below(2) == 0 || !rig.mm.charge_new(prot, pages) {
            return false;
        }
        rig.mm.munmap(rig.space, start, pages).unwrap();
        rig.model.leave(rig.space, start, pages);
        rig.mm.mmap_open(rig.space, start, pages, prot).unwrap();
        true
    }
}
