//! A block: 2 MiB of a space, the unit of locking.
//!
//! A block is empty, one huge mapping, a table of 512 entries, a huge page swapped out whole
//! (one record instead of 512 entries), or busy as a whole. Who wants to work on pages
//! without the lock marks them busy under the lock, works, then locks again and writes the
//! outcome; waiters park on `seq`, which changes whenever a busy mark goes.

use crate::machine::{LockClass, Machine, OnMachine};
use crate::platform::Prot;
use crate::sync::{Guard, Lock};
use crate::table::entry::{Entry, Kind};
use crate::table::marks::Marks;
use crate::table::walk::Window;
use crate::units::{BLOCK_PAGES, PageMask, Pfn, Slot};
use alloc::boxed::Box;
use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// A huge page of the program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HugeMap {
    /// Its first frame.
    pub pfn: Pfn,
    /// How the program has it.
    pub has: Presence,
    /// Rights of the VMA.
    pub prot: Prot,
    /// mlocked.
    pub locked: bool,
    /// What is tracked of all its pages; guarded then, if it is mapped.
    pub marks: Marks,
}

/// How a program has a resident huge page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Presence {
    /// Not mapped.
    Inactive,
    /// The same, and lazily freed.
    Lazy,
    /// Mapped with its rights.
    Mapped,
    /// Mapped, write-protected.
    Guarded,
    /// The same, and others may hold it too, since a fork.
    Shared,
}

impl Presence {
    /// Mapped, write-protected or not.
    pub fn shown(guarded: bool) -> Presence {
        match guarded {
            true => Presence::Guarded,
            false => Presence::Mapped,
        }
    }
}

impl HugeMap {
    /// Whether the program has it mapped.
    pub fn mapped(&self) -> bool {
        !matches!(self.has, Presence::Inactive | Presence::Lazy)
    }
    /// Whether it is write-protected.
    pub fn guarded(&self) -> bool {
        matches!(self.has, Presence::Guarded | Presence::Shared)
    }
    /// Whether others may hold it too.
    pub fn shared(&self) -> bool {
        self.has == Presence::Shared
    }
}

/// A huge page that was swapped out whole.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HugeSwap {
    /// Pages that held only zeros and were not stored.
    pub zero: PageMask,
    /// Slot of the first stored page; the others follow in order.
    pub first: Slot,
    /// Rights of the VMA.
    pub prot: Prot,
    /// What is tracked of all its pages.
    pub marks: Marks,
}

impl HugeSwap {
    /// The entry of page `i` in table form.
    pub fn entry(&self, i: u32) -> Entry {
        let kind = if self.zero.get(i) {
            Kind::DROPPED
        } else {
            Kind::Swapped(self.first.add(i - self.zero.rank(i)))
        };
        Entry::new(kind, self.prot, false).marked(self.marks)
    }
}

/// Entries of a piece of a table.
const PIECE: usize = 32;
/// Pieces of a table.
const PIECES: usize = BLOCK_PAGES as usize / PIECE;

type Piece = Box<[Entry; PIECE]>;

/// A table of 512 entries, in pieces: a program that uses a page here and there pays for those
/// alone. `None` is a piece of holes.
#[derive(Clone, Default)]
pub struct Table([Option<Piece>; PIECES]);

