//! mlock and mlockall.
//!
//! The kernel's mlockall would lock the range where pages rest, all of it, and fill what is
//! managed with zeros; so it is carried out mapping by mapping, without those.

use crate::adopt::Found;
use crate::door;
use crate::process::Process;
use crate::serve::{Calls, errno, raw};
use crate::sys::PAGE;
use core::ffi::c_int;
use deckle_mm::table::vma::Vma;
use deckle_mm::{MapError, Prot, Vpn};

/// From this size on a mapping without a reservation is taken for room that its owner fills as
/// needed, which is how allocators map: mlockall and MCL_FUTURE lock its pages as they come.
const ROOM: usize = 32 << 20;

/// Whether a mapping is room; one that is to be locked by its own call is not.
pub fn is_room(bytes: usize, flags: c_int) -> bool {
    bytes >= ROOM && flags & libc::MAP_NORESERVE != 0 && flags & libc::MAP_LOCKED == 0
}

/// Bytes of some mappings.
pub fn bytes_of(vmas: &[Vma]) -> usize {
    vmas.iter().map(|v| v.pages as usize * PAGE).sum()
}

impl Process {
    /// All that is managed.
    pub fn all_mapped(&self) -> Vec<Vma> {
        self.mapped_parts(0, 1 << 47)
    }

    /// Keeps the managed parts of a range resident, as long as they are mapped.
    pub fn hold(&self, addr: usize, bytes: usize) -> Result<usize, i32> {
        self.held.lock().insert(addr, bytes);
        self.lock_parts(addr, bytes);
        Ok(0)
    }

    fn lock_parts(&self, addr: usize, bytes: usize) {
        let (mm, space) = self.memory();
        for v in self.mapped_parts(addr, bytes) {
            // What cannot be locked stays as it was: the limit has no room for it.
            let _ = mm.mlock(space, v.start, v.pages);
        }
    }

    /// Whether a mapping is locked for the kernel's sake, not the program's.
    pub fn is_held(&self, v: &Vma) -> bool {
        let (start, bytes) = (v.start.addr() as usize, v.pages as usize * PAGE);
        self.held.lock().contains(start, bytes)
    }

    /// Keeps resident again what is noted of a range: in a forked child, or at a new place.
    pub fn hold_again(&self, addr: usize, bytes: usize) {
        for (start, len, outside) in self.held.lock().parts(addr, bytes) {
            if !outside {
                self.lock_parts(start, len);
            }
        }
    }

    /// Lets go of it for a moment; whether there is any.
    pub fn let_go_of_held(&self, addr: usize, bytes: usize) -> bool {
        let (mm, space) = self.memory();
        let mut any = false;
        for v in self.mapped_parts(addr, bytes) {
            if v.locked && self.is_held(&v) {
                any |= mm.munlock(space, v.start, v.pages).is_ok();
            }
        }
        any
    }

    /// A forked child has no lock of its parent's. Before other tasks of the service run.
    pub fn forget_locks(&self) -> Result<(), MapError> {
        let (mm, space) = self.memory();
        let all = self.all_mapped();
        let mut locked = all.iter().filter(|v| v.locked);
        locked.try_for_each(|v| mm.munlock(space, v.start, v.pages))
    }
}

impl Calls {
    /// mlock and mlock2: address, bytes, flags.
    pub fn lock(&self, args: [usize; 6]) -> Result<usize, i32> {
        let on_fault = match args[2] {
            0 => false,
            flags if flags == libc::MLOCK_ONFAULT as usize => true,
            _ => return Err(libc::EINVAL),
        };
        self.mapped(args[0], args[1])?;
        if args[3] != usize::MAX {
            let mut here = self.process.mapped_parts(args[0], args[1]);
            here.retain(|v| !v.locked);
            if self.locked() + bytes_of(&here) > args[3] {
                return Err(libc::ENOMEM);
            }
        }
        self.on(libc::SYS_mlock2, args, |mm, space, at, n| match on_fault {
            false => mm.mlock(space, at, n),
            true => mm.lock_present(space, at, n),
        })?;
        // Locked, but not to be brought in.
        let parts = self.process.mapped_parts(args[0], args[1]);
        match !on_fault && parts.iter().any(|v| v.prot == Prot::NONE) {
            true => Err(libc::ENOMEM),
            false => Ok(0),
        }
    }

    /// Bytes that are locked, managed or not.
    fn locked(&self) -> usize {
        let mut all = self.process.all_mapped();
        all.retain(|v| v.locked);
        bytes_of(&all) + self.process.own.figure("VmLck:")
    }

    /// EAGAIN for a new mapping that would have to be locked, if the caller may have no more
    /// than `most` bytes locked.
    pub fn may_map(&self, bytes: usize, flags: c_int, most: usize) -> Result<(), i32> {
        let locks = flags & libc::MAP_LOCKED != 0 || self.lock_future.is_some();
        match locks && most != usize::MAX && self.locked().saturating_add(bytes) > most {
            true => Err(libc::EAGAIN),
            false => Ok(()),
        }
    }

