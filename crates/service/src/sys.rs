//! System calls that musl has no wrapper for, or whose wrapper allocates.

/// Bytes of a page.
pub const PAGE: usize = 4096;

pub use deckle_door::call;

/// Maps `bytes` of private anonymous memory at `hint`, or at an address of the kernel's choice. No
/// core dump has it: what the program keeps out of its dumps may be in the store.
///
/// # Errors
/// The errno of mmap.
pub fn map_anonymous(hint: usize, bytes: usize) -> Result<usize, i32> {
    let prot = (libc::PROT_READ | libc::PROT_WRITE) as usize;
    let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE) as usize;
    let apart = libc::MADV_DONTDUMP as usize;
    // SAFETY: a new mapping, which changes no other, and advice that changes no byte of it.
    unsafe {
        let at = call(libc::SYS_mmap, [hint, bytes, prot, flags, usize::MAX, 0])?;
        call(libc::SYS_madvise, [at, bytes, apart, 0, 0, 0])?;
        Ok(at)
    }
}

/// Unmaps a range.
///
/// # Safety
/// The range is the caller's, and nobody uses it any more.
pub unsafe fn unmap(start: usize, bytes: usize) -> bool {
    // SAFETY: the caller's promise.
    unsafe { call(libc::SYS_munmap, [start, bytes, 0, 0, 0, 0]) }.is_ok()
}

/// Ends the calling service with all its tasks.
pub fn exit_all(status: i32) -> ! {
    loop {
        // SAFETY: the end of this thread group, which is the service.
        let _ = unsafe { call(libc::SYS_exit_group, [status as usize, 0, 0, 0, 0, 0]) };
    }
}
