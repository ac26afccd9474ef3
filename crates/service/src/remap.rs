//! mremap.

use crate::serve::{Calls, errno, pages, raw, vpn};
use crate::sys::PAGE;
use core::ffi::c_int;
use deckle_door::request::FOREIGN;
use deckle_mm::MapError;
use deckle_mm::space::remap::Remap;

/// Where addresses that a program can have end.
const END: usize = (1 << 47) - PAGE;

fn is_range(start: usize, bytes: usize) -> bool {
    bytes <= END && start <= END - bytes
}

/// Whether nothing is mapped in a range.
fn is_free(start: usize, bytes: usize) -> bool {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let flags = (flags | libc::MAP_FIXED_NOREPLACE) as usize;
    let args = [start, bytes, libc::PROT_NONE as usize, flags, usize::MAX, 0];
    match raw(libc::SYS_mmap, args) {
        Ok(at) => raw(libc::SYS_munmap, [at, bytes]).is_ok() && at == start,
        Err(_) => false,
    }
}

impl Calls {
    /// mremap: address, old bytes, new bytes, flags, new address.
    pub fn remap(&mut self, args: [usize; 6]) -> Result<usize, i32> {
        let [addr, old, new, flags, to, _] = args;
        let flags = flags as c_int;
        let fixed = flags & libc::MREMAP_FIXED != 0;
        if !is_range(addr, old) || !is_range(0, new) || fixed && !is_range(to, new) {
            // The kernel says what is wrong.
            return Err(FOREIGN);
        }
        let (whole, size) = (old.next_multiple_of(PAGE), new.next_multiple_of(PAGE));
        let managed = self.process.pager.platform().managed();
        let over = fixed && managed.touches(to, size);
        let source = managed.touches(addr, whole.max(PAGE));
        let known = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP;
        let leave = flags & libc::MREMAP_DONTUNMAP != 0;
        // Duplicating by an old size of zero: not for private memory.
        if flags & !known != 0
            || (fixed || leave) && flags & libc::MREMAP_MAYMOVE == 0
            || leave && old != new
            || !addr.is_multiple_of(PAGE)
            || !to.is_multiple_of(PAGE) && (fixed || leave)
            || new == 0
            || old == 0 && source
        {
            return Err(libc::EINVAL);
        }
        if !source {
            // Foreign memory moved over managed memory by force.
            if over {
                self.give_way(addr, (to, size))?;
            }
            return Err(FOREIGN);
        }
        if self.mappings.is_full(self.process) {
            return Err(libc::ENOMEM);
        }
        if fixed && addr < to + size && to < addr + whole {
            return Err(libc::EINVAL);
        }
        if !managed.contains(addr, whole) {
            if let Some(done) = self.remap_holes((addr, whole), size, flags, to) {
                return done;
            }
            // Of both kinds: the kernel's.
            if over {
                self.give_way(addr, (to, size))?;
            }
            self.surrender(addr, whole)?;
            return Err(FOREIGN);
        }
        let how = match (fixed, flags & libc::MREMAP_MAYMOVE != 0) {
            _ if leave => Remap::Leave(fixed.then(|| vpn(to))),
            (true, _) => Remap::Fixed(vpn(to)),
            (false, true) => Remap::MayMove,
            (false, false) => Remap::InPlace,
        };
        self.move_managed((addr, whole), size, how, fixed.then_some(to))
    }

    /// mremap of a range that has holes, and else nothing but managed memory, as the kernel has it:
    /// what only moves leaves the gaps as they are, and what shrinks loses what is behind. `None`:
    /// there is something foreign in it.
    fn remap_holes(
        &mut self,
        (addr, whole): (usize, usize),
        size: usize,
        flags: c_int,
        to: usize,
    ) -> Option<Result<usize, i32>> {
        let parts = self.parts(addr, whole);
        if parts
            .iter()
            .any(|&(start, len, foreign)| foreign && !is_free(start, len))
        {
            return None;
        }
        let leave = flags & libc::MREMAP_DONTUNMAP != 0;
        let fixed = flags & libc::MREMAP_FIXED != 0;
        let begins = parts.first().is_some_and(|part| !part.2);
        if !begins || (fixed || leave || size > whole) && !(fixed && size == whole) {
            return Some(Err(libc::EFAULT));
        }
        if !fixed {
            let cut = if size < whole {
                self.unmap(addr + size, whole - size)
            } else {
                Ok(0)
            };
            return Some(cut.map(|_| addr));
        }
        for (start, len, _) in parts.into_iter().filter(|part| !part.2) {
            let there = to + (start - addr);
            let how = match leave {
                true => Remap::Leave(Some(vpn(there))),
                false => Remap::Fixed(vpn(there)),
            };
            if let Err(error) = self.move_managed((start, len), len, how, Some(there)) {
                return Some(Err(error));
            }
        }
        Some(Ok(to))
    }

    /// The kernel is about to move what is at `addr` over `to`. It may refuse that after all, and
    /// then nothing may have changed: so the memory there is given to it with its bytes.
    fn give_way(&mut self, addr: usize, to: (usize, usize)) -> Result<usize, i32> {
        self.mapped(addr, PAGE).map_err(|_| libc::EFAULT)?;
        self.surrender(to.0, to.1)
    }

    /// Has the pager move or resize a managed mapping; `to`: there, by force.
    fn move_managed(
        &mut self,
        (addr, whole): (usize, usize),
        size: usize,
        how: Remap,
        to: Option<usize>,
    ) -> Result<usize, i32> {
        if let Some(to) = to {
            crate::door().places.note(to, size);
        }
        let process = self.process;
        // What is locked for the kernel's sake must not make several mappings of one.
        let held = process.let_go_of_held(addr, whole);
        // SAFETY: what the program asked for; its calls come one after the other.
        let done = unsafe {
            let pager = &process.pager;
            pager.remap(vpn(addr), pages(whole), pages(size), how)
        };
        let at = done.as_ref().map_or(addr, |at| at.addr() as usize);
        if done.is_ok() {
            crate::door().places.note(at, size);
            if let Some(to) = to {
                process.forget_notes(to, size);
            }
            process.move_notes((addr, whole), (at, size), matches!(how, Remap::Leave(_)));
        }
        if held {
            process.hold_again(at, size);
        }
        done.map(|_| at).map_err(|e| match e {
            MapError::Hole(_) => libc::EFAULT,
            e => errno(&e),
        })
    }
}
