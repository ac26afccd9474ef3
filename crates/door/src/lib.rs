//! What a managed program and the service in its memory share, byte for byte.
//!
//! The program's side is a thin library in the program (`deckle-preload`), the other an image of
//! its own (`deckle-service`): a static program with its own C library, heap and thread-local
//! storage, which is mapped into the program's memory and run there as tasks that share the
//! memory and nothing else. Neither calls the other's functions. They meet in one [`Door`], a
//! static of the program's side, by atomics and futexes:
//!
//! - the start: what the service must know, and what came of it;
//! - [`Places`]: where managed memory may be; [`Held`]: what of memory stays resident; [`Known`]:
//!   where blocks of the program's own allocator need not be looked at;
//! - [`request`]: calls of the program that the service carries out.
//!
//! Besides, both have the same small tools: system calls and waiting ([`deckle_sys`]), a [`Lock`],
//! a [`Text`], the way to `deckle run` ([`link`]).
//!
//! Nothing here allocates, takes a lock of a C library, writes `errno` or uses thread-local
//! storage: it works in signal handlers, in a child between fork and the start of its own
//! service, and while the program's threads hold whatever they hold.

#![no_std]
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]
#![warn(missing_docs)]
#![allow(clippy::new_without_default, reason = "for statics")]

mod door;
pub mod entry;
mod held;
mod known;
pub mod link;
pub mod lock;
mod places;
pub mod request;
pub mod spin;

pub use door::{Door, Mode, NO_TASK, STALE, State, Text};
pub use held::Held;
pub use known::{Known, REGION, SMALL};
pub use lock::{Guard, Lock};
pub use places::Places;
pub use request::Op;
