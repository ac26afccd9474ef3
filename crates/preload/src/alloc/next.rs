//! The program's own allocator, behind ours (`adopt = true`): its blocks are handed on as they are.
//!
//! Where a block lies beyond what is known to be managed, its mapping is taken under management
//! before the program has touched the block. Blocks that the loader has had before the program's own
//! allocator was looked up are in the first megabyte ([`boot`](super::boot)).

use crate::sys::{self, PAGE};
use crate::{DOOR, config, gate};
use core::ffi::{CStr, c_int, c_void};
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicUsize};
use deckle_door::{Op, REGION};

type Block = *mut c_void;

/// Functions of the next allocator.
#[derive(Clone, Copy)]
#[repr(usize)]
enum Next {
    Malloc,
    Calloc,
    Realloc,
    Free,
    Memalign,
    Usable,
    Trim,
    Option,
}

const NAMES: [&CStr; 8] = [
    c"malloc",
    c"calloc",
    c"realloc",
    c"free",
    c"memalign",
    c"malloc_usable_size",
    c"malloc_trim",
    c"mallopt",
];

static FOUND: [AtomicUsize; NAMES.len()] = [const { AtomicUsize::new(0) }; NAMES.len()];
static KEPT: AtomicBool = AtomicBool::new(false);
/// Whether it is the GNU C library's, which maps memory by calls that nobody hears. Others call mmap
/// by its name.
static IS_LIBC: AtomicBool = AtomicBool::new(false);

/// Looks the program's allocator up, if it is to be kept: at the program's start.
pub fn find() {
    if !config::keeps_allocator() {
        return;
    }
    for (name, to) in NAMES.iter().zip(&FOUND) {
        // SAFETY: a look-up by name.
        let at = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
        to.store(at as usize, Relaxed);
    }
    // SAFETY: as above.
    let libc = unsafe { libc::dlsym(libc::RTLD_NEXT, c"__libc_malloc".as_ptr()) } as usize;
    IS_LIBC.store(
        libc != 0 && libc == FOUND[Next::Malloc as usize].load(Relaxed),
        Relaxed,
    );
    // The loader's libc has them all; another C library is no program of this door.
    if FOUND.iter().all(|at| at.load(Relaxed) != 0) {
        // What its first use calls it would have called by now, without the first megabyte: later a
        // filter of the program's own may refuse that.
        // SAFETY: a block that is freed again.
        unsafe { free(alloc(1, 1, false)) };
        KEPT.store(true, Release);
    }
}

/// Whether it is.
#[inline]
pub fn is_kept() -> bool {
    KEPT.load(Acquire)
}

/// # Safety
/// `F` is the type of a pointer to that function, which has been found.
#[inline]
unsafe fn next<F: Copy>(which: Next) -> F {
    const { assert!(size_of::<F>() == size_of::<usize>()) };
    let at = FOUND[which as usize].load(Relaxed);
    // SAFETY: the caller's promise.
    unsafe { core::mem::transmute_copy(&at) }
}

/// A block; `align` is a power of two.
#[inline]
pub fn alloc(size: usize, align: usize, zeroed: bool) -> Block {
    // SAFETY: as the functions have it.
    let got = unsafe {
        match (align <= 16, zeroed) {
            (true, false) => next::<unsafe extern "C" fn(usize) -> Block>(Next::Malloc)(size),
            (true, true) => {
                next::<unsafe extern "C" fn(usize, usize) -> Block>(Next::Calloc)(1, size)
            }
            (false, _) => {
                next::<unsafe extern "C" fn(usize, usize) -> Block>(Next::Memalign)(align, size)
            }
        }
    };
    seen(got, size)
}

/// # Safety
/// A live block of the program's allocator.
#[inline]
pub unsafe fn free(block: Block) {
    // SAFETY: the caller's promise.
    unsafe { next::<unsafe extern "C" fn(Block)>(Next::Free)(block) }
}

/// # Safety
/// A live block of the program's allocator.
pub unsafe fn realloc(block: Block, size: usize) -> Block {
    type Realloc = unsafe extern "C" fn(Block, usize) -> Block;
    // SAFETY: the caller's promise.
    seen(unsafe { next::<Realloc>(Next::Realloc)(block, size) }, size)
}

/// # Safety
/// A live block of the program's allocator.
pub unsafe fn usable(block: Block) -> usize {
    // SAFETY: the caller's promise.
    unsafe { next::<unsafe extern "C" fn(Block) -> usize>(Next::Usable)(block) }
}

pub fn trim(pad: usize) -> c_int {
    // SAFETY: any time is right.
    unsafe { next::<unsafe extern "C" fn(usize) -> c_int>(Next::Trim)(pad) }
}

pub fn option(what: c_int, value: c_int) -> c_int {
    // SAFETY: any time is right.
    unsafe { next::<unsafe extern "C" fn(c_int, c_int) -> c_int>(Next::Option)(what, value) }
}

/// What a small program may still have that is the kernel's.
static LEFT: AtomicUsize = AtomicUsize::new(1 << 20);
/// In steps of that.
const STEP: usize = 128 << 10;

/// A block that is about to be handed to the program.
#[inline]
fn seen(block: Block, size: usize) -> Block {
    let bytes = size.max(1);
    let is_known = !is_mapping(block, bytes) && DOOR.known.has(block as usize, bytes);
    if !is_known && !block.is_null() && IS_LIBC.load(Relaxed) {
        look(block as usize, bytes);
    }
    block
}

/// Whether a block of libc's is a mapping of its own: such come from the top down. The word before
/// the block says so.
#[inline]
fn is_mapping(block: Block, bytes: usize) -> bool {
    /// No smaller one is, but by a setting of the program's own.
    const LEAST: usize = 128 << 10;
    const IS_MMAPPED: usize = 2;
    // SAFETY: libc's blocks have a word before them.
    let word = || unsafe { block.cast::<usize>().sub(1).read() };
    bytes >= LEAST && !block.is_null() && IS_LIBC.load(Relaxed) && word() & IS_MMAPPED != 0
}

#[cold]
fn look(start: usize, bytes: usize) {
    let (first, end) = (start & !(PAGE - 1), start + bytes);
    if gate::is_small() {
        let step = bytes.max(STEP);
        let is_left = |left: usize| left.checked_sub(step);
        if LEFT.fetch_update(Relaxed, Relaxed, is_left).is_ok() {
            return match is_mapping(start as Block, bytes) {
                true => {}
                false => DOOR.known.note(end.next_multiple_of(STEP)),
            };
        }
        let errno = sys::errno();
        gate::outgrown();
        sys::set_errno(errno);
    }
    if !gate::is_managed() {
        return DOOR.known.note(end.next_multiple_of(REGION));
    }
    let is_one = is_mapping(start as Block, bytes);
    if DOOR.far.load(Relaxed) {
        // It is the kernel's, and looked for when that changes.
        if !is_one {
            DOOR.known.note(end.next_multiple_of(STEP));
        }
        return;
    }
    let covered = gate::request(Op::Cover, [first, end - first, usize::from(is_one)]);
    // What lies below a mapping is unknown.
    if !is_one {
        DOOR.known.note(covered.unwrap_or(end).max(end));
    }
}
