//! Files that processes have in their memory at the same time.

use crate::call::{call, map_anonymous};
use crate::{Errno, Fd};
use core::sync::atomic::{AtomicU32, AtomicU64};

/// What other processes may write at any time: atomics, and nothing else.
///
/// # Safety
/// Every byte pattern is a value, and no byte but those of atomics is ever looked at.
pub unsafe trait Shared: Sync + 'static {}

// SAFETY: atomics, of which every byte pattern is a value.
unsafe impl Shared for AtomicU32 {}
// SAFETY: as above.
unsafe impl Shared for AtomicU64 {}
// SAFETY: as its elements.
unsafe impl<T: Shared, const N: usize> Shared for [T; N] {}

/// Declares structs that are [`Shared`], as all of their fields must be, laid out as C does.
#[macro_export]
macro_rules! shared {
    ($($(#[$meta:meta])* pub struct $name:ident {
        $($(#[$about:meta])* $see:vis $field:ident: $of:ty,)*
    })*) => {$(
        $(#[$meta])*
        #[repr(C)]
        pub struct $name {
            $($(#[$about])* $see $field: $of,)*
        }
        // SAFETY: it is its fields, which are all shared, and what is between them, which nobody
        // looks at.
        unsafe impl $crate::shared::Shared for $name where $($of: $crate::shared::Shared,)* {}
    )*};
}

/// Maps the beginning of `file` for the rest of the process's life. Who touches what the file is
/// too short for gets SIGBUS.
pub fn map<T: Shared>(file: &Fd) -> Result<&'static T, Errno> {
    const { assert!(size_of::<T>() > 0 && align_of::<T>() <= crate::PAGE) };
    let rights = (libc::PROT_READ | libc::PROT_WRITE) as usize;
    let (how, fd) = (libc::MAP_SHARED as usize, file.raw() as usize);
    // SAFETY: a new mapping at an address of the kernel's choice.
    let at = unsafe { call(libc::SYS_mmap, [0, size_of::<T>(), rights, how, fd]) };
    // SAFETY: a mapping of that size, aligned to a page, that is never undone; whatever its bytes
    // are, and whoever changes them, they are a value by the trait's contract.
    at.map(|at| unsafe { &*(at as *const T) }).map_err(Errno)
}

/// Has the file system give all memory of what is mapped, so that no access to it is SIGBUS.
pub fn populate<T: Shared>(part: &'static T) -> Result<(), Errno> {
    let start = (&raw const *part).addr();
    let (from, to) = (
        start & !(crate::PAGE - 1),
        (start + size_of::<T>()).next_multiple_of(crate::PAGE),
    );
    let args = [from, to - from, libc::MADV_POPULATE_WRITE as usize];
    // SAFETY: changes no byte.
    let done = unsafe { call(libc::SYS_madvise, args) };
    done.map(drop).map_err(Errno)
}

/// Room for a private copy of such a file, all zero, for the rest of the process's life.
pub fn room<T: Shared>() -> Result<&'static T, Errno> {
    const { assert!(size_of::<T>() > 0 && align_of::<T>() <= crate::PAGE) };
    let at = map_anonymous(0, size_of::<T>()).map_err(Errno)?;
    // SAFETY: a new mapping of that size, aligned to a page, that is never undone; any bytes are
    // a value by the trait's contract.
    Ok(unsafe { &*(at as *const T) })
}

/// Copies the bytes `part` of `file` to their places in `to`; how many there were. Unlike a mapping
/// a file that becomes shorter is no SIGBUS, and nobody changes what was copied.
pub fn copy<T: Shared>(
    to: &'static T,
    file: &Fd,
    part: core::ops::Range<usize>,
) -> Result<usize, Errno> {
    let (from, to_end) = (part.start, part.end.min(size_of::<T>()));
    let at = (&raw const *to).addr();
    let mut done = from;
    while done < to_end {
        let args = [file.raw() as usize, at + done, to_end - done, done];
        // SAFETY: the kernel writes to bytes of a value whose contract is that others may write
        // any bytes to it at any time.
        match unsafe { call(libc::SYS_pread64, args) } {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(libc::EINTR) => {}
            Err(errno) => return Err(Errno(errno)),
        }
    }
    Ok(done.saturating_sub(from))
}
