//! The mmap family.
//!
//! Private anonymous memory is mapped by the service, where the kernel would map it;
//! everything else is the kernel's. [`exports`] sorts the calls, [`rules`] says which are which.

pub mod exports;
pub mod locks;
pub mod rare;
pub mod rules;
