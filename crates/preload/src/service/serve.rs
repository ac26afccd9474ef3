//! The program's calls, as the service carries them out.

use super::Process;
use super::request::{self, Op, Request};
use crate::sys::PAGE;
use core::ffi::c_int;
use deckle_mm::{Advice, MapError, Prot, Vpn};
use std::collections::BTreeMap;
use std::sync::{MutexGuard, PoisonError};

/// The state of the calls.
pub struct Calls {
    process: &'static Process,
    /// Calls of other threads that came while everything stands still for a fork. With room
    /// for all there can be: nothing is allocated meanwhile.
    waiting: Vec<Request>,
    still: bool,
}

fn vpn(addr: usize) -> Vpn {
    Vpn::of_addr(addr as u64)
}

fn pages(bytes: usize) -> u64 {
    (bytes / PAGE) as u64
}

fn prot(word: usize) -> Prot {
    let has = |flag: c_int| word as c_int & flag != 0;
    let write = has(libc::PROT_WRITE);
    let exec = has(libc::PROT_EXEC);
    Prot {
        // The hardware cannot withhold reading alone.
        read: has(libc::PROT_READ) || write || exec,
        write,
        exec,
    }
}

/// As the kernel would say it.
fn errno(error: &MapError) -> i32 {
    match error {
        MapError::BadRange(..) => libc::EINVAL,
        MapError::Hole(_) | MapError::NoRoom(_) | MapError::Limit | MapError::NoSpace(_) => {
            libc::ENOMEM
        }
        MapError::Platform(_) | MapError::Fault(_) => libc::ENOMEM,
    }
}

impl Calls {
    /// No foreign ranges yet.
    pub fn new(process: &'static Process) -> Calls {
        Calls {
            process,
            waiting: Vec::with_capacity(request::SLOTS),
            still: false,
        }
    }

    fn foreign(&self) -> MutexGuard<'static, BTreeMap<usize, usize>> {
        self.process
            .foreign
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Carries a call out and answers it; keeps it for later while a fork is on its way.
    pub fn serve(&mut self, request: Request) {
        if self.still && request.op() != Op::ForkEnd {
            self.waiting.push(request);
            return;
        }
        self.carry_out(request);
        while !self.still && !self.waiting.is_empty() {
            let request = self.waiting.remove(0);
            self.carry_out(request);
        }
    }

    fn carry_out(&mut self, request: Request) {
        let args = request.args();
        let result = match request.op() {
            Op::Map => self.map(args),
            Op::MapFixed => self.map_fixed(args),
            Op::Unmap => self.unmap(args[0], args[1]),
            Op::Protect => self.on(args, |mm, space, start, n| {
                mm.mprotect(space, start, n, prot(args[2]))
            }),
            Op::Advise => self.advise(args),
            Op::Lock => self.on(args, |mm, space, start, n| mm.mlock(space, start, n)),
            Op::Unlock => self.on(args, |mm, space, start, n| mm.munlock(space, start, n)),
            Op::LockAll => Err(libc::ENOMEM),
            Op::UnlockAll => Ok(0),
            Op::Remap => self.remap(args),
            Op::Leave => self.leave(args[0], args[1]),
            Op::ForkBegin => {
                let done = self.process.fork_begin(args[0] as u32);
                self.still = done.is_ok();
                done
            }
            Op::ForkEnd => {
                self.still = false;
                self.process.fork_end()
            }
        };
        request.answer(result);
    }

    fn on(
        &self,
        args: [usize; 6],
        work: impl FnOnce(&super::Manager, deckle_mm::SpaceId, Vpn, u64) -> Result<(), MapError>,
    ) -> Result<usize, i32> {
        let pager = &self.process.pager;
        work(pager.mm(), pager.space(), vpn(args[0]), pages(args[1]))
            .map(|()| 0)
            .map_err(|e| errno(&e))
    }

    fn map(&mut self, args: [usize; 6]) -> Result<usize, i32> {
        let [_hint, bytes, align, rights, flags, _] = args;
        let pager = &self.process.pager;
        let start = pager
            .mm()
            .mmap(
                pager.space(),
                None,
                pages(bytes),
                pages(align),
                prot(rights),
            )
            .map_err(|e| errno(&e))?;
        self.populate(start.addr() as usize, bytes, rights, flags as c_int)
    }

    fn map_fixed(&mut self, args: [usize; 6]) -> Result<usize, i32> {
        let [addr, bytes, _, rights, flags, _] = args;
        if flags as c_int & libc::MAP_FIXED_NOREPLACE != 0 {
            return Err(libc::EEXIST);
        }
        self.adopt(addr, bytes)?;
        let pager = &self.process.pager;
        pager
            .mm()
            .mmap(
                pager.space(),
                Some(vpn(addr)),
                pages(bytes),
                1,
                prot(rights),
            )
            .map_err(|e| errno(&e))?;
        self.populate(addr, bytes, rights, flags as c_int)
    }

    /// MAP_LOCKED and MAP_POPULATE.
    fn populate(
        &self,
        addr: usize,
        bytes: usize,
        rights: usize,
        flags: c_int,
    ) -> Result<usize, i32> {
        let (pager, at, n) = (&self.process.pager, vpn(addr), pages(bytes));
        if flags & libc::MAP_LOCKED != 0 {
            if let Err(error) = pager.mm().mlock(pager.space(), at, n) {
                let _ = pager.mm().munmap(pager.space(), at, n);
                return Err(match error {
                    MapError::Limit => libc::EAGAIN,
                    error => errno(&error),
                });
            }
        } else if flags & libc::MAP_POPULATE != 0 {
            let advice = match prot(rights) {
                Prot { write: true, .. } => Advice::PopulateWrite,
                Prot { read: true, .. } => Advice::PopulateRead,
                _ => return Ok(addr),
            };
            // As with the kernel's: what does not fit is not populated.
            let _ = pager.mm().madvise(pager.space(), at, n, advice);
        }
        Ok(addr)
    }

