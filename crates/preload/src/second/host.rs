//! What is this door's own of what both doors do.

use super::{exec, leave};
use crate::{DOOR, sys};
use core::ffi::CStr;
use core::sync::atomic::AtomicUsize;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use deckle_door::entry::{IMAGE, WINDOW};

/// Who forks: nothing is to be known of it.
pub type Caller = ();

/// There is no service, for a reason.
pub use super::exec::unmanaged;

/// Restartable sequences, of which there are none here: `rseq` is refused.
pub fn leave_sequences() {}

/// The same.
pub fn return_to_sequences((): ()) {}

/// As close to the fork as can be.
pub fn hold() {}

/// After it; in the child its thread is the main one.
pub fn let_go(child: Option<Caller>) {
    if child.is_some() {
        leave::forget_word();
        exec::free_stacks();
        DOOR.pid.store(sys::getpid() as i32, Relaxed);
        DOOR.left.store(sys::main_thread_word(), Relaxed);
    }
}

/// Whether the main heap is libc's: all calls on it come by here.
pub fn keeps_heap() -> bool {
    false
}

/// The auxiliary vector's words 0 to 33.
static VECTOR: [AtomicUsize; 34] = [const { AtomicUsize::new(0) }; 34];

/// Keeps what the kernel has put on the program's stack, before the program changes it, and takes
/// the first door out of its environment: both would be one too many.
///
/// # Safety
/// `stack` is the stack pointer that the program begins with.
pub unsafe fn read_stack(stack: usize) {
    let mut at = stack as *const usize;
    // SAFETY: the kernel puts there a count and so many arguments, the environment, each ended by
    // a zero, and pairs that end with one whose first word is zero.
    unsafe {
        at = at.add(at.read() + 2);
        while at.read() != 0 {
            let entry = at.read() as *mut u8;
            let bytes = CStr::from_ptr(entry.cast()).count_bytes();
            without_library(core::slice::from_raw_parts_mut(entry, bytes));
            at = at.add(1);
        }
        at = at.add(1);
        while at.read() != 0 {
            if let Some(word) = VECTOR.get(at.read()) {
                word.store(at.add(1).read(), Release);
            }
            at = at.add(2);
        }
    }
    let_go(Some(()));
}

/// Writes separators over libdeckle.so in an entry LD_PRELOAD.
fn without_library(entry: &mut [u8]) {
    const NAME: &[u8] = b"LD_PRELOAD=";
    if !entry.starts_with(NAME) {
        return;
    }
    for path in entry[NAME.len()..].split_mut(|b| matches!(b, b':' | b' ')) {
        if path.ends_with(b"/libdeckle.so") {
            path.fill(b':');
        }
    }
}

/// A word of the program's auxiliary vector.
pub fn auxiliary(what: usize) -> usize {
    VECTOR.get(what).map_or(0, |word| word.load(Acquire))
}

/// A place for the image, from where the filter lets calls pass.
///
/// # Errors
/// The errno of mmap.
pub fn reserve_image(bytes: usize) -> Result<usize, i32> {
    sys::reserve((window() << 32) + IMAGE, bytes)
}

/// The number of our 4 GiB.
pub fn window() -> usize {
    (&raw const DOOR as usize) / WINDOW
}
