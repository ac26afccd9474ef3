//! Pointers that the program hands to a system call, and that may lead nowhere: the kernel answers
//! EFAULT, where a read of ours would be the program's end.

use crate::sys;

/// Whether the kernel can read the word around an address, so that a read of it raises no signal.
///
/// FUTEX_CMP_REQUEUE compares a word and, asked to wake and to move no waiter, does nothing else.
pub fn can_read(at: usize) -> bool {
    const COMPARE: usize = (libc::FUTEX_CMP_REQUEUE | libc::FUTEX_PRIVATE_FLAG) as usize;
    let word = at & !3;
    let args = [word, COMPARE, 0, 0, word, 0];
    // SAFETY: reads one word, if it can be read.
    let answer = unsafe { sys::call(libc::SYS_futex, args) };
    answer != Err(libc::EFAULT)
}

/// The pages that were found readable last.
#[cfg(target_env = "gnu")]
#[derive(Default)]
struct Readable(usize);

#[cfg(target_env = "gnu")]
impl Readable {
    /// Whether the page of an address is, with a call unless it was the last that was asked for.
    fn has(&mut self, at: usize) -> bool {
        let page = at & !(sys::PAGE - 1);
        if page == 0 || page != self.0 && !can_read(at) {
            return false;
        }
        self.0 = page;
        true
    }

    fn has_string(&mut self, mut at: usize) -> bool {
        loop {
            if !self.has(at) {
                return false;
            }
            let bytes = sys::PAGE - at % sys::PAGE;
            // SAFETY: within a page that can be read; any bytes are a value.
            let part = unsafe { core::slice::from_raw_parts(at as *const u8, bytes) };
            if part.contains(&0) {
                return true;
            }
            at += bytes;
        }
    }
}

/// Whether a pointer leads to a string.
#[cfg(target_env = "gnu")]
pub fn is_string(at: *const core::ffi::c_char) -> bool {
    Readable::default().has_string(at as usize)
}

/// Whether a pointer is null, or leads to pointers to strings up to a null one.
#[cfg(target_env = "gnu")]
pub fn is_list(list: *const *const core::ffi::c_char) -> bool {
    let (mut entries, mut strings) = (Readable::default(), Readable::default());
    let mut at = list as usize;
    loop {
        if at == 0 {
            return true;
        }
        if !at.is_multiple_of(size_of::<usize>()) || !entries.has(at) {
            return false;
        }
        // SAFETY: an aligned word within a page that can be read.
        match unsafe { *(at as *const usize) } {
            0 => return true,
            entry if !strings.has_string(entry) => return false,
            _ => at += size_of::<usize>(),
        }
    }
}
