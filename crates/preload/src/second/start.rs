//! The first instructions in a program that was just executed.

use super::{config, filter, host, trap};
use crate::{data, load, rights, sys};
use deckle_door::entry::Entry;

/// Where `deckle run` has the program begin, with the address of the [`Entry`] in rdi. Everything
/// else is as the kernel gives it to a program, and so it is when that begins.
#[unsafe(no_mangle)]
#[unsafe(naked)]
unsafe extern "C" fn deckle_enter() {
    core::arch::naked_asm!(
        "mov rbx, rsp",
        "and rsp, -16",
        "call {begin}",
        "lea rsp, [rbx - 8]",
        "mov [rsp], rax",
        "xor eax, eax",
        "xor ebx, ebx",
        "xor ecx, ecx",
        "xor edx, edx",
        "xor esi, esi",
        "xor edi, edi",
        "xor r8d, r8d",
        "xor r9d, r9d",
        "xor r10d, r10d",
        "xor r11d, r11d",
        "ret",
        begin = sym begin,
    )
}

/// Returns where the program begins.
///
/// # Safety
/// Called once, by the only thread, with what `deckle run` has written.
unsafe extern "C" fn begin(entry: &Entry) -> usize {
    let [start, bytes] = entry.writable;
    let rights = (libc::PROT_READ | libc::PROT_WRITE) as usize;
    // SAFETY: our own data, which until now could only be read; the program's own stack.
    unsafe {
        if sys::call(libc::SYS_mprotect, [start, bytes, rights]).is_err() {
            sys::say(&[b"deckle: the system refuses memory to manage a program"]);
            sys::exit_all(125);
        }
        // Before any call that may be left out.
        rights::take(&entry.told);
        host::read_stack(entry.program[1]);
    }
    config::keep(entry);
    let ready = trap::install() && (entry.is_filtered != 0 || filter::install());
    if ready {
        load::map_file();
        data::manage();
    } else if entry.is_filtered != 0 {
        sys::exit_all(125);
    } else {
        host::unmanaged("the system refuses a seccomp filter");
    }
    entry.program[0]
}

/// Nothing here panics on anything that a program does; if it did, that would be the end.
#[panic_handler]
fn panic(_info: &core::panic::PanicInfo<'_>) -> ! {
    sys::say(&[b"deckle: a defect in its code; the program is ended"]);
    sys::exit_all(125)
}
