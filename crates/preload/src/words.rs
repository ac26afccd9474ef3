//! What the kernel writes to, and reads of, the program's memory while a fork is made: nobody
//! serves a fault then, so the kernel would wait for ever where a page is away, or write-protected
//! for the child's sake.
//!
//! - The parent's words (`CLONE_PARENT_SETTID`, `CLONE_PIDFD`): the kernel is given words of ours,
//!   and the program's are written once the service goes on. What the kernel reads (`set_tid` of
//!   `clone3`) it has of ours, too.
//! - The child's word (`CLONE_CHILD_SETTID`), which libc's fork has in the thread's record: its
//!   page is kept resident, so that the child has a copy of it.
//! - The area of restartable sequences, in the same record: it is left for so long (`host`).

use crate::fork::Clone;
use crate::{DOOR, sys};
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::Relaxed;

/// Levels of PID namespaces, at most: so many ids may be asked for.
const LEVELS: usize = 32;
/// Where `clone3` has the words, in its structure.
const PIDFD: usize = 1;
const PARENT: usize = 3;
const IDS: [usize; 2] = [8, 9];

/// Given to the kernel in the place of the program's. One fork at a time.
static OURS: [AtomicU32; 2] = [const { AtomicU32::new(0) }; 2];
static OUR_IDS: [AtomicU32; LEVELS] = [const { AtomicU32::new(0) }; LEVELS];

/// The parent's words of the program, in the order of ours; 0: not asked for.
pub struct Words([usize; 2]);

impl Words {
    /// Takes them out of a call that is about to be made.
    ///
    /// # Errors
    /// `EFAULT`: a descriptor of the child cannot be written where it is wanted.
    pub fn take(call: &mut Clone) -> Result<Words, i32> {
        let (pid, pidfd) = (
            call.has(libc::CLONE_PARENT_SETTID),
            call.has(libc::CLONE_PIDFD),
        );
        let mut words = Words([0, 0]);
        let ours = |k: usize| OURS[k].as_ptr() as usize;
        match call {
            // Both in one is refused by the kernel.
            Clone::Old([_, parent, ..], _) if pid != pidfd => {
                let k = usize::from(pidfd);
                words.0[k] = core::mem::replace(parent, ours(k));
            }
            Clone::Old(..) => {}
            Clone::New(args, ..) => {
                for (k, at) in [(0, PARENT), (1, PIDFD)] {
                    if [pid, pidfd][k] {
                        words.0[k] = core::mem::replace(&mut args[at], ours(k) as u64) as usize;
                    }
                }
                if (1..=LEVELS as u64).contains(&args[IDS[1]]) {
                    let from = args[IDS[0]] as *const u32;
                    for (k, to) in OUR_IDS.iter().enumerate().take(args[IDS[1]] as usize) {
                        // SAFETY: the caller's promise to the kernel: so many ids.
                        to.store(unsafe { from.add(k).read_unaligned() }, Relaxed);
                    }
                    args[IDS[0]] = OUR_IDS.as_ptr() as u64;
                }
            }
        }
        let mut pidfd = 0;
        let word = words.0[1];
        if word != 0 && !(copy(READ, word, &mut pidfd) && copy(WRITE, word, &mut pidfd)) {
            return Err(libc::EFAULT);
        }
        Ok(words)
    }

    /// In the parent, when the child is made.
    pub fn give(&self) {
        for (word, ours) in self.0.iter().zip(&OURS).filter(|(word, _)| **word != 0) {
            // Where the parent's word cannot be written the kernel does not care.
            copy(WRITE, *word, &mut ours.load(Relaxed));
        }
    }
}

const READ: libc::c_long = libc::SYS_process_vm_readv;
const WRITE: libc::c_long = libc::SYS_process_vm_writev;

/// Copies a word of the program's to `own`, or from there, as the kernel would; false: it cannot.
fn copy(call: libc::c_long, word: usize, own: &mut u32) -> bool {
    let own = core::ptr::from_mut(own);
    if !DOOR.may(call) {
        let at = word as *mut u32;
        // SAFETY: the caller's promise to the kernel, which nobody may be asked to check.
        unsafe {
            match call {
                READ => own.write(at.read_unaligned()),
                _ => at.write_unaligned(own.read()),
            }
        }
        return true;
    }
    let [ours, program] = [own as usize, word].map(|at| [at, size_of::<u32>()]);
    let (ours, program) = (ours.as_ptr() as usize, program.as_ptr() as usize);
    let args = [sys::getpid() as usize, ours, 1, program, 1, 0];
    // SAFETY: two lists of one range each: a word of ours, and one of the program's, which it has
    // given to be written to.
    let copied = unsafe { sys::call(call, args) };
    copied == Ok(size_of::<u32>())
}
