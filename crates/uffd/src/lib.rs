//! Raw bindings of userfaultfd and `PAGEMAP_SCAN`, with the kernel's half-done results as types.
//!
//! What the crate gives:
//!
//! * [`Uffd`]: an owned userfaultfd, opened by system call or through `/dev/userfaultfd`, with
//!   the feature handshake, registration and every range operation up to `UFFDIO_MOVE`.
//! * [`Done`], [`Partial`], [`Why`]: an operation over a range may stop in the middle. How far it
//!   got and why it stopped are separate facts, and a negative number that the kernel leaves in
//!   its progress field is never taken for progress.
//! * [`Msg`], [`Event`]: messages decoded in place. A descriptor that comes with a fork message
//!   has exactly one owner, and a message dropped unread closes it.
//! * [`Pagemap`], [`PagemapScan`]: what is mapped in a range, as runs with categories, and the
//!   harvest of asynchronous write-protection.
//!
//! What it deliberately leaves out: threads, policy, pacing of retries (see [`finish`] for the
//! one loop that is always right), and knowledge of who may touch which memory.
//!
//! Nothing here allocates, takes a lock or panics on input: every function may be called from a
//! fault handler whose own heap is the memory being served.
//!
//! # Addresses and units
//!
//! Addresses are integers, because a descriptor may stand for the memory of another process (a
//! forked child's) where a pointer of ours means nothing. Lengths are bytes, multiples of the page
//! size; the kernel answers anything else with `EINVAL`.
//!
//! # What is `unsafe`
//!
//! An operation is `unsafe` if it can change bytes that a program may be relying on: filling a
//! hole ([`Uffd::copy`], [`Uffd::zeropage`], [`Uffd::continue_range`]), making one
//! ([`Uffd::move_pages`]), poisoning one, or letting the kernel fill it with zeros
//! ([`Uffd::unregister`]). Holes matter because the kernel checks only that the target is
//! registered with *some* userfaultfd, not with this one: whoever moved the bytes away must be
//! able to trust that nobody else fills the hole.
//!
//! Registering, waking and write-protecting are safe: they change no byte. The worst they do is
//! to make an access wait, and a program that waits breaks no rule of Rust.
//!
//! # Example
//!
//! A page that is filled when it is touched, by another thread:
//!
//! ```
//! use deckle_uffd::{CopyMode, Event, Features, Msg, RegisterMode, Uffd};
//!
//! const PAGE: usize = 4096;
//! // Only faults of this program's own instructions: any user may have that.
//! let Ok((uffd, via)) = Uffd::open_any(true) else {
//!     eprintln!("SKIPPED: no userfaultfd here");
//!     return;
//! };
//! let api = uffd.api(Features::empty()).expect("the handshake");
//! println!("opened by {via}; offered: {}", api.offered);
//!
//! let (rights, private) = (
//!     libc::PROT_READ | libc::PROT_WRITE,
//!     libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
//! );
//! // SAFETY: a new mapping, which changes no other.
//! let memory = unsafe { libc::mmap(std::ptr::null_mut(), PAGE, rights, private, -1, 0) };
//! assert_ne!(memory, libc::MAP_FAILED);
//! let at = memory as usize;
//! uffd.register(at, PAGE, RegisterMode::MISSING).expect("registration");
//!
//! let touched = std::thread::spawn(move || {
//!     // SAFETY: the mapping above, which lives as long as the program.
//!     unsafe { (at as *const u8).read_volatile() }
//! });
//! assert!(uffd.wait(10_000).expect("waiting"), "a fault comes");
//! let mut messages = [Msg::empty()];
//! assert_eq!(uffd.read_events(&mut messages).expect("reading"), 1);
//! let Some(Event::Pagefault { addr, .. }) = messages[0].take() else {
//!     panic!("nothing else was asked for");
//! };
//! assert_eq!(addr, at);
//! let bytes = [7; PAGE];
//! // SAFETY: a hole of our own, and nobody relies on its bytes yet.
//! let done = unsafe { uffd.copy(at, bytes.as_ptr(), PAGE, CopyMode::empty()) };
//! assert_eq!(done.expect("filling it").bytes, PAGE);
//! assert_eq!(touched.join().unwrap(), 7);
//! ```

#![cfg(target_os = "linux")]

mod error;
mod event;
mod flags;
mod open;
mod range;
mod retry;
mod scan;
mod sys;

pub use error::{Done, Errno, Partial, Why};
pub use event::{Event, Msg};
pub use flags::{
    Categories, CopyMode, Features, Ioctls, MoveMode, ProtectMode, RegisterMode, WakeMode,
};
pub use open::{Api, OpenError, Routes, Uffd, Via};
pub use retry::finish;
pub use scan::{PageEntry, Pagemap, PagemapScan, Region, Scanned};
