//! malloc and its family, as the program calls them: each call goes on to the program's own
//! allocator, once that is found.

use super::{boot, head, next};
use crate::sys::{self, PAGE};
use core::ffi::{c_int, c_void};

fn no_memory() -> *mut c_void {
    sys::failed(libc::ENOMEM, core::ptr::null_mut())
}

/// A block before the program's own allocator is found; `align` is a power of two.
#[cold]
fn early(size: usize, align: usize, zeroed: bool) -> *mut c_void {
    let mut got = from_boot(size, align);
    if got.is_null() {
        if next::find_once() {
            return from_next(size, align, zeroed);
        }
        // What looks it up is what wants memory.
        boot::open_reserve();
        got = from_boot(size, align);
    }
    if got.is_null() {
        return no_memory();
    }
    if zeroed {
        // SAFETY: a fresh block of at least `size` bytes.
        unsafe { got.write_bytes(0, size) };
    }
    got.cast()
}

fn from_boot(size: usize, align: usize) -> *mut u8 {
    match size < boot::BYTES {
        true => boot::HEAP.alloc(size, align),
        false => core::ptr::null_mut(),
    }
}

fn from_next(size: usize, align: usize, zeroed: bool) -> *mut c_void {
    match (align <= 16, zeroed) {
        (true, false) => next::malloc(size),
        (true, true) => next::calloc(1, size),
        (false, _) => next::memalign(align, size),
    }
}

/// C's `malloc`.
#[unsafe(no_mangle)]
pub extern "C" fn malloc(size: usize) -> *mut c_void {
    match next::is_found() {
        true => next::malloc(size),
        false => early(size, 16, false),
    }
}

/// C's `calloc`.
#[unsafe(no_mangle)]
pub extern "C" fn calloc(count: usize, size: usize) -> *mut c_void {
    if next::is_found() {
        return next::calloc(count, size);
    }
    match count.checked_mul(size) {
        Some(bytes) => early(bytes, 16, true),
        None => no_memory(),
    }
}

/// C's `free`.
///
/// # Safety
/// Null, or a live block of this family.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn free(ptr: *mut c_void) {
    if ptr.is_null() {
        return;
    }
    // SAFETY: a live block, says the caller; its heap is known by its address.
    unsafe {
        match boot::owns(ptr.cast()) {
            true => boot::HEAP.free(ptr.cast()),
            false if next::is_ready() => next::free(ptr),
            // What looks functions up has no other blocks.
            false => {}
        }
    }
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
        if !next::is_ready() {
            return no_memory();
        }
        // SAFETY: the caller's promise.
        return unsafe { next::realloc(ptr, size) };
    }
    if size == 0 {
        // As glibc does.
        // SAFETY: the caller's promise.
        unsafe { free(ptr) };
        return core::ptr::null_mut();
    }
    // SAFETY: the old block is live and has `old` bytes; the new one has `size`.
    unsafe {
        let old = malloc_usable_size(ptr);
        if size <= old && size >= old / 2 {
            return ptr;
        }
        let new = malloc(size);
        if !new.is_null() {
            core::ptr::copy_nonoverlapping(ptr.cast::<u8>(), new.cast(), old.min(size));
            free(ptr);
        }
        new
    }
}

/// BSD's `reallocarray`.
///
/// # Safety
/// As [`free`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn reallocarray(ptr: *mut c_void, count: usize, size: usize) -> *mut c_void {
    match count.checked_mul(size) {
        // SAFETY: the caller's promise.
        Some(bytes) => unsafe { realloc(ptr, bytes) },
        None => no_memory(),
    }
}

fn aligned(align: usize, size: usize) -> *mut c_void {
    if !align.is_power_of_two() || align > 1 << 40 {
        return sys::failed(libc::EINVAL, core::ptr::null_mut());
    }
    early(size, align.max(16), false)
}

/// The old name of `aligned_alloc`; rounds the alignment up to a power of two.
#[unsafe(no_mangle)]
pub extern "C" fn memalign(align: usize, size: usize) -> *mut c_void {
    if next::is_found() {
        return next::memalign(align, size);
    }
    aligned(align.max(1).checked_next_power_of_two().unwrap_or(0), size)
}

/// C's `aligned_alloc`.
#[unsafe(no_mangle)]
pub extern "C" fn aligned_alloc(align: usize, size: usize) -> *mut c_void {
    match next::is_found() {
        true => next::aligned_alloc(align, size),
        false => aligned(align, size),
    }
}

/// POSIX's `posix_memalign`: returns the error, leaves `errno` alone.
///
/// # Safety
/// `out` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn posix_memalign(out: *mut *mut c_void, align: usize, size: usize) -> c_int {
    if next::is_found() {
        // SAFETY: the caller's promise.
        return unsafe { next::posix_memalign(out, align, size) };
    }
    if !align.is_power_of_two() || !align.is_multiple_of(size_of::<usize>()) {
        return libc::EINVAL;
    }
    let before = sys::errno();
    let got = aligned(align, size);
    sys::set_errno(before);
    if got.is_null() {
        return libc::ENOMEM;
    }
    // SAFETY: the caller's promise.
    unsafe { out.write(got) };
    0
}

/// A block aligned to a page.
#[unsafe(no_mangle)]
pub extern "C" fn valloc(size: usize) -> *mut c_void {
    match next::is_found() {
        true => next::valloc(size),
        false => aligned(PAGE, size),
    }
}

/// A block of whole pages.
#[unsafe(no_mangle)]
pub extern "C" fn pvalloc(size: usize) -> *mut c_void {
    if next::is_found() {
        return next::pvalloc(size);
    }
    match size.checked_next_multiple_of(PAGE) {
        Some(bytes) => aligned(PAGE, bytes.max(PAGE)),
        None => no_memory(),
    }
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
            true => head::usable(ptr.cast()),
            false if next::is_ready() => next::usable(ptr),
            false => 0,
        }
    }
}

/// Gives free memory back to the system.
#[unsafe(no_mangle)]
pub extern "C" fn malloc_trim(pad: usize) -> c_int {
    match next::find_once() {
        true => next::trim(pad),
        false => 0,
    }
}

/// A setting of the allocator.
#[unsafe(no_mangle)]
pub extern "C" fn mallopt(what: c_int, value: c_int) -> c_int {
    match next::find_once() {
        true => next::option(what, value),
        false => 0,
    }
}
