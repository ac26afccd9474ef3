//! libdeckle.so: the door of an unmodified program to its service.
//!
//! Preloaded by `deckle run` into every dynamically linked program of a tree. It takes the place
//! of malloc and of the mmap, fork and exec families, and passes on what concerns managed
//! memory; what manages it is the service image, which [`load`] maps into the program once that
//! needs it (see `deckle-service`). See ARCHITECTURE.md.

#![cfg(all(target_os = "linux", target_arch = "x86_64", target_env = "gnu"))]
#![allow(clippy::missing_safety_doc)]

use core::sync::atomic::Ordering::Relaxed;

mod alloc;
mod bare;
mod brk;
mod caught;
mod child;
mod config;
mod data;
mod exec;
mod exports;
mod filter;
mod fork;
mod gate;
mod hold;
mod hooks;
mod host;
mod limits;
mod load;
mod map;
mod pointers;
mod rights;
mod sequences;
mod sys;
mod thread;
mod window;
mod words;

/// What the service and this library share.
static DOOR: deckle_door::Door = deckle_door::Door::new();

/// Run by the loader before all other constructors (`initfirst`, see build.rs).
#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

extern "C" fn start() {
    config::read();
    if !config::is_managed() {
        alloc::next::find_once();
        return;
    }
    // SAFETY: before the program's main: nobody else looks at the environment.
    unsafe { exec::read_told() };
    if !gate::is_started() {
        load::map_file();
    }
    DOOR.pid.store(sys::getpid() as i32, Relaxed);
    // Known to the main thread alone, which this is.
    DOOR.left.store(sys::main_thread_word(), Relaxed);
    hooks::register();
    // After all that may have memory of the loader's: no allocator but libc's may be called
    // yet.
    alloc::next::find_once();
    data::manage();
}
