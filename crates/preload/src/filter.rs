//! What a filter (seccomp) of the program's own says of the calls that deckle makes in its
//! threads, and in those of a child's service, which are under the same filter.
//!
//! A refused call may be the end of who makes it. So none is tried: the filter is read as the
//! kernel reads it, when the program installs it. What a program was given before its start, or
//! installs by an instruction of its own, is not known.

use crate::DOOR;
use libc::{c_long, sock_filter, sock_fprog};

/// Without these no child can have a service.
const NEEDED: [c_long; 34] = [
    libc::SYS_arch_prctl,
    libc::SYS_clock_getres,
    libc::SYS_clock_gettime,
    libc::SYS_clone,
    libc::SYS_close,
    libc::SYS_close_range,
    libc::SYS_eventfd2,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_futex,
    libc::SYS_getpid,
    libc::SYS_gettid,
    libc::SYS_ioctl,
    libc::SYS_lseek,
    libc::SYS_madvise,
    libc::SYS_mmap,
    libc::SYS_mprotect,
    libc::SYS_mremap,
    libc::SYS_munmap,
    libc::SYS_newfstatat,
    libc::SYS_poll,
    libc::SYS_ppoll,
    libc::SYS_pread64,
    libc::SYS_read,
    libc::SYS_recvmsg,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_yield,
    libc::SYS_sendmsg,
    libc::SYS_set_tid_address,
    libc::SYS_sigaltstack,
    libc::SYS_waitid,
];

/// Calls of which filters look at an argument: its place, and what we give.
const LOOKED_AT: [(c_long, usize, &[u32]); 3] = [
    // A userfaultfd from the device, its handshake, a scan of the pagemap, a question for a
    // mapping.
    (
        libc::SYS_ioctl,
        1,
        &[0xaa00, 0xc018_aa3f, 0xc060_6610, 0xc068_6611],
    ),
    // The first task of a service, and its threads.
    (libc::SYS_clone, 0, &[0x00b0_0100, 0x007d_0f00]),
    // PR_SET_NAME, _GET_DUMPABLE, _SET_NO_NEW_PRIVS, _GET_TID_ADDRESS,
    // _SET_SYSCALL_USER_DISPATCH.
    (libc::SYS_prctl, 0, &[15, 3, 38, 40, 59]),
];

/// The first call that a child's service needs and may not make.
pub fn hindrance() -> Option<c_long> {
    NEEDED.into_iter().find(|number| !DOOR.may(*number))
}

/// Whether all of these calls may be made.
fn may(calls: &[c_long]) -> bool {
    calls.iter().all(|number| DOOR.may(*number))
}

/// Whether a message may be sent to `deckle run`, and its answer be had.
pub fn lets_us_talk() -> bool {
    may(&[libc::SYS_sendmsg, libc::SYS_poll, libc::SYS_recvmsg])
}

/// Whether a connection may be made.
pub fn lets_us_connect() -> bool {
    may(&[libc::SYS_socket, libc::SYS_connect]) && lets_us_talk()
}

/// Whether the calls may be made by which the second door begins in a program.
pub fn lets_the_second_door_in() -> bool {
    may(&[
        libc::SYS_getpid,
        libc::SYS_gettid,
        libc::SYS_mmap,
        libc::SYS_mprotect,
        libc::SYS_rt_sigaction,
    ])
}

/// Whether the calls may be made by which the first door sees a fork.
#[cfg(target_env = "gnu")]
pub fn lets_forks_be_seen() -> bool {
    may(&[
        libc::SYS_gettid,
        libc::SYS_prctl,
        libc::SYS_rt_sigaction,
        libc::SYS_rt_sigprocmask,
        libc::SYS_sigaltstack,
    ])
}

/// Reads a filter that is in force now.
///
/// # Safety
/// The kernel has accepted it.
pub unsafe fn read(program: *const sock_fprog) {
    // SAFETY: the caller's promise: a program of so many instructions.
    let code = unsafe {
        let program = program.read_unaligned();
        core::slice::from_raw_parts(program.filter, program.len.into())
    };
    for number in 0..512 {
        let known = LOOKED_AT.iter().find(|(n, ..)| *n == number);
        let (at, values) = known.map_or((0, &[0][..]), |(_, at, values)| (*at, values));
        let allows = |value: &u32| {
            // Number, architecture (x86-64), where from (two words), six arguments of two words.
            let mut call = [0; 16];
            (call[0], call[1], call[4 + 2 * at]) = (number as u32, 0xc000_003e, *value);
            let action = verdict(code, &call) & libc::SECCOMP_RET_ACTION_FULL;
            [libc::SECCOMP_RET_ALLOW, libc::SECCOMP_RET_LOG].contains(&action)
        };
        if !values.iter().all(allows) {
            DOOR.refuse(number);
        }
    }
}

/// What the filter `code` decides on a call, as words.
fn verdict(code: &[sock_filter], call: &[u32; 16]) -> u32 {
    let (mut a, mut x, mut kept, mut at) = (0_u32, 0_u32, [0_u32; 16], 0);
    while let Some(&sock_filter {
        code: op,
        jt,
        jf,
        k,
    }) = code.get(at)
    {
        at += 1;
        let y = if op & 0x08 == 0 { k } else { x };
        let slot = k as usize & 15;
        let load = || match op & 0xe0 {
            0x20 => call[(k as usize / 4) & 15],
            0x60 => kept[slot],
            0x80 => 64,
            _ => k,
        };
        match (op & 0x07, op & 0xf0) {
            (0, _) => a = load(),
            (1, _) => x = load(),
            (2, _) => kept[slot] = a,
            (3, _) => kept[slot] = x,
            (4, 0x00) => a = a.wrapping_add(y),
            (4, 0x10) => a = a.wrapping_sub(y),
            (4, 0x20) => a = a.wrapping_mul(y),
            (4, 0x30) => a = a.checked_div(y).unwrap_or(0),
            (4, 0x40) => a |= y,
            (4, 0x50) => a &= y,
            (4, 0x60) => a = a.checked_shl(y).unwrap_or(0),
            (4, 0x70) => a = a.checked_shr(y).unwrap_or(0),
            (4, 0x80) => a = a.wrapping_neg(),
            (4, 0x90) => a = a.checked_rem(y).unwrap_or(0),
            (4, _) => a ^= y,
            (5, 0x00) => at += k as usize,
            (5, how) => {
                let yes = match how {
                    0x10 => a == y,
                    0x20 => a > y,
                    0x30 => a >= y,
                    _ => a & y != 0,
                };
                at += usize::from(if yes { jt } else { jf });
            }
            (6, _) => return if op & 0x18 == 0x10 { a } else { k },
            _ if op & 0xf8 == 0 => x = a,
            _ => a = x,
        }
    }
    libc::SECCOMP_RET_KILL_PROCESS
}