    /// Locks a managed range and brings it in. What nobody may touch is not brought in.
    pub fn lock_now(&self, start: Vpn, n: u64) -> Result<(), MapError> {
        let (mm, space) = self.process.memory();
        let parts = mm.mapped_parts(space, start, n);
        parts.iter().try_for_each(|v| match v.prot {
            Prot::NONE => mm.lock_present(space, v.start, v.pages),
            _ => mm.mlock(space, v.start, v.pages),
        })
    }

    /// Locks a managed range, and brings it in unless it is to be locked `on_fault`.
    pub fn lock_so(&self, start: Vpn, n: u64, on_fault: bool) -> Result<(), MapError> {
        let (mm, space) = self.process.memory();
        match on_fault {
            true => mm.lock_present(space, start, n),
            false => self.lock_now(start, n),
        }
    }

    /// mlockall of a caller who may have `most` bytes locked. ENOMEM if what is mapped does
    /// not fit below the limit; what was not locked before is not locked then.
    pub fn lock_all(&mut self, flags: c_int, most: usize) -> Result<usize, i32> {
        let known = libc::MCL_CURRENT | libc::MCL_FUTURE | libc::MCL_ONFAULT;
        if flags & !known != 0 || flags & (libc::MCL_CURRENT | libc::MCL_FUTURE) == 0 {
            return Err(libc::EINVAL);
        }
        if most == 0 {
            return Err(libc::EPERM);
        }
        let current = flags & libc::MCL_CURRENT != 0;
        // The kernel's own lock would keep unseen memory from ever being adopted.
        let how = match current {
            true => Found::ToLock,
            false => Found::Always,
        };
        // What is adopted here is locked below, as this call wants it.
        let future = self.lock_future.take();
        let _ = self.adopt_all(how);
        self.lock_future = future;
        door().known.forget();
        let all = self.process.all_mapped();
        let ours = self.never_locked();
        let ours = ours.iter().map(|r| r.1).sum();
        let others = || self.process.own.figure("VmSize:").saturating_sub(ours);
        if current && most != usize::MAX && bytes_of(&all) + others() > most {
            return Err(libc::ENOMEM);
        }
        let on_fault = flags & libc::MCL_ONFAULT != 0;
        if current {
            self.lock_managed(&all, on_fault)?;
            let how = match on_fault {
                true => libc::MLOCK_ONFAULT as usize,
                false => 0,
            };
            for (start, bytes) in self.outside() {
                // As with the kernel's: a mapping that cannot be locked is none of the
                // caller's (the kernel's own pages).
                let _ = raw(libc::SYS_mlock2, [start, bytes, how]);
            }
        }
        self.lock_future = (flags & libc::MCL_FUTURE != 0).then_some(on_fault);
        Ok(0)
    }

    fn lock_managed(&self, all: &[Vma], on_fault: bool) -> Result<(), i32> {
        let (mm, space) = self.process.memory();
        let lock = |v: &Vma| -> Result<usize, i32> {
            let (start, bytes) = (v.start.addr() as usize, v.pages as usize * PAGE);
            let parts = self.process.rooms.lock().parts(start, bytes);
            for (start, bytes, full) in parts {
                let args = [start, bytes, usize::from(on_fault)];
                self.on(libc::SYS_mlock2, args, |mm, space, at, n| match full {
                    _ if on_fault => mm.lock_present(space, at, n),
                    false => mm.lock_contents(space, at, n),
                    true => self.lock_now(at, n),
                })?;
            }
            Ok(0)
        };
        let done = all.iter().try_for_each(|v| lock(v).map(drop));
        if done.is_err() {
            for v in all.iter().filter(|v| !v.locked) {
                mm.munlock(space, v.start, v.pages).map_err(|e| errno(&e))?;
            }
        }
        done
    }

    /// munlockall.
    pub fn unlock_all(&mut self) -> Result<usize, i32> {
        self.lock_future = None;
        for v in self.process.all_mapped() {
            let bytes = v.pages as usize * PAGE;
            let args = [v.start.addr() as usize, bytes];
            self.on(libc::SYS_munlock, args, |mm, space, start, n| {
                mm.munlock(space, start, n)
            })?;
        }
        raw(libc::SYS_munlockall, [0; 6])
    }

    /// What mlockall leaves as it is: memory that is locked apart, and what the file of the group
    /// has no blocks for.
    fn never_locked(&self) -> Vec<(usize, usize)> {
        let mut all = self.process.pager.platform().never_locked();
        all.push(self.process.account.group().range());
        all
    }

    /// Mappings that are not managed and may be locked: start, bytes.
    fn outside(&self) -> Vec<(usize, usize)> {
        let never = self.never_locked();
        let apart = |from: usize, to: usize| {
            let mut never = never.iter();
            never.all(|(start, len)| to <= *start || start + len <= from)
        };
        let all = self.process.own.mappings().unwrap_or_default();
        all.into_iter()
            .filter(|one| apart(one.start, one.end))
            .map(|one| (one.start, one.end - one.start))
            .collect()
    }
}
