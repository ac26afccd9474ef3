//! Operations on ranges of memory.

use crate::error::{Done, Errno, Partial, Why, outcome};
use crate::flags::{CopyMode, Ioctls, MoveMode, ProtectMode, RegisterMode, WakeMode};
use crate::open::Uffd;
use crate::sys::{self, UffdioOne, UffdioRange, UffdioRegister, UffdioTwo, UffdioWriteprotect};

const fn range(start: usize, len: usize) -> UffdioRange {
    UffdioRange {
        start: start as u64,
        len: len as u64,
    }
}

impl Uffd {
    /// Registers `len` bytes at `start`; says which operations the range supports.
    ///
    /// Safe, since no byte changes. But from here on a touch of a missing page waits until
    /// somebody serves it: never register memory that the server itself touches.
    ///
    /// Mappings are split at the edges: register one large range, not many small ones, or the
    /// limit on mappings is reached (`ENOMEM`).
    ///
    /// # Errors
    /// `EINVAL` for unaligned or unmapped ranges and kinds of memory that cannot be registered,
    /// `EBUSY` if another userfaultfd has the range, `ENOMEM`, `EPERM`.
    pub fn register(&self, start: usize, len: usize, mode: RegisterMode) -> Result<Ioctls, Errno> {
        let mut arg = UffdioRegister {
            range: range(start, len),
            mode: mode.bits(),
            ioctls: 0,
        };
        // SAFETY: arg is the structure of this request. Registration changes no byte.
        unsafe { self.ioctl(sys::UFFDIO_REGISTER, &mut arg) }?;
        Ok(Ioctls::from_bits(arg.ioctls))
    }

    /// Ends the registration of a range and wakes its waiters.
    ///
    /// # Safety
    /// The kernel fills what is missing with zeros from here on: no byte that a program still
    /// counts on may be away.
    ///
    /// # Errors
    /// `EINVAL` for unaligned or unmapped ranges, `ENOMEM`.
    pub unsafe fn unregister(&self, start: usize, len: usize) -> Result<(), Errno> {
        // SAFETY: the structure of this request; the zeros are the caller's promise.
        unsafe { self.ioctl(sys::UFFDIO_UNREGISTER, &mut range(start, len)) }
    }

    /// Wakes the threads that wait for a fault in the range; they try their access again.
    ///
    /// # Errors
    /// `EINVAL` for unaligned ranges.
    pub fn wake(&self, start: usize, len: usize) -> Result<(), Errno> {
        // SAFETY: the structure of this request. Waking changes no byte.
        unsafe { self.ioctl(sys::UFFDIO_WAKE, &mut range(start, len)) }
    }

    /// Copies `len` bytes from `src` of the caller into new pages at `dst`, each page in one
    /// step, and wakes waiters. Always installs 4 KiB pages, whatever the mapping advises.
    ///
    /// Works into mappings without write or any permission, and from outside the process that
    /// `dst` belongs to.
    ///
    /// # Errors
    /// See [`Why`]. `Exists` at the first occupied page; a write-protect marker is overwritten.
    ///
    /// # Safety
    /// 1. The holes at `dst` are the caller's to fill: no one else keeps their bytes.
    /// 2. No thread writes to `src..src + len` in the meantime, or torn pages are acceptable.
    ///
    /// That `src` is readable is not demanded: if not, the kernel says `Fault`.
    pub unsafe fn copy(
        &self,
        dst: usize,
        src: *const u8,
        len: usize,
        mode: CopyMode,
    ) -> Result<Done, Partial> {
        // SAFETY: passed on to the caller.
        unsafe { self.two(sys::UFFDIO_COPY, dst, src as usize, len, mode.bits()) }
    }

    /// Moves the pages of `src..src + len` to `dst` without copying, and wakes waiters of `dst`.
    ///
    /// Atomic for each page: an access to the source finds it there with its bytes, or missing.
    /// A huge page stays one if both addresses and the length are aligned to it and no page
    /// table is in the way at `dst`; else it is split, which costs hundreds of times more.
    /// The pages arrive writable: write-protection is lost on the way.
    ///
    /// `dst` must be registered, `src` need not be. Only within the caller's own memory.
    ///
    /// # Errors
    /// See [`Why`]. `Busy`: pinned or shared. `Exists`: `dst` is occupied. `NoEntry`: a hole in
    /// `src`. `Invalid`: not private anonymous, or protection or locking of the two differ.
    ///
    /// **After an error more may have been moved than it says.** Linux 6.17 and 6.18 work in
    /// steps of up to a page table. A step that meets contention (a folio's lock, an entry that
    /// changes meanwhile) is repeated without its error being taken back: the pages that the
    /// repetition moves are not counted, the step comes a third time and fails with `Exists`
    /// (`NoEntry` where holes are allowed). Their waiters are not woken either. Before anything
    /// is done on the strength of [`Partial::done`], look (with
    /// [`Pagemap`](crate::Pagemap)): a page that is present at `dst` and no longer at `src` has
    /// been moved. Others have to be kept from both ranges until then.
    ///
    /// # Safety
    /// 1. The holes at `dst` are the caller's to fill: no one else keeps their bytes.
    /// 2. Nobody relies on the bytes at `src`, or `src` is registered for missing faults and the
    ///    caller sees to it that every access finds the same bytes again, which includes that
    ///    the registration lives on.
    pub unsafe fn move_pages(
        &self,
        dst: usize,
        src: usize,
        len: usize,
        mode: MoveMode,
    ) -> Result<Done, Partial> {
        // SAFETY: passed on to the caller.
        unsafe { self.two(sys::UFFDIO_MOVE, dst, src, len, mode.bits()) }
    }

