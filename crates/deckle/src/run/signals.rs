//! Signals to `deckle run`, as events.

use deckle_sys::Errno;
use deckle_sys::signal::Signals;

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

/// From now on they do nothing else.
pub fn open() -> Result<Signals, Errno> {
    Signals::open(&FORWARDED)
}
