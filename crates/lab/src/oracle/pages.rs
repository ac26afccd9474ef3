//! The pages of a process on both sides: in what they differ after a step, and why.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use super::reasons::*;
use crate::program::oracle::plan::{Advice, BLOCK_PAGES, Knobs, Plan, SIZES, Step};
use crate::size::PAGE;

/// How far from the limit, in pages, what a side takes beside the program's own pages (tables,
/// batches of charges, the process itself) may decide.
pub(super) const NEAR: usize = (3 << 20) / PAGE;

pub(super) fn is_resident(class: u8) -> bool {
    matches!(class, b'r' | b'h')
}

/// What differs of a page.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Page {
    Same,
    Zero,
    More,
    Less,
    Huge,
    Small,
}

impl Page {
    fn of(kernel: u8, live: u8) -> Self {
        match (is_resident(kernel), is_resident(live)) {
            (false, true) => Self::More,
            (true, false) => Self::Less,
            (true, true) if kernel == live => Self::Same,
            (true, true) if live == b'h' => Self::Huge,
            (true, true) => Self::Small,
            (false, false) if (kernel == b'z') == (live == b'z') => Self::Same,
            (false, false) => Self::Zero,
        }
    }

    /// Whether this is no new decision after that: of a block that is huge on one side alone some
    /// pages are there on the other, too.
    fn follows(self, was: Self) -> bool {
        let side = |of| match of {
            Self::More | Self::Huge => 1,
            Self::Less | Self::Small => 2,
            Self::Same | Self::Zero => 0,
        };
        self == was || side(self) != 0 && side(self) == side(was)
    }

    fn says(self) -> &'static str {
        match self {
            Self::Same | Self::Zero => "",
            Self::More => "resident under deckle only",
            Self::Less => "resident on the kernel only",
            Self::Huge => "huge under deckle only",
            Self::Small => "huge on the kernel only",
        }
    }
}

/// Why something differs.
enum Why {
    Nature(Reason),
    Cause(Reason),
    Unknown,
}

/// What differs after a step and did not before: the reasons, and of how many pages what.
#[derive(Default)]
pub(super) struct News {
    pub natures: BTreeSet<Reason>,
    causes: BTreeSet<Reason>,
    unknown: bool,
    /// Whether the limit had a say in it.
    pub full: bool,
    others: BTreeMap<Page, (usize, usize)>,
}

impl News {
    /// Whether nothing is new but what differs by nature.
    pub fn is_nature(&self) -> bool {
        self.others.is_empty()
    }

    /// What it is.
    pub fn what(&self) -> String {
        let what = self.others.iter().map(|(is, (pages, first))| {
            let says = is.says();
            format!("{says}, {pages} pages from {first} on")
        });
        what.collect::<Vec<String>>().join("; ")
    }

    /// What explains all of it.
    pub fn cause(&self) -> Option<&'static str> {
        let cause = self.causes.first().map(|cause| cause.name);
        cause.filter(|_| !self.unknown)
    }
}

/// A process on both sides: what its pages have come through. Marks are by page.
#[derive(Clone)]
pub(super) struct Process {
    /// What already differed.
    differs: Vec<Page>,
    /// What rests since some advice.
    aside: Vec<bool>,
    /// How the kernel and deckle mapped each page.
    was: [Vec<u8>; 2],
    /// Blocks that were advised in part.
    cut: Vec<bool>,
    /// Where deckle took a large folio apart.
    torn: Vec<bool>,
    /// What was ever resident.
    ever: Vec<bool>,
    /// Whether there was a fork.
    pub forked: bool,
    /// Whether its child has been at the limit since its last step.
    pub pressed: bool,
}

/// Sets the marks around the ends of a range, as far as a folio of `unit` pages reaches over them.
fn mark_ends(marks: &mut [bool], range: &Range<usize>, unit: usize) {
    for end in [range.start, range.end] {
        if !end.is_multiple_of(unit) {
            let first = end / unit * unit;
            marks[first..first + unit].fill(true);
        }
    }
}

/// The pages that a step writes to.
fn written(step: &Step) -> Option<Range<usize>> {
    match step {
        Step::Touch(range, _, Some(_)) | Step::Advise(range, Advice::PopulateWrite) => {
            Some(range.clone())
        }
        _ => None,
    }
}

/// The pages that folios of `unit` pages have in which some of the range are.
fn reach(range: &Range<usize>, unit: usize) -> Range<usize> {
    range.start / unit * unit..range.end.next_multiple_of(unit)
}

/// Pages of the largest folio that may be had.
fn largest(knobs: &Knobs) -> usize {
    let sizes = SIZES.iter().zip(knobs.sizes);
    let enabled = sizes.filter(|(_, mode)| *mode != "never");
    let largest = enabled.map(|(kib, _)| *kib as usize * 1024 / PAGE).max();
    largest.unwrap_or(1)
}

impl Process {
    pub fn new(pages: usize) -> Self {
        let none = vec![false; pages];
        Self {
            differs: vec![Page::Same; pages],
            was: [vec![b'.'; pages], vec![b'.'; pages]],
            aside: none.clone(),
            cut: none.clone(),
            torn: none.clone(),
            ever: none,
            forked: false,
            pressed: false,
        }
    }

