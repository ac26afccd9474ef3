//! `system` and `popen`, by the calls of this library.
//!
//! libc's start the shell from inside, with whatever environment the program has left: after
//! `clearenv` the child would run outside. So they are done here, on `posix_spawn` of
//! [`exports`](super::exports), with the same signal rules.

use super::exports::posix_spawn;
use crate::sys;
use core::ffi::{CStr, c_char, c_int, c_void};
use core::mem::MaybeUninit;
use core::ptr::{null, null_mut};
use deckle_door::Lock;
use libc::{FILE, pid_t, posix_spawn_file_actions_t, posix_spawnattr_t, sigaction, sigset_t};

const SHELL: &CStr = c"/bin/sh";

unsafe extern "C" {
    static environ: *const *const c_char;
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
    fn pthread_testcancel();
}

/// `PTHREAD_CANCEL_DISABLE`.
const NO_CANCEL: c_int = 1;

/// Starts `/bin/sh -c -- command`. Returns its process id or the errno.
///
/// # Safety
/// `command` is a string; the others are null or set up by libc.
unsafe fn start(
    command: *const c_char,
    actions: *const posix_spawn_file_actions_t,
    attributes: *const posix_spawnattr_t,
) -> Result<pid_t, c_int> {
    let args = [
        c"sh".as_ptr(),
        c"-c".as_ptr(),
        c"--".as_ptr(),
        command,
        null(),
    ];
    let mut pid = 0;
    // SAFETY: lists that end in null; the caller's promise.
    let failed = unsafe {
        posix_spawn(
            &raw mut pid,
            SHELL.as_ptr(),
            actions.cast::<c_void>(),
            attributes.cast::<c_void>(),
            args.as_ptr(),
            environ,
        )
    };
    match failed {
        0 => Ok(pid),
        errno => Err(errno),
    }
}

/// Waits for the end of a child; its status.
fn wait(pid: pid_t) -> Result<c_int, c_int> {
    let mut status = 0;
    loop {
        // SAFETY: writes a status.
        match unsafe { libc::waitpid(pid, &raw mut status, 0) } {
            got if got == pid => return Ok(status),
            _ if sys::errno() != libc::EINTR => return Err(sys::errno()),
            _ => {}
        }
    }
}

/// What SIGINT and SIGQUIT were before the first of those who are in `system` now.
struct Interrupts {
    users: u32,
    before: MaybeUninit<[sigaction; 2]>,
}

static INTERRUPTS: Lock<Interrupts> = Lock::new(Interrupts {
    users: 0,
    before: MaybeUninit::uninit(),
});
const BOTH: [c_int; 2] = [libc::SIGINT, libc::SIGQUIT];

/// Ignores SIGINT and SIGQUIT; what they were.
fn ignore_interrupts() -> [sigaction; 2] {
    let mut all = INTERRUPTS.lock();
    all.users += 1;
    if all.users == 1 {
        // SAFETY: plain data, for which zeros are a value; two signals with valid structures.
        unsafe {
            let mut ignore: sigaction = core::mem::zeroed();
            ignore.sa_sigaction = libc::SIG_IGN;
            let mut before = [ignore; 2];
            for (signal, to) in BOTH.iter().zip(&mut before) {
                libc::sigaction(*signal, &raw const ignore, to);
            }
            all.before.write(before);
        }
    }
    // SAFETY: written by the first user.
    unsafe { all.before.assume_init() }
}

fn heed_interrupts() {
    let mut all = INTERRUPTS.lock();
    all.users -= 1;
    if all.users == 0 {
        // SAFETY: written by the first user.
        let before = unsafe { all.before.assume_init() };
        for (signal, old) in BOTH.iter().zip(&before) {
            // SAFETY: what it was before.
            unsafe { libc::sigaction(*signal, old, null_mut()) };
        }
    }
}

/// Runs a command to its end; the status.
///
/// # Safety
/// A string.
unsafe fn run(command: *const c_char) -> Result<c_int, c_int> {
    let before = ignore_interrupts();
    // SAFETY: structures of libc's, set up before they are used and freed after; in the child
    // signals are as they were before this call.
    let result = unsafe {
        let mut chld: sigset_t = core::mem::zeroed();
        let mut mask: sigset_t = core::mem::zeroed();
        libc::sigemptyset(&raw mut chld);
        libc::sigaddset(&raw mut chld, libc::SIGCHLD);
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const chld, &raw mut mask);
        let mut reset: sigset_t = core::mem::zeroed();
        libc::sigemptyset(&raw mut reset);
        for (signal, old) in BOTH.iter().zip(&before) {
            if old.sa_sigaction != libc::SIG_IGN {
                libc::sigaddset(&raw mut reset, *signal);
            }
        }
        let mut attributes = MaybeUninit::<posix_spawnattr_t>::uninit();
        libc::posix_spawnattr_init(attributes.as_mut_ptr());
        libc::posix_spawnattr_setsigmask(attributes.as_mut_ptr(), &raw const mask);
        libc::posix_spawnattr_setsigdefault(attributes.as_mut_ptr(), &raw const reset);
        let flags = libc::POSIX_SPAWN_SETSIGDEF | libc::POSIX_SPAWN_SETSIGMASK;
        libc::posix_spawnattr_setflags(attributes.as_mut_ptr(), flags as _);
        let started = start(command, null(), attributes.as_ptr());
        libc::posix_spawnattr_destroy(attributes.as_mut_ptr());
        let status = match started {
            Ok(pid) => wait(pid),
            // As if the shell had ended with `exit 127`.
            Err(_) => Ok(127 << 8),
        };
        heed_interrupts();
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const mask, null_mut());
        status
    };
    if let Err(errno) = result {
        sys::set_errno(errno);
    }
    result
}

