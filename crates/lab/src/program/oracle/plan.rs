//! What a program of `lab oracle` does, and with which knobs: all of it from its seed, so that the
//! lab knows what the program did.

use std::fmt;
use std::ops::Range;

use crate::content::{mix, next};
use crate::size::{BLOCK, PAGE};

/// Pages of a block.
pub const BLOCK_PAGES: usize = BLOCK / PAGE;
/// Blocks of the arena.
const BLOCKS: usize = 4;
/// Blocks of the arena where memory is limited.
const PRESSED: usize = 16;
/// The limit, in bytes.
pub const LIMIT: usize = 16 << 20;
/// Sizes of folios that have a knob, in KiB.
pub const SIZES: [u32; 8] = [16, 32, 64, 128, 256, 512, 1024, 2048];
/// `max_ptes_none` that matter most.
const NONE: [u32; 9] = [0, 1, 64, 255, 409, 450, 470, 510, 511];

/// The kernel's knobs, and the limit.
#[derive(Clone, Debug)]
pub struct Knobs {
    /// `enabled`.
    pub enabled: &'static str,
    /// `hugepages-<size>kB/enabled`, in the order of [`SIZES`].
    pub sizes: [&'static str; 8],
    /// `khugepaged/max_ptes_none`.
    pub max_ptes_none: u32,
    /// `shrink_underused`.
    pub shrink_underused: bool,
    /// Most memory, in bytes.
    pub limit: Option<usize>,
}

/// Advice of `madvise` that programs give.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(i32)]
#[allow(missing_docs)]
pub enum Advice {
    Huge = libc::MADV_HUGEPAGE,
    NoHuge = libc::MADV_NOHUGEPAGE,
    DontNeed = libc::MADV_DONTNEED,
    Free = libc::MADV_FREE,
    Cold = libc::MADV_COLD,
    PageOut = libc::MADV_PAGEOUT,
    PopulateRead = libc::MADV_POPULATE_READ,
    PopulateWrite = libc::MADV_POPULATE_WRITE,
}

/// One in so many is the advice.
const ADVICE: [Advice; 11] = [
    Advice::Huge,
    Advice::Huge,
    Advice::NoHuge,
    Advice::DontNeed,
    Advice::DontNeed,
    Advice::Free,
    Advice::Cold,
    Advice::PageOut,
    Advice::PopulateRead,
    Advice::PopulateWrite,
    Advice::PopulateWrite,
];

/// What a program does; ranges are pages of its arena.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Step {
    /// Maps new memory, in place of what is there.
    Map(Range<usize>),
    /// Reads (no word), or writes the word to, every so-manyth page that may be.
    Touch(Range<usize>, usize, Option<u64>),
    /// `madvise`.
    Advise(Range<usize>, Advice),
    /// `mprotect`.
    Protect(Range<usize>, i32),
    /// `mremap` to another place, which was unmapped before or not.
    Move(Range<usize>, usize),
    /// `mremap` in place to so many pages.
    Resize(Range<usize>, usize),
    /// `munmap`.
    Unmap(Range<usize>),
    /// Forks; the child does the first steps and ends, this process the second; whether the child
    /// is first.
    Fork(Vec<Step>, Vec<Step>, bool),
}

impl Step {
    /// What it is called in reports.
    pub fn name(&self) -> String {
        match self {
            Self::Map(_) => "mmap".into(),
            Self::Touch(_, _, None) => "read".into(),
            Self::Touch(_, _, Some(0)) => "write zeros".into(),
            Self::Touch(..) => "write".into(),
            Self::Advise(_, advice) => format!("{advice:?}"),
            Self::Protect(..) => "mprotect".into(),
            Self::Move(..) => "mremap, moved".into(),
            Self::Resize(..) => "mremap, in place".into(),
            Self::Unmap(_) => "munmap".into(),
            Self::Fork(..) => "fork".into(),
        }
    }

    /// The pages that it is about.
    pub fn range(&self) -> Range<usize> {
        match self {
            Self::Map(range) | Self::Touch(range, ..) | Self::Advise(range, _) => range.clone(),
            Self::Protect(range, _) | Self::Move(range, _) => range.clone(),
            Self::Resize(range, _) | Self::Unmap(range) => range.clone(),
            Self::Fork(..) => 0..0,
        }
    }
}

/// A program.
#[derive(Clone, Debug)]
pub struct Plan {
    /// With which knobs it runs.
    pub knobs: Knobs,
    /// Pages of its arena.
    pub pages: usize,
    /// Whether it reads all of its memory after each step.
    pub looks: bool,
    /// What it does.
    pub steps: Vec<Step>,
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Knobs { sizes, limit, .. } = &self.knobs;
        let sizes: Vec<_> = SIZES
            .iter()
            .zip(sizes)
            .filter(|(_, m)| **m != "never")
            .collect();
        let none = self.knobs.max_ptes_none;
        writeln!(
            f,
            "enabled {}, max_ptes_none {none}, {sizes:?}",
            self.knobs.enabled
        )?;
        writeln!(
            f,
            "shrink_underused {}, limit {limit:?}",
            self.knobs.shrink_underused
        )?;
        writeln!(
            f,
            "{} pages, reads all after each step: {}",
            self.pages, self.looks
        )?;
        (self.steps.iter().enumerate()).try_for_each(|(n, step)| writeln!(f, "{n}: {step:?}"))
    }
}