    /// What the step does to what rests aside, and to mappings.
    fn rest(&mut self, step: &Step) {
        match step {
            Step::Advise(range, Advice::Huge | Advice::NoHuge) => {
                mark_ends(&mut self.cut, range, BLOCK_PAGES);
            }
            Step::Fork(..) => self.forked = true,
            Step::Advise(range, Advice::Cold | Advice::Free | Advice::PageOut) => {
                self.aside[range.clone()].fill(true);
            }
            Step::Touch(range, stride, _) => {
                for page in range.clone().step_by(*stride) {
                    self.aside[page] = false;
                }
            }
            Step::Move(from, to) => {
                // What rests stays so at its new place (docs/limits.md), and is new at the old.
                self.aside[*to..to + from.len()].fill(true);
                self.aside[from.clone()].fill(false);
                // So does what was taken apart, and no large folio stays whole at an odd place.
                let odd = !to.abs_diff(from.start).is_multiple_of(BLOCK_PAGES);
                let torn = self.torn[from.clone()].iter().map(|torn| *torn || odd);
                let torn: Vec<bool> = torn.collect();
                self.torn[*to..to + from.len()].copy_from_slice(&torn);
            }
            Step::Map(range) | Step::Unmap(range) => self.aside[range.clone()].fill(false),
            _ => {}
        }
    }

    /// What deckle has taken apart of large folios, of `unit` pages at most, for the step.
    fn tear(&mut self, step: &Step, live: &[u8], unit: usize) {
        let cut = match step {
            Step::Map(range) | Step::Unmap(range) | Step::Protect(range, _) => range.clone(),
            Step::Advise(range, Advice::DontNeed) | Step::Move(range, _) => range.clone(),
            Step::Resize(range, length) => range.start + *length.min(&range.len())..range.end,
            _ => 0..0,
        };
        mark_ends(&mut self.torn, &cut, unit);
        if let Step::Move(from, to) = step {
            mark_ends(&mut self.torn, &(*to..to + from.len()), unit);
        }
        // After a fork a write takes apart, too.
        if let Some(range) = written(step).filter(|_| self.forked) {
            self.torn[reach(&range, unit)].fill(true);
        }
        if !matches!(step, Step::Touch(..) | Step::Advise(..)) {
            for block in (0..live.len()).step_by(BLOCK_PAGES) {
                let block = block..block + BLOCK_PAGES;
                let huge = |classes: &[u8]| classes[block.clone()].contains(&b'h');
                if huge(&self.was[1]) && !huge(live) {
                    self.torn[block].fill(true);
                }
            }
        }
        if !matches!(step, Step::Protect(..)) {
            self.torn[cut].fill(false);
        }
    }

    /// Why this differs of a page: by nature, or else.
    fn reason(&self, step: &Step, page: usize, is: Page) -> Why {
        let writes = written(step).is_some();
        let cuts = matches!(step, Step::Map(_) | Step::Unmap(_) | Step::Protect(..))
            || matches!(step, Step::Move(..) | Step::Resize(..))
            || matches!(step, Step::Advise(_, Advice::DontNeed));
        let large = self.was[1][page] == b'h' || self.forked;
        match (is, step) {
            (Page::Zero, _) => Why::Nature(ZERO),
            (Page::Less, _) if self.aside[page] => Why::Nature(ASIDE),
            (Page::Less, _) if cuts && large => Why::Nature(SHATTER),
            (Page::Huge, _) if self.cut[page] => Why::Nature(CUT),
            (Page::More, _) if self.torn[page] => Why::Cause(TORN),
            (Page::Less | Page::Small, _) if writes && self.forked => Why::Cause(FORKED),
            (Page::More | Page::Huge, Step::Advise(..)) if !writes && self.forked => {
                Why::Cause(FORKED)
            }
            _ => Why::Unknown,
        }
    }

    /// Compares how all pages are mapped after a step, on the kernel and under deckle: what is new,
    /// by nature and otherwise.
    pub fn look(&mut self, plan: &Plan, step: &Step, classes: [&[u8]; 2]) -> News {
        let mut news = News::default();
        self.rest(step);
        let [kernel, live] = classes;
        let pairs = || kernel.iter().zip(live);
        for (ever, (k, l)) in self.ever.iter_mut().zip(pairs()) {
            *ever |= is_resident(*k) || is_resident(*l);
        }
        let unit = largest(&plan.knobs);
        let at_limit = plan.knobs.limit.is_some_and(|limit| {
            // Whatever is there in the middle of the step, too.
            let now = written(step).map_or(0..0, |range| reach(&range, unit));
            let ever = (0..).zip(&self.ever);
            let most = ever.filter(|(page, ever)| **ever || now.contains(page));
            most.count() + NEAR >= limit / PAGE
        });
        news.full = at_limit || std::mem::take(&mut self.pressed);
        for (page, (k, l)) in pairs().enumerate() {
            let (is, was) = (Page::of(*k, *l), self.differs[page]);
            self.differs[page] = is;
            if is == Page::Same || is.follows(was) {
                continue;
            }
            match self.reason(step, page, is) {
                Why::Nature(nature) => _ = news.natures.insert(nature),
                _ if news.full => _ = news.natures.insert(ORDER),
                why => {
                    if let Why::Cause(cause) = why {
                        news.causes.insert(cause);
                    } else {
                        news.unknown = true;
                    }
                    news.others.entry(is).or_insert((0, page)).0 += 1;
                }
            }
        }
        self.tear(step, live, unit);
        self.was = [kernel.to_vec(), live.to_vec()];
        news
    }
}
