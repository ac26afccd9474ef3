//! Signals to `deckle run`, as events.

use deckle_group::sys::{Errno, Fd};

/// Passed on to the program.
const FORWARDED: [i32; 9] = [
    libc::SIGTERM,
    libc::SIGINT,
    libc::SIGHUP,
    libc::SIGQUIT,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGTSTP,
    libc::SIGCONT,
    libc::SIGWINCH,
];

/// A signal that arrived.
#[derive(Clone, Copy, Debug)]
pub struct Signal {
    /// Its number.
    pub number: i32,
    /// Sent by the terminal to the whole foreground group: the program has got it already.
    pub from_terminal: bool,
    /// The child whose end a SIGCHLD tells of.
    pub dead: Option<u32>,
}

/// How signals were before [`Signals::open`].
#[derive(Clone, Copy)]
pub struct Before {
    mask: libc::sigset_t,
    children: libc::sigaction,
}

impl Before {
    /// Makes it so again in the calling process. Only system calls: may be called between fork
    /// and exec.
    pub fn restore(&self) {
        // SAFETY: live values that the kernel gave; the handler of a program that has not run
        // any code of ours before is none, only "default" or "ignored".
        unsafe {
            libc::sigaction(libc::SIGCHLD, &self.children, std::ptr::null_mut());
            libc::sigprocmask(libc::SIG_SETMASK, &self.mask, std::ptr::null_mut());
        }
    }
}

/// A signalfd; while it exists these signals do nothing else.
pub struct Signals {
    fd: Fd,
    before: Before,
}

impl Signals {
    /// Blocks the signals and opens the descriptor.
    pub fn open() -> Result<Signals, Errno> {
        // SAFETY: sigset_t is plain data; sigemptyset and sigaddset initialise it.
        let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
        // SAFETY: plain data too; all zeros is the default action and an empty mask.
        let mut before: Before = unsafe { std::mem::zeroed() };
        // SAFETY: as above.
        let default: libc::sigaction = unsafe { std::mem::zeroed() };
        // SAFETY: live sets, valid signal numbers.
        let raw = unsafe {
            libc::sigemptyset(&mut set);
            for signal in FORWARDED.iter().chain(&[libc::SIGCHLD]) {
                libc::sigaddset(&mut set, *signal);
            }
            libc::sigprocmask(libc::SIG_BLOCK, &set, &mut before.mask);
            // Where it is ignored, children end without a status.
            libc::sigaction(libc::SIGCHLD, &default, &mut before.children);
            libc::signalfd(-1, &set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK)
        };
        if raw < 0 {
            return Err(Errno::last());
        }
        Ok(Signals {
            fd: Fd::own(raw),
            before,
        })
    }

    /// The descriptor, to poll.
    pub fn fd(&self) -> i32 {
        self.fd.raw()
    }

    /// How they were before, for the program.
    pub fn before(&self) -> Before {
        self.before
    }

    /// The next signal, if one arrived.
    pub fn take(&self) -> Option<Signal> {
        // SAFETY: plain data, all zeros is a value.
        let mut info: libc::signalfd_siginfo = unsafe { std::mem::zeroed() };
        let size = size_of::<libc::signalfd_siginfo>();
        // SAFETY: a live buffer of that size.
        let n = unsafe { libc::read(self.fd.raw(), (&raw mut info).cast(), size) };
        (n == size as isize).then_some(Signal {
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
