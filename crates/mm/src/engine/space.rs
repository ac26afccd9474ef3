//! An address space: its window, its VMAs, and the directory of its blocks.

use crate::engine::Engine;
use crate::env::Env;
use crate::machine::LockClass;
use crate::order::Adapt;
use crate::platform::{Platform, PlatformError};
use crate::sync::Lock;
use crate::table::block::Block;
use crate::table::vma::{Vma, VmaTree};
use crate::table::walk::Jumps;
use crate::units::{BLOCK_PAGES, BlockNr, SpaceId, Vpn};
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Blocks in a leaf of the block directory: 16 MiB of addresses.
const LEAF_BLOCKS: u64 = 8;

/// Why a call on a mapping failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MapError {
    /// No such space.
    NoSpace(SpaceId),
    /// The range is empty, wraps, lies outside the space's window, or has not the rights.
    BadRange(Vpn, u64),
    /// A part of the range is not mapped (ENOMEM of mprotect and madvise).
    Hole(Vpn),
    /// No free area of this many pages.
    NoRoom(u64),
    /// The pages must stay resident and the limit does not allow it.
    Limit,
    /// The system refused.
    Platform(PlatformError),
    /// Populating failed (see the fault's own error).
    Fault(Vpn),
}

impl fmt::Display for MapError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MapError::NoSpace(s) => write!(f, "no address space {s}"),
            MapError::BadRange(v, n) => write!(f, "bad range: {n} pages at {v}"),
            MapError::Hole(v) => write!(f, "nothing is mapped at {v}"),
            MapError::NoRoom(n) => write!(f, "no free area of {n} pages"),
            MapError::Limit => f.write_str("the limit does not allow locking these pages"),
            MapError::Platform(e) => write!(f, "the system refused: {e}"),
            MapError::Fault(v) => write!(f, "page {v} could not be populated"),
        }
    }
}

impl core::error::Error for MapError {}

type Leaf = [Block; LEAF_BLOCKS as usize];

/// One address space.
pub struct Space {
    /// Its number.
    pub id: SpaceId,
    /// First page of the window.
    pub base: Vpn,
    /// Pages of the window.
    pub pages: u64,
    /// Serialises the calls that change mappings; never taken by faults or reclaim.
    pub mmap_lock: Lock<()>,
    vmas: Lock<VmaTree>,
    /// Changes with every edit of the tree: a fault that looked a VMA up without the lock
    /// finds out under the block's lock whether what it saw still holds.
    seq: AtomicU64,
    leaves: Lock<BTreeMap<u64, Arc<Leaf>>>,
    /// What the faults of its VMAs have shown.
    pub(crate) adapt: Adapt,
    /// What swap faults bring back that follow no other.
    pub(crate) jumps: Jumps,
    /// The shared zero page must not be mapped.
    zero_forbidden: AtomicBool,
}

/// A block kept alive by its leaf.
#[derive(Clone)]
pub struct BlockRef {
    leaf: Arc<Leaf>,
    index: usize,
}

impl core::ops::Deref for BlockRef {
    type Target = Block;
    fn deref(&self) -> &Block {
        &self.leaf[self.index]
    }
}

impl Space {
    fn new(id: SpaceId, base: Vpn, pages: u64) -> Space {
        Space {
            id,
            base,
            pages,
            mmap_lock: Lock::new(LockClass::MmapLock, id.0 as u64, ()),
            vmas: Lock::new(LockClass::VmaTree, id.0 as u64, VmaTree::new()),
            seq: AtomicU64::new(0),
            leaves: Lock::new(LockClass::BlockDir, id.0 as u64, BTreeMap::new()),
            adapt: Adapt::default(),
            jumps: Jumps::new(),
            zero_forbidden: AtomicBool::new(false),
        }
    }

    /// Whether the range is not empty and inside the window.
    pub fn contains(&self, start: Vpn, pages: u64) -> bool {
        pages > 0
            && start >= self.base
            && start
                .0
                .checked_add(pages)
                .is_some_and(|end| end <= self.base.0 + self.pages)
    }

    /// Whether the shared zero page must not be mapped here.
    pub(crate) fn forbids_zero(&self) -> bool {
        self.zero_forbidden.load(Ordering::Acquire)
    }