/// Numbers from a seed.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: usize) -> usize {
        (next(&mut self.0) % n as u64) as usize
    }

    fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    fn pick<T: Clone>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())].clone()
    }

    /// A range within so many pages: whole blocks, 64 KiB, or any pages.
    fn range(&mut self, pages: usize) -> Range<usize> {
        let unit = self.pick(&[BLOCK_PAGES, BLOCK_PAGES, 16, 1, 1]);
        let most = self.pick(&[1, 4, 16, 600]);
        let start = self.below(pages / unit);
        let length = 1 + self.below(most.min(pages / unit - start));
        start * unit..(start + length) * unit
    }

    fn knobs(&mut self, pressed: bool) -> Knobs {
        let mut sizes = ["never"; 8];
        sizes[7] = "inherit";
        if self.one_in(2) {
            let modes = ["never", "never", "never", "always", "madvise", "inherit"];
            sizes = std::array::from_fn(|_| self.pick(&modes));
            sizes[7] = self.pick(&[
                "inherit", "inherit", "inherit", "always", "madvise", "never",
            ]);
        }
        let any = self.below(BLOCK_PAGES) as u32;
        Knobs {
            enabled: self.pick(&["always", "always", "madvise", "never"]),
            sizes,
            max_ptes_none: if self.one_in(2) {
                self.pick(&NONE)
            } else {
                any
            },
            shrink_underused: !self.one_in(4),
            limit: pressed.then_some(LIMIT),
        }
    }

    fn touch(&mut self, pages: usize) -> Step {
        let stride = self.pick(&[1, 1, 1, 2, 7, 13, 16, 100]);
        let word = next(&mut self.0) | 1;
        let word = self.pick(&[None, Some(word), Some(word), Some(word), Some(0)]);
        let range = match self.one_in(3) {
            true => {
                let at = self.below(pages);
                at..at + 1
            }
            false => self.range(pages),
        };
        Step::Touch(range, stride, word)
    }

    fn step(&mut self, pages: usize, forks: bool) -> Step {
        let rights = [
            libc::PROT_NONE,
            libc::PROT_READ,
            libc::PROT_READ | libc::PROT_WRITE,
        ];
        match self.below(24) {
            0 => Step::Map(self.range(pages)),
            1..=7 => Step::Advise(self.range(pages), self.pick(&ADVICE)),
            8 => Step::Protect(self.range(pages), self.pick(&rights)),
            9 => Step::Protect(self.range(pages), rights[2]),
            10 => {
                let mut from = self.range(pages);
                let to = self.range(pages).start;
                // As far as it fits, and without the place that it comes from.
                let room = if to <= from.start {
                    from.start - to
                } else {
                    pages - to
                };
                let most = if to > from.start {
                    room.min(to - from.start)
                } else {
                    room
                };
                from.end = from.end.min(from.start + most.max(1));
                Step::Move(from, to.min(pages - 1))
            }
            11 => {
                let range = self.range(pages);
                let length = 1 + self.below((pages - range.start).min(2 * range.len()));
                Step::Resize(range, length)
            }
            12 => Step::Unmap(self.range(pages)),
            13 if forks => {
                let mut some = || {
                    (0..1 + self.below(3))
                        .map(|_| self.step(pages, false))
                        .collect()
                };
                let (child, parent) = (some(), some());
                Step::Fork(child, parent, self.one_in(2))
            }
            _ => self.touch(pages),
        }
    }
}

impl Plan {
    /// The program of a seed.
    pub fn new(seed: u64) -> Self {
        let mut dice = Dice(mix(seed ^ 0x0dec_c1e0_0dec_c1e0));
        let pressed = seed % 5 == 4;
        let pages = BLOCK_PAGES * if pressed { PRESSED } else { BLOCKS };
        let knobs = dice.knobs(pressed);
        let steps = 8 + dice.below(17);
        Self {
            knobs,
            pages,
            looks: !pressed && dice.one_in(4),
            steps: (0..steps).map(|_| dice.step(pages, true)).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_follow_from_their_seed_and_stay_in_their_arena() {
        for seed in 0..2000 {
            let plan = Plan::new(seed);
            assert_eq!(plan.steps, Plan::new(seed).steps);
            for step in &plan.steps {
                assert!(step.range().end <= plan.pages, "{seed}: {step:?}");
                if let Step::Move(from, to) = step {
                    let there = *to..to + from.len();
                    assert!(
                        there.end <= plan.pages && !from.is_empty(),
                        "{seed}: {step:?}"
                    );
                    let apart = there.end <= from.start || from.end <= there.start;
                    assert!(apart || there == *from, "{seed}: {step:?}");
                }
            }
        }
    }
}
