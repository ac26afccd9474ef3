//! Where memory comes from: three heaps.
//!
//! - [`internal`]: for this library and its service, outside managed memory, never the
//!   program's;
//! - [`boot`]: a megabyte for the program until it needs more, so that small programs never
//!   start a service;
//! - mimalloc over the interposed mmap, which is managed memory once the service runs.
//!
//! [`exports`] chooses between them; a block goes back to the heap whose addresses it has.

pub mod boot;
pub mod exports;
mod head;
mod heap;
pub mod internal;
