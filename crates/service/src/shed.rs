//! Leaving all rights behind: the service shares its memory with a program that may be anything,
//! and whoever runs code there can have this task run it. So before the program goes on, the
//! service has every descriptor that it will need, and gives up the rest: capabilities, the right
//! to gain any, and every system call that it does not need.

use crate::door;
use crate::process::Process;
use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::Relaxed;

/// Whether the program's memory was made readable for us; see [`make_readable`].
static READABLE: AtomicBool = AtomicBool::new(false);

/// Descriptors, more than a service ever has; more than the system allows would be refused.
const FILES: libc::rlim_t = 1024;

/// The limits that are the program's are none of the service's: what it maps and locks for the
/// program is checked elsewhere.
pub fn lift_limits() {
    if !door().may(libc::SYS_prlimit64) {
        return;
    }
    for (what, most) in [
        (libc::RLIMIT_AS, libc::RLIM_INFINITY),
        (libc::RLIMIT_DATA, libc::RLIM_INFINITY),
        (libc::RLIMIT_MEMLOCK, libc::RLIM_INFINITY),
        (libc::RLIMIT_NOFILE, FILES),
    ] {
        let wanted = libc::rlimit {
            rlim_cur: most,
            rlim_max: most,
        };
        // SAFETY: reads and writes one structure; the limits of this process alone.
        unsafe {
            if libc::setrlimit(what, &raw const wanted) != 0 {
                let mut limit = wanted;
                libc::getrlimit(what, &raw mut limit);
                limit.rlim_cur = limit.rlim_max;
                libc::setrlimit(what, &raw const limit);
            }
        }
    }
}

/// A program that has changed its credentials, or wants no dumps, cannot be looked at by itself:
/// what /proc tells of our own memory is root's. It can for as long as we open what we need.
pub fn make_readable() {
    if !door().may(libc::SYS_prctl) {
        return;
    }
    // SAFETY: calls on numbers.
    unsafe {
        if libc::prctl(libc::PR_GET_DUMPABLE) != 1 && libc::prctl(libc::PR_SET_DUMPABLE, 1) == 0 {
            READABLE.store(true, Relaxed);
        }
    }
}

/// What was needed is open, or will not be.
pub fn make_unreadable() {
    if READABLE.swap(false, Relaxed) {
        // SAFETY: a call on numbers.
        unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 0) };
    }
}

/// Gives up capabilities for this task and those it will make.
pub fn capabilities() {
    make_unreadable();
    const VERSION_3: u32 = 0x2008_0522;
    let (head, none) = ([VERSION_3, 0], [0_u32; 6]);
    // SAFETY: reads both; drops rights of this task.
    unsafe {
        if door().may(libc::SYS_capset) {
            libc::syscall(libc::SYS_capset, head.as_ptr(), none.as_ptr());
        }
        if door().may(libc::SYS_prctl) {
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        }
    }
}

/// `BPF_LD | BPF_W | BPF_ABS`: load a word of the call.
const LOAD: u16 = 0x20;
/// `BPF_JMP | BPF_JEQ | BPF_K`: go on behind the next if equal.
const IF_EQUAL: u16 = 0x15;
/// `BPF_RET | BPF_K`: decide.
const RETURN: u16 = 0x06;
/// Where a word of the call lies: its number, architecture, first and second argument.
const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;
const FIRST: u32 = 16;
const SECOND: u32 = 24;
const X86_64: u32 = 0xc000_003e;

/// How the C library makes a thread: it has all that this process has, and nothing else.
const THREAD: i32 = libc::CLONE_VM
    | libc::CLONE_FS
    | libc::CLONE_FILES
    | libc::CLONE_SIGHAND
    | libc::CLONE_THREAD
    | libc::CLONE_SYSVSEM
    | libc::CLONE_SETTLS
    | libc::CLONE_PARENT_SETTID
    | libc::CLONE_CHILD_CLEARTID
    | libc::CLONE_DETACHED;

