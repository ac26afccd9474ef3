//! System calls without a C library.
//!
//! A library's wrappers may be interposed (by deckle itself, too) and write `errno`, which
//! belongs to the program while we run on its thread.

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
