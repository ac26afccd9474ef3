//! The VMAs of one address space: ranges of pages with rights and advice.
//!
//! Ordered by start; neighbours that agree in everything are one VMA. The gaps between them
//! are indexed by size class beside the tree, so that finding a free area does not walk
//! thousands of VMAs.

use crate::platform::Prot;
use crate::table::gaps::Gaps;
use crate::units::Vpn;
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

/// Pages in the whole address space: page numbers end here.
pub const SPACE_PAGES: u64 = 1 << 52;

/// `madvise` on huge pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ThpAdvice {
    /// None given.
    #[default]
    None,
    /// `MADV_HUGEPAGE`.
    Huge,
    /// `MADV_NOHUGEPAGE`.
    NoHuge,
}

/// What a fork does with a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum OnFork {
    /// The child has its pages, too.
    #[default]
    Copy,
    /// The child does not have the range (`MADV_DONTFORK`).
    Leave,
    /// The child has the range, all holes (`MADV_WIPEONFORK`).
    Wipe,
}

/// A range of pages that agree in everything.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Vma {
    /// First page.
    pub start: Vpn,
    /// Number of pages, at least 1.
    pub pages: u64,
    /// Access rights.
    pub prot: Prot,
    /// Advice on huge pages.
    pub advice: ThpAdvice,
    /// Locked in memory (`mlock`).
    pub locked: bool,
    /// The program has asked to be told of missing pages (userfaultfd): no page may come by
    /// itself where there is none.
    pub uffd_missing: bool,
    /// The program has asked to be told of writes to pages that it protects (userfaultfd).
    pub uffd_wp: bool,
    /// What a fork does with it.
    pub on_fork: OnFork,
    /// Whether a write has ever been served in it, so that it keeps its place in the order of
    /// pages (Linux: it has an `anon_vma`) when it is moved.
    pub touched: bool,
    /// How far mremap has moved it since: what moved differently is not one mapping (Linux:
    /// `vm_pgoff`). Wraps.
    pub shift: u64,
    /// Stays one mapping for the system, so that the program can move it by a call which the core
    /// does not hear of: no hole of it is left to the system.
    pub whole: bool,
    /// New since the soft-dirty bits were cleared, holes and all. VMAs that differ in nothing
    /// else are one, which is soft-dirty, or touched, if a part of it was.
    pub soft_dirty: bool,
}

impl Vma {
    /// A new mapping, of which nothing has been asked but its rights.
    pub fn new(start: Vpn, pages: u64, prot: Prot) -> Vma {
        Vma {
            start,
            pages,
            prot,
            advice: ThpAdvice::None,
            locked: false,
            uffd_missing: false,
            uffd_wp: false,
            on_fork: OnFork::Copy,
            touched: false,
            shift: 0,
            whole: false,
            soft_dirty: true,
        }
    }

    /// The page behind the last.
    pub fn end(&self) -> Vpn {
        self.start.add(self.pages)
    }
    /// Whether `page` is in the range.
    pub fn contains(&self, page: Vpn) -> bool {
        page.0.wrapping_sub(self.start.0) < self.pages
    }
    /// The part inside of `[start, end)`; must not be empty.
    fn clipped(&self, start: u64, end: u64) -> Vma {
        let from = self.start.0.max(start);
        Vma {
            start: Vpn(from),
            pages: self.end().0.min(end) - from,
            ..*self
        }
    }
    /// Whether `next` could be the same VMA as this one.
    fn joins(&self, next: &Vma) -> bool {
        let Vma {
            prot,
            advice,
            locked,
            uffd_missing,
            uffd_wp,
            on_fork,
            shift,
            whole,
            ..
        } = *self;
        self.end() == next.start
            && (prot, advice, locked) == (next.prot, next.advice, next.locked)
            && (uffd_missing, uffd_wp) == (next.uffd_missing, next.uffd_wp)
            && (on_fork, shift, whole) == (next.on_fork, next.shift, next.whole)
    }
    /// The same VMA moved to another place.
    pub(crate) fn moved(&self, start: Vpn, pages: u64) -> Vma {
        let shift = self.shift.wrapping_add(start.0).wrapping_sub(self.start.0);
        Vma {
            start,
            pages,
            shift: if self.touched { shift } else { 0 },
            ..*self
        }
    }
}

/// Why a VMA was not inserted; nothing changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InsertError {
    /// It has no page.
    Empty,
    /// It ends beyond the address space.
    Beyond,
    /// This page of it belongs to a VMA already.
    Overlap(Vpn),
}

impl fmt::Display for InsertError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            InsertError::Empty => f.write_str("a mapping without pages"),
            InsertError::Beyond => f.write_str("a mapping that ends beyond the address space"),
            InsertError::Overlap(page) => write!(f, "{page} is mapped already"),
        }
    }
}

