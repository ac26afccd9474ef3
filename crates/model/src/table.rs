//! Page tables: per block nothing, one huge entry, or 512 entries.

use deckle_mm::{BLOCK_PAGES, BlockNr, Pfn, Prot, Vpn};
use std::collections::BTreeMap;

/// What an entry points to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Target {
    Frame(Pfn),
    /// The shared zero page: never writable.
    Zero,
}

/// A present entry. In a huge entry the target is the block's first frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Pte {
    pub target: Target,
    pub prot: Prot,
    /// Write-protected for tracking or sharing.
    pub wp: bool,
    pub dirty: bool,
}

impl Pte {
    pub fn new(target: Target, prot: Prot) -> Pte {
        Pte {
            target,
            prot,
            wp: false,
            dirty: false,
        }
    }
    pub fn can_write(&self) -> bool {
        self.prot.write && !self.wp && self.target != Target::Zero
    }
    /// The entry of page `i` of a huge entry.
    pub fn part(&self, i: u32) -> Pte {
        let target = match self.target {
            Target::Frame(pfn) => Target::Frame(pfn.add(i)),
            Target::Zero => Target::Zero,
        };
        Pte { target, ..*self }
    }
}

pub(crate) enum Block {
    Huge(Pte),
    Table(Box<[Option<Pte>; BLOCK_PAGES as usize]>),
}

#[derive(Default)]
pub(crate) struct Space {
    pub blocks: BTreeMap<u64, Block>,
}

impl Space {
    /// The entry that translates `vpn`, and whether it is huge (then already the part).
    pub fn lookup(&self, vpn: Vpn) -> Option<(Pte, bool)> {
        match self.blocks.get(&vpn.block().0)? {
            Block::Huge(pte) => Some((pte.part(vpn.index()), true)),
            Block::Table(t) => t[vpn.index() as usize].map(|pte| (pte, false)),
        }
    }
    pub fn huge(&self, block: BlockNr) -> Option<Pte> {
        match self.blocks.get(&block.0) {
            Some(Block::Huge(pte)) => Some(*pte),
            _ => None,
        }
    }
    /// Whether nothing of the block is mapped (an empty table may be there).
    pub fn is_empty(&self, block: BlockNr) -> bool {
        match self.blocks.get(&block.0) {
            None => true,
            Some(Block::Huge(_)) => false,
            Some(Block::Table(t)) => t.iter().all(Option::is_none),
        }
    }
    /// The entry behind `vpn` itself, to set its bits.
    pub fn entry(&mut self, vpn: Vpn) -> Option<&mut Pte> {
        match self.blocks.get_mut(&vpn.block().0)? {
            Block::Huge(pte) => Some(pte),
            Block::Table(t) => t[vpn.index() as usize].as_mut(),
        }
    }
    /// Sets one small entry; a huge one in its place is split first. True if one was.
    pub fn set(&mut self, vpn: Vpn, pte: Option<Pte>) -> bool {
        let block = (self.blocks.entry(vpn.block().0))
            .or_insert_with(|| Block::Table(Box::new([None; BLOCK_PAGES as usize])));
        let mut split = false;
        if let Block::Huge(huge) = *block {
            let parts = std::array::from_fn(|i| Some(huge.part(i as u32)));
            *block = Block::Table(Box::new(parts));
            split = true;
        }
        if let Block::Table(t) = block {
            t[vpn.index() as usize] = pte;
        }
        split
    }
}
