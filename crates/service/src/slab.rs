//! Small blocks of the sizes of which tables of pages consist, in regions of their own.
//!
//! Most of the heap is such tables where a program uses a page here and there, and reclaim frees
//! them by the thousand to get memory back. Among the heap's other blocks one that stays would
//! keep the pages around it; here a region in which nothing is left goes back to the system.

use core::ptr::null_mut;

/// Bytes of a region, and what it is aligned to.
pub const REGION: usize = 64 << 10;
/// Sizes of blocks, the largest last.
const SIZES: [usize; 3] = [128, 256, 512];
/// What a block may waste.
const WASTE: usize = 8;

/// Which slab has blocks for so many bytes; `None`: none has.
fn class(size: usize) -> Option<usize> {
    let fits = |of: &usize| size <= *of && size > *of - *of / WASTE;
    SIZES.iter().position(fits)
}

/// Whether blocks of this layout are from a slab.
pub fn takes(size: usize, align: usize) -> bool {
    align <= 16 && class(size).is_some()
}

/// A free block.
struct Free {
    next: *mut Free,
}

/// The beginning of a region.
struct Region {
    /// Blocks that were freed.
    free: *mut Free,
    /// Where the blocks begin that were never given out.
    fresh: usize,
    used: usize,
    /// Neighbours in the list of regions with room.
    next: *mut Region,
    prev: *mut Region,
}

/// Bytes of a region that are no blocks.
const HEAD: usize = size_of::<Region>().next_multiple_of(16);

/// All regions of each size. The heap's lock guards it.
pub struct Slabs {
    /// Regions with room.
    rooms: [*mut Region; SIZES.len()],
}

// SAFETY: the regions are reached through this value alone.
unsafe impl Send for Slabs {}

impl Slabs {
    pub const fn new() -> Slabs {
        let rooms = [null_mut(); SIZES.len()];
        Slabs { rooms }
    }

    /// A block for `size` bytes that [`takes`] names, aligned to 16; `map` makes a region. Null:
    /// there is no memory.
    pub fn alloc(&mut self, size: usize, map: impl FnOnce() -> Result<usize, i32>) -> *mut u8 {
        let Some(class) = class(size) else {
            return null_mut();
        };
        if self.rooms[class].is_null() {
            let Ok(at) = map() else {
                return null_mut();
            };
            let region = at as *mut Region;
            // SAFETY: a new mapping of the size of a region, and aligned.
            unsafe {
                region.write(Region {
                    free: null_mut(),
                    fresh: at + HEAD,
                    used: 0,
                    next: null_mut(),
                    prev: null_mut(),
                });
            }
            self.rooms[class] = region;
        }
        let region = self.rooms[class];
        // SAFETY: a region of the list, which has a free block or one that was never given out.
        unsafe {
            (*region).used += 1;
            let block = (*region).free;
            let block = if block.is_null() {
                let fresh = (*region).fresh;
                (*region).fresh += SIZES[class];
                fresh as *mut u8
            } else {
                (*region).free = (*block).next;
                block.cast()
            };
            if is_full(region, class) {
                self.unlink(region, class);
            }
            block
        }
    }

    /// Takes a block of `size` bytes back; `give_back` unmaps a region, or says that it cannot.
    ///
    /// # Safety
    /// A block that [`Slabs::alloc`] gave out for this size; nobody uses it any more.
    pub unsafe fn free(
        &mut self,
        block: *mut u8,
        size: usize,
        give_back: impl FnOnce(usize) -> bool,
    ) {
        let Some(class) = class(size) else { return };
        let at = block as usize & !(REGION - 1);
        let region = at as *mut Region;
        // SAFETY: the region of the block, which only the holder of the heap's lock uses; the block
        // has room for the link.
        unsafe {
            let was_full = is_full(region, class);
            let link: *mut Free = block.cast();
            link.write(Free {
                next: (*region).free,
            });
            (*region).free = link;
            (*region).used -= 1;
            if was_full {
                self.link(region, class);
            }
            // One stays, so that a single block that comes and goes costs no system calls.
            let is_last = (*region).next.is_null() && (*region).prev.is_null();
            if (*region).used == 0 && !is_last {
                self.unlink(region, class);
                if !give_back(at) {
                    self.link(region, class);
                }
            }
        }
    }

    /// Puts a region at the beginning of the list.
    ///
    /// # Safety
    /// A region of this size that is not in the list.
    unsafe fn link(&mut self, region: *mut Region, class: usize) {
        let next = self.rooms[class];
        // SAFETY: regions in the list are alive; the caller's promise.
        unsafe {
            (*region).next = next;
            (*region).prev = null_mut();
            if !next.is_null() {
                (*next).prev = region;
            }
        }
        self.rooms[class] = region;
    }

    /// Takes a region out of the list.
    ///
    /// # Safety
    /// A region of this size that is in the list.
    unsafe fn unlink(&mut self, region: *mut Region, class: usize) {
        // SAFETY: regions in the list are alive, and so are their neighbours in it.
        unsafe {
            let (next, prev) = ((*region).next, (*region).prev);
            match prev.is_null() {
                true => self.rooms[class] = next,
                false => (*prev).next = next,
            }
            if !next.is_null() {
                (*next).prev = prev;
            }
            (*region).next = null_mut();
            (*region).prev = null_mut();
        }
    }
}

/// Whether a region has no room.
///
/// # Safety
/// A live region of blocks of this size.
unsafe fn is_full(region: *const Region, class: usize) -> bool {
    // SAFETY: the caller's promise.
    unsafe { (*region).free.is_null() && (*region).fresh + SIZES[class] > end(region) }
}

/// Where a region ends.
fn end(region: *const Region) -> usize {
    region as usize + REGION
}
