//! Calls on memory that are rare: their meaning must be the kernel's all the same.

use super::calls::{advise, by_owner, raw};
use crate::gate;
use crate::sys::{self, PAGE};
use core::arch::x86_64::{__cpuid_count, __get_cpuid_max};
use core::ffi::{CStr, c_int};
use deckle_door::Op;
use deckle_sys::Fd;
use libc::c_long;

/// Whether memory with these rights is guarded by a key: where the CPU has any, what may only be
/// executed cannot be read. The kernel takes one by itself then, and the thread that asks locks it.
pub fn hides_bytes(prot: usize) -> bool {
    prot as c_int == libc::PROT_EXEC && has_keys()
}

/// Whether the kernel has switched protection keys on.
fn has_keys() -> bool {
    const FEATURES: u32 = 7;
    const OSPKE: u32 = 1 << 4;
    // Newer compilers know that every x86-64 CPU has the instruction, and call these safe.
    #[allow(unused_unsafe)]
    // SAFETY: the CPU is asked what it can do; nothing is changed.
    let features = unsafe {
        let (most, _) = __get_cpuid_max(0);
        (most >= FEATURES).then(|| __cpuid_count(FEATURES, 0))
    };
    features.is_some_and(|found| found.ecx & OSPKE != 0)
}

/// pkey_mprotect, and mprotect where that takes a key: these are the kernel's to keep, so the range
/// becomes the kernel's.
pub fn protect_by_key(number: c_long, args: [usize; 6]) -> Result<usize, i32> {
    surrender(args[0], args[1]).and_then(|_| raw(number, args))
}

/// mseal: so is a seal.
pub fn seal(args: [usize; 6]) -> Result<usize, i32> {
    surrender(args[0], args[1]).and_then(|_| raw(libc::SYS_mseal, args))
}

/// What is managed of a range becomes the kernel's, with its bytes.
fn surrender(addr: usize, len: usize) -> Result<usize, i32> {
    let ask = |bytes| gate::request(Op::Surrender, [addr, bytes]);
    by_owner(addr, len, ask, || Ok(0))
}

/// `UFFDIO_REGISTER`.
const REGISTER: u32 = 0xc020_aa00;

/// ioctl. A range for which the program takes the faults itself leaves management.
pub fn ioctl(args: [usize; 6]) -> Result<usize, i32> {
    let pass = || raw(libc::SYS_ioctl, args);
    let [_, request, argument, ..] = args;
    if request as u32 != REGISTER || argument == 0 {
        return pass();
    }
    // SAFETY: the argument of this request begins with the range, two words.
    let [start, len] = unsafe { (argument as *const [u64; 2]).read_unaligned() };
    let (start, len) = (start as usize, len as usize);
    let done = match len.is_multiple_of(PAGE) {
        true => surrender(start, len).map_err(|_| libc::ENOMEM),
        false => Ok(0),
    };
    done.and_then(|_| pass())
}

/// process_madvise. On the caller itself it is madvise.
pub fn advise_process(
    pidfd: c_int,
    list: usize,
    count: usize,
    advice: c_int,
    flags: usize,
) -> Result<usize, i32> {
    let pass = |list: usize, count: usize, advice: c_int| {
        let args = [pidfd as usize, list, count, advice as usize, flags];
        raw(libc::SYS_process_madvise, args)
    };
    let ours = gate::is_managed() && count <= 1024 && is_self(pidfd);
    // An advice that there is not: only whether the list can be read.
    if !ours || pass(list, count, -1) == Err(libc::EFAULT) {
        return pass(list, count, advice);
    }
    // Of no ranges: only whether the kernel would do it.
    let mut done = pass(list, 0, advice);
    for at in 0..count {
        let Ok(sum) = done else { break };
        // SAFETY: the caller's promise: `count` ranges.
        let range = unsafe { *(list as *const libc::iovec).add(at) };
        done = match advise(range.iov_base as usize, range.iov_len, advice) {
            Ok(_) => Ok(sum + range.iov_len),
            Err(_) if sum > 0 => break,
            Err(errno) => Err(errno),
        };
    }
    done
}

/// Whether a pidfd is the caller's own process.
fn is_self(pidfd: c_int) -> bool {
    /// Numbers that mean the caller's thread or process (Linux 6.14 on).
    const SELVES: core::ops::RangeInclusive<c_int> = -10003..=-10000;
    if SELVES.contains(&pidfd) {
        return true;
    }
    let Ok(number) = usize::try_from(pidfd) else {
        return false;
    };
    let mut path = *b"/proc/self/fdinfo/\0\0\0\0\0\0\0\0\0\0\0";
    let (mut rest, last) = (number, 18 + number.checked_ilog10().unwrap_or(0) as usize);
    for digit in path[18..=last].iter_mut().rev() {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    let mut text = [0_u8; 512];
    let path = CStr::from_bytes_until_nul(&path).unwrap_or_default();
    let file = Fd::open(path, libc::O_RDONLY, 0);
    let got = file.and_then(|file| file.read_at(&mut text, 0));
    let pid = text[..got.unwrap_or(0)]
        .split(|b| *b == b'\n')
        .find_map(|line| line.strip_prefix(b"Pid:\t"))
        .and_then(|n| core::str::from_utf8(n).ok()?.parse::<u32>().ok());
    pid == Some(sys::getpid())
}
