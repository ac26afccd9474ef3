//! The seccomp filter: which calls of the program come to the handler.
//!
//! Calls from our own 4 GiB pass. Of the others those are trapped that concern managed memory, the
//! signal by which we hear of them, or the next program. What a filter decides by the number
//! alone the kernel remembers: all other calls cost as much as with any filter.

use super::host;
use crate::{DOOR, sys};
use deckle_door::entry::MARK;
use libc::{c_long, sock_filter};

const LOAD: u16 = 0x20;
const EQUAL: u16 = 0x15;
const SET: u16 = 0x45;
const ABOVE: u16 = 0x35;
const AND: u16 = 0x54;
const RETURN: u16 = 0x06;
const GO: u16 = 0x05;
const ALLOW: u32 = 0x7fff_0000;
const TRAP: u32 = 0x0003_0000;
/// ENOSYS, as from a kernel that does not know the call.
const REFUSE: u32 = 0x0005_0000 | libc::ENOSYS as u32;
const X86_64: u32 = 0xc000_003e;
/// Offsets in what a filter sees.
const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;
const INSTRUCTION_HIGH: u32 = 12;

const fn low(argument: u32) -> u32 {
    16 + 8 * argument
}

/// What must be so of a call's arguments that it is trapped.
#[derive(Clone, Copy)]
enum When {
    /// This argument is not 0.
    Given(u32),
    /// The low half of this argument is that.
    Is(u32, u32),
    /// It is not.
    IsNot(u32, u32),
    /// One of these bits is set.
    Has(u32, u32),
    /// One of these bits is not set.
    Lacks(u32, u32),
    /// The address is not in our 4 GiB: `deckle run` maps there before there is code of ours.
    Elsewhere,
    /// It is an operation of futex that writes: from FUTEX_WAKE_OP on, but for two.
    Writes,
}
use When::{Elsewhere, Given, Has, Is, IsNot, Lacks, Writes};

const ALWAYS: &[When] = &[];
const MAPS: u32 = (libc::MAP_FIXED | libc::MAP_ANONYMOUS) as u32;

/// Those of which arguments are looked at come first, since the kernel remembers nothing of them;
/// and those of one number together.
const CALLS: [(c_long, &[When]); 48] = [
    (libc::SYS_futex, &[Writes]),
    (libc::SYS_mmap, &[Elsewhere, Has(3, MAPS)]),
    (libc::SYS_ioctl, &[Is(1, 0xc020_aa00)]),
    (libc::SYS_clone, &[Lacks(0, libc::CLONE_VM as u32)]),
    (libc::SYS_rt_sigaction, &[Given(1)]),
    (libc::SYS_rt_sigaction, &[Is(0, libc::SIGSYS as u32)]),
    (
        libc::SYS_rt_sigprocmask,
        &[IsNot(0, libc::SIG_UNBLOCK as u32), Given(1)],
    ),
    (libc::SYS_ppoll, &[Given(3)]),
    (libc::SYS_pselect6, &[Given(5)]),
    (libc::SYS_epoll_pwait, &[Given(4)]),
    (libc::SYS_epoll_pwait2, &[Given(4)]),
    (libc::SYS_prctl, &[Is(0, libc::PR_SET_SECCOMP as u32)]),
    (libc::SYS_prlimit64, &[Is(1, libc::RLIMIT_AS as u32)]),
    (libc::SYS_prlimit64, &[Is(1, libc::RLIMIT_DATA as u32)]),
    (
        libc::SYS_prlimit64,
        &[Is(1, libc::RLIMIT_NOFILE as u32), Given(2)],
    ),
    (libc::SYS_setrlimit, &[Is(0, libc::RLIMIT_AS as u32)]),
    (libc::SYS_setrlimit, &[Is(0, libc::RLIMIT_DATA as u32)]),
    (libc::SYS_setrlimit, &[Is(0, libc::RLIMIT_NOFILE as u32)]),
    (libc::SYS_getrlimit, &[Is(0, libc::RLIMIT_AS as u32)]),
    (libc::SYS_getrlimit, &[Is(0, libc::RLIMIT_DATA as u32)]),
    (libc::SYS_munmap, ALWAYS),
    (libc::SYS_mprotect, ALWAYS),
    (libc::SYS_madvise, ALWAYS),
    (libc::SYS_mremap, ALWAYS),
    (libc::SYS_brk, ALWAYS),
    (libc::SYS_mlock, ALWAYS),
    (libc::SYS_mlock2, ALWAYS),
    (libc::SYS_munlock, ALWAYS),
    (libc::SYS_mlockall, ALWAYS),
    (libc::SYS_munlockall, ALWAYS),
    (libc::SYS_pkey_mprotect, ALWAYS),
    (libc::SYS_mseal, ALWAYS),
    (libc::SYS_process_madvise, ALWAYS),
    (libc::SYS_fork, ALWAYS),
    (libc::SYS_clone3, ALWAYS),
    (libc::SYS_execve, ALWAYS),
    (libc::SYS_execveat, ALWAYS),
    (libc::SYS_set_tid_address, ALWAYS),
    (libc::SYS_exit, ALWAYS),
    (libc::SYS_set_robust_list, ALWAYS),
    (libc::SYS_rt_sigsuspend, ALWAYS),
    (libc::SYS_seccomp, ALWAYS),
    (libc::SYS_unshare, ALWAYS),
    (libc::SYS_setns, ALWAYS),
    (libc::SYS_chroot, ALWAYS),
    (libc::SYS_pivot_root, ALWAYS),
    (libc::SYS_landlock_restrict_self, ALWAYS),
    (libc::SYS_close_range, ALWAYS),
];

