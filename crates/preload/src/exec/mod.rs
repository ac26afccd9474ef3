//! exec and posix_spawn: the next program runs under deckle, too.

mod environment;
pub mod exports;
mod outside;
pub mod shell;
