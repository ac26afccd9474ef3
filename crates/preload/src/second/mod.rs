//! What only the second door does.
//!
//! [`start`] runs before the program does and installs the handler of SIGSYS ([`trap`]) and the
//! seccomp filter ([`filter`]), which the program's children inherit. The kernel sends that signal
//! by force: where it is blocked or has no handler the program dies. So the program gets neither
//! ([`masks`]), and each exec, which takes the handler away, is announced to `deckle run`, which
//! puts a new one in ([`exec`]).

pub mod config;
mod exec;
mod filter;
pub mod host;
mod leave;
mod masks;
mod memory;
mod start;
mod trap;
