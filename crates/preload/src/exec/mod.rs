//! exec and posix_spawn: the next program runs under deckle, too.

mod environment;
pub mod exports;
pub mod outside;
pub mod shell;

pub use environment::read_told;
