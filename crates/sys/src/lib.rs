//! The rim to the kernel: what the other crates need of it, in safe forms.
//!
//! A function here is safe if no call of it, whatever its arguments, can break what Rust promises
//! of memory and descriptors; what needs its caller's word for that is `unsafe`.
//!
//! - [`call`] makes any system call, without a C library: it leaves `errno` alone and is
//!   interposed by nobody. On it stand [`futex`], [`Fd`], [`poll`], [`pidfd`] and [`socket`], which
//!   may be used wherever code can run: in signal handlers, in programs without a C library, in a
//!   child between fork and exec.
//! - With the feature `std`: [`Memory`] of our own, [`epoll`], [`process`]es, [`signal`]s,
//!   [`trace`]d programs, files and [`clock`]s. These go by way of the C library.
//!
//! All is there on Linux for x86-64; elsewhere [`Errno`] and [`Memory`] of the heap are.

#![cfg_attr(not(feature = "std"), no_std)]
#![warn(missing_docs)]

/// Bytes of a page.
pub const PAGE: usize = 4096;
/// The words of a page.
pub type Page = [u64; PAGE / 8];

mod errno;
#[cfg(feature = "std")]
pub mod memory;

pub use errno::Errno;
#[cfg(feature = "std")]
pub use memory::Memory;

macro_rules! here {
    ($($item:item)*) => {
        $(#[cfg(all(target_os = "linux", target_arch = "x86_64"))] $item)*
    };
}

here! {
    mod call;
    mod fd;
    pub mod futex;
    pub mod pidfd;
    pub mod poll;
    pub mod shared;
    pub mod socket;

    #[cfg(feature = "std")]
    pub mod clock;
    #[cfg(feature = "std")]
    pub mod epoll;
    #[cfg(feature = "std")]
    pub mod file;
    #[cfg(feature = "std")]
    pub mod mapping;
    #[cfg(feature = "std")]
    pub mod process;
    #[cfg(feature = "std")]
    pub mod signal;
    #[cfg(feature = "std")]
    pub mod trace;

    pub use call::{call, exit_all, map_anonymous, random, unmap, words};
    pub use fd::Fd;
}
