//! The head of the thread descriptor: where %fs points.
//!
//! The offsets are fixed by the x86-64 ABI (self pointer), by compilers (stack guard) and by
//! glibc, which keeps them for the sanitizers.

use core::arch::asm;

const SELF_ABI: usize = 0x00;
const VECTOR: usize = 0x08;
const SELF: usize = 0x10;
const MULTIPLE_THREADS: usize = 0x18;
const STACK_GUARD: usize = 0x28;
const POINTER_GUARD: usize = 0x30;
const FEATURES: usize = 0x48;
/// Unused by glibc (0x80 to 0x280 is), but kept in the layout.
const MARK: usize = 0x100;
const MARKED: u64 = 0x6b73_6174_2e6c_6b64;
/// An rseq area with this CPU number is not registered.
const RSEQ_FAILED: u32 = -2_i32 as u32;

#[inline(always)]
fn read_u64(offset: usize) -> u64 {
    let value;
    // SAFETY: glibc's thread descriptor is longer than any offset used in this crate.
    unsafe {
        asm!(
            "mov {}, fs:[{}]",
            out(reg) value,
            in(reg) offset,
            options(nostack, readonly, preserves_flags)
        )
    };
    value
}

pub(crate) fn read_u32(offset: usize) -> u32 {
    let value;
    // SAFETY: as above.
    unsafe {
        asm!(
            "mov {:e}, fs:[{}]",
            out(reg) value,
            in(reg) offset,
            options(nostack, readonly, preserves_flags)
        )
    };
    value
}

/// Address of the caller's thread descriptor.
pub(crate) fn current() -> usize {
    read_u64(SELF) as usize
}

/// Whether the caller is a service task (or one of its threads). One instruction and a compare;
/// usable from an interposed malloc and from signal handlers.
#[inline]
pub fn in_service_task() -> bool {
    read_u64(MARK) == MARKED
}

/// Fills the head at `tcb`, with the guards of the caller.
///
/// # Safety
///
/// `tcb` is a thread descriptor nobody uses yet, aligned to 8; `rseq` is the offset of an rseq
/// area inside it.
pub(crate) unsafe fn fill_head(tcb: *mut u8, rseq: Option<isize>) {
    // SAFETY: inside the descriptor, aligned, and unused, says the caller.
    unsafe {
        let words = tcb.cast::<u64>();
        words.add(SELF_ABI / 8).write(tcb as u64);
        words.add(SELF / 8).write(tcb as u64);
        words.add(STACK_GUARD / 8).write(read_u64(STACK_GUARD));
        words.add(POINTER_GUARD / 8).write(read_u64(POINTER_GUARD));
        words.add(MARK / 8).write(MARKED);
        tcb.add(MULTIPLE_THREADS).cast::<u32>().write(1);
        tcb.add(FEATURES).cast::<u32>().write(read_u32(FEATURES));
        if let Some(offset) = rseq {
            // Zeros would say "registered, on CPU 0" to sched_getcpu.
            tcb.offset(offset)
                .add(4)
                .cast::<u32>()
                .write_unaligned(RSEQ_FAILED);
        }
    }
}

/// One entry of the module vector: a length, a generation, or a module's block.
pub(crate) type Entry = [usize; 2];

/// The module vector of `tcb` as the loader made it: entry -1 is the length, entry 0 the
/// generation, entries 1..=length the modules.
///
/// # Safety
///
/// `tcb` was filled by the loader.
pub(crate) unsafe fn vector(tcb: *mut u8) -> *mut Entry {
    // SAFETY: the loader has written the pointer there.
    unsafe { tcb.add(VECTOR).cast::<*mut Entry>().read() }
}

/// Makes `entries` the module vector of `tcb`.
///
/// # Safety
///
/// As [`vector`]; `entries` is laid out as described there and lives as long as `tcb`.
pub(crate) unsafe fn set_vector(tcb: *mut u8, entries: *mut Entry) {
    // SAFETY: inside the descriptor, says the caller.
    unsafe { tcb.add(VECTOR).cast::<*mut Entry>().write(entries) }
}