    /// Says whether; nothing is mapped here yet.
    pub(crate) fn forbid_zero(&self, on: bool) {
        self.zero_forbidden.store(on, Ordering::Release);
    }

    /// The VMA of a page, and the sequence number under which it was seen.
    pub fn vma<E: Env>(&self, mm: &Engine<E>, page: Vpn) -> (Option<Vma>, u64) {
        let tree = self.vmas.lock(mm.machine());
        let seq = self.seq.load(Ordering::Acquire);
        (tree.find(page).copied(), seq)
    }

    /// Whether the tree was edited since `seq`; asked with the block locked.
    pub fn changed(&self, seq: u64) -> bool {
        self.seq.load(Ordering::Acquire) != seq
    }

    /// Reads the tree.
    pub fn read_vmas<E: Env, R>(&self, mm: &Engine<E>, read: impl FnOnce(&VmaTree) -> R) -> R {
        read(&self.vmas.lock(mm.machine()))
    }

    /// Says that a write is served in the VMA of a page. Whoever looks at it need not look again.
    pub fn touch<E: Env>(&self, mm: &Engine<E>, page: Vpn) {
        self.vmas.lock(mm.machine()).touch(page);
    }

    /// Edits the tree; the mmap lock is held.
    pub fn edit_vmas<E: Env, R>(&self, mm: &Engine<E>, edit: impl FnOnce(&mut VmaTree) -> R) -> R {
        let mut tree = self.vmas.lock(mm.machine());
        let r = edit(&mut tree);
        self.seq.fetch_add(1, Ordering::Release);
        r
    }

    /// The block, created on first use.
    pub fn block<E: Env>(&self, mm: &Engine<E>, nr: BlockNr) -> BlockRef {
        let key = nr.0 / LEAF_BLOCKS;
        let mut leaves = self.leaves.lock(mm.machine());
        let leaf = leaves.entry(key).or_insert_with(|| {
            let first = key * LEAF_BLOCKS;
            Arc::new(core::array::from_fn(|n| Block::new(first + n as u64)))
        });
        BlockRef {
            leaf: leaf.clone(),
            index: (nr.0 % LEAF_BLOCKS) as usize,
        }
    }

    /// The block if anything near it was ever touched.
    pub fn block_if_any<E: Env>(&self, mm: &Engine<E>, nr: BlockNr) -> Option<BlockRef> {
        Some(BlockRef {
            leaf: self.leaf_if_any(mm, nr)?,
            index: (nr.0 % LEAF_BLOCKS) as usize,
        })
    }

    fn leaf_if_any<E: Env>(&self, mm: &Engine<E>, nr: BlockNr) -> Option<Arc<Leaf>> {
        let leaves = self.leaves.lock(mm.machine());
        leaves.get(&(nr.0 / LEAF_BLOCKS)).cloned()
    }

    /// The first page behind the leaf of a block for which there is a leaf.
    fn next_leaf<E: Env>(&self, mm: &Engine<E>, nr: BlockNr) -> Option<Vpn> {
        let leaves = self.leaves.lock(mm.machine());
        let (key, _) = leaves.range(nr.0 / LEAF_BLOCKS + 1..).next()?;
        Some(BlockNr(key * LEAF_BLOCKS).start())
    }

    /// Frees the leaves of a range whose blocks are all empty and held by no task.
    pub(crate) fn free_leaves<E: Env>(&self, mm: &Engine<E>, start: Vpn, pages: u64) {
        if pages == 0 {
            return;
        }
        let key = |page: Vpn| page.block().0 / LEAF_BLOCKS;
        let mut leaves = self.leaves.lock(mm.machine());
        let range = key(start)..=key(start.add(pages - 1));
        let is_free = |leaf: &mut Arc<Leaf>| match Arc::get_mut(leaf) {
            Some(leaf) => leaf.iter_mut().all(Block::is_empty),
            None => false,
        };
        let free = leaves
            .range_mut(range)
            .filter_map(|(key, leaf)| is_free(leaf).then_some(*key));
        for key in free.collect::<Vec<_>>() {
            leaves.remove(&key);
        }
    }