    fn unmap(&mut self, addr: usize, bytes: usize) -> Result<usize, i32> {
        let pager = &self.process.pager;
        pager
            .mm()
            .munmap(pager.space(), vpn(addr), pages(bytes))
            .map_err(|e| errno(&e))?;
        self.adopt(addr, bytes)?;
        Ok(0)
    }

    /// Something foreign is about to be mapped over the range: its pages are dropped, and the
    /// core keeps a mapping without access there as a placeholder.
    fn leave(&mut self, addr: usize, bytes: usize) -> Result<usize, i32> {
        let bytes = bytes.next_multiple_of(PAGE);
        let pager = &self.process.pager;
        pager
            .mm()
            .mmap(pager.space(), Some(vpn(addr)), pages(bytes), 1, Prot::NONE)
            .map_err(|e| errno(&e))?;
        self.forget(addr, bytes, |_, _| Ok(()))?;
        self.foreign().insert(addr, addr + bytes);
        Ok(0)
    }

    /// Takes back what is foreign in the range: nothing of it is needed any more.
    fn adopt(&mut self, addr: usize, bytes: usize) -> Result<(), i32> {
        let platform = self.process.pager.platform();
        self.forget(addr, bytes, |start, end| {
            // SAFETY: the program has unmapped the range, or maps something else over it.
            unsafe { platform.adopt(start, end - start) }.map_err(|e| e.0)
        })
    }

    /// Takes the range out of the list of foreign ones; calls `each` for every part of it
    /// that was in.
    fn forget(
        &mut self,
        addr: usize,
        bytes: usize,
        mut each: impl FnMut(usize, usize) -> Result<(), i32>,
    ) -> Result<(), i32> {
        let end = addr + bytes;
        loop {
            let mut foreign = self.foreign();
            let hit = foreign
                .range(..end)
                .next_back()
                .map(|(from, to)| (*from, *to))
                .filter(|(_, to)| *to > addr);
            let Some((from, to)) = hit else {
                return Ok(());
            };
            foreign.remove(&from);
            if from < addr {
                foreign.insert(from, addr);
            }
            if to > end {
                foreign.insert(end, to);
            }
            drop(foreign);
            each(from.max(addr), to.min(end))?;
        }
    }

    fn advise(&mut self, args: [usize; 6]) -> Result<usize, i32> {
        /// Linux 5.14.
        const POPULATE_READ: c_int = 22;
        const POPULATE_WRITE: c_int = 23;
        const COLLAPSE: c_int = 25;
        let advice = match args[2] as c_int {
            libc::MADV_NORMAL
            | libc::MADV_RANDOM
            | libc::MADV_SEQUENTIAL
            | libc::MADV_DOFORK
            | libc::MADV_KEEPONFORK
            | libc::MADV_DONTDUMP
            | libc::MADV_DODUMP
            | libc::MADV_UNMERGEABLE => return Ok(0),
            libc::MADV_WILLNEED => Advice::WillNeed,
            libc::MADV_DONTNEED | libc::MADV_DONTNEED_LOCKED => Advice::DontNeed,
            libc::MADV_FREE => Advice::Free,
            libc::MADV_COLD => Advice::Cold,
            libc::MADV_PAGEOUT => Advice::PageOut,
            libc::MADV_HUGEPAGE | COLLAPSE => Advice::HugePage,
            libc::MADV_NOHUGEPAGE => Advice::NoHugePage,
            POPULATE_READ => Advice::PopulateRead,
            POPULATE_WRITE => Advice::PopulateWrite,
            // MERGEABLE, DONTFORK, WIPEONFORK and what is not known: not for managed memory.
            _ => return Err(libc::EINVAL),
        };
        let pager = &self.process.pager;
        self.on(args, |mm, space, start, n| match advice {
            Advice::PageOut => pager.page_out(start, n),
            _ => mm.madvise(space, start, n, advice),
        })
    }

    fn remap(&mut self, args: [usize; 6]) -> Result<usize, i32> {
        use deckle_mm::space::remap::Remap;
        let [addr, old, new, flags, to, _] = args;
        let flags = flags as c_int;
        let known = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        let fixed = flags & libc::MREMAP_FIXED != 0;
        // MREMAP_DONTUNMAP, and duplicating by an old size of zero: not for private memory.
        if flags & !known != 0
            || fixed && flags & libc::MREMAP_MAYMOVE == 0
            || !addr.is_multiple_of(PAGE)
            || !to.is_multiple_of(PAGE) && fixed
            || new == 0
            || old == 0
        {
            return Err(libc::EINVAL);
        }
        let how = match (fixed, flags & libc::MREMAP_MAYMOVE != 0) {
            (true, _) => Remap::Fixed(vpn(to)),
            (false, true) => Remap::MayMove,
            (false, false) => Remap::InPlace,
        };
        let size = |bytes: usize| pages(bytes.next_multiple_of(PAGE));
        let pager = &self.process.pager;
        pager
            .mm()
            .mremap(pager.space(), vpn(addr), size(old), size(new), how)
            .map(|at| at.addr() as usize)
            .map_err(|e| match e {
                MapError::Hole(_) => libc::EFAULT,
                e => errno(&e),
            })
    }
}