/// What works on memory, descriptors and threads that the service has already.
const FREE: [libc::c_long; 46] = [
    libc::SYS_futex,
    libc::SYS_futex_waitv,
    libc::SYS_ioctl,
    libc::SYS_poll,
    libc::SYS_ppoll,
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_pread64,
    libc::SYS_pwrite64,
    libc::SYS_fallocate,
    libc::SYS_sendmsg,
    libc::SYS_recvmsg,
    libc::SYS_lseek,
    libc::SYS_close,
    libc::SYS_mmap,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_mprotect,
    libc::SYS_madvise,
    libc::SYS_process_madvise,
    libc::SYS_mincore,
    libc::SYS_msync,
    libc::SYS_mlock,
    libc::SYS_mlock2,
    libc::SYS_munlock,
    libc::SYS_munlockall,
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_nanosleep,
    libc::SYS_gettid,
    libc::SYS_getpid,
    libc::SYS_getcpu,
    libc::SYS_sched_yield,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_setaffinity,
    libc::SYS_sched_setscheduler,
    libc::SYS_getrandom,
    libc::SYS_kcmp,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    libc::SYS_restart_syscall,
    libc::SYS_set_robust_list,
    libc::SYS_membarrier,
    libc::SYS_exit,
    libc::SYS_exit_group,
];

/// Refuses all other calls to every task of the service, from now on. With a signal it may end
/// the program, and ask whether a process is there.
///
/// # Errors
/// The kernel refuses; for people.
pub fn calls(process: &Process) -> Result<(), String> {
    if !door().may(libc::SYS_seccomp) {
        // The program has a filter of its own, which refuses that: what is left is little.
        return Ok(());
    }
    let mut filter = Vec::with_capacity(2 * FREE.len() + 20);
    let mut add = |code, k, jt, jf| filter.push(libc::sock_filter { code, jt, jf, k });
    let refused = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
    let allowed = libc::SECCOMP_RET_ALLOW;
    add(LOAD, ARCHITECTURE, 0, 0);
    add(IF_EQUAL, X86_64, 1, 0);
    add(RETURN, refused, 0, 0);
    add(LOAD, NUMBER, 0, 0);
    for number in FREE {
        add(IF_EQUAL, number as u32, 0, 1);
        add(RETURN, allowed, 0, 0);
    }
    // kill with signal 0; pidfd_send_signal of SIGKILL to the program; a thread of this process,
    // and its name.
    let kill_program = libc::SYS_pidfd_send_signal as u32;
    for (number, tests) in [
        (libc::SYS_kill as u32, &[(SECOND, 0)][..]),
        (libc::SYS_clone as u32, &[(FIRST, THREAD as u32)]),
        (libc::SYS_prctl as u32, &[(FIRST, libc::PR_SET_NAME as u32)]),
        (
            kill_program,
            &[
                (FIRST, process.watch.pidfd() as u32),
                (SECOND, libc::SIGKILL as u32),
            ],
        ),
    ] {
        let rest = 2 * tests.len() as u8 + 1;
        add(IF_EQUAL, number, 0, rest);
        for (k, (word, value)) in tests.iter().enumerate() {
            add(LOAD, *word, 0, 0);
            // The last test goes on to the decision, a failed one behind it.
            add(IF_EQUAL, *value, 0, 2 * (tests.len() - 1 - k) as u8 + 1);
        }
        add(RETURN, allowed, 0, 0);
        add(LOAD, NUMBER, 0, 0);
    }
    add(RETURN, refused, 0, 0);
    let program = libc::sock_fprog {
        len: filter.len() as u16,
        filter: filter.as_mut_ptr(),
    };
    const SET_MODE_FILTER: libc::c_ulong = 1;
    let all_tasks = libc::SECCOMP_FILTER_FLAG_TSYNC;
    let at = &raw const program;
    // SAFETY: reads a filter of that length, which goes on living until the call is back.
    match unsafe { libc::syscall(libc::SYS_seccomp, SET_MODE_FILTER, all_tasks, at) } {
        0 => Ok(()),
        // A filter of nobody knows whose refuses it.
        // SAFETY: a call on numbers.
        _ if unsafe { libc::prctl(libc::PR_GET_SECCOMP) } == 2 => Ok(()),
        _ => Err("no filter for its service's system calls".to_owned()),
    }
}
