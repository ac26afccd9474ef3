//! Finding the huge pages of a mapping, without reading a byte of them.

use std::collections::{BTreeMap, HashMap};

use deckle_sys::Errno;
use deckle_uffd::{Categories, PageEntry, PagemapScan};

use crate::folios::{Folio, Folios};
use crate::reader::Reader;
use crate::smaps::Vma;
use crate::{BLOCK, BLOCK_PAGES, PAGE};

/// What becomes of a huge page when memory is short.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Kind {
    /// It is split if it is underused.
    Free,
    /// A part of it is held and mapped nowhere: it is split whatever it holds.
    Partial,
    /// Its pages are locked: a split frees none of them.
    Locked,
    /// Other processes, or other mappings, have it, too.
    Shared,
    /// The same, and a part of it is held and mapped nowhere.
    SharedPartial,
}

impl Kind {
    /// Whether others have it, too.
    pub fn is_shared(self) -> bool {
        matches!(self, Kind::Shared | Kind::SharedPartial)
    }

    /// Whether a part of it is held and mapped nowhere, and may be had by a split.
    pub fn is_partial(self) -> bool {
        matches!(self, Kind::Partial | Kind::SharedPartial)
    }
}

/// A huge page, of 2 MiB.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Huge {
    /// Where it is: address and pages; several pieces where it is not mapped as a whole.
    pieces: Pieces,
    /// What becomes of it.
    pub kind: Kind,
    /// Whether it is known that what is mapped of it is mapped here and nowhere else.
    pub is_own: bool,
    /// Pages of it that are mapped nowhere.
    pub lost: u32,
    /// Its first frame, where that is told.
    pub frame: Option<u64>,
    /// The mapping that it was found in, by its place among those of the process.
    pub vma: usize,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Pieces {
    /// By one entry of the page table.
    Whole([(u64, u32); 1]),
    /// Page by page.
    Small(Vec<(u64, u32)>),
}

impl Huge {
    /// Where it is mapped: addresses, and how many pages from each on.
    pub fn pieces(&self) -> &[(u64, u32)] {
        match &self.pieces {
            Pieces::Whole(one) => one,
            Pieces::Small(all) => all,
        }
    }

    /// Whether one entry of the page table maps it.
    pub fn is_whole(&self) -> bool {
        matches!(self.pieces, Pieces::Whole(_))
    }

    /// Pages of it that are mapped here.
    pub fn mapped(&self) -> u32 {
        self.pieces().iter().map(|(_, pages)| pages).sum()
    }
}

/// What a mapping, or a process, has in large folios.
#[derive(Default)]
pub struct Gathered {
    /// Huge pages, those that are not mapped as a whole behind the others.
    pub huge: Vec<Huge>,
    /// Resident bytes in folios of each size, in bytes, above a page; those below 2 MiB only where
    /// the kernel tells of frames.
    pub sizes: BTreeMap<u64, u64>,
    /// Places in `huge` of those that are not mapped as a whole, by their first frames.
    apart: HashMap<u64, usize>,
}

/// Adds what is in `vma`, the `nth` mapping. Without `folios` only huge pages that are mapped as a
/// whole are seen.
///
/// # Errors
/// The kernel's refusal to tell.
pub fn gather(
    reader: &Reader,
    (nth, vma): (usize, &Vma),
    folios: Option<&mut Folios>,
    to: &mut Gathered,
) -> Result<(), Errno> {
    whole(reader, (nth, vma), folios.as_deref(), to)?;
    match folios {
        Some(folios) if vma.anonymous > vma.huge => {
            let pieces = small(reader, vma, folios)?;
            settle(pieces, (nth, vma.locked), to);
            Ok(())
        }
        _ => Ok(()),
    }
}

/// What is there and no file's, nor the page of zeros; with `huge` or without.
fn query(start: u64, end: u64, huge: bool) -> PagemapScan {
    let out = Categories::FILE | Categories::PFNZERO;
    let mut query = PagemapScan::any(start as usize, end as usize, Categories::HUGE);
    query.inverted = if huge { out } else { out | Categories::HUGE };
    query.required = out | Categories::HUGE | Categories::PRESENT;
    query.any_of = Categories::empty();
    query
}

fn kind(locked: bool, is_own: bool) -> Kind {
    match (locked, is_own) {
        (true, _) => Kind::Locked,
        (_, false) => Kind::Shared,
        (_, true) => Kind::Free,
    }
}

