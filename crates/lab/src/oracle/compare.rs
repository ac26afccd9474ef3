//! What the two sides of a program have told, step by step, and in what they differ: errors,
//! bytes and ends here, the pages in `pages.rs`.

use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt;

use serde::Serialize;

use super::pages::{NEAR, Process, is_resident};
use super::reasons::MARGIN;
use crate::LabError;
use crate::child::Finished;
use crate::program::oracle::plan::{Advice, Plan, Step};
use crate::size::PAGE;

/// Exit status of `deckle run` for a program killed at the limit.
const KILLED: i32 = 137;

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
    /// What explains it, of [`CAUSES`](super::CAUSES).
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

/// Another error, or other bytes, after a step.
fn other(step: &Step, kernel: &Told, live: &Told) -> Option<Found> {
    let name = name(step, kernel);
    if kernel.errno != live.errno {
        let what = format!("{name}: error {} instead of {}", live.errno, kernel.errno);
        return Some((Kind::Error, what, None));
    }
    (kernel.sum != live.sum).then(|| (Kind::Bytes, format!("{name}: other bytes"), None))
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
        if let Some(other) = other(step, k, l) {
            if is_refused(plan.knobs.limit, step, k, l) {
                *totals.by_nature.entry(MARGIN.name).or_default() += 1;
                return;
            }
            return differ(&k.step, other);
        }
        process.forked |= k.step.contains(['c', 'p']);
        let news = process.look(plan, step, [&k.classes, &l.classes]);
        main.pressed |= news.full && k.step.contains('c');
        for nature in &news.natures {
            *totals.by_nature.entry(nature.name).or_default() += 1;
        }
        if news.is_nature() {
            totals.agree += u64::from(news.natures.is_empty());
        } else {
            let what = format!("{}: {}", name(step, k), news.what());
            differ(&k.step, (Kind::Memory, what, news.cause()));
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
