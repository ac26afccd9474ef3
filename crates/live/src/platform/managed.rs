//! What is managed: the ranges of the program's memory that this platform serves, wherever the
//! program has put them.
//!
//! Each of them is registered for missing and write-protect faults before anybody knows of it.
//! Neighbours are one range, as they are one mapping for the kernel if they have the same
//! rights.

use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use deckle_uffd::{Errno, RegisterMode, Uffd};

use super::kernel::{self, Advice};
use crate::ranges::Ranges;

/// Has faults of a range delivered: missing pages and protected ones.
pub(super) fn register(uffd: &Uffd, start: usize, len: usize) -> Result<(), Errno> {
    let mode = RegisterMode::MISSING | RegisterMode::WP;
    uffd.register(start, len, mode).map(drop)
}

/// The set of managed ranges.
#[derive(Debug, Default)]
pub struct Managed {
    ranges: RwLock<Ranges>,
    huge_advice: bool,
    dont_fork: bool,
}

impl Managed {
    /// Nothing is managed yet.
    ///
    /// `huge_advice`: the start-up test showed that page tables left by faults cannot be
    /// cleared away here, so ranges are advised huge for the kernel to leave none.
    /// `dont_fork`: ranges are not inherited by forked children.
    pub(super) fn new(huge_advice: bool, dont_fork: bool) -> Managed {
        Managed {
            ranges: RwLock::default(),
            huge_advice,
            dont_fork,
        }
    }

