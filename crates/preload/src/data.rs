//! Data of the program that its file says nothing of (.bss): zeros when it begins but for what the
//! loader has copied there, and managed from then on if it is more than a small program has.

use crate::map::calls;
use crate::{gate, host, sys};
use libc::{AT_PHDR, AT_PHNUM, Elf64_Phdr, PF_W, PT_LOAD, PT_PHDR};

/// What is left to the kernel.
const SMALL: usize = 1 << 20;

/// Maps managed memory in its place. Before the program's first instruction.
pub fn manage() {
    let [table, count] = [AT_PHDR, AT_PHNUM].map(|what| host::auxiliary(what as usize));
    if table == 0 {
        return;
    }
    // SAFETY: where the kernel says that the program's headers are mapped.
    let headers = unsafe { core::slice::from_raw_parts(table as *const Elf64_Phdr, count) };
    let known = headers.iter().find(|h| h.p_type == PT_PHDR);
    let moved = known.map_or(0, |h| table.wrapping_sub(h.p_vaddr as usize));
    for h in headers
        .iter()
        .filter(|h| h.p_type == PT_LOAD && h.p_flags & PF_W != 0)
    {
        let start = moved.wrapping_add(h.p_vaddr as usize);
        let from = (start + h.p_filesz as usize).next_multiple_of(sys::PAGE);
        let end = (start + h.p_memsz as usize).next_multiple_of(sys::PAGE);
        if end <= from + SMALL {
            continue;
        }
        let from = behind_what_is_there(from, end);
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

/// Where the last page of a range ends that is there; `end` if the system does not tell.
fn behind_what_is_there(from: usize, end: usize) -> usize {
    const MOST: usize = 1024;
    let (mut at, mut behind) = (from, from);
    while at < end {
        let mut there = [0_u8; MOST];
        let bytes = (end - at).min(MOST * sys::PAGE);
        let args = [at, bytes, there.as_mut_ptr() as usize, 0, 0, 0];
        if calls::raw(libc::SYS_mincore, args).is_err() {
            return end;
        }
        if let Some(last) = there.iter().rposition(|page| page & 1 != 0) {
            behind = at + (last + 1) * sys::PAGE;
        }
        at += bytes;
    }
    behind
}
