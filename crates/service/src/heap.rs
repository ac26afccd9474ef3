//! The heap of the service: all that it knows, outside managed memory and never the program's.
//!
//! It outlives the image: in a child of fork the image begins anew, with its statics as the file
//! has them, and finds the copied heap by the address that the [`Door`] keeps. So the heap is no
//! static, and everything that the manager must remember over a fork lies in it.
//!
//! C code in the image (zstd, and what musl itself allocates) gets its memory here, too.

use crate::slab::{self, Slabs};
use crate::sys;
use core::alloc::{GlobalAlloc, Layout};
use core::ffi::{c_int, c_void};
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicPtr, AtomicUsize};
use deckle_door::{Door, Lock};
use dlmalloc::Dlmalloc;

/// Memory by raw system calls.
struct Raw;

// SAFETY: mappings of the kernel, handed out once and given back whole or from the end.
unsafe impl dlmalloc::Allocator for Raw {
    fn alloc(&self, size: usize) -> (*mut u8, usize, u32) {
        let made = map_aligned(size, sys::PAGE);
        made.map_or((core::ptr::null_mut(), 0, 0), |at| (at as *mut u8, size, 0))
    }

    fn remap(&self, ptr: *mut u8, old: usize, new: usize, can_move: bool) -> *mut u8 {
        let how = if can_move { libc::MREMAP_MAYMOVE } else { 0 } as usize;
        // SAFETY: a mapping of this heap, whose owner asks for the change.
        let moved = unsafe { sys::call(libc::SYS_mremap, [ptr as usize, old, new, how]) };
        moved.map_or(core::ptr::null_mut(), |start| {
            mapped().fetch_add(new.wrapping_sub(old), Relaxed);
            start as *mut u8
        })
    }

    fn free_part(&self, ptr: *mut u8, old: usize, new: usize) -> bool {
        // SAFETY: the end of a mapping of this heap, which the heap does not use any more.
        unsafe { give_back(ptr as usize + new, old - new) }
    }

    fn free(&self, ptr: *mut u8, size: usize) -> bool {
        // SAFETY: a mapping of this heap, which the heap does not use any more.
        unsafe { give_back(ptr as usize, size) }
    }

    fn can_release_part(&self, _flags: u32) -> bool {
        true
    }

    fn allocates_zeros(&self) -> bool {
        true
    }

    fn page_size(&self) -> usize {
        sys::PAGE
    }
}

/// What has the blocks below [`LARGE`].
struct Small {
    slabs: Slabs,
    rest: Dlmalloc<Raw>,
}

impl Small {
    fn malloc(&mut self, layout: Layout) -> *mut u8 {
        let (size, align) = (layout.size(), layout.align());
        match slab::takes(size, align) {
            true => self
                .slabs
                .alloc(size, || map_aligned(slab::REGION, slab::REGION)),
            // SAFETY: any size and alignment of a layout.
            false => unsafe { self.rest.malloc(size, align) },
        }
    }

    /// # Safety
    /// A live block of this layout, which nobody uses any more.
    unsafe fn free(&mut self, ptr: *mut u8, layout: Layout) {
        let (size, align) = (layout.size(), layout.align());
        // SAFETY: the caller's promise; a region in which there is no block is not used.
        unsafe {
            match slab::takes(size, align) {
                true => (self.slabs).free(ptr, size, |at| give_back(at, slab::REGION)),
                false => self.rest.free(ptr, size, align),
            }
        }
    }
}

/// Where everything begins: the first bytes of the heap's first mapping.
struct Root {
    heap: Lock<Small>,
    /// Bytes that the heap has from the kernel.
    mapped: AtomicUsize,
    /// Where the next mapping shall lie.
    next: AtomicUsize,
    /// What the owner of the heap wants to find again after a fork.
    kept: AtomicPtr<()>,
}

/// Where mappings of the heap shall lie: far from where programs, runtimes and the kernel put
/// things, so that what the program gives back stays free for it. Used from the beginning again
/// when it is used up: what is taken is left out.
pub const FAR: core::ops::Range<usize> = 56 << 40..62 << 40;

/// Address of the root; null before [`attach`].
static ROOT: AtomicPtr<Root> = AtomicPtr::new(core::ptr::null_mut());

fn root() -> &'static Root {
    let root = ROOT.load(Acquire);
    debug_assert!(!root.is_null());
    // SAFETY: set by `attach`, which `main` calls before anything else; never unmapped.
    unsafe { &*root }
}

fn mapped() -> &'static AtomicUsize {
    &root().mapped
}

