//! Handing a call of the program over to the service.
//!
//! The caller takes a slot of a fixed pool in the [`Door`](crate::Door) (never managed, whatever
//! stack the caller runs on), fills it, pushes it and sleeps on its word. A signal that
//! comes meanwhile waits: it could leave by longjmp, and the slot would be lost. No lock, no
//! thread-local state: works in any context, also in a vfork child.

use crate::futex;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize};
use core::time::Duration;

/// What is asked of the service.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Op {
    /// hint (0: none), bytes, -, prot, flags -> address.
    Map,
    /// address, bytes, -, prot, flags -> address.
    MapFixed,
    /// address, bytes.
    Unmap,
    /// address, bytes, prot.
    Protect,
    /// address, bytes, advice.
    Advise,
    /// address, bytes, flags.
    Lock,
    /// address, bytes.
    Unlock,
    /// flags.
    LockAll,
    /// Nothing.
    UnlockAll,
    /// address, old bytes, new bytes, flags, new address -> address.
    Remap,
    /// address, bytes: something foreign will be mapped there.
    Leave,
    /// address, bytes: the range becomes the kernel's alone, with its bytes.
    Surrender,
    /// address, bytes: nothing, but it is told apart whether there is managed memory.
    Look,
    /// address, bytes: what is managed of it stays resident.
    Hold,
    /// Stand still for a fork; 1: whose child will have no service; since call number - 1 is
    /// refused.
    ForkBegin,
    /// The fork is done, or has failed.
    ForkEnd,
    /// -> bytes of address space that are none of the program's.
    Limit,
}

/// The last of them: a slot holds their numbers.
const LAST: Op = Op::Limit;

/// Answer to a call on a range in which nothing is managed: it is the caller's to make, with its
/// own rights and limits. No errno of the kernel's.
pub const FOREIGN: i32 = 4095;

const FREE: u32 = 0;
const TAKEN: u32 = 1;
const POSTED: u32 = 2;
const DONE: u32 = 3;

/// Most requests at one time.
pub const SLOTS: usize = 256;

#[repr(C, align(128))]
struct Slot {
    state: AtomicU32,
    op: AtomicU32,
    next: AtomicU32,
    args: [AtomicUsize; 6],
    /// The result, or minus the errno.
    result: AtomicU64,
}

/// The pool.
#[repr(C)]
pub struct Requests {
    slots: [Slot; SLOTS],
    /// The last slot that was pushed, plus one; the service takes the whole list.
    pushed: AtomicU32,
    /// Changes with each push.
    bell: AtomicU32,
    /// Where the search for a free slot begins.
    next: AtomicU32,
}

impl Requests {
    /// No requests.
    #[allow(clippy::new_without_default)]
    pub const fn new() -> Requests {
        Requests {
            slots: [const {
                Slot {
                    state: AtomicU32::new(FREE),
                    op: AtomicU32::new(0),
                    next: AtomicU32::new(0),
                    args: [const { AtomicUsize::new(0) }; 6],
                    result: AtomicU64::new(0),
                }
            }; SLOTS],
            pushed: AtomicU32::new(0),
            bell: AtomicU32::new(0),
            next: AtomicU32::new(0),
        }
    }

    /// Asks the service and waits for its answer.
    ///
    /// # Errors
    /// The errno that the call shall fail with.
    pub fn ask(&self, op: Op, args: [usize; 6]) -> Result<usize, i32> {
        let before = set_mask(u64::MAX);
        let result = self.post(op, args);
        set_mask(before);
        result
    }

    fn post(&self, op: Op, args: [usize; 6]) -> Result<usize, i32> {
        let (index, slot) = self.take();
        for (to, from) in slot.args.iter().zip(args) {
            to.store(from, Relaxed);
        }
        slot.op.store(op as u32, Relaxed);
        slot.state.store(POSTED, Release);
        self.push(index, slot);
        while slot.state.load(Acquire) != DONE {
            futex::wait(&slot.state, POSTED, None);
        }
        let result = slot.result.load(Relaxed) as i64;
        slot.state.store(FREE, Release);
        match result {
            -4095..=-1 => Err(-result as i32),
            value => Ok(value as usize),
        }
    }

