//! The program's own allocator: its blocks are handed on as they are.
//!
//! Where a block lies beyond what is known to be managed, its mapping is taken under management
//! before the program has touched the block. Who wants a block before the program's own allocator
//! is found has it of [`boot`], as far as that has room.
//!
//! The usual calls are short: each instruction more keeps the processor from going ahead of what
//! misses its caches. A program that does little but take and free blocks took 1.3 times as long
//! with forty more for each block, and takes 1.1 to 1.2 times as long with twenty.

use super::boot::{self, HEAD};
use crate::map::locks;
use crate::sys::{self, PAGE};
use crate::{DOOR, gate};
use core::ffi::{CStr, c_int, c_void};
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicUsize};
use deckle_door::{Op, REGION, SMALL};

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

/// Where they are; null: not found, or there is none.
static FOUND: [AtomicPtr<c_void>; NAMES.len()] =
    [const { AtomicPtr::new(core::ptr::null_mut()) }; NAMES.len()];
/// Whether they have been looked up.
static IS_FOUND: AtomicBool = AtomicBool::new(false);
/// The thread that looks them up, or has; 0: none yet.
static FINDER: AtomicI32 = AtomicI32::new(0);
/// Whether it is the GNU C library's, of which it is known what is before a block. Another one may
/// have that behind it.
static IS_LIBC: AtomicBool = AtomicBool::new(false);

/// Whether the program's allocator has been looked up.
#[inline]
pub fn is_found() -> bool {
    IS_FOUND.load(Acquire)
}

/// Looks it up, if that has not been done: at the program's start, or when what it has before that
/// is more than [`boot`] has room for. False: it is just being looked up, which takes memory.
pub fn find_once() -> bool {
    let is_mine = || FINDER.compare_exchange(0, sys::gettid() as i32, Acquire, Acquire);
    if !is_found() && is_mine().is_ok() {
        find();
        IS_FOUND.store(true, Release);
    }
    is_found()
}

/// The same for a call that cannot do without: waits while another thread looks it up, before the
/// constructor of this library has run. False: the calling thread is that.
#[inline]
fn is_ready() -> bool {
    is_found() || find_surely()
}

#[cold]
fn find_surely() -> bool {
    while !find_once() {
        if FINDER.load(Relaxed) == sys::gettid() as i32 {
            return false;
        }
        // SAFETY: a call on nothing.
        let _ = unsafe { sys::call(libc::SYS_sched_yield, []) };
    }
    true
}

fn find() {
    // SAFETY: a look-up by name.
    let look_up = |name: &CStr| unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    let found = NAMES.map(look_up);
    let is_libc = found[Next::Malloc as usize] == look_up(c"__libc_malloc");
    IS_LIBC.store(is_libc, Relaxed);
    // All at once: what looks them up wants memory meanwhile.
    for (found, to) in found.into_iter().zip(&FOUND) {
        to.store(found, Release);
    }
    if is_libc {
        // What its first use calls it would have called by now, without the first blocks: later a
        // filter of the program's own may refuse that. Others may not be ready, nor is the
        // environment, before their constructors have run.
        // SAFETY: a block that is freed again.
        unsafe { free(malloc(1)) };
    }
}

/// malloc, and calloc of one, before the program's own is found.
#[cold]
fn early(size: usize) -> Block {
    let got = boot::alloc(size, false);
    if !got.is_null() {
        return got.cast();
    }
    if find_once() {
        // SAFETY: its type; any words will do.
        let block = unsafe { next::<OfTwo>(Next::Calloc).map(|calloc| calloc(1, size)) };
        return block.map_or_else(none, |block| seen(block, size));
    }
    // What looks it up is what wants memory.
    match boot::alloc(size, true) {
        got if got.is_null() => none(),
        got => got.cast(),
    }
}

/// No block: there is no memory, or no such function.
fn none() -> Block {
    sys::failed(libc::ENOMEM, core::ptr::null_mut())
}