/// Makes the heap, or finds that of the parent again. Before the first allocation, once.
///
/// # Errors
/// The errno of mmap.
pub fn attach(door: &Door) -> Result<(), i32> {
    let known = door.root.load(Acquire);
    if known != 0 {
        ROOT.store(known as *mut Root, Release);
        // Held over the fork, see `hold`; its holder does not exist here.
        root().heap.release();
        return Ok(());
    }
    // Not at the same place in each program: the image's own place is one of chance.
    let first = FAR.start + (((&raw const ROOT).addr() >> 12 & 0xfff) << 28);
    let at = sys::map_anonymous(first, sys::PAGE)? as *mut Root;
    const _: () = assert!(size_of::<Root>() <= sys::PAGE);
    // SAFETY: a new mapping with room for it, aligned to a page.
    unsafe {
        at.write(Root {
            heap: Lock::new(Small {
                slabs: Slabs::new(),
                rest: Dlmalloc::new_with_allocator(Raw),
            }),
            mapped: AtomicUsize::new(sys::PAGE),
            next: AtomicUsize::new(first + sys::PAGE),
            kept: AtomicPtr::new(core::ptr::null_mut()),
        });
    }
    ROOT.store(at, Release);
    door.root.store(at as usize, Release);
    Ok(())
}

/// Keeps an address to be found again by [`kept`] after a fork.
pub fn keep(what: *mut ()) {
    root().kept.store(what, Release);
}

/// What was kept; null: nothing.
pub fn kept() -> *mut () {
    root().kept.load(Acquire)
}

/// Takes the heap's lock over a fork, so that the child finds it whole. Nobody in the service
/// can allocate until [`let_go`].
pub fn hold() {
    root().heap.acquire();
}

/// After the fork, in the parent.
pub fn let_go() {
    root().heap.release();
}

/// Bytes that the heap has from the kernel now, used or not: what the group is charged.
pub fn mapped_bytes() -> usize {
    mapped().load(Relaxed)
}

/// The heap, as Rust's global allocator.
pub struct Internal;

/// From this size on a block is a mapping of its own, so that what is freed goes back and large
/// alignments cost no memory.
const LARGE: usize = 64 << 10;

/// Bytes of a huge page.
pub const HUGE: usize = 2 << 20;

/// A mapping that is to consist of huge pages, where the system has some.
///
/// # Errors
/// The errno of mmap.
pub fn map_huge(bytes: usize) -> Result<usize, i32> {
    let at = map_aligned(bytes, HUGE)?;
    let words = [at, bytes, libc::MADV_HUGEPAGE as usize];
    // SAFETY: the advice changes no byte of the mapping, which is ours.
    let _ = unsafe { sys::call(libc::SYS_madvise, words) };
    Ok(at)
}

/// A mapping of whole pages.
///
/// # Errors
/// The errno of mmap.
pub fn map_pages(bytes: usize) -> Result<usize, i32> {
    map_aligned(bytes, sys::PAGE)
}

/// Gives back what [`map_huge`] or [`map_pages`] has mapped.
///
/// # Safety
/// Nobody uses it any more.
pub unsafe fn unmap(start: usize, bytes: usize) {
    // SAFETY: the caller's promise. Where the kernel refuses, it stays, and is charged.
    unsafe { give_back(start, bytes) };
}

/// A mapping for a large block.
fn map_large(layout: Layout) -> *mut u8 {
    let bytes = layout.size().checked_next_multiple_of(sys::PAGE);
    let mapped = bytes.and_then(|bytes| map_aligned(bytes, layout.align()).ok());
    mapped.map_or(core::ptr::null_mut(), |at| at as *mut u8)
}

fn map_aligned(bytes: usize, align: usize) -> Result<usize, i32> {
    let at = map_far(bytes, align)?;
    mapped().fetch_add(bytes, AcqRel);
    Ok(at)
}

/// A new mapping, far away if there is room.
fn map_far(bytes: usize, align: usize) -> Result<usize, i32> {
    let slack = align.max(sys::PAGE) - sys::PAGE;
    let start = sys::map_anonymous(far_hint(bytes, align), bytes)?;
    if start.is_multiple_of(align) {
        return Ok(start);
    }
    // SAFETY: the mapping just made, which nobody uses.
    unsafe { sys::unmap(start, bytes) };
    let start = sys::map_anonymous(0, bytes + slack)?;
    let at = start.next_multiple_of(align);
    for (from, to) in [(start, at), (at + bytes, start + bytes + slack)] {
        if to > from {
            // SAFETY: an edge of the mapping just made, which nobody uses.
            unsafe { sys::unmap(from, to - from) };
        }
    }
    Ok(at)
}

/// A place in [`FAR`] that is not handed out again soon; what is there already stays.
fn far_hint(bytes: usize, align: usize) -> usize {
    let after = |next: usize| match next.next_multiple_of(align).checked_add(bytes) {
        Some(end) if end <= FAR.end => end,
        _ => FAR.start + bytes,
    };
    let next = &root().next;
    let before = next.fetch_update(AcqRel, Acquire, |next| Some(after(next)));
    after(before.unwrap_or(FAR.start)).wrapping_sub(bytes)
}