impl Table {
    /// A table of holes.
    pub fn new() -> Box<Table> {
        Box::default()
    }
    /// Entry `i`; none beyond the end.
    pub fn get(&self, i: u32) -> Entry {
        let i = i as usize;
        match self.0.get(i / PIECE) {
            Some(Some(piece)) => piece[i % PIECE],
            _ => Entry::NONE,
        }
    }
    /// Sets entry `i`; ignored beyond the end.
    pub fn set(&mut self, i: u32, e: Entry) {
        let i = i as usize;
        match self.0.get_mut(i / PIECE) {
            Some(Some(piece)) => piece[i % PIECE] = e,
            Some(none) if !e.is_none() => {
                none.insert(Box::new([Entry::NONE; PIECE]))[i % PIECE] = e;
            }
            _ => {}
        }
    }
    /// All entries but those of pieces of holes.
    pub fn present(&self) -> impl Iterator<Item = Entry> + '_ {
        self.0
            .iter()
            .flatten()
            .flat_map(|piece| piece.iter().copied())
    }
    /// The same, to be changed.
    pub fn present_mut(&mut self) -> impl Iterator<Item = &mut Entry> + '_ {
        self.0
            .iter_mut()
            .flatten()
            .flat_map(|piece| piece.iter_mut())
    }
    /// All entries.
    pub fn entries(&self) -> impl Iterator<Item = Entry> + '_ {
        (0..BLOCK_PAGES).map(|i| self.get(i))
    }
    /// The entries that are `such`, of pieces in which there are only holes beside them.
    pub(crate) fn alone(&self, such: impl Fn(Entry) -> bool) -> PageMask {
        let mut alone = PageMask::EMPTY;
        for (n, piece) in self.0.iter().enumerate() {
            let Some(piece) = piece else { continue };
            if piece.iter().all(|&e| e.is_none() || such(e)) {
                let there = (0..PIECE).filter(|&k| !piece[k].is_none());
                there.for_each(|k| alone.set((n * PIECE + k) as u32));
            }
        }
        alone
    }
    /// Frees the pieces of holes; whether there is nothing else.
    fn tidy(&mut self) -> bool {
        let mut is_empty = true;
        for place in &mut self.0 {
            if place
                .as_ref()
                .is_some_and(|p| p.iter().all(|e| e.is_none()))
            {
                *place = None;
            }
            is_empty &= place.is_none();
        }
        is_empty
    }
    /// Bytes on the heap, its own included.
    fn heap_bytes(&self) -> usize {
        size_of::<Table>() + self.0.iter().flatten().count() * size_of::<[Entry; PIECE]>()
    }
    /// Whether any entry of `first..first + pages` is busy.
    pub fn busy_in(&self, first: u32, pages: u32) -> bool {
        (first..first + pages).any(|i| self.get(i).is_busy())
    }
}

/// The indices without a gap around `i` that `join` it, of those `within`.
pub(crate) fn around(i: u32, within: Range<u32>, join: impl Fn(u32) -> bool) -> Range<u32> {
    let (mut first, mut end) = (i, i + 1);
    while first > within.start && join(first - 1) {
        first -= 1;
    }
    while end < within.end && join(end) {
        end += 1;
    }
    first..end
}

/// What a block is.
#[derive(Default)]
pub enum BlockState {
    /// Nothing was ever mapped, or everything was discarded.
    #[default]
    Empty,
    /// One huge page.
    Huge(HugeMap),
    /// One huge page, swapped out.
    HugeSwapped(Box<HugeSwap>),
    /// 512 entries.
    Table(Box<Table>),
    /// Owned as a whole by one CPU.
    Busy,
}

impl BlockState {
    /// The state of page `i` as an entry; for huge pages the subpage's.
    pub fn entry(&self, i: u32) -> Entry {
        match self {
            BlockState::Empty => Entry::NONE,
            BlockState::Busy => Entry::new(Kind::Busy, Prot::NONE, false),
            BlockState::Huge(h) => {
                let p = h.pfn.add(i);
                let of = |kind| Entry::new(kind, h.prot, h.locked).marked(h.marks);
                match h.has {
                    Presence::Inactive | Presence::Lazy => of(Kind::Inactive(p)),
                    Presence::Mapped => of(Kind::Mapped(p)),
                    Presence::Guarded => of(Kind::Mapped(p)).guard(false),
                    Presence::Shared => of(Kind::Mapped(p)).guard(true),
                }
            }
            BlockState::HugeSwapped(s) => s.entry(i),
            BlockState::Table(t) => t.get(i),
        }
    }

    /// The block as a table; an empty or swapped huge block becomes one. `None` if the block
    /// is busy or a resident huge page.
    pub fn table(&mut self) -> Option<&mut Table> {
        match self {
            BlockState::Empty => *self = BlockState::Table(Table::new()),
            BlockState::HugeSwapped(s) => {
                let mut t = Table::new();
                for i in 0..BLOCK_PAGES {
                    t.set(i, s.entry(i));
                }
                *self = BlockState::Table(t);
            }
            _ => {}
        }
        match self {
            BlockState::Table(t) => Some(t),
            _ => None,
        }
    }

