//! Handing a call of the program over to the service.
//!
//! The caller takes a slot of a fixed pool in the library's own memory (never managed, whatever
//! stack the caller runs on), fills it, pushes it and sleeps on its word. A signal that
//! comes meanwhile waits: it could leave by longjmp, and the slot would be lost. No lock, no
//! thread-local state: works in any context, also in a vfork child.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize};
use core::time::Duration;
use deckle_task::futex;

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
    /// address, bytes: whether all of it is mapped.
    Mapped,
    /// address, bytes -> 1 if nothing is mapped there, for the program.
    Free,
    /// thread id: stand still, for a fork by this thread.
    ForkBegin,
    /// The fork is done, or has failed.
    ForkEnd,
}

const OPS: [Op; 16] = [
    Op::Map,
    Op::MapFixed,
    Op::Unmap,
    Op::Protect,
    Op::Advise,
    Op::Lock,
    Op::Unlock,
    Op::LockAll,
    Op::UnlockAll,
    Op::Remap,
    Op::Leave,
    Op::Surrender,
    Op::Mapped,
    Op::Free,
    Op::ForkBegin,
    Op::ForkEnd,
];

// A slot holds the place of an operation in the list.
const _: () = {
    let mut place = 0;
    while place < OPS.len() {
        assert!(OPS[place] as usize == place);
        place += 1;
    }
};

const FREE: u32 = 0;
const TAKEN: u32 = 1;
const POSTED: u32 = 2;
const DONE: u32 = 3;

/// Most requests at one time.
pub const SLOTS: usize = 256;
/// End of a list of slots.
const NONE: u32 = u32::MAX;

#[repr(C, align(128))]
struct Slot {
    state: AtomicU32,
    op: AtomicU32,
    next: AtomicU32,
    args: [AtomicUsize; 6],
    /// The result, or minus the errno.
    result: AtomicU64,
}

static SLOT: [Slot; SLOTS] = [const {
    Slot {
        state: AtomicU32::new(FREE),
        op: AtomicU32::new(0),
        next: AtomicU32::new(NONE),
        args: [const { AtomicUsize::new(0) }; 6],
        result: AtomicU64::new(0),
    }
}; SLOTS];
/// The last slot that was pushed; the service takes the whole list.
static PUSHED: AtomicU32 = AtomicU32::new(NONE);
/// Changes with each push.
static BELL: AtomicU32 = AtomicU32::new(0);
/// Where the search for a free slot begins.
static NEXT: AtomicU32 = AtomicU32::new(0);

/// Asks the service and waits for its answer.
///
/// # Errors
/// The errno that the call shall fail with.
pub fn request(op: Op, args: [usize; 6]) -> Result<usize, i32> {
    let before = set_mask(u64::MAX);
    let result = ask(op, args);
    set_mask(before);
    result
}

/// Sets the calling thread's signal mask; what it was.
fn set_mask(mask: u64) -> u64 {
    let mut before = 0_u64;
    let args = [
        libc::SIG_SETMASK as usize,
        &raw const mask as usize,
        &raw mut before as usize,
        size_of::<u64>(),
        0,
        0,
    ];
    // SAFETY: reads and writes a word each; cannot fail.
    let _ = unsafe { crate::sys::call(libc::SYS_rt_sigprocmask, args) };
    before
}

fn ask(op: Op, args: [usize; 6]) -> Result<usize, i32> {
    let slot = take();
    for (to, from) in slot.args.iter().zip(args) {
        to.store(from, Relaxed);
    }
    slot.op.store(op as u32, Relaxed);
    slot.state.store(POSTED, Release);
    push(slot);
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

fn take() -> &'static Slot {
    loop {
        let from = NEXT.fetch_add(1, Relaxed) as usize;
        for turn in 0..SLOTS {
            let slot = &SLOT[(from + turn) % SLOTS];
            if slot
                .state
                .compare_exchange(FREE, TAKEN, AcqRel, Relaxed)
                .is_ok()
            {
                return slot;
            }
        }
        // More callers than slots: some of them are about to be answered.
        futex::wait(&BELL, BELL.load(Relaxed), Some(Duration::from_millis(1)));
    }
}

fn push(slot: &'static Slot) {
    let index = (core::ptr::from_ref(slot) as usize - SLOT.as_ptr() as usize) / size_of::<Slot>();
    let mut last = PUSHED.load(Relaxed);
    loop {
        slot.next.store(last, Relaxed);
        match PUSHED.compare_exchange_weak(last, index as u32, AcqRel, Relaxed) {
            Ok(_) => break,
            Err(now) => last = now,
        }
    }
    BELL.fetch_add(1, Release);
    futex::wake(&BELL, 1);
}

/// A request in the hands of the service.
pub struct Request {
    slot: &'static Slot,
}

impl Request {
    /// What is asked.
    pub fn op(&self) -> Op {
        OPS[self.slot.op.load(Relaxed) as usize % OPS.len()]
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

/// The service's side: waits for requests, at most `timeout`, and hands each to `serve`, the
/// oldest first.
pub fn serve(timeout: Duration, mut serve: impl FnMut(Request)) {
    let bell = BELL.load(Acquire);
    let mut last = PUSHED.swap(NONE, AcqRel);
    if last == NONE {
        futex::wait(&BELL, bell, Some(timeout));
        last = PUSHED.swap(NONE, AcqRel);
    }
    // Turned round: the list begins with the youngest.
    let mut first = NONE;
    while last != NONE {
        let next = SLOT[last as usize].next.swap(first, Relaxed);
        first = last;
        last = next;
    }
    while first != NONE {
        let slot = &SLOT[first as usize];
        first = slot.next.load(Relaxed);
        serve(Request { slot });
    }
}

/// In a child of fork: slots of threads that do not exist here are free again.
pub fn forget_others() {
    PUSHED.store(NONE, Relaxed);
    for slot in &SLOT {
        slot.state.store(FREE, Relaxed);
    }
}
