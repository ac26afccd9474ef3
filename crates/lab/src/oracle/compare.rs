//! What the two sides of a program have told, step by step, and in what they differ.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::process::ExitStatusExt;

use serde::Serialize;

use crate::LabError;
use crate::child::Finished;
use crate::program::oracle::plan::{Advice, BLOCK_PAGES, Plan, Step};
use crate::size::PAGE;

/// Exit status of `deckle run` for a program killed at the limit.
const KILLED: i32 = 137;
/// How far from the limit, in pages, what a side takes beside the program's own pages (tables,
/// batches of charges, the process itself) may decide.
const NEAR: usize = (3 << 20) / PAGE;

/// Something in which the sides differ by what they are.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Nature {
    /// What it is called.
    pub name: &'static str,
    /// Why it cannot be otherwise.
    pub why: &'static str,
}

const fn nature(name: &'static str, why: &'static str) -> Nature {
    Nature { name, why }
}

const ZERO: Nature = nature(
    "zero page",
    "a read of a hole maps the page of zeros around it too, since each fault costs deckle thirty \
     of the kernel's; it is no memory",
);
const ASIDE: Nature = nature(
    "aside",
    "what is cold, free until written, to be paged out without swap, or was moved by mremap rests \
     unmapped until a touch: deckle sees a touch only as a fault",
);
const SHATTER: Nature = nature(
    "shatter",
    "a huge page that loses a part, or changes in a part, is taken apart at once by copying what \
     is in use, since the kernel's split of a moved page takes longer; zeros are not copied",
);
const CUT: Nature = nature(
    "cut",
    "advice on a part of a huge page makes two mappings in the kernel, whose tables cannot map it \
     whole; deckle keeps such advice beside the mapping, and the page stays huge on both sides",
);
const ORDER: Nature = nature(
    "order",
    "at the limit, which of several pages goes follows from the order of lists and from per-CPU \
     batches",
);
const MARGIN: Nature = nature(
    "margin",
    "so near to the limit what a side charges beside the program's pages decides when, and who, is \
     killed",
);

/// All that differs by nature. khugepaged, the last of it, rests on both sides.
pub const NATURE: [Nature; 6] = [ZERO, ASIDE, SHATTER, CUT, ORDER, MARGIN];

named! {
    /// What differs.
    pub enum Kind {
        /// What the program reads.
        Bytes = "bytes",
        /// The error of a call.
        Error = "error",
        /// How the program ended, or who was killed.
        End = "end",
        /// What is resident, and what is huge.
        Memory = "memory",
    }
}

/// A step in which the sides differ, and not by nature.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Difference {
    /// The program.
    pub seed: u64,
    /// The step: its number, and within a fork that of the child's (`c`) or the parent's (`p`).
    pub step: String,
    /// What kind of difference.
    pub kind: Kind,
    /// What: in which call, and after a comma how much.
    pub what: String,
}

/// All programs together.
#[derive(Clone, Debug, Default)]
pub struct Totals {
    /// How many ran.
    pub programs: u64,
    /// Steps that both sides told.
    pub steps: u64,
    /// Steps that agree in everything.
    pub agree: u64,
    /// Steps that differ by nature, by the name of the reason.
    pub by_nature: BTreeMap<&'static str, u64>,
}

/// What one side has told.
#[derive(Clone, Debug)]
pub struct Run {
    steps: Vec<Told>,
    /// None: it came to its end.
    ended: Option<String>,
}

#[derive(Clone, PartialEq, Debug)]
struct Told {
    step: String,
    errno: i32,
    sum: String,
    classes: Vec<u8>,
}

impl Told {
    fn parse(line: &str) -> Option<Self> {
        let mut words = line.strip_prefix("step ")?.split(' ');
        let (step, errno, sum) = (words.next()?, words.next()?, words.next()?);
        let (mut classes, mut runs) = (Vec::new(), words.next()?);
        while let Some(class) = runs.bytes().next() {
            let digits = runs[1..].bytes().take_while(u8::is_ascii_digit).count();
            let count: usize = runs[1..=digits].parse().ok()?;
            classes.extend(std::iter::repeat_n(class, count));
            runs = &runs[1 + digits..];
        }
        Some(Self {
            step: step.into(),
            errno: errno.parse().ok()?,
            sum: sum.into(),
            classes,
        })
    }