    /// Whether every page is a page of zeros that a read has left, mapped or moved since.
    pub(crate) fn is_zeros(&self) -> bool {
        let is_zero = |e: Entry| matches!(e.kind(), Kind::Zero { dropped: false, .. });
        matches!(self, BlockState::Table(t) if t.entries().all(is_zero))
    }

    /// Bytes on the heap.
    pub(crate) fn heap_bytes(&self) -> usize {
        match self {
            BlockState::HugeSwapped(_) => size_of::<HugeSwap>(),
            BlockState::Table(t) => t.heap_bytes(),
            _ => 0,
        }
    }

    /// Frees what of a table is holes; a table of holes becomes an empty block.
    pub fn tidy(&mut self) {
        if let BlockState::Table(t) = self
            && t.tidy()
        {
            *self = BlockState::Empty;
        }
    }
}

/// A block with its lock.
pub struct Block {
    state: Lock<BlockState>,
    seq: AtomicU32,
    /// Who waits for `seq` to change. (A copy in a child of fork may have those of its parent,
    /// which costs wake-ups of nobody.)
    waiting: AtomicU32,
    /// The pass of the shrinker that last took a huge page of it apart; 0 for none, its largest
    /// value where the program had one taken apart.
    pub(crate) shrunk: AtomicU32,
    /// What the last swap-in brought back.
    pub(crate) window: Window,
    /// Pages that came back since.
    pub(crate) back: AtomicU32,
    /// Whether a read has mapped zeros over all of it at once: Linux's huge page of zeros.
    pub(crate) huge_zero: AtomicBool,
}

impl Block {
    /// An empty block; `at` orders the locks of two blocks.
    pub fn new(at: u64) -> Block {
        Block {
            state: Lock::new(LockClass::Block, at, BlockState::Empty),
            seq: AtomicU32::new(0),
            waiting: AtomicU32::new(0),
            shrunk: AtomicU32::new(0),
            window: Window::new(),
            back: AtomicU32::new(0),
            huge_zero: AtomicBool::new(false),
        }
    }

    /// Whether the block is empty. The caller has it alone, so this takes no lock.
    pub(crate) fn is_empty(&mut self) -> bool {
        matches!(self.state.get_mut(), BlockState::Empty)
    }

    /// Whether it is Linux's huge page of zeros; its state is locked.
    pub(crate) fn has_huge_zero(&self, state: &BlockState) -> bool {
        self.huge_zero.load(Ordering::Relaxed) && state.is_zeros()
    }

    /// Locks the block.
    pub fn lock<'a, O: OnMachine>(&'a self, on: &'a O) -> Guard<'a, BlockState, O::M> {
        self.state.lock(on.machine())
    }

    /// Locks the block if nobody holds the lock.
    pub fn try_lock<'a, O: OnMachine>(&'a self, on: &'a O) -> Option<Guard<'a, BlockState, O::M>> {
        self.state.try_lock(on.machine())
    }

    /// What a waiter passes to [`Block::wait`]; read with the lock held.
    pub fn ticket(&self) -> u32 {
        self.seq.load(Ordering::Acquire)
    }

    /// Waits until a busy mark went since `ticket` was read. No lock held.
    pub fn wait<O: OnMachine>(&self, on: &O, ticket: u32) {
        // Before the word is looked at: who changes it next sees that somebody waits.
        self.waiting.fetch_add(1, Ordering::SeqCst);
        while self.seq.load(Ordering::SeqCst) == ticket {
            on.machine().park(&self.seq, ticket);
        }
        self.waiting.fetch_sub(1, Ordering::Relaxed);
    }

    /// Says that busy marks went; called by their owner (`engine/busy.rs`)
    /// alone, with the lock held, after the entries were written.
    pub(crate) fn settled<O: OnMachine>(&self, on: &O) {
        self.seq.fetch_add(1, Ordering::SeqCst);
        if self.waiting.load(Ordering::SeqCst) > 0 {
            on.machine().unpark(&self.seq, u32::MAX);
        }
    }
}

/// In place of the pass: the program's doing, not the shrinker's.
pub(crate) const PROGRAM: u32 = u32::MAX;
