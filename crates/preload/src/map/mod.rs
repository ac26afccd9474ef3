//! Calls on memory.
//!
//! Private anonymous memory is mapped by the service, where the kernel would map it;
//! everything else is the kernel's. [`calls`] sorts the calls, [`rules`] says which are which.

pub mod calls;
mod futex;
pub mod locks;
mod rare;
mod rules;