    fn resident(&self) -> usize {
        self.classes.iter().filter(|c| is_resident(**c)).count()
    }
}

impl Run {
    /// From what a program has printed, however it ended.
    pub(super) fn new(end: &Finished) -> Result<Self, LabError> {
        let killed = end.status.signal() == Some(libc::SIGKILL);
        let ended = match (
            killed || end.status.code() == Some(KILLED),
            end.status.success(),
        ) {
            (true, _) => Some("killed".into()),
            (_, true) => None,
            _ => Some(end.failure("ended otherwise").to_string()),
        };
        let lines = end.stdout.lines().filter(|line| line.starts_with("step "));
        let steps: Option<Vec<Told>> = lines.map(Told::parse).collect();
        let steps = steps.ok_or_else(|| end.failure("told what is not understood"))?;
        Ok(Self { steps, ended })
    }
}

fn is_resident(class: u8) -> bool {
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

/// A process on both sides.
#[derive(Clone)]
struct Process {
    /// What already differed.
    differs: Vec<Page>,
    /// Pages that rest since some advice.
    aside: Vec<bool>,
    /// How deckle mapped each page.
    was: Vec<u8>,
}

/// The step of a name, if it is one of the plan's.
fn find<'a>(plan: &'a Plan, name: &str) -> Option<&'a Step> {
    let digits = name.bytes().take_while(u8::is_ascii_digit).count();
    let step = plan.steps.get(name[..digits].parse::<usize>().ok()?)?;
    let Step::Fork(child, parent, _) = step else {
        return Some(step);
    };
    match name.get(digits..digits + 1) {
        Some("c") => child.get(name[digits + 1..].parse::<usize>().ok()?),
        Some(_) => parent.get(name[digits + 1..].parse::<usize>().ok()?),
        None => Some(step),
    }
}

impl Process {
    /// What the step does to what rests aside.
    fn rest(&mut self, step: &Step) {
        match step {
            Step::Advise(range, Advice::Cold | Advice::Free | Advice::PageOut) => {
                self.aside[range.clone()].fill(true);
            }
            Step::Touch(range, stride, _) => {
                range
                    .clone()
                    .step_by(*stride)
                    .for_each(|page| self.aside[page] = false);
            }
            Step::Move(from, to) => {
                // What rests stays so at its new place (docs/limits.md), and is new at the old.
                self.aside[*to..to + from.len()].fill(true);
                self.aside[from.clone()].fill(false);
            }
            Step::Map(range) | Step::Unmap(range) => self.aside[range.clone()].fill(false),
            _ => {}
        }
    }

    /// The reason why this may differ of a page.
    fn reason(
        &self,
        plan: &Plan,
        step: &Step,
        page: usize,
        is: Page,
        full: bool,
    ) -> Option<Nature> {
        let part = |range: &std::ops::Range<usize>| {
            let block = page / BLOCK_PAGES * BLOCK_PAGES;
            range.start > block || range.end < block + BLOCK_PAGES
        };
        match (is, step) {
            (Page::Zero, _) => Some(ZERO),
            (Page::Less, _) if self.aside[page] => Some(ASIDE),
            (Page::Less, Step::Advise(_, Advice::DontNeed) | Step::Map(_) | Step::Unmap(_))
            | (Page::Less, Step::Protect(..) | Step::Move(..) | Step::Resize(..))
                if self.was[page] == b'h' =>
            {
                Some(SHATTER)
            }
            (Page::Huge, Step::Advise(range, Advice::Huge | Advice::NoHuge)) if part(range) => {
                Some(CUT)
            }
            _ if full && plan.knobs.limit.is_some() => Some(ORDER),
            _ => None,
        }
    }