    /// Maps the shared zero page over a range of holes, and wakes waiters.
    ///
    /// A later write is served by the kernel alone, with a page of its own that nobody hears of,
    /// unless the range is write-protected: then the write is reported first.
    ///
    /// # Errors
    /// See [`Why`]. `Exists` at the first occupied page.
    ///
    /// # Safety
    /// The holes are the caller's to fill: no one else keeps their bytes.
    pub unsafe fn zeropage(
        &self,
        start: usize,
        len: usize,
        mode: WakeMode,
    ) -> Result<Done, Partial> {
        // SAFETY: passed on to the caller.
        unsafe { self.one(sys::UFFDIO_ZEROPAGE, start, len, mode.bits()) }
    }

    /// Maps pages that are in the page cache of a range registered for minor faults.
    ///
    /// # Errors
    /// See [`Why`]. `Fault` if the page is not in the page cache.
    ///
    /// # Safety
    /// The bytes in the page cache are the ones the program is to see.
    pub unsafe fn continue_range(
        &self,
        start: usize,
        len: usize,
        mode: WakeMode,
    ) -> Result<Done, Partial> {
        // SAFETY: passed on to the caller.
        unsafe { self.one(sys::UFFDIO_CONTINUE, start, len, mode.bits()) }
    }

    /// Marks holes as poisoned: an access raises SIGBUS, as for memory that the hardware lost.
    ///
    /// # Errors
    /// See [`Why`]. `Exists` at the first occupied page.
    ///
    /// # Safety
    /// The holes are the caller's to fill: no one else keeps their bytes.
    pub unsafe fn poison(&self, start: usize, len: usize, mode: WakeMode) -> Result<Done, Partial> {
        // SAFETY: passed on to the caller.
        unsafe { self.one(sys::UFFDIO_POISON, start, len, mode.bits()) }
    }

    /// Write-protects a range registered for it, or lifts the protection and wakes waiters.
    ///
    /// Missing pages are left out unless [`Features::WP_UNPOPULATED`](crate::Features) is on,
    /// which puts markers in their places.
    ///
    /// The kernel reports no progress here. The operation is idempotent: after an error, repeat
    /// the whole range.
    ///
    /// # Errors
    /// `NoEntry`: not registered for write-protection. `Again`: as for the others.
    pub fn write_protect(&self, start: usize, len: usize, mode: ProtectMode) -> Result<(), Why> {
        let mut arg = UffdioWriteprotect {
            range: range(start, len),
            mode: mode.bits(),
        };
        // SAFETY: the structure of this request. Protection changes no byte; an access at worst
        // waits.
        unsafe { self.ioctl(sys::UFFDIO_WRITEPROTECT, &mut arg) }.map_err(Why::from_errno)
    }

    /// # Safety
    /// As the operation that `request` stands for, one that takes two addresses.
    unsafe fn two(
        &self,
        request: libc::c_ulong,
        dst: usize,
        src: usize,
        len: usize,
        mode: u64,
    ) -> Result<Done, Partial> {
        let mut arg = UffdioTwo {
            dst: dst as u64,
            src: src as u64,
            len: len as u64,
            mode,
            progress: 0,
        };
        // SAFETY: the structure of this request; its effect is the caller's promise.
        let result = unsafe { self.ioctl(request, &mut arg) };
        outcome(result, arg.progress, len)
    }

    /// # Safety
    /// As the operation that `request` stands for, one that takes one range.
    unsafe fn one(
        &self,
        request: libc::c_ulong,
        start: usize,
        len: usize,
        mode: u64,
    ) -> Result<Done, Partial> {
        let mut arg = UffdioOne {
            range: range(start, len),
            mode,
            progress: 0,
        };
        // SAFETY: the structure of this request; its effect is the caller's promise.
        let result = unsafe { self.ioctl(request, &mut arg) };
        outcome(result, arg.progress, len)
    }
}