    fn take(&self) -> (u32, &Slot) {
        loop {
            let from = self.next.fetch_add(1, Relaxed) as usize;
            for turn in 0..SLOTS {
                let index = from.wrapping_add(turn) % SLOTS;
                let slot = &self.slots[index];
                if slot
                    .state
                    .compare_exchange(FREE, TAKEN, AcqRel, Relaxed)
                    .is_ok()
                {
                    return (index as u32, slot);
                }
            }
            // More callers than slots: some of them are about to be answered.
            let bell = self.bell.load(Relaxed);
            futex::wait(&self.bell, bell, Some(Duration::from_millis(1)));
        }
    }

    fn push(&self, index: u32, slot: &Slot) {
        let mut last = self.pushed.load(Relaxed);
        loop {
            slot.next.store(last, Relaxed);
            match self
                .pushed
                .compare_exchange_weak(last, index + 1, AcqRel, Relaxed)
            {
                Ok(_) => break,
                Err(now) => last = now,
            }
        }
        self.bell.fetch_add(1, Release);
        futex::wake(&self.bell, 1);
    }

    /// The service's side: waits for requests, at most `timeout`, and hands each to `serve`, the
    /// oldest first.
    pub fn serve<'a>(&'a self, timeout: Duration, mut serve: impl FnMut(Request<'a>)) {
        let bell = self.bell.load(Acquire);
        let mut last = self.pushed.swap(0, AcqRel);
        if last == 0 {
            futex::wait(&self.bell, bell, Some(timeout));
            last = self.pushed.swap(0, AcqRel);
        }
        // Turned round: the list begins with the youngest.
        let mut first = 0;
        while let Some(slot) = self.slot(last) {
            let next = slot.next.swap(first, Relaxed);
            first = last;
            last = next;
        }
        while let Some(slot) = self.slot(first) {
            first = slot.next.load(Relaxed);
            serve(Request { slot });
        }
    }

    fn slot(&self, number: u32) -> Option<&Slot> {
        self.slots.get((number as usize).checked_sub(1)?)
    }

    /// In a child of fork: slots of threads that do not exist here are free again.
    pub fn forget(&self) {
        self.pushed.store(0, Relaxed);
        for slot in &self.slots {
            slot.state.store(FREE, Relaxed);
        }
    }
}

/// Whether a filter of the program's own refuses to change a signal mask.
pub(crate) static MASK_STAYS: AtomicBool = AtomicBool::new(false);

/// Sets the calling thread's signal mask, if that may be; what it was.
pub fn set_mask(mask: u64) -> u64 {
    let mut before = 0_u64;
    if MASK_STAYS.load(Relaxed) {
        return before;
    }
    let args = [
        libc::SIG_SETMASK as usize,
        &raw const mask as usize,
        &raw mut before as usize,
        size_of::<u64>(),
    ];
    // SAFETY: reads and writes a word each; cannot fail.
    let _ = unsafe { crate::sys::call(libc::SYS_rt_sigprocmask, args) };
    before
}

/// A request in the hands of the service.
pub struct Request<'a> {
    slot: &'a Slot,
}

impl Request<'_> {
    /// What is asked.
    pub fn op(&self) -> Op {
        let number = self.slot.op.load(Relaxed).min(LAST as u32);
        // SAFETY: the enum has this size, and a value for each number up to the last one's.
        unsafe { core::mem::transmute::<u32, Op>(number) }
    }

    /// Its arguments.
    pub fn args(&self) -> [usize; 6] {
        core::array::from_fn(|i| self.slot.args[i].load(Relaxed))
    }

    /// Answers; the caller goes on.
    pub fn answer(self, result: Result<usize, i32>) {
        let word = match result {
            Ok(value) => value as i64,
            Err(errno) => -i64::from(errno),
        };
        self.slot.result.store(word as u64, Relaxed);
        self.slot.state.store(DONE, Release);
        futex::wake(&self.slot.state, 1);
    }
}
