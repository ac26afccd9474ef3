//! What the program's memory is, page by page: VMAs, blocks and entries. Data, and no policy.

pub mod block;
pub mod entry;
mod gaps;
pub mod marks;
pub mod vma;
pub(crate) mod walk;
