//! What the two sides of a program have told, step by step, and in what they differ.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::os::unix::process::ExitStatusExt;

use serde::Serialize;

use super::reasons::*;
use crate::LabError;
use crate::child::Finished;
use crate::program::oracle::plan::{Advice, BLOCK_PAGES, Plan, Step};
use crate::size::PAGE;

/// Exit status of `deckle run` for a program killed at the limit.
const KILLED: i32 = 137;
/// How far from the limit, in pages, what a side takes beside the program's own pages (tables,
/// batches of charges, the process itself) may decide.
const NEAR: usize = (3 << 20) / PAGE;

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
    /// What explains it, of [`CAUSES`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cause: Option<&'static str>,
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
pub(super) struct Run {
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
    fn tell(&self) -> String {
        let how = self.ended.as_deref().unwrap_or("survived");
        format!("{how} after {} steps", self.steps.len())
    }

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
        let run = Self::parse(&end.stdout, ended);
        run.ok_or_else(|| end.failure("told what is not understood"))
    }

    pub(super) fn parse(text: &str, ended: Option<String>) -> Option<Self> {
        let lines = text.lines().filter(|line| line.starts_with("step "));
        let steps: Option<Vec<Told>> = lines.map(Told::parse).collect();
        steps.map(|steps| Self { steps, ended })
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
struct News {
    natures: BTreeSet<Reason>,
    causes: BTreeSet<Reason>,
    unknown: bool,
    others: BTreeMap<Page, (usize, usize)>,
}

impl News {
    fn tell(&self, name: &str) -> Found {
        let what = self.others.iter().map(|(is, (pages, first))| {
            let says = is.says();
            format!("{says}, {pages} pages from {first} on")
        });
        let what: Vec<String> = what.collect();
        let cause = self.causes.first().map(|cause| cause.name);
        let what = format!("{name}: {}", what.join("; "));
        (Kind::Memory, what, cause.filter(|_| !self.unknown))
    }
}

/// What a step is called.
fn name(step: &Step, told: &Told) -> String {
    match told.step.as_str() {
        "end" => "the end".into(),
        _ => step.name(),
    }
}

/// Of which kind a difference is, what it is, and what explains it.
type Found = (Kind, String, Option<&'static str>);

/// A process on both sides.
#[derive(Clone)]
struct Process {
    /// What already differed.
    differs: Vec<Page>,
    /// Pages that rest since some advice.
    aside: Vec<bool>,
    /// How the kernel and deckle mapped each page.
    was: [Vec<u8>; 2],
    /// Pages of blocks that were advised in part, and of huge ones that deckle took apart.
    cut: Vec<bool>,
    torn: Vec<bool>,
    /// Pages that were ever resident.
    ever: Vec<bool>,
    forked: bool,
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
    fn new(pages: usize) -> Self {
        let none = vec![false; pages];
        Self {
            differs: vec![Page::Same; pages],
            was: [vec![b'.'; pages], vec![b'.'; pages]],
            aside: none.clone(),
            cut: none.clone(),
            torn: none.clone(),
            ever: none,
            forked: false,
        }
    }

    /// Another error, or other bytes.
    fn other(&self, step: &Step, kernel: &Told, live: &Told) -> Option<Found> {
        let name = name(step, kernel);
        if kernel.errno != live.errno {
            let what = format!("{name}: error {} instead of {}", live.errno, kernel.errno);
            return Some((Kind::Error, what, None));
        }
        (kernel.sum != live.sum).then(|| (Kind::Bytes, format!("{name}: other bytes"), None))
    }

    /// What the step does to what rests aside, and to mappings.
    fn rest(&mut self, step: &Step) {
        let ends = |marks: &mut Vec<bool>, range: Range<usize>| {
            for end in [range.start, range.end] {
                if !end.is_multiple_of(BLOCK_PAGES) {
                    let block = end / BLOCK_PAGES * BLOCK_PAGES;
                    marks[block..block + BLOCK_PAGES].fill(true);
                }
            }
        };
        match step {
            Step::Advise(range, Advice::Huge | Advice::NoHuge) => {
                ends(&mut self.cut, range.clone());
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
            }
            Step::Map(range) | Step::Unmap(range) => self.aside[range.clone()].fill(false),
            _ => {}
        }
    }

    /// Why this differs of a page: by nature, or else.
    fn reason(&self, step: &Step, page: usize, is: Page) -> Why {
        let writes = matches!(step, Step::Touch(_, _, Some(_)))
            || matches!(step, Step::Advise(_, Advice::PopulateWrite));
        match (is, step) {
            (Page::Zero, _) => Why::Nature(ZERO),
            (Page::Less, _) if self.aside[page] => Why::Nature(ASIDE),
            (Page::Less, Step::Advise(_, Advice::DontNeed) | Step::Map(_) | Step::Unmap(_))
            | (Page::Less, Step::Protect(..) | Step::Move(..) | Step::Resize(..))
                if self.was[1][page] == b'h' =>
            {
                Why::Nature(SHATTER)
            }
            (Page::Huge, _) if self.cut[page] => Why::Nature(CUT),
            (Page::More, _) if self.torn[page] => Why::Cause(TORN),
            (Page::Less | Page::Small, _) if writes && self.forked => Why::Cause(FORKED),
            _ => Why::Unknown,
        }
    }

    /// Compares how all pages are mapped after a step: what is new, by nature and otherwise.
    fn look(&mut self, plan: &Plan, step: &Step, [kernel, live]: [&Told; 2]) -> News {
        let mut news = News::default();
        self.rest(step);
        for (ever, (k, l)) in (self.ever.iter_mut()).zip(kernel.classes.iter().zip(&live.classes)) {
            *ever |= is_resident(*k) || is_resident(*l);
        }
        let most = self.ever.iter().filter(|page| **page).count();
        let near = |limit| most + NEAR >= limit / PAGE;
        let full = plan.knobs.limit.is_some_and(near);
        for (page, (k, l)) in kernel.classes.iter().zip(&live.classes).enumerate() {
            let (is, was) = (Page::of(*k, *l), self.differs[page]);
            self.differs[page] = is;
            if is == Page::Same || is.follows(was) {
                continue;
            }
            match self.reason(step, page, is) {
                Why::Nature(nature) => _ = news.natures.insert(nature),
                _ if full => _ = news.natures.insert(ORDER),
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
        let cuts = !matches!(step, Step::Touch(..) | Step::Advise(..))
            || matches!(step, Step::Advise(_, Advice::DontNeed));
        for block in (0..live.classes.len()).step_by(BLOCK_PAGES) {
            let block = block..block + BLOCK_PAGES;
            let huge = |classes: &[u8]| classes[block.clone()].contains(&b'h');
            if cuts && huge(&self.was[1]) && !huge(&live.classes) {
                self.torn[block].fill(true);
            }
        }
        self.was = [kernel.classes.clone(), live.classes.clone()];
        news
    }
}

/// What to say of two ends that differ, and at which step; nothing: they are near the limit.
fn end(limit: Option<usize>, kernel: &Run, live: &Run) -> Option<(usize, Found)> {
    let mut pairs = kernel.steps.iter().zip(&live.steps);
    let less = kernel.steps.len().min(live.steps.len());
    let at = pairs.position(|(k, l)| k.step != l.step).unwrap_or(less);
    // With what was going on: the step that one side has not told any more.
    let told = |run: &Run| run.steps.iter().take(at + 1).map(Told::resident).max();
    let most = told(kernel).max(told(live)).unwrap_or(0);
    let both = kernel.ended == live.ended;
    let near = |limit| both || (most + NEAR).abs_diff(limit / PAGE) <= 2 * NEAR;
    if limit.is_some_and(near) {
        return None;
    }
    let what = format!("{}, the kernel's {}", live.tell(), kernel.tell());
    Some((at, (Kind::End, what, None)))
}

/// Whether deckle has refused to fill in what the kernel had just room for: a little more, and that
/// would have killed the program.
fn is_refused(limit: Option<usize>, step: &Step, kernel: &Told, live: &Told) -> bool {
    let populates = matches!(step, Step::Advise(_, Advice::PopulateWrite));
    let near = |limit| kernel.resident() + NEAR >= limit / PAGE;
    let refused = (kernel.errno, live.errno) == (0, libc::ENOMEM);
    populates && refused && limit.is_some_and(near)
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
    let mut main = Process::new(plan.pages);
    // As it was before a fork: how the child begins.
    let mut before = (String::new(), main.clone());
    let mut differ = |step: &str, (kind, what, cause)| {
        let step = step.to_owned();
        rows.push(Difference {
            seed,
            step,
            kind,
            what,
            cause,
        });
    };
    let nothing = Step::Touch(0..0, 1, None);
    for (k, l) in kernel.steps.iter().zip(&live.steps) {
        if k.step != l.step {
            break;
        }
        totals.steps += 1;
        let step = find(plan, &k.step).unwrap_or(&nothing);
        let process = match k.step.split_once('c') {
            Some((fork, _)) if fork == before.0 => &mut before.1,
            _ => &mut main,
        };
        if let Some(other) = process.other(step, k, l) {
            if is_refused(plan.knobs.limit, step, k, l) {
                *totals.by_nature.entry(MARGIN.name).or_default() += 1;
                return;
            }
            return differ(&k.step, other);
        }
        process.forked |= k.step.contains(['c', 'p']);
        let news = process.look(plan, step, [k, l]);
        for nature in &news.natures {
            *totals.by_nature.entry(nature.name).or_default() += 1;
        }
        if news.others.is_empty() {
            totals.agree += u64::from(news.natures.is_empty());
        } else {
            differ(&k.step, news.tell(&name(step, k)));
        }
        if let Ok(n) = k.step.parse::<usize>() {
            before = ((n + 1).to_string(), main.clone());
        }
    }
    if kernel.ended != live.ended || kernel.steps.len() != live.steps.len() {
        match end(plan.knobs.limit, kernel, live) {
            Some((at, found)) => differ(&at.to_string(), found),
            None => *totals.by_nature.entry(MARGIN.name).or_default() += 1,
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
