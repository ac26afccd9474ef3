//! Where the blocks of the program come from: its own allocator ([`next`]), and before that is
//! found some pages of ours ([`boot`]).
//!
//! [`exports`] chooses between them; a block goes back to the heap whose addresses it has.

pub mod boot;
pub mod exports;
pub mod next;
