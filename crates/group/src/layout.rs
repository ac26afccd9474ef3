//! The shared page, byte for byte. Only atomics: every process writes it at any time.
//!
//! Whoever may write the file can lie in it (it belongs to the tree's user, mode 0600), so
//! nothing read from here is used as an index or a size without a check.

use crate::publish::Gauges;
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicU32, AtomicU64};
use deckle_mm::{Item, SIZE_ORDERS, SizeItem, Tunables};

/// "deckle" and the sort of file.
pub const MAGIC: u64 = u64::from_le_bytes(*b"deckleGP");
/// Changed with every change of the layout; the number of knobs is in it.
pub const VERSION: u32 = 23 << 8 | Tunables::WORDS as u32;
/// Processes of one group.
pub const LINES: usize = 10_000;
/// Slots per line between which the CPUs of a process are spread.
pub const SLOTS: usize = 8;
/// Sizes of folios that are counted apart.
pub const SIZES: usize = (*SIZE_ORDERS.end() - *SIZE_ORDERS.start()) as usize + 1;

/// Words that belong together, but are read and written one by one.
pub(crate) type Words<const N: usize> = [AtomicU64; N];

pub(crate) fn load<const N: usize>(from: &Words<N>) -> [u64; N] {
    from.each_ref().map(|word| word.load(Relaxed))
}

pub(crate) fn store<const N: usize>(to: &Words<N>, words: [u64; N]) {
    for (to, word) in to.iter().zip(words) {
        to.store(word, Relaxed);
    }
}

/// Counters of every size of folio.
pub(crate) type SizeCounters = [Words<SIZES>; SizeItem::COUNT];

