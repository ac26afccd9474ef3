//! The calls that change a mapping: mmap, munmap, mprotect, mremap, madvise, mlock, fork.

pub mod adopt;
pub mod advice;
mod carry;
pub mod disown;
pub mod fork;
pub mod map;
mod opening;
pub mod pin;
mod protect;
pub mod remap;
mod settle;
pub mod tracking;
pub mod userfault;
