//! Data of the program that its file says nothing of (.bss): all zeros when it begins, and
//! managed from then on if it is more than a small program has.

use super::host;
use crate::load::{Header, PF_W, PT_LOAD};
use crate::map::calls;
use crate::{gate, sys};

const AT_PHDR: usize = 3;
const AT_PHNUM: usize = 5;
/// What is left to the kernel.
const SMALL: usize = 1 << 20;

/// Maps managed memory in its place. Before the program's first instruction.
pub fn manage() {
    const TABLE: u32 = 6;
    let (table, count) = (host::auxiliary(AT_PHDR), host::auxiliary(AT_PHNUM));
    if table == 0 {
        return;
    }
    // SAFETY: where the kernel says that the program's headers are mapped.
    let headers = unsafe { core::slice::from_raw_parts(table as *const Header, count) };
    let known = headers.iter().find(|h| h.kind == TABLE);
    let moved = known.map_or(0, |h| table.wrapping_sub(h.addr));
    for h in headers
        .iter()
        .filter(|h| h.kind == PT_LOAD && h.flags & PF_W != 0)
    {
        let start = moved.wrapping_add(h.addr);
        let from = (start + h.file_bytes).next_multiple_of(sys::PAGE);
        let end = (start + h.memory_bytes).next_multiple_of(sys::PAGE);
        if end > from + SMALL {
            gate::outgrown();
            if gate::is_managed() {
                let rights = (libc::PROT_READ | libc::PROT_WRITE) as usize;
                let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
                let args = [from, end - from, rights, flags as usize, usize::MAX, 0];
                let _ = calls::answer(libc::SYS_mmap, args);
            }
        }
    }
}
