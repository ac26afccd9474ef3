//! The model as an object: construction, switches, and what tests may look at.

use crate::frames::{FrameState, Frames};
use crate::inject::Injection;
use crate::machine::ModelMachine;
use crate::profile::{Profile, RamCoreCow, RamKernelCow};
use crate::rng::Rng;
use crate::state::{Place, State};
use crate::table::{Block, Target};
use crate::tlb::Tlb;
use crate::violation::{Broken, Violation};
use deckle_mm::units::bytes_to_pages;
use deckle_mm::{BLOCK_PAGES, BlockNr, MAX_ORDER, PAGE_SIZE, Pfn, Prot, SpaceId, Vpn};
use std::marker::PhantomData;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// First frame of the model's zone: not 0, so that a frame number is not its index by luck.
pub const FIRST_FRAME: Pfn = Pfn(1 << MAX_ORDER);

/// Entries in a CPU's TLB unless [`Model::set_tlb_entries`] says otherwise. Small enough to
/// replace entries in a test, large enough to keep stale ones for long.
const TLB_ENTRIES: usize = 64;

/// What the machine has done so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Pages mapped, zero mappings not counted.
    pub mapped: u64,
    /// Blocks mapped as one.
    pub mapped_huge: u64,
    /// Pages unmapped.
    pub unmapped: u64,
    /// Pages that the system has made by itself.
    pub made: u64,
    /// Pages that were taken out when the program had unmapped them.
    pub passed_over: u64,
    /// Pages that were written before their zeros were protected.
    pub written: u64,
    /// Operations on a whole block that stopped in the middle.
    pub stopped: u64,
    /// Zero mappings made.
    pub zero_mapped: u64,
    /// Huge mappings that an operation on a part of them has split.
    pub huge_splits: u64,
    /// Runs flushed from all TLBs.
    pub flushes: u64,
    /// Accesses that the TLB has served.
    pub tlb_hits: u64,
    /// Accesses that needed a page walk, faults included.
    pub tlb_misses: u64,
    /// Bytes that `scan_zero` has looked at.
    pub scanned_bytes: u64,
    /// Pages copied by `copy`.
    pub copied: u64,
}

/// A translation as the page table has it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Translation {
    /// The frame; `None` for the shared zero page.
    pub frame: Option<Pfn>,
    /// Rights.
    pub prot: Prot,
    /// Write-protected.
    pub wp: bool,
    /// Dirty bit (the block's, if huge).
    pub dirty: bool,
    /// Part of a huge mapping.
    pub huge: bool,
}

/// The software machine's memory and MMU: a handle, clones are the same machine.
#[derive(Clone)]
pub struct Model<P: Profile = RamKernelCow>(Arc<Shared>, PhantomData<P>);

/// The machine without a kernel below: copy on write is the core's.
pub type CoreModel = Model<RamCoreCow>;

/// The same as [`Model`], which is a handle already.
pub type ModelHandle = Model;

struct Shared {
    state: Mutex<State>,
    machine: OnceLock<ModelMachine>,
    frames: u32,
}

impl Model {
    /// As [`Model::of`], with RAM below a kernel.
    pub fn new(bytes: u64, cpus: usize, seed: u64) -> Model {
        Model::of(bytes, cpus, seed)
    }
}

impl<P: Profile> Model<P> {
    /// A machine with `bytes` of memory (rounded up to pages; at most 2^29 frames) and `cpus`
    /// CPUs. Where frames are slots there are twice as many in each zone as `bytes` has pages,
    /// and as many of the system's own. The seed decides TLB replacement and injected failures.
    pub fn of(bytes: u64, cpus: usize, seed: u64) -> Model<P> {
        let mut frames = bytes_to_pages(bytes).min(1 << 29) as u32;
        let mut zones = frames;
        if !P::RAM {
            frames = (2 * frames).next_multiple_of(1 << MAX_ORDER);
            zones = 2 * frames;
        }
        let own = if P::RAM { 0 } else { frames };
        let first_own = FIRST_FRAME.0 + zones;
        let state = State {
            frames: Frames::new(FIRST_FRAME.0, zones + own),
            spaces: Default::default(),
            tlbs: (0..cpus).map(|_| Tlb::new(TLB_ENTRIES)).collect(),
            stale: Default::default(),
            pins: Default::default(),
            remembered: Default::default(),
            gone: Default::default(),
            moving: None,
            open: Default::default(),
            own: first_own..first_own + own,
            own_next: first_own,
            rng: Rng::new(seed),
            injection: Injection::default(),
            violations: Vec::new(),
            panic_on_violation: false,
            counters: Counters::default(),
        };
        let shared = Shared {
            state: Mutex::new(state),
            machine: OnceLock::new(),
            frames,
        };
        Model(Arc::new(shared), PhantomData)
    }

    /// Lets the scheduler of `machine` switch CPUs before each platform operation, load and
    /// store. Only the first call has an effect.
    pub fn attach(&self, machine: &ModelMachine) {
        let _ = self.0.machine.set(machine.clone());
    }