impl core::error::Error for InsertError {}

/// A page inside of a range that belongs to no VMA (ENOMEM of mprotect).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hole(pub Vpn);

impl fmt::Display for Hole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is not mapped", self.0)
    }
}

impl core::error::Error for Hole {}

/// Where a search for a free area starts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Search {
    /// The lowest address that fits.
    Bottom,
    /// The highest address that fits.
    Top,
}

/// The VMAs of a space, ordered by address.
#[derive(Default)]
pub struct VmaTree {
    by_start: BTreeMap<u64, Vma>,
    /// Gaps below, between and above the VMAs; none while the tree was never used.
    gaps: Gaps,
    pages: u64,
}

impl VmaTree {
    /// An empty tree.
    pub fn new() -> VmaTree {
        VmaTree::default()
    }
    /// Number of VMAs.
    pub fn len(&self) -> usize {
        self.by_start.len()
    }
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.by_start.is_empty()
    }
    /// Pages in all VMAs.
    pub fn pages(&self) -> u64 {
        self.pages
    }
    /// All VMAs, by address.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &Vma> {
        self.by_start.values()
    }

    /// The VMA that `page` belongs to.
    pub fn find(&self, page: Vpn) -> Option<&Vma> {
        let (_, vma) = self.by_start.range(..=page.0).next_back()?;
        vma.contains(page).then_some(vma)
    }

    /// Inserts a VMA where there is none, and merges it with neighbours that agree.
    pub fn insert(&mut self, vma: Vma) -> Result<(), InsertError> {
        if vma.pages == 0 {
            return Err(InsertError::Empty);
        }
        let end = end_of(vma.start, vma.pages);
        if vma.start.0 >= SPACE_PAGES || vma.pages > SPACE_PAGES - vma.start.0 {
            return Err(InsertError::Beyond);
        }
        if let Some(other) = self.range(vma.start, vma.pages).next() {
            return Err(InsertError::Overlap(other.start));
        }
        let (low, high) = self.gap_around(vma.start.0, end);
        self.gaps.remove(low, high);
        self.gaps.insert(low, vma.start.0);
        self.gaps.insert(end, high);
        self.pages += vma.pages;
        self.by_start.insert(vma.start.0, vma);
        self.merge(vma.start.0, end);
        Ok(())
    }

    /// Removes all VMAs from the range, cutting those that reach over its edges; returns what
    /// was removed, by address. Holes are ignored.
    pub fn remove(&mut self, start: Vpn, pages: u64) -> Vec<Vma> {
        let (from, to) = (start.0, end_of(start, pages));
        if self.range(start, pages).next().is_none() {
            return Vec::new();
        }
        self.split(from);
        self.split(to);
        let mut removed = Vec::new();
        while let Some((&at, _)) = self.by_start.range(from..to).next() {
            let Some(vma) = self.by_start.remove(&at) else {
                break;
            };
            // One gap grows over what is removed.
            let (low, high) = self.gap_around(at, vma.end().0);
            self.gaps.remove(low, at);
            self.gaps.remove(vma.end().0, high);
            self.gaps.insert(low, high);
            self.pages -= vma.pages;
            removed.push(vma);
        }
        removed
    }

    /// Changes what `change` changes in every VMA of the range, splitting at the edges and
    /// merging after. A change of `start` or `pages` is ignored. If the range has a hole
    /// nothing changes.
    pub fn update(
        &mut self,
        start: Vpn,
        pages: u64,
        mut change: impl FnMut(&mut Vma),
    ) -> Result<(), Hole> {
        if let Some(hole) = self.first_hole(start, pages) {
            return Err(Hole(hole));
        }
        let (from, to) = (start.0, end_of(start, pages));
        self.split(from);
        self.split(to);
        for (_, vma) in self.by_start.range_mut(from..to) {
            let (start, pages) = (vma.start, vma.pages);
            change(vma);
            (vma.start, vma.pages) = (start, pages);
        }
        self.merge(from, to);
        Ok(())
    }

    /// Says that a write is served in the VMA of a page.
    pub fn touch(&mut self, page: Vpn) {
        if let Some((_, vma)) = self.by_start.range_mut(..=page.0).next_back()
            && vma.contains(page)
        {
            vma.touched = true;
        }
    }

    /// Says that no VMA is new any more.
    pub fn clear_soft_dirty(&mut self) {
        self.by_start
            .values_mut()
            .for_each(|v| v.soft_dirty = false);
    }

    /// The parts of VMAs inside of the range, by address.
    pub fn range(&self, start: Vpn, pages: u64) -> impl Iterator<Item = Vma> + '_ {
        let (from, to) = (start.0, end_of(start, pages));
        let first = self.find(start).map_or(from, |vma| vma.start.0);
        // An empty range has no parts, also inside of a VMA.
        self.by_start
            .range(first..to.max(first))
            .filter(move |_| from < to)
            .map(move |(_, vma)| vma.clipped(from, to))
    }

    /// The first page of the range that belongs to no VMA.
    pub fn first_hole(&self, start: Vpn, pages: u64) -> Option<Vpn> {
        // Counted, not added, so that a range beyond the last page number has a hole too.
        let mut at = start.0;
        for part in self.range(start, pages) {
            if part.start.0 != at {
                break;
            }
            at = part.end().0;
        }
        (at - start.0 < pages).then_some(Vpn(at))
    }

    /// Whether every page of the range belongs to a VMA.
    pub fn is_covered(&self, start: Vpn, pages: u64) -> bool {
        self.first_hole(start, pages).is_none()
    }

    /// A free area of `pages` inside of `window_pages` from `window`, its start a multiple of
    /// `align` (pages, a power of two; else there is none).
    ///
    /// The first that fits in the direction of the search, except that a gap which would fit
    /// only just may be passed over if many gaps of about that size do not fit.
    pub fn find_free(
        &self,
        window: Vpn,
        window_pages: u64,
        pages: u64,
        align: u64,
        from: Search,
    ) -> Option<Vpn> {
        let end = end_of(window, window_pages).min(SPACE_PAGES);
        if pages == 0 || !align.is_power_of_two() || window.0 >= end {
            return None;
        }
        if self.by_start.is_empty() {
            let whole = Gaps::whole(SPACE_PAGES);
            return whole.find(window.0, end, pages, align, from).map(Vpn);
        }
        self.gaps.find(window.0, end, pages, align, from).map(Vpn)
    }

    /// Checks order, overlap, merging, counts and the index of gaps.
    pub fn verify(&self) -> Result<(), String> {
        let (mut at, mut pages) = (0, 0);
        let mut last: Option<&Vma> = None;
        let mut gaps = Vec::new();
        for (start, vma) in &self.by_start {
            if *start != vma.start.0 || vma.pages == 0 || *start < at {
                return Err(format!(
                    "{vma:?} at {start:#x}, the one before ends at {at:#x}"
                ));
            }
            if last.is_some_and(|l| l.joins(vma)) {
                return Err(format!("{last:?} and {vma:?} should be one"));
            }
            if at < *start {
                gaps.push((at, *start));
            }
            at = vma.end().0;
            pages += vma.pages;
            last = Some(vma);
        }
        if pages != self.pages || at > SPACE_PAGES {
            return Err(format!(
                "{pages} pages up to {at:#x}, counted {}",
                self.pages
            ));
        }
        if at < SPACE_PAGES {
            gaps.push((at, SPACE_PAGES));
        }
        if self.by_start.is_empty() && self.gaps.is_empty() {
            return Ok(());
        }
        self.gaps.verify(&gaps)
    }

    /// The free range that `[start, end)`, itself free of VMAs, lies in.
    fn gap_around(&self, start: u64, end: u64) -> (u64, u64) {
        let below = self.by_start.range(..start).next_back();
        let above = self.by_start.range(end..).next();
        (
            below.map_or(0, |(_, v)| v.end().0),
            above.map_or(SPACE_PAGES, |(s, _)| *s),
        )
    }

    /// Makes `at` the start of a VMA if it lies inside of one.
    fn split(&mut self, at: u64) {
        let Some((_, vma)) = self.by_start.range_mut(..at).next_back() else {
            return;
        };
        let end = vma.end().0;
        if at < end {
            let upper = vma.clipped(at, end);
            vma.pages = at - vma.start.0;
            self.by_start.insert(at, upper);
        }
    }

    /// Merges neighbours that agree, from the VMA before `from` to the one at `to`.
    fn merge(&mut self, from: u64, to: u64) {
        let mut at = match self.by_start.range(..from).next_back() {
            Some((start, _)) => *start,
            None => from,
        };
        while let Some(vma) = self.by_start.get(&at).copied() {
            let end = vma.end().0;
            match self.by_start.get(&end).copied() {
                Some(next) if vma.joins(&next) => {
                    self.by_start.remove(&end);
                    if let Some(v) = self.by_start.get_mut(&at) {
                        v.pages += next.pages;
                        v.soft_dirty |= next.soft_dirty;
                        v.touched |= next.touched;
                    }
                }
                _ => match self.by_start.range(end..).next() {
                    Some((next, _)) if *next <= to => at = *next,
                    _ => break,
                },
            }
        }
    }
}

impl fmt::Debug for VmaTree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// End of a range; the end of numbers for one that goes beyond.
fn end_of(start: Vpn, pages: u64) -> u64 {
    start.0.saturating_add(pages)
}

#[cfg(test)]
#[path = "vma_tests.rs"]
mod tests;
