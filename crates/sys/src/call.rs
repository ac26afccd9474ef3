//! System calls without a C library.
//!
//! A library's wrappers may be interposed (by deckle itself, too) and write `errno`, which
//! belongs to the program while we run on its thread.

use crate::Errno;
use core::arch::asm;
use core::time::Duration;
use libc::c_long;

/// The six words of a call's arguments, zeros behind those that are given.
#[inline(always)]
pub fn words<const N: usize>(args: [usize; N]) -> [usize; 6] {
    let mut all = [0; 6];
    all[..N].copy_from_slice(&args);
    all
}

/// One system call.
///
/// # Safety
///
/// As the call with these arguments demands.
#[inline(always)]
pub unsafe fn call<const N: usize>(number: c_long, args: [usize; N]) -> Result<usize, i32> {
    let [a, b, c, d, e, f] = words(args);
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

/// Maps `bytes` of private anonymous memory at `hint`, or at an address of the kernel's choice. No
/// core dump has it: what the program keeps out of its dumps may be in the store.
pub fn map_anonymous(hint: usize, bytes: usize) -> Result<usize, i32> {
    let prot = (libc::PROT_READ | libc::PROT_WRITE) as usize;
    let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE) as usize;
    // SAFETY: a new mapping, which changes no other, and advice that changes no byte of it.
    unsafe {
        let at = call(libc::SYS_mmap, [hint, bytes, prot, flags, usize::MAX])?;
        call(libc::SYS_madvise, [at, bytes, libc::MADV_DONTDUMP as usize])?;
        Ok(at)
    }
}

/// Unmaps a range.
///
/// # Safety
/// The range is the caller's, and nobody uses it any more.
pub unsafe fn unmap(start: usize, bytes: usize) -> bool {
    // SAFETY: the caller's promise.
    unsafe { call(libc::SYS_munmap, [start, bytes]) }.is_ok()
}

/// Ends the calling process: a program, or a service with all its tasks.
pub fn exit_all(status: i32) -> ! {
    loop {
        // SAFETY: the end of this process.
        let _ = unsafe { call(libc::SYS_exit_group, [status as usize]) };
    }
}

/// A length of time, as the kernel takes it.
pub(crate) fn timespec(time: Duration) -> libc::timespec {
    libc::timespec {
        tv_sec: time.as_secs().min(i64::MAX as u64) as i64,
        tv_nsec: i64::from(time.subsec_nanos()),
    }
}

/// Bytes that nobody can guess.
/// Errors: the system has none.
pub fn random<const N: usize>() -> Result<[u8; N], Errno> {
    let mut bytes = [0; N];
    // SAFETY: fills a live buffer of this length.
    match unsafe { call(libc::SYS_getrandom, [bytes.as_mut_ptr() as usize, N, 0]) } {
        Ok(got) if got == N => Ok(bytes),
        Ok(_) => Err(Errno(libc::EIO)),
        Err(errno) => Err(Errno(errno)),
    }
}
