//! Where the blocks of the program come from: its own allocator ([`next`]), and before that is
//! found some pages of ours ([`boot`]).
//!
//! [`next`] chooses between them. What is of ours is not used anew when it is freed.

pub mod boot;
pub mod exports;
pub mod next;
