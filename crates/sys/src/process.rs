//! Processes: what they are, how they are made and how they end.

use crate::{Errno, Page};
use crate::call::call;
use crate::signal::Before;
use crate::trace::trace_me;
use core::mem::MaybeUninit;
use std::ffi::{CStr, CString};
use std::fs::File;
use std::io::{PipeWriter, Write};
use std::os::unix::process::CommandExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::Command;

/// Real user and group of this process.
pub fn user_and_group() -> (u32, u32) {
    // SAFETY: calls without arguments.
    unsafe { (libc::getuid(), libc::getgid()) }
}

/// Effective user of this process.
pub fn effective_user() -> u32 {
    // SAFETY: a call without arguments.
    unsafe { libc::geteuid() }
}

/// This process begins a session of its own, if it leads no group.
pub fn begin_session() {
    // SAFETY: a call without arguments.
    unsafe { libc::setsid() };
}

/// Who leads the session of `pid`; 0 if that is not told.
pub fn session_of(pid: u32) -> u32 {
    // SAFETY: a call on a number.
    unsafe { libc::getsid(pid as i32) }.max(0) as u32
}

/// Orphans below this process become its children from now on.
pub fn adopt_orphans() {
    // SAFETY: a system call on numbers.
    unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1) };
}

/// The soft limit on this process's address space in bytes, if there is one.
pub fn address_space_limit() -> Option<u64> {
    let mut limit = [libc::RLIM_INFINITY; 2];
    let args = [0, libc::RLIMIT_AS as usize, 0, limit.as_mut_ptr() as usize];
    // SAFETY: writes two words.
    let _ = unsafe { call(libc::SYS_prlimit64, args) };
    (limit[0] != libc::RLIM_INFINITY).then_some(limit[0])
}

/// Raises the soft limit on this process's descriptors to the hard one: the limits before, soft
/// and hard.
/// Errors: what prlimit says.
pub fn raise_file_limit() -> Result<[u64; 2], Errno> {
    let mut before = [0_u64; 2];
    let what = libc::RLIMIT_NOFILE as usize;
    // SAFETY: writes two words, then reads two.
    let done = unsafe {
        call(libc::SYS_prlimit64, [0, what, 0, before.as_mut_ptr() as usize]).and_then(|_| {
            let all = [before[1]; 2];
            call(libc::SYS_prlimit64, [0, what, all.as_ptr() as usize, 0])
        })
    };
    done.map(|_| before).map_err(Errno)
}

/// Whether two processes have one memory. Where the kernel does not say, they have not.
pub fn same_memory(a: u32, b: u32) -> bool {
    const KCMP_VM: i32 = 1;
    // SAFETY: a system call on numbers.
    unsafe { libc::syscall(libc::SYS_kcmp, a, b, KCMP_VM, 0, 0) == 0 }
}

/// Reads a byte at each of these addresses of another process, in a row; how many could be.
/// Errors: EFAULT: not even the first. ESRCH: there is no such process. EPERM: it is another's.
///
/// # Panics
/// If `to` has not as many bytes.
pub fn peek(pid: u32, from: &[u64], to: &mut [u8]) -> Result<usize, Errno> {
    let at = |at: &u64| libc::iovec {
        iov_base: *at as *mut _,
        iov_len: 1,
    };
    let from: Vec<_> = from.iter().map(at).collect();
    let to = &mut to[..from.len()];
    let to = libc::iovec {
        iov_base: to.as_mut_ptr().cast(),
        iov_len: to.len(),
    };
    let (count, pid) = (from.len() as u64, pid as i32);
    // SAFETY: writes at most a byte for each of `from`, as many as `to` has; addresses of the other
    // process are only read.
    let got = unsafe { libc::process_vm_readv(pid, &to, 1, from.as_ptr(), count, 0) };
    usize::try_from(got).map_err(|_| Errno::last())
}

/// Reads whole pages of another process's memory, from `at` on; how many could be. As the process
/// itself would read them: what is not there is brought in first, and of what it shares since a
/// fork it gets a copy, unless nobody else has it any more. Who only wants to look asks for pages
/// that are there, and its own; see [`Fd::read_pages`](crate::Fd::read_pages) for the others.
/// Errors: EFAULT: not even the first. ESRCH: there is no such process. EPERM: it is another's.
pub fn read_pages(pid: u32, at: u64, to: &mut [Page]) -> Result<usize, Errno> {
    let len = size_of_val(to);
    let part = |at: *mut _| libc::iovec {
        iov_base: at,
        iov_len: len,
    };
    let (to, from) = (part(to.as_mut_ptr().cast()), part(at as *mut _));
    // SAFETY: writes at most what `to` has, of which any bits are a value; the other process's
    // memory is only read.
    let got = unsafe { libc::process_vm_readv(pid as i32, &to, 1, &from, 1, 0) };
    let bytes = usize::try_from(got).map_err(|_| Errno::last())?;
    Ok(bytes / crate::PAGE)
}

/// Waits for a change of a child, or of any (-1), as `flags` say: whose, and its raw status. `None`
/// where WNOHANG is among them, and there is none.
/// Errors: ECHILD: there is no such child.
pub fn wait(pid: i32, flags: i32) -> Result<Option<(i32, i32)>, Errno> {
    let mut raw = 0;
    loop {
        // SAFETY: a live status word.
        match unsafe { libc::waitpid(pid, &mut raw, flags) } {
            0 => return Ok(None),
            -1 if Errno::last().0 == libc::EINTR => {}
            -1 => return Err(Errno::last()),
            pid => return Ok(Some((pid, raw))),
        }
    }
}