/// # Safety
/// `F` is the type of a pointer to that function.
#[inline]
unsafe fn next<F: Copy>(which: Next) -> Option<F> {
    const { assert!(size_of::<F>() == size_of::<usize>()) };
    let at = FOUND[which as usize].load(Relaxed);
    // SAFETY: the caller's promise.
    (!at.is_null()).then(|| unsafe { core::mem::transmute_copy(&at) })
}

type OfWord = unsafe extern "C" fn(usize) -> Block;
type OfTwo = unsafe extern "C" fn(usize, usize) -> Block;
type Free = unsafe extern "C" fn(Block);

#[inline]
pub fn malloc(size: usize) -> Block {
    // SAFETY: its type; any word will do.
    match unsafe { next::<OfWord>(Next::Malloc).map(|malloc| malloc(size)) } {
        Some(block) => seen(block, size),
        None => early(size),
    }
}

#[inline]
pub fn calloc(count: usize, size: usize) -> Block {
    // SAFETY: its type; any words will do.
    match unsafe { next::<OfTwo>(Next::Calloc).map(|calloc| calloc(count, size)) } {
        Some(block) => seen(block, count.wrapping_mul(size)),
        None => early(count.saturating_mul(size)),
    }
}

/// A block of a function of two words that aligns it. Not before it is found: a thread that waited
/// for the look-up might hold what that waits for.
fn aligned(which: Next, align: usize, size: usize) -> Block {
    find_once();
    // SAFETY: its type; any words will do.
    match unsafe { next::<OfTwo>(which).map(|call| call(align, size)) } {
        Some(block) => seen(block, size),
        None => none(),
    }
}

pub fn memalign(align: usize, size: usize) -> Block {
    aligned(Next::Memalign, align, size)
}

pub fn aligned_alloc(align: usize, size: usize) -> Block {
    aligned(Next::Aligned, align, size)
}

/// The same of one word.
fn of_pages(which: Next, size: usize) -> Block {
    find_once();
    // SAFETY: its type; any word will do.
    match unsafe { next::<OfWord>(which).map(|call| call(size)) } {
        Some(block) => seen(block, size),
        None => none(),
    }
}

pub fn valloc(size: usize) -> Block {
    of_pages(Next::Valloc, size)
}

pub fn pvalloc(size: usize) -> Block {
    of_pages(Next::Pvalloc, size)
}

/// # Safety
/// `out` can be written.
pub unsafe fn posix_memalign(out: *mut Block, align: usize, size: usize) -> c_int {
    type Posix = unsafe extern "C" fn(*mut Block, usize, usize) -> c_int;
    find_once();
    // SAFETY: its type, and the caller's promise.
    let done = unsafe { next::<Posix>(Next::Posix).map(|call| call(out, align, size)) };
    if done == Some(0) {
        // SAFETY: as above; it was written.
        seen(unsafe { out.read() }, size);
    }
    done.unwrap_or(libc::ENOMEM)
}

/// # Safety
/// A live block of this family, or null.
#[inline]
pub unsafe fn free(block: Block) {
    // SAFETY: the caller's promise.
    unsafe {
        match next::<Free>(Next::Free) {
            Some(free) if block as usize % PAGE != HEAD => free(block),
            _ => free_specially(block),
        }
    }
}

/// Frees a block before the function is found, one of then, or one that may be a mapping by itself.
///
/// # Safety
/// As [`free`].
#[cold]
unsafe fn free_specially(block: Block) {
    // What looks functions up has no other blocks.
    if block.is_null() || boot::owns(block.cast()) || !is_ready() {
        return;
    }
    // SAFETY: the caller's promise.
    unsafe {
        let pages = pages_of(block);
        let left = left_of(block, pages);
        if pages > 0 {
            forget(block as usize - HEAD + PAGE, (pages as usize - 1) * PAGE);
        }
        if let Some(free) = next::<Free>(Next::Free) {
            free(block);
        }
        DOOR.give_room(left);
    }
}

