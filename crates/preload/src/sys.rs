//! System calls without libc's wrappers, which this library interposes itself.

use core::arch::asm;
use libc::c_long;

/// Bytes of a page.
pub const PAGE: usize = 4096;

/// One system call.
///
/// # Errors
/// The errno.
///
/// # Safety
/// As the call with these arguments demands.
#[inline(always)]
pub unsafe fn call(number: c_long, args: [usize; 6]) -> Result<usize, i32> {
    let [a, b, c, d, e, f] = args;
    let ret: isize;
    // SAFETY: the kernel's calling convention: it changes rax, rcx and r11 only, besides what
    // the call itself writes, which the caller answers for.
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

/// Sets the caller's `errno`.
pub fn set_errno(errno: i32) {
    // SAFETY: libc returns the address of the calling thread's own word.
    unsafe { *libc::__errno_location() = errno };
}

/// The caller's `errno`.
pub fn errno() -> i32 {
    // SAFETY: as above.
    unsafe { *libc::__errno_location() }
}

/// The result of an interposed call in C's way: -1 and `errno` on failure.
pub fn c_result(result: Result<usize, i32>) -> usize {
    match result {
        Ok(value) => value,
        Err(errno) => {
            set_errno(errno);
            usize::MAX
        }
    }
}

/// Maps `bytes` of private anonymous memory at an address of the kernel's choice.
///
/// # Errors
/// The errno of mmap.
pub fn map_anonymous(bytes: usize) -> Result<usize, i32> {
    let prot = (libc::PROT_READ | libc::PROT_WRITE) as usize;
    let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE) as usize;
    // SAFETY: a new mapping, which changes no other.
    unsafe { call(libc::SYS_mmap, [0, bytes, prot, flags, usize::MAX, 0]) }
}

/// Unmaps a range.
///
/// # Safety
/// The range is the caller's, and nobody uses it any more.
pub unsafe fn unmap(start: usize, bytes: usize) -> bool {
    // SAFETY: the caller's promise.
    unsafe { call(libc::SYS_munmap, [start, bytes, 0, 0, 0, 0]) }.is_ok()
}

/// Writes a line to the standard error, as far as it goes: a last word, not a channel.
pub fn say(parts: &[&[u8]]) {
    let mut line = [0u8; 512];
    let mut len = 0;
    for part in parts {
        let n = part.len().min(line.len() - len - 1);
        line[len..len + n].copy_from_slice(&part[..n]);
        len += n;
    }
    line[len] = b'\n';
    // SAFETY: reads a buffer on this stack.
    let _ = unsafe {
        call(
            libc::SYS_write,
            [2, line.as_ptr() as usize, len + 1, 0, 0, 0],
        )
    };
}