/// Waits until a child has ended: its raw status, and what it and its own have used.
/// Errors: ECHILD: there is no such child.
pub fn wait_usage(pid: i32) -> Result<(i32, libc::rusage), Errno> {
    let (mut raw, mut usage) = (0, MaybeUninit::zeroed());
    // SAFETY: a live status word, and room for one rusage.
    while unsafe { libc::wait4(pid, &mut raw, 0, usage.as_mut_ptr()) } < 0 {
        match Errno::last() {
            Errno(libc::EINTR) => {}
            errno => return Err(errno),
        }
    }
    // SAFETY: plain data, of which zeros are a value.
    Ok((raw, unsafe { usage.assume_init() }))
}

/// What this process (`RUSAGE_SELF`), or the children that it has waited for, have used.
pub fn usage(of: i32) -> libc::rusage {
    let mut usage = MaybeUninit::zeroed();
    // SAFETY: room for one rusage; plain data, of which zeros are a value.
    unsafe {
        libc::getrusage(of, usage.as_mut_ptr());
        usage.assume_init()
    }
}

/// Makes a copy of this process, which must have one thread: the child's number, or `None` in the
/// child.
/// Errors: EBUSY: there are other threads, which would not be there in the child. What fork says,
/// and, without /proc, what opening that says.
pub fn fork_alone() -> Result<Option<i32>, Errno> {
    let tasks = std::fs::read_dir("/proc/self/task");
    let tasks = tasks.map_err(|e| Errno(e.raw_os_error().unwrap_or(libc::EIO)))?;
    if tasks.count() != 1 {
        return Err(Errno(libc::EBUSY));
    }
    // SAFETY: there is one thread, and nobody who could make another: so the child may do whatever
    // this process may.
    match unsafe { libc::fork() } {
        -1 => Err(Errno::last()),
        0 => Ok(None),
        child => Ok(Some(child)),
    }
}

/// Does `work` in a child, whatever other threads do, and waits for its end: its raw status, 0 if
/// it has returned true.
/// Errors: what fork or waitpid says.
///
/// # Safety
/// `work` makes no thread: that might get the stack of one that is not there in the child.
pub unsafe fn in_child(work: impl FnOnce() -> bool) -> Result<i32, Errno> {
    // SAFETY: in the child the other threads stand still for ever, as they might here, too; and by
    // the caller's word their memory is not used anew.
    match unsafe { libc::fork() } {
        -1 => Err(Errno::last()),
        0 => {
            let well = catch_unwind(AssertUnwindSafe(work)).unwrap_or(false);
            // SAFETY: the end of the child, without the parent's exit handlers.
            unsafe { libc::_exit(i32::from(!well)) }
        }
        child => Ok(wait(child, 0)?.map_or(0, |(_, raw)| raw)),
    }
}

/// Executes the file at `path` in the place of this program: as the C library does, or by the
/// `kernel`'s own call, which no preloaded library sees. Comes back with an error only.
pub fn execute(path: &CStr, args: &[CString], env: &[CString], kernel: bool) -> Errno {
    let list = |all: &[CString]| {
        let strings = all.iter().map(|text| text.as_ptr());
        strings.chain([core::ptr::null()]).collect::<Vec<_>>()
    };
    let (args, env) = (list(args), list(env));
    // SAFETY: strings, and lists of strings with a null pointer behind them, which live on if the
    // call comes back. Rust ignores SIGPIPE in this program alone.
    unsafe {
        let before = libc::signal(libc::SIGPIPE, libc::SIG_DFL);
        let words = [path.as_ptr() as usize, args.as_ptr() as usize, env.as_ptr() as usize];
        let errno = match kernel {
            true => call(libc::SYS_execve, words).err().map_or(Errno(0), Errno),
            false => {
                libc::execve(path.as_ptr(), args.as_ptr(), env.as_ptr());
                Errno::last()
            }
        };
        libc::signal(libc::SIGPIPE, before);
        errno
    }
}

/// What a child does before it executes its program.
#[derive(Default)]
pub struct Start {
    /// A 0 is written to each, by which a process enters a cgroup.
    pub doors: Vec<File>,
    /// Signals are again as they were.
    pub signals: Option<Before>,
    /// It is traced from then on; a byte tells whether that is so.
    pub traced: Option<PipeWriter>,
    /// Its limits on descriptors, soft and hard.
    pub files: Option<[u64; 2]>,
}

/// Has the child of `command` do that. It is killed when the calling thread ends, and ends by 125
/// if that is so already.
pub fn at_start(command: &mut Command, start: Start) {
    let parent = std::process::id();
    // SAFETY: between fork and exec only system calls are made, on values that were copied before;
    // nothing is allocated or given back.
    unsafe {
        command.pre_exec(move || {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            if libc::getppid() as u32 != parent {
                libc::_exit(125);
            }
            if let Some(before) = &start.signals {
                before.restore();
            }
            if let Some(files) = &start.files {
                let what = libc::RLIMIT_NOFILE as usize;
                call(libc::SYS_prlimit64, [0, what, files.as_ptr() as usize, 0])
                    .map_err(std::io::Error::from_raw_os_error)?;
            }
            if let Some(mut tell) = start.traced.as_ref() {
                tell.write_all(&[u8::from(trace_me())])?;
            }
            start
                .doors
                .iter()
                .try_for_each(|mut door| door.write_all(b"0"))
        });
    }
}