/// # Safety
/// A live block of the program's allocator, or null.
pub unsafe fn realloc(block: Block, size: usize) -> Block {
    type Realloc = unsafe extern "C" fn(Block, usize) -> Block;
    is_ready();
    // SAFETY: the caller's promise. What the old block had stays its, or is free again.
    unsafe {
        let Some(realloc) = next::<Realloc>(Next::Realloc) else {
            return none();
        };
        let left = left_of(block, pages_of(block));
        let new = realloc(block, size);
        if !(new.is_null() && size > 0) {
            DOOR.give_room(left);
        }
        seen(new, size)
    }
}

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
unsafe fn pages_of(block: Block) -> u64 {
    if block as usize % PAGE != HEAD || !is_mapping(block) {
        return 0;
    }
    // SAFETY: the caller's promise.
    let bytes = unsafe { usable(block) };
    (bytes / PAGE + 1) as u64
}

/// How many of a block's pages are the kernel's, and charged: none if it may be managed.
fn left_of(block: Block, pages: u64) -> u64 {
    match pages > 0 && !gate::may_hold(block as usize, pages as usize * PAGE) {
        true => pages,
        false => 0,
    }
}

/// # Safety
/// A live block of the program's allocator.
pub unsafe fn usable(block: Block) -> usize {
    type Usable = unsafe extern "C" fn(Block) -> usize;
    is_ready();
    // SAFETY: the caller's promise.
    unsafe { next::<Usable>(Next::Usable).map_or(0, |usable| usable(block)) }
}

pub fn trim(pad: usize) -> c_int {
    type Trim = unsafe extern "C" fn(usize) -> c_int;
    find_once();
    // SAFETY: its type; any time is right.
    unsafe { next::<Trim>(Next::Trim).map_or(0, |trim| trim(pad)) }
}

pub fn option(what: c_int, value: c_int) -> c_int {
    type Set = unsafe extern "C" fn(c_int, c_int) -> c_int;
    find_once();
    // SAFETY: its type; any time is right.
    unsafe { next::<Set>(Next::Option).map_or(0, |set| set(what, value)) }
}

/// sbrk of libc's, which notes the break for its own allocator. What the heap grows by is looked at
/// as a block is.
pub fn sbrk(more: isize) -> Block {
    is_ready();
    type Sbrk = unsafe extern "C" fn(isize) -> Block;
    // SAFETY: its type; any word will do.
    let Some(before) = (unsafe { next::<Sbrk>(Next::Sbrk).map(|sbrk| sbrk(more)) }) else {
        return sys::failed(libc::ENOMEM, usize::MAX as Block);
    };
    if more > 0 && before as isize != -1 {
        look(before as usize, more as usize, false);
    }
    before
}

/// What a small program may still have that is the kernel's.
static LEFT: AtomicUsize = AtomicUsize::new(1 << 20);
/// In steps of that.
const STEP: usize = 128 << 10;

/// A block that is about to be handed to the program. The usual case, a small one of a known heap,
/// takes ten instructions.
#[inline]
fn seen(block: Block, size: usize) -> Block {
    match size < SMALL && DOOR.known.has_small(block as usize) {
        true => block,
        false => seen_anew(block, size.max(1)),
    }
}

#[cold]
fn seen_anew(block: Block, bytes: usize) -> Block {
    if !block.is_null() && !boot::owns(block.cast()) {
        let is_one = is_mapping(block);
        let is_known = !(is_one && bytes >= SMALL) && DOOR.known.has(block as usize, bytes);
        if !is_known {
            look(block as usize, bytes, is_one);
        }
    }
    block
}

/// Whether a block is a mapping of its own, as far as known: only large ones are, but by a setting
/// of the program's own. Such come from the top down.
fn is_mapping(block: Block) -> bool {
    IS_LIBC.load(Relaxed) && has_bit(block)
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
