//! mlock and mlockall.
//!
//! The kernel's mlockall would lock the arena and the range where pages rest, all of them; so
//! it is carried out mapping by mapping, without those.

use super::serve::{Calls, OnFault, raw};
use core::ffi::c_int;

impl Calls {
    /// mlock and mlock2: address, bytes, flags.
    pub fn lock(&self, args: [usize; 6]) -> Result<usize, i32> {
        let on_fault = match args[2] {
            0 => OnFault(false),
            flags if flags == libc::MLOCK_ONFAULT as usize => OnFault(true),
            _ => return Err(libc::EINVAL),
        };
        self.mapped(args[0], args[1])?;
        self.lock_range(args, on_fault)
    }

    fn lock_range(&self, args: [usize; 6], on_fault: OnFault) -> Result<usize, i32> {
        self.on(
            libc::SYS_mlock2,
            args,
            |mm, space, start, n| match on_fault {
                OnFault(false) => mm.mlock(space, start, n),
                OnFault(true) => mm.lock_present(space, start, n),
            },
        )
    }

    /// mlockall. ENOMEM if what is mapped does not fit below the limit.
    pub fn lock_all(&mut self, flags: c_int) -> Result<usize, i32> {
        let known = libc::MCL_CURRENT | libc::MCL_FUTURE | libc::MCL_ONFAULT;
        if flags & !known != 0 || flags & (libc::MCL_CURRENT | libc::MCL_FUTURE) == 0 {
            return Err(libc::EINVAL);
        }
        let on_fault = OnFault(flags & libc::MCL_ONFAULT != 0);
        self.lock_future = (flags & libc::MCL_FUTURE != 0).then_some(on_fault);
        if flags & libc::MCL_CURRENT == 0 {
            return Ok(0);
        }
        let how = match on_fault {
            OnFault(true) => libc::MLOCK_ONFAULT as usize,
            OnFault(false) => 0,
        };
        for (start, bytes) in self.all_mapped() {
            let args = [start, bytes, how, 0, 0, 0];
            self.on(libc::SYS_mlock2, args, |mm, space, start, n| {
                match on_fault {
                    // Not what was never touched: much of that is room that the allocator
                    // keeps.
                    OnFault(false) => mm.lock_contents(space, start, n),
                    OnFault(true) => mm.lock_present(space, start, n),
                }
            })?;
        }
        for (start, bytes) in self.outside() {
            // As with the kernel's: a mapping that cannot be locked is none of the caller's
            // (the kernel's own pages).
            let _ = raw(libc::SYS_mlock2, [start, bytes, how, 0, 0, 0]);
        }
        Ok(0)
    }

    /// munlockall.
    pub fn unlock_all(&mut self) -> Result<usize, i32> {
        self.lock_future = None;
        for (start, bytes) in self.all_mapped() {
            self.on(
                libc::SYS_munlock,
                [start, bytes, 0, 0, 0, 0],
                |mm, space, start, n| mm.munlock(space, start, n),
            )?;
        }
        raw(libc::SYS_munlockall, [0; 6])
    }

    /// What the program has mapped in the arena: start, bytes.
    fn all_mapped(&self) -> Vec<(usize, usize)> {
        let pager = &self.process.pager;
        let arena = pager.platform().arena();
        let start = super::serve::vpn(arena.base());
        pager
            .mm()
            .mapped_parts(pager.space(), start, super::serve::pages(arena.len()))
            .iter()
            .map(|v| (v.start.addr() as usize, v.pages as usize * crate::sys::PAGE))
            .collect()
    }

    /// Mappings outside the arena that may be locked: start, bytes.
    fn outside(&self) -> Vec<(usize, usize)> {
        let never = self.process.pager.platform().never_locked();
        let text = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
        text.lines()
            .filter_map(|line| {
                let (from, to) = line.split(' ').next()?.split_once('-')?;
                let from = usize::from_str_radix(from, 16).ok()?;
                let to = usize::from_str_radix(to, 16).ok()?;
                let apart = |(start, len): &(usize, usize)| to <= *start || start + len <= from;
                never.iter().all(apart).then_some((from, to - from))
            })
            .collect()
    }
}