    /// Before operation `op`: another CPU may go first.
    pub(crate) fn turn(&self, op: &'static str) {
        if let Some(machine) = self.0.machine.get() {
            machine.turn(op);
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        // A panic inside (on a violation, if asked for) leaves the state as after the
        // operation's last whole step.
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Frames in each zone.
    pub fn frames(&self) -> u32 {
        self.0.frames
    }

    // ---- switches ----

    /// Which failures are injected from now on; the default injects none.
    pub fn set_injection(&self, injection: Injection) {
        self.lock().injection = injection;
    }
    /// Size of each TLB; 0 caches nothing. Empties all TLBs.
    pub fn set_tlb_entries(&self, entries: usize) {
        for tlb in &mut self.lock().tlbs {
            *tlb = Tlb::new(entries);
        }
    }
    /// Whether a violation panics where it happens; else it is only recorded.
    pub fn set_panic_on_violation(&self, on: bool) {
        self.lock().panic_on_violation = on;
    }
    /// Pins a page: `unmap` of it stops with `Busy` until [`Model::unpin`], `discard` of it,
    /// or the end of the space.
    pub fn pin(&self, space: SpaceId, vpn: Vpn) {
        self.lock().pins.insert((space, vpn));
    }
    /// Ends the pin of a page.
    pub fn unpin(&self, space: SpaceId, vpn: Vpn) {
        self.lock().pins.remove(&(space, vpn));
    }

    /// Whether a page is left to the system.
    pub fn is_open(&self, space: SpaceId, vpn: Vpn) -> bool {
        self.lock().open.contains_key(&(space, vpn))
    }

    /// Leaves a new mapping's pages to the system, as they are before the core is told of it.
    pub fn leave(&self, space: SpaceId, start: Vpn, pages: u64) {
        let mut state = self.lock();
        for i in 0..pages {
            state.open.insert((space, start.add(i)), Prot::RW);
        }
    }

    /// Forgets what is away, as the copy of a space after a fork has.
    pub fn forget(&self, space: SpaceId) {
        self.lock().remembered.retain(|&(s, _)| s != space);
    }

    // ---- what went wrong ----

    /// The violations so far.
    pub fn violations(&self) -> Vec<Violation> {
        self.lock().violations.clone()
    }
    /// The violations so far, which are forgotten.
    pub fn take_violations(&self) -> Vec<Violation> {
        std::mem::take(&mut self.lock().violations)
    }
    /// Pages whose former translations are not flushed yet.
    pub fn unflushed(&self) -> Vec<(SpaceId, Vpn)> {
        self.lock().stale.keys().copied().collect()
    }
    /// Says that no operation is in progress: every token must have been flushed. Records
    /// [`Broken::TokenDropped`] for each page of a space for which it was not.
    pub fn check_quiescent(&self) {
        let mut state = self.lock();
        let pages: Vec<_> = state.stale.keys().copied().collect();
        for (space, vpn) in pages {
            let place = Place::page(space, vpn);
            state.broken("check_quiescent", Broken::TokenDropped, place);
        }
    }
    /// [`Model::check_quiescent`], then panics with the list if there is any violation.
    pub fn assert_clean(&self) {
        self.check_quiescent();
        let list = self.violations();
        let lines: String = list.iter().map(|v| format!("\n  {v}")).collect();
        assert!(list.is_empty(), "broken pre-conditions:{lines}");
    }

    // ---- what is there ----

    /// What the machine has done so far.
    pub fn counters(&self) -> Counters {
        self.lock().counters
    }
    /// Whether the block is one huge mapping.
    pub fn is_huge(&self, space: SpaceId, block: BlockNr) -> bool {
        let state = self.lock();
        (state.spaces.get(&space)).is_some_and(|s| s.huge(block).is_some())
    }
    /// What the page table says of a page; no TLB is asked and no bit is set.
    pub fn translation(&self, space: SpaceId, vpn: Vpn) -> Option<Translation> {
        let (pte, huge) = self.lock().lookup(space, vpn)?;
        Some(Translation {
            frame: match pte.target {
                Target::Frame(pfn) => Some(pfn),
                Target::Zero => None,
            },
            prot: pte.prot,
            wp: pte.wp,
            dirty: pte.dirty,
            huge,
        })
    }
    /// Every translation of a space by ascending page number, huge ones page by page.
    pub fn translations(&self, space: SpaceId) -> Vec<(Vpn, Translation)> {
        let blocks: Vec<u64> = match self.lock().spaces.get(&space) {
            Some(s) => s.blocks.keys().copied().collect(),
            None => Vec::new(),
        };
        (blocks.into_iter())
            .flat_map(|b| (0..BLOCK_PAGES as u64).map(move |i| Vpn(b * BLOCK_PAGES as u64 + i)))
            .filter_map(|vpn| self.translation(space, vpn).map(|t| (vpn, t)))
            .collect()
    }
    /// What a frame holds; `None` if there is no such frame.
    pub fn frame_state(&self, pfn: Pfn) -> Option<FrameState> {
        self.lock().frames.look(pfn).map(|f| f.state())
    }
    /// How many translations a frame has.
    pub fn map_count(&self, pfn: Pfn) -> u32 {
        self.lock().frames.look(pfn).map_or(0, |f| f.maps)
    }
    /// The bytes of a frame; poison if it holds nothing.
    pub fn frame_bytes(&self, pfn: Pfn) -> [u8; PAGE_SIZE] {
        let mut bytes = [0; PAGE_SIZE];
        bytes.copy_from_slice(self.lock().frames.content(pfn));
        bytes
    }
    /// The frames that hold something, by ascending number.
    pub fn used_frames(&self) -> Vec<(Pfn, FrameState)> {
        let state = self.lock();
        (state.frames.all())
            .map(|(pfn, f)| (pfn, f.state()))
            .filter(|&(_, s)| s != FrameState::Nothing)
            .collect()
    }
    /// Blocks of a space that have a table of 512 entries, be they empty.
    pub fn tables(&self, space: SpaceId) -> usize {
        let state = self.lock();
        let blocks = state.spaces.get(&space).map(|s| s.blocks.values());
        (blocks.into_iter().flatten())
            .filter(|b| matches!(b, Block::Table(_)))
            .count()
    }
    /// Entries that a CPU's TLB holds now. Panics if there is no such CPU.
    pub fn tlb_len(&self, cpu: usize) -> usize {
        self.lock().tlbs[cpu].len()
    }
}
