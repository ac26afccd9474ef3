//! Reclaim: which pages go when memory runs short, and how.

pub mod contig;
pub mod direct;
pub mod evict;
mod forked;
mod high;
pub mod oom;
pub mod pageout;
pub mod refault;
mod rejected;
mod shared;
mod writeback;
