//! The block of memory that both sides know.

use crate::held::Held;
use crate::known::Known;
use crate::places::Places;
use crate::request::Requests;
use core::cell::UnsafeCell;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, AtomicUsize};
use libc::c_long;

/// How a service begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Mode {
    /// In a program that had none.
    First = 0,
    /// In a child of fork, on the copy of its parent's state.
    Child = 1,
}

/// What came of a start.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum State {
    /// Not known yet.
    Pending = 0,
    /// The service runs.
    Runs = 1,
    /// It does not, for the reason in [`Door::reason`].
    Failed = 2,
}

/// Why there is no service: the system has no task for it, which a program knows how to take.
pub const NO_TASK: &str = "the system refuses a task for its service";
/// The same in a child of fork whose memory is not what its parent's service takes it for, since
/// another thread has mapped or unmapped some by a call that was not seen.
pub const STALE: &str = "its memory was changed by system calls that were not seen";

/// A string of at most `N` bytes that one side writes and the other reads after.
#[repr(C)]
pub struct Text<const N: usize> {
    bytes: UnsafeCell<[u8; N]>,
    len: AtomicUsize,
}

// SAFETY: whoever writes it does so before it stores the length, with Release, and nobody writes
// while another may read: `set` is for one side at a time, by the protocol of its field.
unsafe impl<const N: usize> Sync for Text<N> {}

impl<const N: usize> Text<N> {
    /// Empty.
    pub const fn new() -> Text<N> {
        Text {
            bytes: UnsafeCell::new([0; N]),
            len: AtomicUsize::new(0),
        }
    }

    /// Writes the text, cut at the end of the room. For one caller at a time, while nobody reads.
    pub fn set(&self, text: &[u8]) {
        self.set_all(&[text]);
    }

    /// The same for a text in parts. Whether there was room for all of it.
    pub fn set_all(&self, parts: &[&[u8]]) -> bool {
        let (mut used, mut whole) = (0, true);
        for part in parts {
            let n = part.len().min(N - used);
            // SAFETY: inside the array; nobody reads it now, says the caller.
            unsafe {
                let to = self.bytes.get().cast::<u8>().add(used);
                core::ptr::copy_nonoverlapping(part.as_ptr(), to, n);
            }
            used += n;
            whole &= n == part.len();
        }
        self.len.store(used, Release);
        whole
    }

    /// What was written last.
    pub fn get(&self) -> &[u8] {
        let n = self.len.load(Acquire).min(N);
        // SAFETY: written before the length was.
        unsafe { core::slice::from_raw_parts(self.bytes.get().cast(), n) }
    }
}

/// What a program's side and the service share. One of a program, in memory of the program's
/// side that is never managed; a child of fork has a copy, which is its own.
#[repr(C)]
pub struct Door {
    /// [`Mode`] of the start.
    pub mode: AtomicU32,
    /// [`State`] of the start, a futex word.
    pub state: AtomicU32,
    /// Id of the service's first task; the kernel stores 0 here, and wakes, when it has ended.
    pub task: AtomicU32,
    /// Process id of the program.
    pub pid: AtomicI32,
    /// Address of the word that the kernel clears when the program's main thread leaves the
    /// memory; 0: not known.
    pub left: AtomicUsize,
    /// A descriptor that the service shall keep: its connection to `deckle run`; -1: none.
    pub link: AtomicI32,
    /// In a child: the number of the parent's fork that it comes from, not 0.
    pub fork: AtomicU32,
    /// Address of a word in memory that parent and child share, where the child's service
    /// stores the number of the fork once the parent may go on.
    pub forked: AtomicUsize,
    /// Where managed memory may be.
    pub places: Places,
    /// Pages that stay resident, if they are managed or come to be.
    pub held: Held,
    /// Where blocks of the program's own allocator need not be looked at.
    pub known: Known,
    /// Whether memory comes to be managed that was mapped unseen.
    pub adopts: AtomicBool,
    /// The service's own: where its heap begins.
    pub root: AtomicUsize,
    /// System calls that a filter of the program's own does not allow, a bit for each number.
    refused: [AtomicU64; 8],
    /// The program's own soft limit on its address space; `usize::MAX`: none.
    pub limit: AtomicUsize,
    /// Bytes of address space that are none of the program's: roughly, and only kept up to date
    /// while there is a limit.
    pub reserved: AtomicUsize,
    /// What of them the program's side has mapped: the image and the first task's stack.
    pub image: AtomicUsize,
    /// Name of the group.
    pub group: Text<64>,
    /// The defect that is asked for (`DECKLE_FAULT`).
    pub fault: Text<64>,
    /// Why the start has failed.
    pub reason: Text<400>,
    /// Whether usage is so low that the kernel fills holes; a tenth of a second old at most.
    pub far: AtomicBool,
    /// Mappings of so many bytes and more are made by the service while usage is low, too.
    pub large: AtomicUsize,
    /// Pages that are charged, and that the program may map unseen.
    room: AtomicU64,
    /// The program's calls.
    pub requests: Requests,
}