    fn read(&self) -> RwLockReadGuard<'_, Ranges> {
        // A map of numbers is whole at any time.
        self.ranges.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Ranges> {
        self.ranges.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether all of a range is managed.
    pub fn contains(&self, start: usize, len: usize) -> bool {
        self.read().contains(start, len)
    }

    /// Whether a part of a range is managed.
    pub fn touches(&self, start: usize, len: usize) -> bool {
        self.read().touches(start, len)
    }

    /// A range in parts: start, bytes, and whether the part is the kernel's alone, mapped or
    /// not.
    pub fn parts(&self, start: usize, len: usize) -> Vec<(usize, usize, bool)> {
        self.read().parts(start, len)
    }

    /// All managed ranges: start, bytes.
    pub fn ranges(&self) -> Vec<(usize, usize)> {
        self.read().iter().collect()
    }

    /// Takes a new, empty mapping without access into the set, registered; if it is to be `open`,
    /// left to the kernel.
    pub(super) fn add(
        &self,
        start: usize,
        len: usize,
        uffd: &Uffd,
        open: bool,
    ) -> Result<(), Errno> {
        self.advise(start, len)?;
        if !open {
            register(uffd, start, len)?;
        }
        self.write().insert(start, len);
        Ok(())
    }

    /// Takes a mapping of the program's into the set, registered. It gets no advice before it
    /// `is_whole`: a part of a mapping that has advice of its own stays a mapping by itself, and
    /// the program can move a mapping only as one.
    ///
    /// # Errors
    /// `EBUSY`: it is not whole; the kernel's refusal. It is as it was then.
    pub(super) fn adopt(
        &self,
        start: usize,
        len: usize,
        uffd: &Uffd,
        is_whole: impl FnOnce() -> bool,
    ) -> Result<(), Errno> {
        let registered = register(uffd, start, len);
        if registered.is_err() || !is_whole() {
            // SAFETY: nothing of the range was taken out.
            let _ = unsafe { uffd.unregister(start, len) };
            return registered.and(Err(Errno(libc::EBUSY)));
        }
        let advised = self.advise(start, len);
        match advised {
            Ok(()) => self.write().insert(start, len),
            Err(_) => {
                // SAFETY: nothing of the range was taken out.
                let _ = unsafe { self.free(start, len, uffd) };
            }
        }
        advised
    }

    /// Takes a range into the set that is registered already.
    pub(super) fn note(&self, start: usize, len: usize) {
        self.write().insert(start, len);
    }

    /// Takes a range out of the set; parts of it may not be in it.
    pub(super) fn remove(&self, start: usize, len: usize) {
        self.write().remove(start, len);
    }

    fn advise(&self, start: usize, len: usize) -> Result<(), Errno> {
        let advice = match self.huge_advice {
            true => Advice::Huge,
            false => Advice::NoHuge,
        };
        // A kernel without huge pages refuses the advice, and needs none.
        // SAFETY: this advice drops no bytes.
        let _ = unsafe { kernel::madvise(start, len, advice) };
        if self.dont_fork {
            // SAFETY: this advice drops no bytes.
            unsafe { kernel::madvise(start, len, Advice::DontFork)? };
        }
        Ok(())
    }

    /// Lets forked children inherit a range, all of which is managed, or not.
    pub(super) fn inherit(&self, start: usize, len: usize, on: bool) -> Result<(), Errno> {
        let advice = match on {
            true => Advice::DoFork,
            false => Advice::DontFork,
        };
        match self.dont_fork {
            // SAFETY: this advice drops no bytes.
            true => unsafe { kernel::madvise(start, len, advice) },
            false => Ok(()),
        }
    }

    /// Registers the copies of the ranges in a child of fork.
    pub(super) fn after_fork(&self, uffd: &Uffd) -> Result<(), Errno> {
        for (start, len) in self.ranges() {
            self.advise(start, len)?;
            register(uffd, start, len)?;
        }
        Ok(())
    }

    /// Ends the registration of a managed range, which becomes the kernel's alone. Who waits for
    /// a fault in it tries again.
    ///
    /// # Safety
    /// All bytes of the program in the range are present.
    pub(super) unsafe fn leave(&self, start: usize, len: usize, uffd: &Uffd) -> Result<(), Errno> {
        if !self.contains(start, len) {
            return Err(Errno(libc::EINVAL));
        }
        // SAFETY: the caller's promise.
        unsafe { self.free(start, len, uffd)? };
        self.remove(start, len);
        Ok(())
    }

    /// Gives a registered mapping to the kernel, which may lie where nothing is managed.
    ///
    /// # Safety
    /// All bytes of the program in the range are present.
    pub(super) unsafe fn free(&self, start: usize, len: usize, uffd: &Uffd) -> Result<(), Errno> {
        // SAFETY: the caller's promise: a hole is a zero in truth. The advice drops no bytes.
        unsafe {
            uffd.unregister(start, len)?;
            match self.dont_fork {
                true => kernel::madvise(start, len, Advice::DoFork),
                false => Ok(()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Managed;

    /// A set that holds `ranges`, of which nothing is mapped.
    fn set(ranges: &[(usize, usize)]) -> Managed {
        let set = Managed::default();
        for (from, to) in ranges {
            set.write().insert(*from, to - from);
        }
        set
    }

    #[test]
    fn a_range_is_cut_into_managed_and_foreign_parts() {
        let set = set(&[(10, 20), (30, 40)]);
        let all = [
            (5, 5, true),
            (10, 10, false),
            (20, 10, true),
            (30, 10, false),
            (40, 5, true),
        ];
        assert_eq!(set.parts(5, 40), all);
        assert_eq!(set.parts(12, 3), [(12, 3, false)]);
        assert_eq!(set.parts(20, 10), [(20, 10, true)]);
        assert_eq!(
            set.parts(15, 20),
            [(15, 5, false), (20, 10, true), (30, 5, false)]
        );
        assert!(set.contains(10, 10) && set.contains(12, 8) && !set.contains(12, 9));
        assert!(!set.contains(20, 1) && !set.contains(9, 2) && !set.contains(15, 20));
        assert!(set.touches(19, 1) && !set.touches(20, 10) && set.touches(20, 11));
        assert!(set.touches(0, 100) && !set.touches(0, 10) && !set.touches(40, 10));
    }

    #[test]
    fn what_is_removed_leaves_its_neighbours() {
        let set = set(&[(10, 20), (30, 40), (50, 60)]);
        set.remove(15, 40);
        assert_eq!(set.ranges(), [(10, 5), (55, 5)]);
        set.remove(0, 100);
        assert_eq!(set.ranges(), []);
    }
}
