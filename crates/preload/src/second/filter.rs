//! The seccomp filter: which calls of the program come to the handler.
//!
//! Calls from our own 4 GiB pass. Of the others those are trapped that concern managed memory, the
//! signal by which we hear of them, or the next program. What a filter decides by the number
//! alone the kernel remembers: all other calls cost as much as with any filter.

use super::host;
use crate::sys;
use deckle_door::entry::MARK;
use libc::c_long;

#[repr(C)]
#[derive(Clone, Copy)]
struct Line {
    code: u16,
    yes: u8,
    no: u8,
    word: u32,
}

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

/// When a call is trapped.
#[derive(Clone, Copy)]
enum When {
    Always,
    /// This argument is not 0.
    Given(u32),
    /// The low half of this argument is that.
    Is(u32, u32),
    /// One of these bits is not set.
    Lacks(u32, u32),
    /// One of these bits is set, and the address is not in our 4 GiB: `deckle run` maps there
    /// before there is code of ours.
    Maps(u32),
    /// It is an operation of futex that writes: from FUTEX_WAKE_OP on, but for two.
    Writes,
    /// The argument is given, and the first one is not that.
    GivenUnless(u32, u32),
}

const UNBLOCK: u32 = libc::SIG_UNBLOCK as u32;

const CALLS: [(c_long, When); 32] = [
    (
        libc::SYS_mmap,
        When::Maps((libc::MAP_FIXED | libc::MAP_ANONYMOUS) as u32),
    ),
    (libc::SYS_munmap, When::Always),
    (libc::SYS_mprotect, When::Always),
    (libc::SYS_madvise, When::Always),
    (libc::SYS_mremap, When::Always),
    (libc::SYS_brk, When::Always),
    (libc::SYS_mlock, When::Always),
    (libc::SYS_mlock2, When::Always),
    (libc::SYS_munlock, When::Always),
    (libc::SYS_mlockall, When::Always),
    (libc::SYS_munlockall, When::Always),
    (libc::SYS_pkey_mprotect, When::Always),
    (libc::SYS_mseal, When::Always),
    (libc::SYS_process_madvise, When::Always),
    (libc::SYS_ioctl, When::Is(1, 0xc020_aa00)),
    (libc::SYS_fork, When::Always),
    (libc::SYS_clone, When::Lacks(0, libc::CLONE_VM as u32)),
    (libc::SYS_clone3, When::Always),
    (libc::SYS_execve, When::Always),
    (libc::SYS_execveat, When::Always),
    (libc::SYS_set_tid_address, When::Always),
    (libc::SYS_exit, When::Always),
    (libc::SYS_set_robust_list, When::Always),
    (libc::SYS_rt_sigaction, When::Given(1)),
    (libc::SYS_rt_sigaction, When::Is(0, libc::SIGSYS as u32)),
    (libc::SYS_rt_sigprocmask, When::GivenUnless(1, UNBLOCK)),
    (libc::SYS_rt_sigsuspend, When::Always),
    (libc::SYS_ppoll, When::Given(3)),
    (libc::SYS_pselect6, When::Given(5)),
    (libc::SYS_epoll_pwait, When::Given(4)),
    (libc::SYS_epoll_pwait2, When::Given(4)),
    (libc::SYS_futex, When::Writes),
];

/// A program for the kernel, as it grows.
struct Filter {
    lines: [Line; 512],
    used: usize,
}

impl Filter {
    fn add(&mut self, code: u16, word: u32, yes: u8, no: u8) {
        if let Some(to) = self.lines.get_mut(self.used) {
            *to = Line {
                code,
                yes,
                no,
                word,
            };
            self.used += 1;
        }
    }

    /// Ends with what is decided by where the call comes from.
    fn decide(&mut self) {
        self.add(LOAD, INSTRUCTION_HIGH, 0, 0);
        self.add(EQUAL, host::window() as u32, 0, 1);
        self.add(RETURN, ALLOW, 0, 0);
        self.add(RETURN, TRAP | u32::from(MARK), 0, 0);
    }

