//! System calls without libc's wrappers.
//!
//! Wrappers may be interposed (by our own preload library, too) and write `errno`, which belongs
//! to the program while we run on its thread.

use core::arch::asm;
use libc::c_long;

/// One system call.
///
/// # Errors
///
/// The errno.
///
/// # Safety
///
/// As the call with these arguments demands.
#[inline(always)]
pub unsafe fn call(number: c_long, args: [usize; 6]) -> Result<usize, i32> {
    let [a, b, c, d, e, f] = args;
    let ret: isize;
    // SAFETY: the kernel's calling convention: it changes rax, rcx and r11 only, besides what the
    // call itself writes, which the caller answers for.
    unsafe {
        asm!("syscall",
            inlateout("rax") number as isize => ret,
            in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d, in("r8") e, in("r9") f,
            lateout("rcx") _, lateout("r11") _,
            options(nostack));
    }
    if (-4095..0).contains(&ret) {
        Err(-ret as i32)
    } else {
        Ok(ret as usize)
    }
}

/// Process id of the caller.
pub(crate) fn getpid() -> i32 {
    // SAFETY: takes nothing, never fails.
    unsafe { call(libc::SYS_getpid, [0; 6]) }.unwrap_or(0) as i32
}

/// Thread id of the caller.
pub(crate) fn gettid() -> i32 {
    // SAFETY: takes nothing, never fails.
    unsafe { call(libc::SYS_gettid, [0; 6]) }.unwrap_or(0) as i32
}

/// Closes `fd`; an error changes nothing for the caller.
pub(crate) fn close(fd: i32) {
    // SAFETY: callers close only what they opened.
    let _ = unsafe { call(libc::SYS_close, [fd as usize, 0, 0, 0, 0, 0]) };
}

/// Opens `path` (ending in NUL) for reading.
pub(crate) fn open_read(path: &[u8]) -> Result<i32, i32> {
    debug_assert_eq!(path.last(), Some(&0));
    let flags = (libc::O_RDONLY | libc::O_CLOEXEC) as usize;
    let at = libc::AT_FDCWD as usize;
    // SAFETY: `path` is a readable string that ends in NUL.
    unsafe {
        call(
            libc::SYS_openat,
            [at, path.as_ptr() as usize, flags, 0, 0, 0],
        )
    }
    .map(|fd| fd as i32)
}

/// Reads into `buffer`, returns the filled part's length in bytes.
pub(crate) fn read(fd: i32, buffer: &mut [u8]) -> Result<usize, i32> {
    // SAFETY: `buffer` is writable for its length.
    unsafe {
        call(
            libc::SYS_read,
            [
                fd as usize,
                buffer.as_mut_ptr() as usize,
                buffer.len(),
                0,
                0,
                0,
            ],
        )
    }
}
