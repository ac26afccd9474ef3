//! Signals to this process, as events.

use crate::call::call;
use crate::{Errno, Fd};
use core::mem::MaybeUninit;

/// A signal that arrived.
#[derive(Clone, Copy, Debug)]
pub struct Signal {
    /// Its number.
    pub number: i32,
    /// Sent by the terminal to the whole foreground group.
    pub from_terminal: bool,
    /// The child whose end a SIGCHLD tells of.
    pub dead: Option<u32>,
}

/// How signals were before [`Signals::open`].
#[derive(Clone, Copy)]
pub struct Before {
    mask: libc::sigset_t,
    children: libc::sigaction,
    files: libc::sigaction,
}

impl Before {
    /// Makes it so again in the calling process. Only system calls: may be called between fork
    /// and exec.
    pub fn restore(&self) {
        // SAFETY: live values that the kernel gave; a handler among them was this program's.
        unsafe {
            libc::sigaction(libc::SIGCHLD, &self.children, core::ptr::null_mut());
            libc::sigaction(libc::SIGXFSZ, &self.files, core::ptr::null_mut());
            libc::sigprocmask(libc::SIG_SETMASK, &self.mask, core::ptr::null_mut());
        }
    }
}

/// Has a signal call `handler` in the calling thread; a system call that it interrupts fails.
pub fn catch(signal: i32, handler: extern "C" fn(i32)) -> Result<(), Errno> {
    let (mut set, mut action) = (MaybeUninit::uninit(), MaybeUninit::<libc::sigaction>::zeroed());
    // SAFETY: plain data, of which zeros are a value; sigemptyset initializes the set.
    let done = unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        libc::sigaddset(set.as_mut_ptr(), signal);
        action.assume_init_mut().sa_sigaction = handler as *const () as usize;
        match libc::sigaction(signal, action.as_ptr(), core::ptr::null_mut()) {
            0 => libc::sigprocmask(libc::SIG_UNBLOCK, set.as_ptr(), core::ptr::null_mut()),
            failed => failed,
        }
    };
    match done {
        0 => Ok(()),
        _ => Err(Errno::last()),
    }
}

/// A signalfd; while it exists its signals do nothing else.
pub struct Signals {
    fd: Fd,
    before: Before,
}

impl Signals {
    /// Blocks SIGCHLD and `others`, and opens the descriptor. A write past the limit on the size of
    /// files is an error from now on, and no signal.
    /// Errors: the system has no descriptor.
    pub fn open(others: &[i32]) -> Result<Signals, Errno> {
        let (mut set, mut before) = (MaybeUninit::uninit(), MaybeUninit::<Before>::zeroed());
        // SAFETY: sigemptyset initializes the set. The rest is plain data, of which zeros are a
        // value: of a sigaction the default action and no mask.
        let (raw, before) = unsafe {
            libc::sigemptyset(set.as_mut_ptr());
            for signal in others.iter().chain(&[libc::SIGCHLD]) {
                libc::sigaddset(set.as_mut_ptr(), *signal);
            }
            let was = before.assume_init_mut();
            libc::sigprocmask(libc::SIG_BLOCK, set.as_ptr(), &mut was.mask);
            // Where it is ignored, children end without a status.
            let mut action = was.children;
            libc::sigaction(libc::SIGCHLD, &action, &mut was.children);
            action.sa_sigaction = libc::SIG_IGN;
            libc::sigaction(libc::SIGXFSZ, &action, &mut was.files);
            let flags = libc::SFD_CLOEXEC | libc::SFD_NONBLOCK;
            (libc::signalfd(-1, set.as_ptr(), flags), *was)
        };
        if raw < 0 {
            return Err(Errno::last());
        }
        // SAFETY: a new descriptor.
        let fd = unsafe { Fd::own(raw) };
        Ok(Signals { fd, before })
    }

    /// The descriptor, to poll.
    pub fn fd(&self) -> i32 {
        self.fd.raw()
    }

    /// Does what Ctrl-Z does to this process's group, SIGTSTP being one of these signals: stops it
    /// until somebody continues it. Nothing happens where nobody could, or it is ignored.
    pub fn stop(&self) {
        let (mut set, mut was) = (MaybeUninit::uninit(), MaybeUninit::uninit());
        // SAFETY: sigemptyset initializes the set, sigprocmask the other one. What is sent comes
        // while it is let through; no code of ours is a handler of it.
        unsafe {
            libc::sigemptyset(set.as_mut_ptr());
            libc::sigaddset(set.as_mut_ptr(), libc::SIGTSTP);
            libc::kill(0, libc::SIGTSTP);
            libc::sigprocmask(libc::SIG_UNBLOCK, set.as_ptr(), was.as_mut_ptr());
            libc::sigprocmask(libc::SIG_SETMASK, was.as_ptr(), core::ptr::null_mut());
        }
    }

    /// How they were before, for a program that is started.
    pub fn before(&self) -> Before {
        self.before
    }

    /// The next signal, if one arrived.
    pub fn take(&self) -> Option<Signal> {
        let mut info = MaybeUninit::<libc::signalfd_siginfo>::zeroed();
        // SAFETY: room for one structure; plain data, of which zeros are a value, too.
        let (n, info) = unsafe {
            let n = libc::read(self.fd.raw(), info.as_mut_ptr().cast(), size_of_val(&info));
            (n, info.assume_init())
        };
        (n == size_of_val(&info) as isize).then_some(Signal {
            number: info.ssi_signo as i32,
            from_terminal: info.ssi_code == libc::SI_KERNEL,
            dead: matches!(
                info.ssi_code,
                libc::CLD_EXITED | libc::CLD_KILLED | libc::CLD_DUMPED
            )
            .then_some(info.ssi_pid),
        })
    }
}

/// These do nothing any more.
pub fn ignore(signals: &[i32]) {
    for signal in signals {
        // SAFETY: no code of ours is a handler then.
        unsafe { libc::signal(*signal, libc::SIG_IGN) };
    }
}

/// Sends a signal to a process; to a whole group where `pid` is negative.
/// Errors: ESRCH: there is none. EPERM: it is somebody else's.
pub fn send(pid: i32, signal: i32) -> Result<(), Errno> {
    // SAFETY: a call on numbers: it touches no memory here, and a handler is the program's own.
    let sent = unsafe { call(libc::SYS_kill, [pid as usize, signal as usize]) };
    sent.map(drop).map_err(Errno)
}