/// C's `system`. A cancellation waits until the command has ended.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn system(command: *const c_char) -> c_int {
    let mut state = 0;
    // SAFETY: the calling thread's own state, put back below; a string, says the caller.
    unsafe {
        pthread_setcancelstate(NO_CANCEL, &raw mut state);
        let status = match command.is_null() {
            // Whether there is a shell.
            true => Ok(c_int::from(run(c"exit 0".as_ptr()) == Ok(0))),
            false => run(command),
        };
        pthread_setcancelstate(state, null_mut());
        pthread_testcancel();
        status.unwrap_or(-1)
    }
}

/// A stream of `popen`.
struct Stream {
    file: usize,
    fd: c_int,
    pid: pid_t,
}

static STREAMS: Lock<Vec<Stream>> = Lock::new(Vec::new());

/// Whether the program reads, and whether its end is closed at exec.
fn mode(text: &[u8]) -> Option<(bool, bool)> {
    let has = |c| text.contains(&c);
    let known = text.iter().all(|c| matches!(c, b'r' | b'w' | b'e'));
    (known && has(b'r') != has(b'w')).then(|| (has(b'r'), has(b'e')))
}

/// # Safety
/// A string.
unsafe fn open(command: *const c_char, reads: bool, at_exec: bool) -> Result<*mut FILE, c_int> {
    let mut ends = [0; 2];
    // SAFETY: room for two descriptors.
    if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } < 0 {
        return Err(sys::errno());
    }
    let (ours, theirs, std) = match reads {
        true => (ends[0], ends[1], libc::STDOUT_FILENO),
        false => (ends[1], ends[0], libc::STDIN_FILENO),
    };
    let kind = if reads { c"r" } else { c"w" };
    // SAFETY: an open descriptor and a mode of libc's.
    let file = unsafe { libc::fdopen(ours, kind.as_ptr()) };
    if file.is_null() {
        let errno = sys::errno();
        // SAFETY: descriptors of this call alone.
        unsafe { (libc::close(ours), libc::close(theirs)) };
        return Err(errno);
    }
    let mut streams = STREAMS.lock();
    // A stream that was closed by `fclose` left its entry behind.
    streams.retain(|s| s.file != file as usize && s.fd != ours);
    // SAFETY: libc's structure, set up before it is used and freed after; the command is the
    // caller's promise.
    let started = unsafe {
        let mut actions = MaybeUninit::<posix_spawn_file_actions_t>::uninit();
        libc::posix_spawn_file_actions_init(actions.as_mut_ptr());
        libc::posix_spawn_file_actions_adddup2(actions.as_mut_ptr(), theirs, std);
        for other in streams.iter().filter(|s| s.fd != std) {
            // POSIX: streams of earlier calls are closed in the child.
            libc::posix_spawn_file_actions_addclose(actions.as_mut_ptr(), other.fd);
        }
        let started = start(command, actions.as_ptr(), null());
        libc::posix_spawn_file_actions_destroy(actions.as_mut_ptr());
        libc::close(theirs);
        started
    };
    match started {
        Ok(pid) => {
            if !at_exec {
                // SAFETY: a descriptor of this call.
                unsafe { libc::fcntl(ours, libc::F_SETFD, 0) };
            }
            streams.push(Stream {
                file: file as usize,
                fd: ours,
                pid,
            });
            Ok(file)
        }
        Err(errno) => {
            drop(streams);
            // SAFETY: a stream of this call alone.
            unsafe { libc::fclose(file) };
            Err(errno)
        }
    }
}

/// POSIX's `popen`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn popen(command: *const c_char, how: *const c_char) -> *mut FILE {
    // SAFETY: strings, says the caller.
    let result = unsafe {
        match mode(CStr::from_ptr(how).to_bytes()) {
            Some((reads, at_exec)) => open(command, reads, at_exec),
            None => Err(libc::EINVAL),
        }
    };
    result.unwrap_or_else(|errno| {
        sys::set_errno(errno);
        null_mut()
    })
}

/// POSIX's `pclose`: -1 with ECHILD for what is no stream of `popen`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn pclose(file: *mut FILE) -> c_int {
    let found = {
        let mut streams = STREAMS.lock();
        let at = streams.iter().position(|s| s.file == file as usize);
        at.map(|at| streams.swap_remove(at))
    };
    let Some(stream) = found else {
        sys::set_errno(libc::ECHILD);
        return -1;
    };
    let mut state = 0;
    // SAFETY: the stream is closed once; the calling thread's own state, put back.
    let result = unsafe {
        pthread_setcancelstate(NO_CANCEL, &raw mut state);
        libc::fclose(file);
        let result = wait(stream.pid);
        pthread_setcancelstate(state, null_mut());
        pthread_testcancel();
        result
    };
    result.unwrap_or_else(|errno| {
        sys::set_errno(errno);
        -1
    })
}