impl Door {
    /// Nothing has begun.
    pub const fn new() -> Door {
        Door {
            mode: AtomicU32::new(Mode::First as u32),
            state: AtomicU32::new(State::Pending as u32),
            task: AtomicU32::new(0),
            pid: AtomicI32::new(0),
            left: AtomicUsize::new(0),
            link: AtomicI32::new(-1),
            fork: AtomicU32::new(0),
            forked: AtomicUsize::new(0),
            places: Places::new(),
            held: Held::new(),
            known: Known::new(),
            adopts: AtomicBool::new(false),
            root: AtomicUsize::new(0),
            refused: [const { AtomicU64::new(0) }; 8],
            limit: AtomicUsize::new(usize::MAX),
            reserved: AtomicUsize::new(0),
            image: AtomicUsize::new(0),
            group: Text::new(),
            fault: Text::new(),
            reason: Text::new(),
            far: AtomicBool::new(false),
            large: AtomicUsize::new(0),
            room: AtomicU64::new(0),
            requests: Requests::new(),
        }
    }

    /// Notes that a filter of the program's own does not allow call `number`.
    pub fn refuse(&self, number: c_long) {
        if let Some(word) = self.refused.get(number as usize / 64) {
            word.fetch_or(1 << (number % 64), Release);
        }
        if number == libc::SYS_rt_sigprocmask {
            crate::request::MASK_STAYS.store(true, Release);
        }
    }

    /// Whether no filter that is known of hinders call `number`: it could end who makes it.
    pub fn may(&self, number: c_long) -> bool {
        let word = self.refused.get(number as usize / 64);
        word.is_none_or(|word| word.load(Acquire) >> (number % 64) & 1 == 0)
    }

    /// All that are not allowed, as bits.
    pub fn refused(&self) -> [u64; 8] {
        self.refused.each_ref().map(|word| word.load(Acquire))
    }

    /// The service's side: it runs.
    pub fn tell(&self) {
        self.end(State::Runs);
    }

    /// The service's side: there is no service.
    pub fn fail(&self, why: &str) {
        self.reason.set(why.as_bytes());
        self.end(State::Failed);
    }

    fn end(&self, state: State) {
        self.state.store(state as u32, Release);
        deckle_sys::futex::wake(&self.state, u32::MAX);
    }

    /// Takes `pages` of the room. False: there is less.
    pub fn take_room(&self, pages: u64) -> bool {
        let less = |room: u64| room.checked_sub(pages);
        self.room.fetch_update(Relaxed, Relaxed, less).is_ok()
    }

    /// Gives `pages` back that were taken; nothing where memory is short.
    pub fn give_room(&self, pages: u64) {
        if pages > 0 && self.far.load(Relaxed) {
            self.room.fetch_add(pages, Relaxed);
        }
    }

    /// The service's side: so much room there is more.
    pub fn add_room(&self, pages: u64) {
        self.room.fetch_add(pages, Relaxed);
    }

    /// The service's side: room that has not been taken.
    pub fn room(&self) -> u64 {
        self.room.load(Relaxed)
    }

    /// The service's side: there is none any more.
    pub fn end_room(&self) {
        self.room.store(0, Relaxed);
    }

    /// What came of the start, as far as it is known.
    pub fn outcome(&self) -> State {
        match self.state.load(Acquire) {
            1 => State::Runs,
            2 => State::Failed,
            _ => State::Pending,
        }
    }
}
