//! Restartable sequences of the calling thread, as the GNU C library has registered them.

use crate::{DOOR, sys};
use core::ffi::CStr;
use core::sync::atomic::AtomicUsize;
use core::sync::atomic::Ordering::{Acquire, Release};

/// glibc's: bytes of the area that it registers whatever `__rseq_size` tells, if that is less, and
/// the signature before an abort handler on x86-64.
const BYTES: usize = 32;
const SIGNATURE: usize = 0x5305_3053;
const UNREGISTER: usize = 1;

/// Addresses of `__rseq_offset` and `__rseq_size`, which is 0 where nothing is registered; 0: libc
/// has none.
static KNOWN: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];

/// Looks libc's variables up, at the program's start.
pub fn look_up(find: impl Fn(&CStr) -> usize) {
    for (to, name) in KNOWN.iter().zip([c"__rseq_offset", c"__rseq_size"]) {
        to.store(find(name), Release);
    }
}

/// The area, and how many bytes of it are registered.
type Area = [usize; 2];

/// Has the kernel leave the area alone; what to return to.
pub fn leave() -> Option<Area> {
    let [offset, size] = KNOWN.each_ref().map(|at| at.load(Acquire));
    if offset == 0 || size == 0 || !DOOR.may(libc::SYS_rseq) {
        return None;
    }
    // SAFETY: variables of libc's, an isize and an u32.
    let (offset, size) = unsafe { ((offset as *const isize).read(), (size as *const u32).read()) };
    if size == 0 {
        return None;
    }
    let (start, size) = (thread().wrapping_add_signed(offset), size as usize);
    let sizes = [BYTES, size, size.next_multiple_of(BYTES)];
    let mut areas = sizes.map(|bytes| [start, bytes]).into_iter();
    areas.find(|area| ask(*area, UNREGISTER))
}

/// Has the kernel go on with it.
pub fn return_to(area: Option<Area>) {
    // A refusal leaves the thread without: libc asks the kernel then what the area would tell.
    area.map(|area| ask(area, 0));
}

fn ask([start, bytes]: Area, flags: usize) -> bool {
    // SAFETY: the area of the calling thread, of which libc expects this.
    unsafe { sys::call(libc::SYS_rseq, [start, bytes, flags, SIGNATURE]) }.is_ok()
}

/// The thread pointer.
fn thread() -> usize {
    let at: usize;
    // SAFETY: the first word of a thread's record is its own address (x86-64's ABI).
    unsafe { core::arch::asm!("mov {at}, fs:0", at = out(reg) at, options(readonly, nostack)) };
    at
}
