//! Handing a call of the program over to the service.
//!
//! The caller takes a slot of a fixed pool in the [`Door`](crate::Door) (never managed, whatever
//! stack the caller runs on), fills it, pushes it and sleeps on its word. A signal that
//! comes meanwhile waits: it could leave by longjmp, and the slot would be lost. No lock, no
//! thread-local state: works in any context, also in a vfork child.

use crate::spin::{self, Lookout};
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize};
use core::time::Duration;
use deckle_sys::futex;

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
    /// address, bytes: the program unmaps the range next, and does not touch it before.
    Forget,
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
    /// Between the two, when the child is made: how many ranges are not what they were, since the
    /// program has changed its memory unseen.
    ForkLook,
    /// address, bytes of a block, 1 if that is a mapping by itself, 2 for a range that is no block
    /// -> address: what is mapped there is managed from now on, or charged, up to the address.
    /// 0, bytes, 3 -> 1 if a new mapping of so many may be left to the kernel.
    Cover,
    /// Looks for memory that was mapped and unmapped unseen. 1: adopts new memory even while usage
    /// is low.
    Adopt,
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
/// Posted, and who has asked sleeps.
const ASLEEP: u32 = 4;

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
    /// When it was posted, by the time stamp counter.
    posted: AtomicU64,
}

/// The pool.
#[repr(C)]
pub struct Requests {
    slots: [Slot; SLOTS],
    /// The last slot that was pushed, plus one; the service takes the whole list.
    pushed: AtomicU32,
    /// Changes with each push.
    bell: AtomicU32,
    /// Not 0: the service sleeps, and the bell must wake it.
    asleep: AtomicU32,
    /// Where the search for a free slot begins.
    next: AtomicU32,
}

impl Requests {
    /// No requests.
    pub const fn new() -> Requests {
        Requests {
            slots: [const {
                Slot {
                    state: AtomicU32::new(FREE),
                    op: AtomicU32::new(0),
                    next: AtomicU32::new(0),
                    args: [const { AtomicUsize::new(0) }; 6],
                    result: AtomicU64::new(0),
                    posted: AtomicU64::new(0),
                }
            }; SLOTS],
            pushed: AtomicU32::new(0),
            bell: AtomicU32::new(0),
            asleep: AtomicU32::new(0),
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
        slot.posted.store(spin::now(), Relaxed);
        let is_done = || slot.state.load(Acquire) == DONE;
        // Who is awake answers soon.
        if self.push(index, slot) || !spin::until(is_done, spin::ANSWER) {
            let _ = slot.state.compare_exchange(POSTED, ASLEEP, AcqRel, Acquire);
            while !is_done() {
                futex::wait(&slot.state, ASLEEP, None);
            }
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

    /// Whether the service was asleep.
    fn push(&self, index: u32, slot: &Slot) -> bool {
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
        // Either we see that it goes to sleep, or it sees the bell.
        self.bell.fetch_add(1, SeqCst);
        let asleep = self.asleep.load(SeqCst) != 0;
        if asleep {
            // All: who waits for a slot waits there, too.
            futex::wake(&self.bell, u32::MAX);
        }
        asleep
    }

    /// The service's side, of one task: waits for requests and hands each to `serve`, the oldest
    /// first.
    pub fn serve<'a>(&'a self, mut serve: impl FnMut(Request<'a>)) -> ! {
        let mut lookout = Lookout::new();
        loop {
            lookout.look(|| self.pushed.load(Relaxed) != 0);
            let last = self.wait();
            if let Some(slot) = self.slot(last) {
                lookout.came(slot.posted.load(Relaxed));
            }
            self.serve_list(last, &mut serve);
            lookout.served();
        }
    }

    /// Waits for requests; the last one of the list.
    fn wait(&self) -> u32 {
        let bell = self.bell.load(SeqCst);
        match self.pushed.swap(0, AcqRel) {
            0 => {
                self.asleep.store(1, SeqCst);
                futex::wait(&self.bell, bell, None);
                self.asleep.store(0, SeqCst);
                self.pushed.swap(0, AcqRel)
            }
            last => last,
        }
    }

    fn serve_list<'a>(&'a self, mut last: u32, serve: &mut impl FnMut(Request<'a>)) {
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
    let _ = unsafe { deckle_sys::call(libc::SYS_rt_sigprocmask, args) };
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
        if self.slot.state.swap(DONE, AcqRel) == ASLEEP {
            futex::wake(&self.slot.state, 1);
        }
    }
}
