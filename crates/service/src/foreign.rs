//! Ranges of the arena that are the kernel's alone.
//!
//! A file that is mapped over managed memory by force, and managed memory for which the
//! program wants what only the kernel can give. The core keeps a mapping without access there
//! as a placeholder; calls on such a range are passed on. It comes back to management when the
//! program unmaps it, or maps anonymous memory over it.

use crate::serve::{Calls, errno, pages, raw, vpn};
use crate::sys::PAGE;
use core::ffi::c_int;
use deckle_mm::{MapError, Prot};

impl Calls {
    /// A range of the arena in parts: start, bytes, and whether the part is the kernel's.
    pub fn parts(&self, start: usize, bytes: usize) -> Vec<(usize, usize, bool)> {
        self.process.pager.platform().arena().parts(start, bytes)
    }

    /// Something foreign is about to be mapped over the range: its pages are dropped.
    pub fn leave(&mut self, addr: usize, bytes: usize) -> Result<usize, i32> {
        let bytes = bytes.next_multiple_of(PAGE);
        let (mm, space) = self.process.memory();
        mm.mmap(space, Some(vpn(addr)), pages(bytes), 1, Prot::NONE)
            .map_err(|e| errno(&e))?;
        // SAFETY: no byte of the program is left there.
        unsafe { self.process.pager.platform().leave(addr, bytes) }.map_err(|e| e.0)?;
        Ok(0)
    }

    /// Gives a range with its bytes to the kernel, for good. What is given is part of what
    /// the summary calls unmanaged.
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
                raw(
                    libc::SYS_mlock,
                    [part.start.addr() as usize, bytes, 0, 0, 0, 0],
                )?;
            }
        }
        Ok(0)
    }

    /// Takes back what is foreign in the range: nothing of it is needed any more.
    pub fn adopt(&mut self, addr: usize, bytes: usize) -> Result<(), i32> {
        let platform = self.process.pager.platform();
        for (start, len, foreign) in self.parts(addr, bytes) {
            if foreign {
                // SAFETY: the program has unmapped the range, or maps something else over it.
                unsafe { platform.adopt(start, len) }.map_err(|e| e.0)?;
            }
        }
        Ok(())
    }

    /// Whether nothing is mapped in the range, for the program.
    pub fn is_free(&self, addr: usize, bytes: usize) -> bool {
        let arena = self.process.pager.platform().arena();
        arena.contains(addr, bytes) && self.process.mapped_parts(addr, bytes).is_empty()
    }

    /// ENOMEM unless all of the range is mapped, for the program.
    pub fn mapped(&self, addr: usize, bytes: usize) -> Result<usize, i32> {
        let (mm, space) = self.process.memory();
        match mm.is_mapped(space, vpn(addr), pages(bytes)) {
            true => Ok(0),
            false => Err(libc::ENOMEM),
        }
    }

    /// mremap of a range that is the kernel's. `old` and `new` are whole pages.
    pub fn remap_foreign(
        &mut self,
        addr: usize,
        old: usize,
        new: usize,
        flags: c_int,
        to: Option<usize>,
    ) -> Result<usize, i32> {
        let keep_old = flags & libc::MREMAP_DONTUNMAP != 0;
        if to.is_none() && !keep_old && new <= old {
            if new < old {
                self.unmap(addr + new, old - new)?;
            }
            return Ok(addr);
        }
        if flags & libc::MREMAP_MAYMOVE == 0 {
            // Behind it is the arena.
            return Err(libc::ENOMEM);
        }
        let arena = self.process.pager.platform().arena();
        let dest = match to {
            Some(to) => {
                if arena.contains(to, new) {
                    self.leave(to, new)?;
                }
                to
            }
            None => {
                let how = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
                raw(libc::SYS_mmap, [0, new, 0, how as usize, usize::MAX, 0])?
            }
        };
        let keep = old.min(new);
        let mv = |how: c_int| raw(libc::SYS_mremap, [addr, keep, keep, how as usize, dest, 0]);
        let moving = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        // Not unmapped: nobody else can get addresses of the arena in between.
        match mv(moving | libc::MREMAP_DONTUNMAP) {
            Err(libc::EINVAL) if !keep_old => mv(moving)?,
            result => result?,
        };
        if new > old {
            let (tail, more) = (dest + old, new - old);
            raw(libc::SYS_munmap, [tail, more, 0, 0, 0, 0])?;
            raw(libc::SYS_mremap, [dest, old, new, 0, 0, 0])?;
        }
        if !keep_old {
            self.unmap(addr, old)?;
        }
        Ok(dest)
    }
}
