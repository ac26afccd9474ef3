//! The program's own allocator: its blocks are handed on as they are.
//!
//! Where a block lies beyond what is known to be managed, its mapping is taken under management
//! before the program has touched the block. Blocks that the loader has had before the program's
//! own allocator was looked up are in the first megabyte ([`boot`](super::boot)).

use crate::map::locks;
use crate::sys::{self, PAGE};
use crate::{DOOR, gate};
use core::ffi::{CStr, c_int, c_void};
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize};
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
    Aligned,
    Posix,
    Valloc,
    Pvalloc,
    Usable,
    Trim,
    Option,
    Sbrk,
}

const NAMES: [&CStr; 13] = [
    c"malloc",
    c"calloc",
    c"realloc",
    c"free",
    c"memalign",
    c"aligned_alloc",
    c"posix_memalign",
    c"valloc",
    c"pvalloc",
    c"malloc_usable_size",
    c"malloc_trim",
    c"mallopt",
    c"sbrk",
];

static FOUND: [AtomicUsize; NAMES.len()] = [const { AtomicUsize::new(0) }; NAMES.len()];
/// 0: they have not been looked up; then one of these.
static STATE: AtomicU32 = AtomicU32::new(0);
const LOOKING: u32 = 1;
/// The thread that looks them up.
static FINDER: AtomicU32 = AtomicU32::new(0);
const DONE: u32 = 2;
/// Whether it is the GNU C library's, of which it is known what is before a block. Another one may
/// have that behind it.
static IS_LIBC: AtomicBool = AtomicBool::new(false);

/// Whether the program's allocator has been looked up.
#[inline]
pub fn is_found() -> bool {
    STATE.load(Acquire) == DONE
}

/// Looks it up, if that has not been done: at the program's start, or when what it has before that
/// is more than the first megabyte. False: it is just being looked up, which takes memory.
pub fn find_once() -> bool {
    if STATE.load(Acquire) == 0 && STATE.compare_exchange(0, LOOKING, Acquire, Acquire).is_ok() {
        FINDER.store(sys::gettid(), Relaxed);
        find();
        STATE.store(DONE, Release);
    }
    is_found()
}

/// The same for a call that cannot do without: waits while another thread looks it up, before the
/// constructor of this library has run. False: the calling thread is that.
#[inline]
pub fn is_ready() -> bool {
    is_found() || find_surely()
}

#[cold]
fn find_surely() -> bool {
    while !find_once() {
        if FINDER.load(Relaxed) == sys::gettid() {
            return false;
        }
        // SAFETY: a call on nothing.
        let _ = unsafe { sys::call(libc::SYS_sched_yield, []) };
    }
    true
}

fn find() {
    // SAFETY: a look-up by name.
    let look_up = |name: &CStr| unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) } as usize;
    for (name, to) in NAMES.iter().zip(&FOUND) {
        let missing = match name == &NAMES[Next::Posix as usize] {
            true => missing_code as extern "C" fn() -> usize as usize,
            false => missing as extern "C" fn() -> usize as usize,
        };
        to.store(
            Some(look_up(name)).filter(|at| *at != 0).unwrap_or(missing),
            Relaxed,
        );
    }
    let malloc = FOUND[Next::Malloc as usize].load(Relaxed);
    IS_LIBC.store(malloc == look_up(c"__libc_malloc"), Relaxed);
    if IS_LIBC.load(Relaxed) {
        // What its first use calls it would have called by now, without the first megabyte: later a
        // filter of the program's own may refuse that. Others may not be ready, nor is the
        // environment, before their constructors have run.
        // SAFETY: a block that is freed again.
        unsafe { free(call(Next::Malloc, 1)) };
    }
}

/// In the place of a function that the program's C library does not have.
extern "C" fn missing() -> usize {
    sys::failed(libc::ENOMEM, 0)
}