    /// The parts `(block, first page, pages)` of a range that lie in blocks which exist,
    /// in order; stretches that were never touched are skipped at once.
    pub fn parts<'a, E: Env>(
        &'a self,
        mm: &'a Engine<E>,
        start: Vpn,
        pages: u64,
    ) -> impl Iterator<Item = (BlockRef, Vpn, u32)> + 'a {
        let end = start.0.saturating_add(pages);
        let mut at = start;
        let mut leaf = None;
        core::iter::from_fn(move || {
            while at.0 < end {
                let nr = at.block();
                let stop = end.min(nr.start().0 + BLOCK_PAGES as u64);
                let index = (nr.0 % LEAF_BLOCKS) as usize;
                if index == 0 || leaf.is_none() {
                    leaf = self.leaf_if_any(mm, nr);
                }
                match leaf.clone() {
                    Some(leaf) => {
                        let first = at;
                        at = Vpn(stop);
                        let block = BlockRef { leaf, index };
                        return Some((block, first, (stop - first.0) as u32));
                    }
                    None => at = self.next_leaf(mm, nr)?,
                }
            }
            None
        })
    }
}

impl<E: Env> Engine<E> {
    /// Creates a space with the window `[base, base + pages)`. `base` must be the first page
    /// of a block.
    pub fn create_space(&self, base: Vpn, pages: u64) -> Result<SpaceId, MapError> {
        let fits = base.0.checked_add(pages).is_some_and(|end| end < 1 << 48);
        if base.index() != 0 || pages == 0 || !fits {
            return Err(MapError::BadRange(base, pages));
        }
        let mut spaces = self.spaces.lock(self.machine());
        let free = spaces
            .iter()
            .position(|s| s.is_none())
            .unwrap_or(spaces.len());
        let Ok(nr) = u16::try_from(free) else {
            return Err(MapError::NoRoom(pages));
        };
        let id = SpaceId(nr);
        self.memory().create_space(id).map_err(MapError::Platform)?;
        let space = Some(Arc::new(Space::new(id, base, pages)));
        match spaces.get_mut(free) {
            Some(place) => *place = space,
            None => spaces.push(space),
        }
        Ok(id)
    }

    /// Ends a space in which nothing is mapped. Its number is free only when the platform has
    /// no space of this number any more.
    pub(crate) fn end_space(&self, id: SpaceId) {
        self.memory().destroy_space(id);
        self.spaces.lock(self.machine())[usize::from(id.0)] = None;
    }

    /// Resident pages of a space (RSS): mapped or inactive, shared ones counted in each space
    /// that has them. Walks the tables.
    pub fn resident(&self, id: SpaceId) -> u64 {
        let Ok(space) = self.space(id) else { return 0 };
        let count = |(block, _, _): (BlockRef, Vpn, u32)| {
            let state = block.lock(self);
            (0..BLOCK_PAGES)
                .filter(|&k| state.entry(k).frame().is_some())
                .count() as u64
        };
        space.parts(self, space.base, space.pages).map(count).sum()
    }

    /// Bytes of all block directories and tables, found by a walk over them.
    pub fn table_bytes(&self) -> u64 {
        let bytes = |space: Arc<Space>| {
            let leaves = space.leaves.lock(self.machine()).clone();
            let blocks = leaves.values().flat_map(|leaf| leaf.iter());
            let tables = blocks.map(|block| block.lock(self).heap_bytes());
            (leaves.len() * size_of::<Leaf>() + tables.sum::<usize>()) as u64
        };
        self.all_spaces().into_iter().map(bytes).sum()
    }

    /// The space of this number.
    pub(crate) fn space(&self, id: SpaceId) -> Result<Arc<Space>, MapError> {
        let spaces = self.spaces.lock(self.machine());
        spaces
            .get(id.0 as usize)
            .and_then(Option::clone)
            .ok_or(MapError::NoSpace(id))
    }

    /// The VMAs of a range, cut at its edges, by address.
    pub fn mapped_parts(&self, id: SpaceId, start: Vpn, pages: u64) -> Vec<Vma> {
        let Ok(space) = self.space(id) else {
            return Vec::new();
        };
        space.read_vmas(self, |t| t.range(start, pages).collect())
    }
}
