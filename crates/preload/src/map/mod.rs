//! The mmap family.
//!
//! Private anonymous memory is the service's to manage; everything else is the kernel's.
//! [`exports`] sorts the calls, [`rules`] says which are which.

pub mod exports;
pub mod locks;
pub mod rare;
pub mod rules;
