//! System calls without libc's wrappers, which this library interposes itself.

/// Bytes of a page.
pub const PAGE: usize = 4096;

pub use deckle_task::call;

/// Sets the caller's `errno`.
pub fn set_errno(errno: i32) {
    // SAFETY: libc returns the address of the calling thread's own word.
    unsafe { *libc::__errno_location() = errno };
}

/// The caller's `errno`.
pub fn errno() -> i32 {
    // SAFETY: as above.
    unsafe { *libc::__errno_location() }
}

/// The result of an interposed call in C's way: -1 and `errno` on failure.
pub fn c_result(result: Result<usize, i32>) -> usize {
    match result {
        Ok(value) => value,
        Err(errno) => {
            set_errno(errno);
            usize::MAX
        }
    }
}

/// Whether the calling thread has a capability (one of the first 32) in effect.
pub fn has_capability(number: u32) -> bool {
    const VERSION_3: u32 = 0x2008_0522;
    let head = [VERSION_3, 0];
    let mut data = [0_u32; 6];
    let (head, data_at) = (head.as_ptr() as usize, data.as_mut_ptr() as usize);
    // SAFETY: reads the one, and writes the other, which is as long as this version's answer.
    let asked = unsafe { call(libc::SYS_capget, [head, data_at, 0, 0, 0, 0]) };
    asked.is_ok() && data[0] >> number & 1 == 1
}

/// Maps `bytes` of private anonymous memory at an address of the kernel's choice.
///
/// # Errors
/// The errno of mmap.
pub fn map_anonymous(bytes: usize) -> Result<usize, i32> {
    let prot = (libc::PROT_READ | libc::PROT_WRITE) as usize;
    let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE) as usize;
    // SAFETY: a new mapping, which changes no other.
    unsafe { call(libc::SYS_mmap, [0, bytes, prot, flags, usize::MAX, 0]) }
}

/// Unmaps a range.
///
/// # Safety
/// The range is the caller's, and nobody uses it any more.
pub unsafe fn unmap(start: usize, bytes: usize) -> bool {
    // SAFETY: the caller's promise.
    unsafe { call(libc::SYS_munmap, [start, bytes, 0, 0, 0, 0]) }.is_ok()
}

/// Writes a line to the standard error, as far as it goes: a last word, not a channel.
pub fn say(parts: &[&[u8]]) {
    let mut line = [0u8; 512];
    let mut len = 0;
    for part in parts {
        let n = part.len().min(line.len() - len - 1);
        line[len..len + n].copy_from_slice(&part[..n]);
        len += n;
    }
    line[len] = b'\n';
    // SAFETY: reads a buffer on this stack.
    let _ = unsafe {
        call(
            libc::SYS_write,
            [2, line.as_ptr() as usize, len + 1, 0, 0, 0],
        )
    };
}
