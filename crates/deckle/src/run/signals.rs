//! Signals to `deckle run`, as events.

use deckle_sys::Errno;
use deckle_sys::process::session_of;
use deckle_sys::signal::{Signal, Signals};

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

/// Whether the program has not got the signal itself. It shares this process's group, to which the
/// terminal sends; but the terminal's end, SIGHUP, is told to the session's leader alone.
pub fn is_ours_alone(signal: &Signal) -> bool {
    let me = std::process::id();
    !signal.from_terminal || signal.number == libc::SIGHUP && session_of(me) == me
}
