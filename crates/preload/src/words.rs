//! What the kernel writes to, and reads of, managed memory while a fork is made: nobody serves a
//! fault then, so the kernel would wait for ever where a page is away, or write-protected for the
//! child's sake.
//!
//! - The parent's words (`CLONE_PARENT_SETTID`, `CLONE_PIDFD`): the kernel is given words of ours,
//!   and the program's are written as soon as the service goes on. What the kernel reads (`set_tid`
//!   of `clone3`) it has of ours, too. Elsewhere than in managed memory all is as it was.
//! - The child's word (`CLONE_CHILD_SETTID`), which libc's fork has in the thread's record: its
//!   page is resident over the fork, so that the child has a copy of it.
//! - The area of restartable sequences, in the same record: it is left for so long (`host`).

use crate::fork::{Clone, IDS, PARENT, PIDFD};
use crate::{DOOR, gate, sys};
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::Relaxed;

/// Levels of PID namespaces, at most: so many ids may be asked for.
const LEVELS: usize = 32;
/// Bytes of a word.
const WORD: usize = size_of::<u32>();

/// Given to the kernel in the place of the program's. One fork at a time.
static OURS: [AtomicU32; 2] = [const { AtomicU32::new(0) }; 2];
static OUR_IDS: [AtomicU32; LEVELS] = [const { AtomicU32::new(0) }; LEVELS];

/// The parent's words of the program that ours stand for, in their order; 0: none.
#[derive(core::clone::Clone, Copy)]
pub struct Words([usize; 2]);

impl Words {
    /// Takes them out of a call that is about to be made.
    ///
    /// # Errors
    /// `EFAULT`: a descriptor of the child cannot be written where it is wanted.
    pub fn take(call: &mut Clone) -> Result<Words, i32> {
        let mut words = Words([0, 0]);
        let asked = [
            call.has(libc::CLONE_PARENT_SETTID),
            call.has(libc::CLONE_PIDFD),
        ];
        match call {
            // Both in one word the kernel refuses.
            Clone::Old([_, word, ..], _) if asked[0] != asked[1] => {
                let k = usize::from(asked[1]);
                words.replace(k, *word, |ours| *word = ours);
            }
            Clone::Old(..) => {}
            Clone::New(args, ..) => {
                let places = [PARENT, PIDFD];
                let is_one = asked == [true, true] && args[PARENT] == args[PIDFD];
                for k in (0..2).filter(|&k| asked[k] && !is_one) {
                    let place = &mut args[places[k]];
                    words.replace(k, *place as usize, |ours| *place = ours as u64);
                }
                let [ids, count] = IDS.map(|at| args[at] as usize);
                if copied_ids(ids, count) {
                    args[IDS[0]] = OUR_IDS.as_ptr() as u64;
                }
            }
        }
        let (word, mut now) = (words.0[1], 0);
        if word != 0 && !(copy(READ, word, &mut now) && copy(WRITE, word, &mut now)) {
            return Err(libc::EFAULT);
        }
        Ok(words)
    }

    /// Notes that ours, of which `put` is told the address, stands for a word of the program's, if
    /// that lies in managed memory.
    fn replace(&mut self, k: usize, word: usize, put: impl FnOnce(usize)) {
        if gate::holds(word, WORD) {
            self.0[k] = word;
            put(OURS[k].as_ptr() as usize);
        }
    }

    /// In the parent, when the child is made and faults are served.
    pub fn give(self) {
        for (word, ours) in self.0.iter().zip(&OURS).filter(|(word, _)| **word != 0) {
            // Where the parent's word cannot be written the kernel does not care.
            copy(WRITE, *word, &mut ours.load(Relaxed));
        }
    }
}

/// Whether so many ids were copied to ours, since they lie in managed memory.
fn copied_ids(ids: usize, count: usize) -> bool {
    if !(1..=LEVELS).contains(&count) || !gate::holds(ids, count * WORD) {
        return false;
    }
    (OUR_IDS.iter().take(count).enumerate()).all(|(k, to)| {
        let mut id = 0;
        let done = copy(READ, ids + k * WORD, &mut id);
        to.store(id, Relaxed);
        done
    })
}

const READ: libc::c_long = libc::SYS_process_vm_readv;
const WRITE: libc::c_long = libc::SYS_process_vm_writev;

/// Copies a word of the program's to `own`, or from there, as the kernel would; false: it cannot.
fn copy(call: libc::c_long, word: usize, own: &mut u32) -> bool {
    let own = core::ptr::from_mut(own);
    let [ours, program] = [own as usize, word].map(|at| [at, WORD]);
    let (ours, program) = (ours.as_ptr() as usize, program.as_ptr() as usize);
    // Of this thread: the first one may have ended.
    let args = [sys::gettid() as usize, ours, 1, program, 1, 0];
    // SAFETY: two lists of one range each: a word of ours, and one of the program's, which it has
    // given to be used so.
    let ask = || unsafe { sys::call(call, args) };
    match DOOR.may(call).then(ask) {
        Some(Ok(WORD)) => return true,
        Some(Err(libc::EFAULT)) => return false,
        // Nobody may ask.
        _ => {}
    }
    let at = word as *mut u32;
    // SAFETY: the caller's promise to the kernel, which cannot be asked to check it.
    unsafe {
        match call {
            READ => own.write(at.read_unaligned()),
            _ => at.write_unaligned(own.read()),
        }
    }
    true
}