deckle_sys::shared! {
    /// One CPU slot of a line, alone in its cache line: `charged << 24 | unspent`, where
    /// `charged` is signed (pages may be returned on another slot than they were charged on).
    /// One word, so that both always change together.
    #[repr(align(64))]
    pub struct Slot {
        pub(crate) word: AtomicU64,
    }

    /// What may change while the tree runs.
    pub struct Settings {
        // Limits, pages; u64::MAX for none.
        pub(crate) max: AtomicU64,
        pub(crate) high: AtomicU64,
        pub(crate) swap_max: AtomicU64,
        /// What `Tunables::to_words` says.
        pub(crate) knobs: Words<{ Tunables::WORDS }>,
    }

    /// One process.
    #[repr(align(64))]
    pub struct Line {
        /// `pid << 8 | state`, see `line`.
        pub(crate) state: AtomicU64,
        /// Start time of the process in clock ticks since boot.
        pub(crate) start: AtomicU64,
        /// Its pid and time namespaces.
        pub(crate) namespace: AtomicU64,
        /// Changes whenever the line gets a new tenant: another process, or another program after
        /// exec.
        pub(crate) generation: AtomicU32,
        pub(crate) service: AtomicU32,
        /// Set when it was chosen by the out-of-memory killer.
        pub(crate) killed: AtomicU32,
        /// Set when all that it had at its start is charged.
        pub(crate) settled: AtomicU32,
        /// Swap charged, pages.
        pub(crate) swap: AtomicU64,
        /// Who pays for memory that this process shares since a fork, see `lend`; 0: nobody.
        pub(crate) sponsor: AtomicU64,
        /// Which of the sponsor's forks that was.
        pub(crate) fork: AtomicU64,
        /// How much of its store it has still at its sponsor's charge, pages, see `lend`.
        pub(crate) borrowed: AtomicU64,
        /// Resident pages that it shares still at its sponsor's charge, see `lend`.
        pub(crate) shared: AtomicU64,
        /// Pages charged here that only those have who share them with it, see `lend`.
        pub(crate) unbacked: AtomicU64,
        /// Pages that it had when it forked last, and so most that others have of it.
        pub(crate) lent: AtomicU64,
        /// Futex word: goes up when something has changed that this process may have to know.
        pub(crate) news: AtomicU32,
        /// Published by the service.
        pub(crate) gauges: Words<{ Gauges::COUNT }>,
        /// Bytes of its file for swapped pages that are in use.
        pub(crate) filed: AtomicU64,
        /// The least number of a fork of its by which others have this file; 0: nobody has.
        pub(crate) file_holders: AtomicU64,
        // Cross-process reclaim.
        pub(crate) request: AtomicU64,
        pub(crate) answer: AtomicU64,
        /// Futex word: number of requests made.
        pub(crate) doorbell: AtomicU32,
        /// Futex word: number of the last request answered.
        pub(crate) answered: AtomicU32,
        /// Set when it was waited for in vain, until it answers.
        pub(crate) late: AtomicU32,
        pub(crate) counters: Words<{ Item::COUNT }>,
        pub(crate) sizes: SizeCounters,
        pub(crate) slots: [Slot; SLOTS],
    }

    /// The whole file.
    #[repr(align(4096))]
    pub struct Page {
        pub(crate) magic: AtomicU64,
        pub(crate) version: AtomicU32,
        pub(crate) items: AtomicU32,
        pub(crate) bytes: AtomicU64,
        /// How often the settings were changed. Those in force are of this number, modulo two; who
        /// changes them writes the others, and then this.
        pub(crate) changes: AtomicU32,
        pub(crate) settings: [Settings; 2],
        /// The largest `memory.max` that was ever in force, pages.
        pub(crate) largest_max: AtomicU64,
        /// The number of the change by which `memory.max` was lowered last; 0: it has held since.
        pub(crate) lowered: AtomicU64,
        /// Pages that `deckle reclaim` has had reclaimed.
        pub(crate) reclaimed_on_request: AtomicU64,
        pub(crate) swap_kind: AtomicU32,
        /// Most bytes of all files; 0: there are none.
        pub(crate) file_bytes: AtomicU64,
        pub(crate) file_percent: AtomicU32,
        pub(crate) file_encrypt: AtomicU32,
        pub(crate) file_wbps: AtomicU64,
        /// Nothing is written before, nanoseconds of the system's clock.
        pub(crate) file_until: AtomicU64,
        pub(crate) strict: AtomicU32,
        pub(crate) align_mappings: AtomicU32,
        pub(crate) caps_valid: AtomicU32,
        /// CPU slots in use, 1..=SLOTS.
        pub(crate) slots: AtomicU32,
        /// The result of the start-up self-test; its meaning is the platform's.
        pub(crate) caps: AtomicU64,
        // The supervisor.
        pub(crate) supervisor_pid: AtomicU32,
        /// Who the user has started, if that is another process.
        pub(crate) front_pid: AtomicU32,
        /// Start time of the supervisor, and its namespaces; as in a line.
        pub(crate) supervisor_start: AtomicU64,
        pub(crate) supervisor_namespace: AtomicU64,
        /// The tree is only watched.
        pub(crate) unmanaged: AtomicU32,
        /// What the user calls the tree, see `look`.
        pub(crate) alias: Words<{ crate::look::ALIAS_WORDS }>,
        /// Whether it is called so, or about to be.
        pub(crate) alias_state: AtomicU32,
        /// As many lines may be used: the supervisor has descriptors for no more processes.
        pub(crate) lines_max: AtomicU32,
        /// Lines at and above this were never used, and may have no memory yet.
        pub(crate) lines_used: AtomicU32,
        // Peaks.
        pub(crate) peak: AtomicU64,
        pub(crate) swap_peak: AtomicU64,
        pub(crate) peaks: Words<{ Gauges::COUNT }>,
        // Of the whole life of the group.
        pub(crate) oom_kills: AtomicU64,
        pub(crate) joins: AtomicU64,
        pub(crate) generation: AtomicU32,
        pub(crate) unmanaged_programs: AtomicU32,
        /// Counters of processes that are gone.
        pub(crate) dead: Words<{ Item::COUNT }>,
        pub(crate) dead_sizes: SizeCounters,
        pub(crate) lines: [Line; LINES],
    }
}

/// Bytes of address space that a group takes of a process.
pub const BYTES: usize = size_of::<Page>();

// The file is sparse, and only used lines take memory: see `claim`.
const _: () = assert!(size_of::<Line>() <= 2048 && LINES < u16::MAX as usize);
const _: () = assert!(size_of::<Slot>() == 64);
