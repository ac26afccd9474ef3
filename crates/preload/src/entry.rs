//! libdeckle.entry: the door of programs into which no library can be loaded.
//!
//! A static program without a C library, which `deckle run` puts into another one when that is
//! executed: between the exec and the first instruction. It has the kernel stop the program at
//! the calls that concern managed memory and hand them to a handler, and answers them as
//! libdeckle.so does; most of the source is the same. See [`second`].

#![cfg_attr(target_env = "musl", no_std, no_main)]

#[cfg(target_env = "musl")]
mod brk;
#[cfg(target_env = "musl")]
mod caught;
#[cfg(target_env = "musl")]
mod data;
#[cfg(target_env = "musl")]
mod filter;
#[cfg(target_env = "musl")]
mod fork;
#[cfg(target_env = "musl")]
mod gate;
#[cfg(target_env = "musl")]
mod limits;
#[cfg(target_env = "musl")]
mod load;
#[cfg(target_env = "musl")]
mod map;
#[cfg(target_env = "musl")]
mod rights;
#[cfg(target_env = "musl")]
mod second;
#[cfg(target_env = "musl")]
mod sys;

#[cfg(target_env = "musl")]
use second::{config, host};

/// What the service and this door share.
#[cfg(target_env = "musl")]
static DOOR: deckle_door::Door = deckle_door::Door::new();

/// Elsewhere there is nothing to build.
#[cfg(not(target_env = "musl"))]
fn main() {}
