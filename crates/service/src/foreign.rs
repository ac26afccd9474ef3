//! Ranges that are the kernel's alone.
//!
//! A call may concern managed memory and what lies beside it. A file that is mapped over managed
//! memory by force, and managed memory for which the program wants what only the kernel can
//! give, leave management.

use crate::serve::{Calls, errno, pages, raw, vpn};
use crate::sys::PAGE;
use deckle_mm::MapError;

impl Calls {
    /// A range in parts: start, bytes, and whether the part is the kernel's, mapped or not.
    pub fn parts(&self, start: usize, bytes: usize) -> Vec<(usize, usize, bool)> {
        self.process.pager.platform().managed().parts(start, bytes)
    }

    /// Something foreign is about to be mapped over the range: its pages are dropped. The
    /// addresses stay taken.
    pub fn leave(&mut self, addr: usize, bytes: usize) -> Result<usize, i32> {
        let (mm, space) = self.process.memory();
        self.process.forget_notes(addr, bytes);
        for (start, len, foreign) in self.parts(addr, bytes) {
            if foreign {
                continue;
            }
            mm.munmap(space, vpn(start), pages(len))
                .map_err(|e| errno(&e))?;
            // SAFETY: no byte of the program is left there.
            unsafe { self.process.pager.platform().leave(start, len) }.map_err(|e| e.0)?;
        }
        Ok(0)
    }

    /// The program unmaps the range next: what is managed of it is forgotten. If it moves memory at
    /// this moment, it is found later that nothing is there.
    pub fn forget(&mut self, addr: usize, bytes: usize) -> Result<usize, i32> {
        self.process.forget_notes(addr, bytes);
        let parts = self.parts(addr, bytes);
        let managed = parts.into_iter().filter(|part| !part.2);
        let managed: Vec<_> = managed.map(|(start, len, _)| (start, len)).collect();
        let _ = self.process.pager.forget(|| (), |()| managed);
        Ok(0)
    }

    /// Gives what is managed of a range to the kernel with its bytes, for good. What is given is
    /// part of what the summary calls unmanaged.
    pub fn surrender(&mut self, addr: usize, bytes: usize) -> Result<usize, i32> {
        let (mm, space) = self.process.memory();
        for (start, len, foreign) in self.parts(addr, bytes) {
            if foreign {
                continue;
            }
            let parts = self.process.mapped_parts(start, len);
            mm.disown(space, vpn(start), pages(len))
                .map_err(|e| match e {
                    MapError::Hole(_) => libc::ENOMEM,
                    e => errno(&e),
                })?;
            // SAFETY: every page that has bytes is present, says `disown`.
            unsafe { self.process.pager.platform().leave(start, len) }.map_err(|e| e.0)?;
            for part in parts.iter().filter(|part| part.locked) {
                let bytes = part.pages as usize * PAGE;
                raw(libc::SYS_mlock, [part.start.addr() as usize, bytes])?;
            }
        }
        Ok(0)
    }

    /// ENOMEM unless all of the range is mapped, for the program.
    pub fn mapped(&self, addr: usize, bytes: usize) -> Result<usize, i32> {
        let how = libc::MS_ASYNC as usize;
        for (start, len, foreign) in self.parts(addr, bytes) {
            if foreign {
                // Does nothing but look.
                raw(libc::SYS_msync, [start, len, how])?;
            }
        }
        Ok(0)
    }
}
