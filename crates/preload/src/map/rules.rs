//! Which mappings are managed, and how the kernel's words are told to the service.

use crate::sys::PAGE;
use core::ffi::c_int;

/// Flags of mappings that keep their kernel meaning: not managed.
const FOREIGN: c_int = libc::MAP_GROWSDOWN | libc::MAP_HUGETLB | libc::MAP_32BIT;
const PROTS: c_int = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;

/// Whether a mapping with these arguments is managed: private anonymous memory without
/// special wishes.
pub fn managed(prot: c_int, flags: c_int) -> bool {
    let anonymous = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let kind = flags & (libc::MAP_TYPE | libc::MAP_ANONYMOUS);
    kind == anonymous && flags & FOREIGN == 0 && prot & !PROTS == 0
}

/// Where addresses that a program can have end.
pub const END: usize = 1 << 47;

/// Length in whole pages as the kernel rounds it.
///
/// # Errors
/// EINVAL for nothing, ENOMEM for more than there is.
pub fn pages(len: usize) -> Result<usize, i32> {
    match len.checked_next_multiple_of(PAGE) {
        Some(0) => Err(libc::EINVAL),
        Some(bytes) if bytes < END => Ok(bytes),
        _ => Err(libc::ENOMEM),
    }
}