/// A program for the kernel, as it grows.
struct Filter {
    lines: [sock_filter; 1024],
    used: usize,
}

impl Filter {
    fn add(&mut self, code: u16, k: u32, jt: u8, jf: u8) {
        if let Some(to) = self.lines.get_mut(self.used) {
            *to = sock_filter { code, jt, jf, k };
            self.used += 1;
        }
    }

    /// Looks at a word of the call: so many lines are left out if it passes, and if it does not.
    fn test(&mut self, at: u32, code: u16, k: u32, [jt, jf]: [u8; 2]) {
        self.add(LOAD, at, 0, 0);
        self.add(code, k, jt, jf);
    }

    /// A call of that number of which all of this is so is trapped, but from our 4 GiB; of any
    /// other the next lines decide, if they are about the `next` number or it is of another.
    fn rule(&mut self, (number, all): (c_long, &[When]), next: Option<c_long>) {
        self.add(EQUAL, number as u32, 1, 0);
        let first = self.used;
        self.add(GO, 0, 0, 0);
        for when in all {
            // What is so jumps over the line behind, which leaves.
            match *when {
                Given(argument) => {
                    self.test(low(argument), EQUAL, 0, [0, 3]);
                    self.test(low(argument) + 4, EQUAL, 0, [0, 1]);
                }
                Is(argument, word) => self.test(low(argument), EQUAL, word, [1, 0]),
                IsNot(argument, word) => self.test(low(argument), EQUAL, word, [0, 1]),
                Has(argument, bits) => self.test(low(argument), SET, bits, [1, 0]),
                Lacks(argument, bits) => self.test(low(argument), SET, bits, [0, 1]),
                Elsewhere => self.test(low(0) + 4, EQUAL, host::window() as u32, [0, 1]),
                Writes => {
                    self.add(LOAD, low(1), 0, 0);
                    self.add(AND, libc::FUTEX_CMD_MASK as u32, 0, 0);
                    self.add(EQUAL, libc::FUTEX_WAIT_BITSET as u32, 2, 0);
                    self.add(EQUAL, libc::FUTEX_WAKE_BITSET as u32, 1, 0);
                    self.add(ABOVE, libc::FUTEX_WAKE_OP as u32, 1, 0);
                }
            }
            self.add(GO, 0, 0, 0);
        }
        self.test(INSTRUCTION_HIGH, EQUAL, host::window() as u32, [0, 1]);
        self.add(RETURN, ALLOW, 0, 0);
        self.add(RETURN, TRAP | u32::from(MARK), 0, 0);
        let end = self.used;
        for (at, line) in self.lines.iter_mut().enumerate().take(end).skip(first) {
            if line.code == GO {
                line.k = (end - at - 1) as u32;
            }
        }
        match next == Some(number) {
            true => self.add(LOAD, NUMBER, 0, 0),
            false => {
                self.lines[first].k += 1;
                self.add(RETURN, ALLOW, 0, 0);
            }
        }
    }
}

/// Installs the filter; false: the system refuses.
pub fn install() -> bool {
    let mut filter = Filter {
        lines: [sock_filter {
            code: 0,
            jt: 0,
            jf: 0,
            k: 0,
        }; 1024],
        used: 0,
    };
    filter.test(ARCHITECTURE, EQUAL, X86_64, [1, 0]);
    filter.add(RETURN, ALLOW, 0, 0);
    filter.add(LOAD, NUMBER, 0, 0);
    // The calls of x32 programs.
    filter.add(ABOVE, 0x4000_0000, 0, 1);
    filter.add(RETURN, ALLOW, 0, 0);
    // The kernel would write to the thread's own data as it returns from any call: also from the
    // one for which everything stands still, when nobody serves a fault.
    filter.add(EQUAL, libc::SYS_rseq as u32, 0, 1);
    filter.add(RETURN, REFUSE, 0, 0);
    for (i, rule) in CALLS.into_iter().enumerate() {
        filter.rule(rule, CALLS.get(i + 1).map(|(number, _)| *number));
    }
    filter.add(RETURN, ALLOW, 0, 0);
    // The kernel's struct sock_fprog.
    let program = [filter.used, filter.lines.as_ptr() as usize];
    let set = || {
        let at = program.as_ptr() as usize;
        // SAFETY: SECCOMP_SET_MODE_FILTER reads a program of that many lines.
        unsafe { sys::call(libc::SYS_seccomp, [1, 0, at]) }.is_ok()
    };
    // Without the right to do it otherwise.
    let without_privileges = || {
        let no_new_privs = [libc::PR_SET_NO_NEW_PRIVS as usize, 1, 0, 0, 0, 0];
        // SAFETY: gives up what set-user-id programs would gain.
        unsafe { sys::call(libc::SYS_prctl, no_new_privs) }.is_ok()
    };
    let may = |number| DOOR.may(number);
    may(libc::SYS_seccomp) && (set() || may(libc::SYS_prctl) && without_privileges() && set())
}
