//! Where the blocks of the program come from: its own allocator ([`next`]), and before that is
//! found the first megabyte ([`boot`]).
//!
//! [`exports`] chooses between them; a block goes back to the heap whose addresses it has.

pub mod boot;
pub mod exports;
mod head;
mod heap;
pub mod next;
