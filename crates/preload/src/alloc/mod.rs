//! Where the program's memory comes from: two heaps.
//!
//! - [`boot`]: a megabyte for the program until it needs more, so that small programs never
//!   start a service;
//! - mimalloc over the interposed mmap, which is managed memory once the service runs.
//!
//! [`exports`] chooses between them; a block goes back to the heap whose addresses it has.

pub mod boot;
pub mod exports;
mod head;
mod heap;
pub mod next;

/// mimalloc 2's option `allow_thp`, which the binding has no name for.
const ALLOW_THP: libmimalloc_sys::mi_option_t = 37;

/// Keeps mimalloc from advising all its memory for huge pages: that would stand for advice of
/// the program, which has given none; and from looking for NUMA nodes at some later time, which
/// a filter may refuse. Before its first allocation.
pub fn advise_nothing() {
    // SAFETY: any time is right for these calls; the option exists (it is the last one). Read
    // at mimalloc's start it would turn huge pages off for the whole process, hence the order.
    unsafe {
        libmimalloc_sys::mi_process_init();
        libmimalloc_sys::mi_option_set(ALLOW_THP, 0);
        libmimalloc_sys::mi_option_set(libmimalloc_sys::mi_option_use_numa_nodes, 1);
    }
}
