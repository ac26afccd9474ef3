//! libdeckle.so: an unmodified program under deckle.
//!
//! Preloaded by `deckle run` into every program of a tree. It takes the place of malloc and of
//! the mmap, fork and exec families; what they manage is done by a *service* in the program's
//! memory but outside its threads, descriptors and signals (see `deckle-task`). See
//! ARCHITECTURE.md.

#![cfg(all(target_os = "linux", target_arch = "x86_64", target_env = "gnu"))]
#![allow(clippy::missing_safety_doc)]

mod alloc;
mod config;
mod exec;
mod lock;
mod map;
mod service;
mod sys;

#[global_allocator]
static GLOBAL: alloc::internal::Internal = alloc::internal::Internal;

/// Run by the loader before the program's main.
#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

extern "C" fn start() {
    config::read();
    service::register_fork_handlers();
}