/// What the C library calls, by the linker's `--wrap`, to map the stack of a thread: at a place far
/// from the program's memory. Where the program has unmapped something, a stack would come to lie
/// under its stray writes.
///
/// # Safety
/// As mmap.
#[cfg(target_env = "musl")]
#[unsafe(no_mangle)]
unsafe extern "C" fn __wrap___mmap(
    at: *mut core::ffi::c_void,
    bytes: usize,
    prot: i32,
    flags: i32,
    fd: i32,
    offset: i64,
) -> *mut core::ffi::c_void {
    let at = match at.is_null() {
        true => far_hint(bytes.next_multiple_of(sys::PAGE), sys::PAGE) as *mut _,
        false => at,
    };
    // SAFETY: the caller's promise; the address is a hint.
    unsafe { libc::mmap(at, bytes, prot, flags, fd, offset) }
}

/// Unmaps what [`map_aligned`] has mapped, or a part of it.
///
/// # Safety
/// Nobody uses it any more.
unsafe fn give_back(start: usize, bytes: usize) -> bool {
    // SAFETY: the caller's promise.
    let done = unsafe { sys::unmap(start, bytes) };
    if done {
        mapped().fetch_sub(bytes, Relaxed);
    }
    done
}

// SAFETY: mappings of their own, or dlmalloc under a lock; both align as asked and keep blocks
// apart. Which of the two follows from the size, which a layout keeps.
unsafe impl GlobalAlloc for Internal {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if layout.size() >= LARGE {
            return map_large(layout);
        }
        root().heap.lock().malloc(layout)
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if layout.size() >= LARGE {
            return map_large(layout);
        }
        if slab::takes(layout.size(), layout.align()) {
            let block = root().heap.lock().malloc(layout);
            if !block.is_null() {
                // SAFETY: a new block of that size.
                unsafe { block.write_bytes(0, layout.size()) };
            }
            return block;
        }
        // SAFETY: the caller's promises are the heap's.
        unsafe { (root().heap.lock().rest).calloc(layout.size(), layout.align()) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe {
            if layout.size() >= LARGE {
                give_back(ptr as usize, layout.size().next_multiple_of(sys::PAGE));
                return;
            }
            root().heap.lock().free(ptr, layout);
        }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new: usize) -> *mut u8 {
        let is_rest = |size| size < LARGE && !slab::takes(size, layout.align());
        if is_rest(layout.size()) && is_rest(new) {
            let heap = &mut root().heap.lock().rest;
            // SAFETY: as above.
            return unsafe { heap.realloc(ptr, layout.size(), layout.align(), new) };
        }
        // SAFETY: the new layout has the old one's alignment, and the caller's size fits; both
        // blocks have the bytes that are copied.
        unsafe {
            let to = self.alloc(Layout::from_size_align_unchecked(new, layout.align()));
            if !to.is_null() {
                core::ptr::copy_nonoverlapping(ptr, to, new.min(layout.size()));
                self.dealloc(ptr, layout);
            }
            to
        }
    }
}

/// C's `malloc`, of the image alone: it exports nothing.
#[unsafe(no_mangle)]
extern "C" fn malloc(size: usize) -> *mut c_void {
    // SAFETY: any size; null if there is none.
    unsafe { root().heap.lock().rest.c_malloc(size).cast() }
}

/// C's `calloc`.
#[unsafe(no_mangle)]
extern "C" fn calloc(count: usize, size: usize) -> *mut c_void {
    let Some(bytes) = count.checked_mul(size) else {
        return core::ptr::null_mut();
    };
    // SAFETY: any size; a block that is freed by `c_free` like any other.
    unsafe { root().heap.lock().rest.calloc(bytes, 16).cast() }
}

/// C's `free`.
///
/// # Safety
/// Null, or a live block of this family.
#[unsafe(no_mangle)]
unsafe extern "C" fn free(block: *mut c_void) {
    // SAFETY: the caller's promise.
    unsafe { root().heap.lock().rest.c_free(block.cast()) }
}

/// C's `realloc`.
///
/// # Safety
/// As [`free`].
#[unsafe(no_mangle)]
unsafe extern "C" fn realloc(block: *mut c_void, size: usize) -> *mut c_void {
    // SAFETY: the caller's promise.
    unsafe { root().heap.lock().rest.c_realloc(block.cast(), size).cast() }
}

/// POSIX's `posix_memalign`, for Rust's standard library where it passes our allocator by.
///
/// # Safety
/// `out` can be written.
#[unsafe(no_mangle)]
unsafe extern "C" fn posix_memalign(out: *mut *mut c_void, align: usize, size: usize) -> c_int {
    // SAFETY: any size; a block that is freed by `c_free` like any other; the caller's promise.
    unsafe {
        let block = root().heap.lock().rest.c_memalign(align, size);
        if block.is_null() {
            return libc::ENOMEM;
        }
        out.write(block.cast());
    }
    0
}