fn whole(
    reader: &Reader,
    (nth, vma): (usize, &Vma),
    folios: Option<&Folios>,
    to: &mut Gathered,
) -> Result<(), Errno> {
    if vma.huge == 0 {
        return Ok(());
    }
    reader
        .map()
        .each(query(vma.start, vma.end, true), |region| {
            let (start, end) = (region.start() as u64, region.end() as u64);
            let blocks = (start.next_multiple_of(BLOCK)..end).step_by(BLOCK as usize);
            for at in blocks.filter(|at| at + BLOCK <= end) {
                // It says of the first page alone whether others map it, and of those behind it
                // the same: a child may have given back the first, and have the others still.
                let entry = reader.entry(at);
                let counted = || folios?.pages(entry.frame()?, |mapped| mapped > 1);
                let is_own = entry.is_exclusive();
                let others = match is_own && vma.shared > 0 {
                    true => counted(),
                    false => Some(0),
                };
                to.huge.push(Huge {
                    pieces: Pieces::Whole([(at, BLOCK_PAGES)]),
                    kind: kind(vma.locked, is_own && others.is_none_or(|n| n == 0)),
                    is_own: is_own && others == Some(0),
                    lost: 0,
                    frame: entry.frame(),
                    vma: nth,
                });
                *to.sizes.entry(BLOCK).or_default() += BLOCK;
            }
        })
}

/// A piece of a folio that is mapped page by page.
struct Piece {
    folio: Folio,
    at: u64,
    pages: u32,
    is_own: bool,
}

fn small(reader: &Reader, vma: &Vma, folios: &mut Folios) -> Result<Vec<Piece>, Errno> {
    let mut runs = Vec::new();
    let all = query(vma.start, vma.end, false);
    reader.map().each(all, |region| {
        runs.push((region.start() as u64, region.end() as u64))
    })?;
    let mut pieces: Vec<Piece> = Vec::new();
    let mut entries = [PageEntry::default(); BLOCK_PAGES as usize];
    for (start, end) in runs {
        for at in (start..end).step_by(BLOCK as usize) {
            let n = ((end - at) / PAGE).min(u64::from(BLOCK_PAGES)) as usize;
            reader.map().entries(at as usize, &mut entries[..n])?;
            let mut at = at;
            // Frames that follow each other are asked for together.
            for run in entries[..n].chunk_by(|a, b| a.frame().map(|f| f + 1) == b.frame()) {
                add(run, at, folios, &mut pieces);
                at += run.len() as u64 * PAGE;
            }
        }
    }
    Ok(pieces)
}

/// Adds what pages from `at` on, in a row in memory, are of.
fn add(run: &[PageEntry], at: u64, folios: &mut Folios, pieces: &mut Vec<Piece>) {
    let Some(first) = run[0].frame() else {
        return;
    };
    for (nth, folio) in folios.of_run(first, run.len()) {
        let (entry, at) = (&run[nth], at + nth as u64 * PAGE);
        if entry.is_file() {
            continue;
        }
        let is_own = entry.is_exclusive();
        match pieces.last_mut() {
            Some(p) if p.folio == folio && p.at + u64::from(p.pages) * PAGE == at => {
                p.pages += 1;
                p.is_own &= is_own;
            }
            _ => pieces.push(Piece {
                folio,
                at,
                pages: 1,
                is_own,
            }),
        }
    }
}

/// Puts pieces of the same folio together.
fn settle(mut pieces: Vec<Piece>, (vma, locked): (usize, bool), to: &mut Gathered) {
    for piece in &pieces {
        let size = u64::from(piece.folio.pages) * PAGE;
        *to.sizes.entry(size).or_default() += u64::from(piece.pages) * PAGE;
    }
    pieces.retain(|piece| piece.folio.pages == BLOCK_PAGES);
    pieces.sort_by_key(|piece| (piece.folio, piece.at));
    for same in pieces.chunk_by(|a, b| a.folio == b.folio) {
        let mut places: Vec<(u64, u32)> = same.iter().map(|p| (p.at, p.pages)).collect();
        let is_own = same.iter().all(|p| p.is_own);
        let kind = kind(locked, is_own);
        let head = same[0].folio.head;
        // A part of it may have been found in the mapping before, of which this one was cut off.
        let at = *to.apart.entry(head).or_insert(to.huge.len());
        match to.huge.get_mut(at) {
            Some(huge) => {
                huge.kind = huge.kind.max(kind);
                huge.is_own &= is_own;
                if let Pieces::Small(all) = &mut huge.pieces {
                    all.append(&mut places);
                }
            }
            None => to.huge.push(Huge {
                pieces: Pieces::Small(places),
                kind,
                is_own,
                lost: 0,
                frame: Some(head),
                vma,
            }),
        }
    }
}

/// Finds those of which a part is held and mapped nowhere, and those of which others have the rest;
/// once all mappings are known.
pub fn settle_rest(huge: &mut [Huge], folios: &Folios) {
    for one in huge.iter_mut().filter(|one| one.mapped() < BLOCK_PAGES) {
        let rest = BLOCK_PAGES - one.mapped();
        let told = one
            .frame
            .and_then(|frame| folios.pages(frame, |mapped| mapped == 0));
        one.lost = match told {
            Some(unmapped) => unmapped.min(rest),
            None if one.is_own => rest,
            None => 0,
        };
        // To read it in the other way would copy what is mapped here.
        one.is_own &= one.lost == rest;
        one.kind = match one.kind {
            Kind::Free if one.is_own => Kind::Partial,
            Kind::Free | Kind::Shared if one.lost > 0 => Kind::SharedPartial,
            Kind::Free => Kind::Shared,
            other => other,
        };
    }
}