    /// What is decided of a call if it is that number; else the next lines go on.
    fn rule(&mut self, number: c_long, when: When) {
        self.add(EQUAL, number as u32, 1, 0);
        let over = self.used;
        self.add(GO, 0, 0, 0);
        // Falls through to the decision, or jumps over it.
        match when {
            When::Always => {}
            When::Given(argument) => self.given(argument),
            When::Is(argument, word) => {
                self.add(LOAD, low(argument), 0, 0);
                self.add(EQUAL, word, 0, 4);
            }
            When::Lacks(argument, bits) => {
                self.add(LOAD, low(argument), 0, 0);
                self.add(SET, bits, 4, 0);
            }
            When::Maps(bits) => {
                self.add(LOAD, low(0) + 4, 0, 0);
                self.add(EQUAL, host::window() as u32, 6, 0);
                self.add(LOAD, low(3), 0, 0);
                self.add(SET, bits, 0, 4);
            }
            When::Writes => {
                self.add(LOAD, low(1), 0, 0);
                self.add(AND, libc::FUTEX_CMD_MASK as u32, 0, 0);
                self.add(EQUAL, libc::FUTEX_WAIT_BITSET as u32, 6, 0);
                self.add(EQUAL, libc::FUTEX_WAKE_BITSET as u32, 5, 0);
                self.add(ABOVE, libc::FUTEX_WAKE_OP as u32, 0, 4);
            }
            When::GivenUnless(argument, word) => {
                self.add(LOAD, low(0), 0, 0);
                self.add(EQUAL, word, 8, 0);
                self.given(argument);
            }
        }
        self.decide();
        // What is not decided yet: for another rule of this number.
        self.add(LOAD, NUMBER, 0, 0);
        let past = self.used - over - 1;
        if let Some(line) = self.lines.get_mut(over) {
            line.word = past as u32;
        }
    }

    fn given(&mut self, argument: u32) {
        self.add(LOAD, low(argument), 0, 0);
        self.add(EQUAL, 0, 0, 2);
        self.add(LOAD, low(argument) + 4, 0, 0);
        self.add(EQUAL, 0, 4, 0);
    }
}

/// Installs the filter; false: the system refuses.
pub fn install() -> bool {
    let mut filter = Filter {
        lines: [Line {
            code: 0,
            yes: 0,
            no: 0,
            word: 0,
        }; 512],
        used: 0,
    };
    filter.add(LOAD, ARCHITECTURE, 0, 0);
    filter.add(EQUAL, X86_64, 1, 0);
    filter.add(RETURN, ALLOW, 0, 0);
    filter.add(LOAD, NUMBER, 0, 0);
    // The calls of x32 programs.
    filter.add(ABOVE, 0x4000_0000, 0, 1);
    filter.add(RETURN, ALLOW, 0, 0);
    // The kernel would write to the thread's own data as it returns from any call: also from the
    // one for which everything stands still, when nobody serves a fault.
    filter.add(EQUAL, libc::SYS_rseq as u32, 0, 1);
    filter.add(RETURN, REFUSE, 0, 0);
    for (number, when) in CALLS {
        filter.rule(number, when);
    }
    filter.add(RETURN, ALLOW, 0, 0);
    // The kernel's struct sock_fprog.
    let program = [filter.used, filter.lines.as_ptr() as usize];
    let set = || {
        let at = program.as_ptr() as usize;
        // SAFETY: SECCOMP_SET_MODE_FILTER reads a program of that many lines.
        unsafe { sys::call(libc::SYS_seccomp, [1, 0, at, 0, 0, 0]) }.is_ok()
    };
    let no_new_privs = [libc::PR_SET_NO_NEW_PRIVS as usize, 1, 0, 0, 0, 0];
    // Without the right to do it otherwise.
    // SAFETY: gives up what set-user-id programs would gain.
    set() || (unsafe { sys::call(libc::SYS_prctl, no_new_privs) }.is_ok() && set())
}