/// The same for one that returns its error.
extern "C" fn missing_code() -> usize {
    libc::ENOMEM as usize
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

/// A function of one word that returns a block.
#[inline]
fn call(which: Next, word: usize) -> Block {
    // SAFETY: its type; any word will do.
    unsafe { next::<unsafe extern "C" fn(usize) -> Block>(which)(word) }
}

/// A function of two words that returns a block.
#[inline]
fn call_with(which: Next, one: usize, other: usize) -> Block {
    // SAFETY: its type; any words will do.
    unsafe { next::<unsafe extern "C" fn(usize, usize) -> Block>(which)(one, other) }
}

#[inline]
pub fn malloc(size: usize) -> Block {
    seen(call(Next::Malloc, size), size)
}

#[inline]
pub fn calloc(count: usize, size: usize) -> Block {
    seen(
        call_with(Next::Calloc, count, size),
        count.wrapping_mul(size),
    )
}

pub fn memalign(align: usize, size: usize) -> Block {
    seen(call_with(Next::Memalign, align, size), size)
}

pub fn aligned_alloc(align: usize, size: usize) -> Block {
    seen(call_with(Next::Aligned, align, size), size)
}

pub fn valloc(size: usize) -> Block {
    seen(call(Next::Valloc, size), size)
}

pub fn pvalloc(size: usize) -> Block {
    seen(call(Next::Pvalloc, size), size)
}

/// # Safety
/// `out` can be written.
pub unsafe fn posix_memalign(out: *mut Block, align: usize, size: usize) -> c_int {
    type Posix = unsafe extern "C" fn(*mut Block, usize, usize) -> c_int;
    // SAFETY: the caller's promise.
    let result = unsafe { next::<Posix>(Next::Posix)(out, align, size) };
    if result == 0 {
        // SAFETY: as above; it was written.
        seen(unsafe { out.read() }, size);
    }
    result
}

/// # Safety
/// A live block of the program's allocator.
#[inline]
pub unsafe fn free(block: Block) {
    // SAFETY: the caller's promise.
    unsafe {
        let pages = pages_of(block);
        let left = left_of(block, pages);
        if pages > 0 {
            forget(block as usize - HEAD + PAGE, (pages as usize - 1) * PAGE);
        }
        next::<unsafe extern "C" fn(Block)>(Next::Free)(block);
        DOOR.give_room(left);
    }
}

/// # Safety
/// A live block of the program's allocator, or null.
pub unsafe fn realloc(block: Block, size: usize) -> Block {
    type Realloc = unsafe extern "C" fn(Block, usize) -> Block;
    // SAFETY: the caller's promise. What the old block had stays its, or is free again.
    unsafe {
        let left = left_of(block, pages_of(block));
        let new = next::<Realloc>(Next::Realloc)(block, size);
        if !(new.is_null() && size > 0) {
            DOOR.give_room(left);
        }
        seen(new, size)
    }
}

/// Where a block that is a mapping of libc's by itself begins in its first page.
const HEAD: usize = 16;

/// The pages of such a block, but for the first, which libc reads, are about to be unmapped by a
/// call that is not seen: so what is stored of them is free at once, and the service takes nothing
/// else for them that the program maps there next.
fn forget(start: usize, bytes: usize) {
    if bytes > 0 && gate::may_hold(start, bytes) {
        let errno = sys::errno();
        let _ = gate::request(Op::Forget, [start, bytes]);
        sys::set_errno(errno);
    }
}

/// Pages of a block that is a mapping of libc's by itself; 0 for all others.
///
/// # Safety
/// A live block of the program's allocator, or null.
#[inline]
unsafe fn pages_of(block: Block) -> u64 {
    if block as usize % PAGE != HEAD || !IS_LIBC.load(Relaxed) || !has_bit(block) {
        return 0;
    }
    // SAFETY: the caller's promise.
    let bytes = unsafe { usable(block) };
    (bytes / PAGE + 1) as u64
}

/// How many of a block's pages are the kernel's, and charged: none if it may be managed.
#[inline]
fn left_of(block: Block, pages: u64) -> u64 {
    match pages > 0 && !gate::may_hold(block as usize, pages as usize * PAGE) {
        true => pages,
        false => 0,
    }
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

/// sbrk of libc's, which notes the break for its own allocator. What the heap grows by is looked at
/// as a block is.
pub fn sbrk(more: isize) -> Block {
    if !is_ready() {
        return sys::failed(libc::ENOMEM, usize::MAX as Block);
    }
    // SAFETY: any word will do.
    let before = unsafe { next::<unsafe extern "C" fn(isize) -> Block>(Next::Sbrk)(more) };
    if more > 0 && before as isize != -1 {
        look(before as usize, more as usize, false);
    }
    before
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
    if !is_known && !block.is_null() {
        let is_one = IS_LIBC.load(Relaxed) && has_bit(block);
        look(block as usize, bytes, is_one);
    }
    block
}

/// Whether a block of libc's is a mapping of its own, as only large ones are, but by a setting of
/// the program's own. Such come from the top down.
#[inline]
fn is_mapping(block: Block, bytes: usize) -> bool {
    const LEAST: usize = 128 << 10;
    bytes >= LEAST && !block.is_null() && IS_LIBC.load(Relaxed) && has_bit(block)
}

/// The same of a block that is libc's: the word before it says so.
fn has_bit(block: Block) -> bool {
    const IS_MMAPPED: usize = 2;
    // SAFETY: libc's blocks have a word before them.
    let word = unsafe { block.cast::<usize>().sub(1).read() };
    word & IS_MMAPPED != 0
}

/// Looks at what was mapped unseen from `start` on: `is_one` by itself, or a part of a heap.
#[cold]
fn look(start: usize, bytes: usize, is_one: bool) {
    let (first, end) = (start & !(PAGE - 1), start + bytes);
    // Up to where blocks are known now. What lies below a mapping is unknown.
    let note = |to: usize| {
        if !is_one {
            DOOR.known.note(to);
        }
    };
    if gate::is_small() {
        let to = end.next_multiple_of(STEP);
        let step = (to - start).max(bytes);
        let is_left = |left: usize| left.checked_sub(step);
        if LEFT.fetch_update(Relaxed, Relaxed, is_left).is_ok() {
            return note(to);
        }
        let errno = sys::errno();
        gate::outgrown();
        sys::set_errno(errno);
    }
    if !gate::is_managed() {
        return note(end.next_multiple_of(REGION));
    }
    let to = end.next_multiple_of(STEP);
    if !locks::is_future() && DOOR.take_room(((to - first) / PAGE) as u64) {
        // It is the kernel's, and looked for when that changes.
        return note(to);
    }
    let covered = gate::request(Op::Cover, [first, end - first, usize::from(is_one)]);
    // Where the service cannot look it comes by later.
    note(covered.unwrap_or(end.next_multiple_of(REGION)).max(end));
}