    /// Compares how all pages are mapped after a step: what is new, by nature and otherwise.
    fn look(
        &mut self,
        plan: &Plan,
        step: &Step,
        [kernel, live]: [&Told; 2],
    ) -> (BTreeSet<Nature>, BTreeMap<Page, (usize, usize)>) {
        let (mut natures, mut others) = (BTreeSet::new(), BTreeMap::new());
        self.rest(step);
        let most = kernel.resident().max(live.resident());
        let full = plan
            .knobs
            .limit
            .is_some_and(|limit| most + NEAR >= limit / PAGE);
        for (page, (k, l)) in kernel.classes.iter().zip(&live.classes).enumerate() {
            let is = Page::of(*k, *l);
            if is != self.differs[page] && is != Page::Same {
                match self.reason(plan, step, page, is, full) {
                    Some(nature) => _ = natures.insert(nature),
                    None => others.entry(is).or_insert((0, page)).0 += 1,
                }
            }
            self.differs[page] = is;
        }
        self.was.clone_from(&live.classes);
        (natures, others)
    }
}

/// Compares what the two sides of a program told. After a step whose bytes or error differ the
/// programs are two, and what comes later says nothing.
pub(super) fn compare(
    seed: u64,
    plan: &Plan,
    kernel: &Run,
    live: &Run,
    rows: &mut Vec<Difference>,
    totals: &mut Totals,
) {
    totals.programs += 1;
    let mut main = Process {
        differs: vec![Page::Same; plan.pages],
        aside: vec![false; plan.pages],
        was: vec![b'.'; plan.pages],
    };
    // As it was before a fork: how the child begins.
    let mut before = (String::new(), main.clone());
    let mut differ = |step: &str, kind, what| {
        let step = step.to_owned();
        rows.push(Difference {
            seed,
            step,
            kind,
            what,
        });
    };
    let nothing = Step::Touch(0..0, 1, None);
    let mut most = 0;
    for (k, l) in kernel.steps.iter().zip(&live.steps) {
        if k.step != l.step {
            break;
        }
        totals.steps += 1;
        most = most.max(k.resident()).max(l.resident());
        let step = find(plan, &k.step).unwrap_or(&nothing);
        let name = if k.step == "end" {
            "the end".into()
        } else {
            step.name()
        };
        if k.errno != l.errno {
            let what = format!("{name}: error {} instead of {}", l.errno, k.errno);
            return differ(&k.step, Kind::Error, what);
        }
        if k.sum != l.sum {
            return differ(&k.step, Kind::Bytes, format!("{name}: other bytes"));
        }
        let fork = k.step.split_once('c').map(|(fork, _)| fork.to_owned());
        let process = match fork {
            Some(fork) if fork == before.0 => &mut before.1,
            _ => &mut main,
        };
        let (natures, others) = process.look(plan, step, [k, l]);
        for nature in &natures {
            *totals.by_nature.entry(nature.name).or_default() += 1;
        }
        match others.iter().next() {
            None if natures.is_empty() => totals.agree += 1,
            None => {}
            Some(_) => {
                let what = others.iter().map(|(is, (pages, first))| {
                    format!("{}, {pages} pages from {first} on", is.says())
                });
                let what: Vec<String> = what.collect();
                differ(
                    &k.step,
                    Kind::Memory,
                    format!("{name}: {}", what.join("; ")),
                );
            }
        }
        let next = k.step.parse::<usize>().map_or(0, |n| n + 1);
        if next > 0 {
            before = (next.to_string(), main.clone());
        }
    }
    if kernel.ended != live.ended || kernel.steps.len() != live.steps.len() {
        let (at, limit) = (kernel.steps.len().min(live.steps.len()), plan.knobs.limit);
        let tell = |run: &Run| {
            let how = run.ended.clone().unwrap_or_else(|| "survived".into());
            format!("{how} after {} steps", run.steps.len())
        };
        if limit.is_some_and(|limit| (most + NEAR).abs_diff(limit / PAGE) <= 2 * NEAR) {
            *totals.by_nature.entry(MARGIN.name).or_default() += 1;
        } else {
            let what = format!("{}, the kernel's {}", tell(live), tell(kernel));
            differ(&at.to_string(), Kind::End, what);
        }
    }
}

/// Kinds of differences, with how many steps each has, the most frequent first.
pub(super) fn kinds(rows: &[Difference]) -> Vec<(String, u64)> {
    let mut counts = BTreeMap::new();
    for row in rows {
        let what = row.what.split([',', ';']).next().unwrap_or_default();
        *counts.entry(format!("{}: {what}", row.kind)).or_insert(0) += 1;
    }
    let mut counts: Vec<_> = counts.into_iter().collect();
    counts.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    counts
}
