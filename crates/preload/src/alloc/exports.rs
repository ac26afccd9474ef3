//! malloc and its family, as the program calls them: each call goes on to the program's own
//! allocator, once that is found.

use super::{boot, next};
use core::ffi::{c_int, c_void};

/// C's `malloc`.
#[unsafe(no_mangle)]
pub extern "C" fn malloc(size: usize) -> *mut c_void {
    next::malloc(size)
}

/// C's `calloc`.
#[unsafe(no_mangle)]
pub extern "C" fn calloc(count: usize, size: usize) -> *mut c_void {
    next::calloc(count, size)
}

/// C's `free`.
///
/// # Safety
/// Null, or a live block of this family.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn free(ptr: *mut c_void) {
    // SAFETY: the caller's promise.
    unsafe { next::free(ptr) }
}

/// The old name of `free`.
///
/// # Safety
/// As [`free`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cfree(ptr: *mut c_void) {
    // SAFETY: the caller's promise.
    unsafe { free(ptr) }
}

/// C's `realloc`.
///
/// # Safety
/// As [`free`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn realloc(ptr: *mut c_void, size: usize) -> *mut c_void {
    if ptr.is_null() {
        return malloc(size);
    }
    if !boot::owns(ptr.cast()) {
        // SAFETY: the caller's promise.
        return unsafe { next::realloc(ptr, size) };
    }
    if size == 0 {
        // As glibc does.
        return core::ptr::null_mut();
    }
    // SAFETY: a block from before, which is not used anew.
    let old = unsafe { boot::usable(ptr.cast()) };
    let new = malloc(size);
    if !new.is_null() {
        // SAFETY: the old block has `old` bytes, the new one `size`.
        unsafe { core::ptr::copy_nonoverlapping(ptr.cast::<u8>(), new.cast(), old.min(size)) };
    }
    new
}

/// BSD's `reallocarray`.
///
/// # Safety
/// As [`free`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn reallocarray(ptr: *mut c_void, count: usize, size: usize) -> *mut c_void {
    // SAFETY: the caller's promise; no block has so many bytes as there are.
    unsafe { realloc(ptr, count.saturating_mul(size)) }
}

/// The old name of `aligned_alloc`; rounds the alignment up to a power of two.
#[unsafe(no_mangle)]
pub extern "C" fn memalign(align: usize, size: usize) -> *mut c_void {
    next::memalign(align, size)
}

/// C's `aligned_alloc`.
#[unsafe(no_mangle)]
pub extern "C" fn aligned_alloc(align: usize, size: usize) -> *mut c_void {
    next::aligned_alloc(align, size)
}

/// POSIX's `posix_memalign`: returns the error, leaves `errno` alone.
///
/// # Safety
/// `out` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn posix_memalign(out: *mut *mut c_void, align: usize, size: usize) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { next::posix_memalign(out, align, size) }
}

/// A block aligned to a page.
#[unsafe(no_mangle)]
pub extern "C" fn valloc(size: usize) -> *mut c_void {
    next::valloc(size)
}

/// A block of whole pages.
#[unsafe(no_mangle)]
pub extern "C" fn pvalloc(size: usize) -> *mut c_void {
    next::pvalloc(size)
}

/// Bytes that the owner of a block may use.
///
/// # Safety
/// Null, or a live block of this family.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn malloc_usable_size(ptr: *mut c_void) -> usize {
    if ptr.is_null() {
        return 0;
    }
    // SAFETY: a live block, says the caller.
    unsafe {
        match boot::owns(ptr.cast()) {
            true => boot::usable(ptr.cast()),
            false => next::usable(ptr),
        }
    }
}

/// Gives free memory back to the system.
#[unsafe(no_mangle)]
pub extern "C" fn malloc_trim(pad: usize) -> c_int {
    next::trim(pad)
}

/// A setting of the allocator.
#[unsafe(no_mangle)]
pub extern "C" fn mallopt(what: c_int, value: c_int) -> c_int {
    next::option(what, value)
}
