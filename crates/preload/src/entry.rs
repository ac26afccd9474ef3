//! libdeckle.entry: the door of programs into which no library can be loaded.
//!
//! A static program without a C library, which `deckle run` puts into another one when that is
//! executed: between the exec and the first instruction. It has the kernel stop the program at
//! the calls that concern managed memory and hand them to a handler, and answers them as
//! libdeckle.so does; most of the source is the same. See [`second`].

#![cfg_attr(target_env = "musl", no_std, no_main)]

#[cfg(target_env = "musl")]
#[path = "."]
mod parts {
    pub mod brk;
    pub mod caught;
    pub mod child;
    pub mod data;
    pub mod filter;
    pub mod fork;
    pub mod gate;
    pub mod limits;
    pub mod load;
    pub mod map;
    pub mod pointers;
    pub mod rights;
    pub mod second;
    pub mod sys;
    pub mod words;

    pub use second::{config, host};

    /// What the service and this door share.
    pub static DOOR: deckle_door::Door = deckle_door::Door::new();
}
#[cfg(target_env = "musl")]
use parts::*;

/// Elsewhere there is nothing to build.
#[cfg(not(target_env = "musl"))]
fn main() {}
