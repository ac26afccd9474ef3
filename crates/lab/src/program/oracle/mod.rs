//! `oracle SEED [--show]`: does what the seed says to anonymous memory, and tells after each step
//! what came of it, in a line: the step, the call's error, a sum over all bytes (0 where they were
//! not read), and how each page is mapped, as runs. `--show` prints what the seed says instead.
//!
//! What is told is asked of the system (`PAGEMAP_SCAN`), so that no page is touched for it.

use std::fmt::Write;
use std::io::{self, Read, Write as _};

use deckle_sys::process;
use deckle_uffd::{Categories, Pagemap, PagemapScan};

use super::{Failure, parse, say};
use crate::LabError;
use crate::size::PAGE;

mod arena;
pub mod plan;

use arena::{Arena, FREED, READ, WRITE};
use plan::{Plan, Step};

/// How a page is mapped: not, as a page of zeros, as memory, as a part of a huge page, or it is in
/// the system's swap.
pub const CLASSES: &[u8; 5] = b".zrhs";

#[derive(clap::Parser)]
#[command(name = "oracle", no_binary_name = true)]
struct Options {
    #[arg(value_name = "SEED")]
    seed: u64,
    #[arg(long)]
    show: bool,
}

pub(super) fn main(args: &[&str]) -> Result<(), Failure> {
    let options: Options = parse(args)?;
    let plan = Plan::new(options.seed);
    if options.show {
        return Ok(say(format_args!("{plan}"))?);
    }
    let mut program = Program::new(&plan)?;
    for (n, step) in plan.steps.iter().enumerate() {
        program.step(&n.to_string(), step)?;
    }
    // Whatever was not looked at yet.
    program.looks = true;
    program.tell("end", 0)?;
    Ok(())
}

struct Program {
    arena: Arena,
    pagemap: Pagemap,
    /// Whether all is read after each step.
    looks: bool,
    /// Room for a line, and for the classes of all pages: none is asked for between two steps.
    line: String,
    classes: Vec<u8>,
}

impl Program {
    fn new(plan: &Plan) -> Result<Self, LabError> {
        let pagemap = Pagemap::open_self().map_err(|e| LabError::io("pagemap", e.into()))?;
        Ok(Self {
            arena: Arena::new(plan.pages).map_err(|e| LabError::io("mapping memory", e))?,
            pagemap,
            looks: plan.looks,
            line: String::with_capacity(60 << 10),
            classes: vec![b'.'; plan.pages],
        })
    }

    fn step(&mut self, name: &str, step: &Step) -> Result<(), LabError> {
        let arena = &mut self.arena;
        let errno = match step.clone() {
            Step::Map(range) => arena.map(range),
            Step::Touch(range, stride, word) => {
                for page in range.step_by(stride) {
                    match word {
                        Some(word) if arena.pages[page] & WRITE != 0 => {
                            let word = if word == 0 { 0 } else { word ^ page as u64 };
                            arena.write(page, word);
                        }
                        None if arena.pages[page] & READ != 0 => {
                            arena.read(page);
                        }
                        _ => {}
                    }
                }
                0
            }
            Step::Advise(range, advice) => arena.advise(range, advice as i32),
            Step::Protect(range, prot) => arena.protect(range, prot),
            Step::Move(from, to) => {
                let length = from.len();
                arena.remap(from, length, Some(to))
            }
            Step::Resize(range, length) => arena.remap(range, length, None),
            Step::Unmap(range) => arena.unmap(range),
            Step::Fork(child, parent, child_first) => {
                return self.fork(name, &child, &parent, child_first);
            }
        };
        self.tell(name, errno)
    }

    /// Both sides of a fork, one after the other.
    fn fork(
        &mut self,
        name: &str,
        child: &[Step],
        parent: &[Step],
        child_first: bool,
    ) -> Result<(), LabError> {
        let fail = |e| LabError::io("forking", e);
        let (mut until, go) = io::pipe().map_err(fail)?;
        let steps = |program: &mut Self, who: char, steps: &[Step]| {
            (steps.iter().enumerate())
                .try_for_each(|(n, step)| program.step(&format!("{name}{who}{n}"), step))
        };
        let Some(pid) = process::fork_alone().map_err(|e| fail(e.into()))? else {
            drop(go);
            let _ = until.read(&mut [0]);
            // The one that is open is about the parent's memory.
            if let Ok(own) = Pagemap::open_self() {
                self.pagemap = own;
                let _ = steps(self, 'c', child);
            }
            std::process::exit(0);
        };
        if !child_first {
            steps(self, 'p', parent)?;
        }
        drop(go);
        let waited = process::wait(pid, 0).map_err(|e| fail(e.into()))?;
        let status = waited.map_or(-1, |(_, status)| status);
        if child_first {
            steps(self, 'p', parent)?;
        }
        self.tell(name, status)
    }

    /// Prints the line of a step.
    fn tell(&mut self, name: &str, errno: i32) -> Result<(), LabError> {
        self.scan()?;
        let sum = if self.looks { self.arena.sum(FREED) } else { 0 };
        self.line.clear();
        let _ = write!(self.line, "step {name} {errno} {sum:x} ");
        for run in self.classes.chunk_by(|a, b| a == b) {
            let _ = write!(self.line, "{}{}", char::from(run[0]), run.len());
        }
        self.line.push('\n');
        let mut out = io::stdout().lock();
        let written = out.write_all(self.line.as_bytes());
        (written.and_then(|()| out.flush())).map_err(|e| LabError::io("writing to stdout", e))
    }

    /// How each page is mapped.
    fn scan(&mut self) -> Result<(), LabError> {
        let base = self.arena.address(0);
        let end = self.arena.address(self.classes.len());
        let all = Categories::PRESENT | Categories::SWAPPED | Categories::PFNZERO;
        let query = PagemapScan::any(base, end, all | Categories::HUGE);
        self.classes.fill(CLASSES[0]);
        let classes = &mut self.classes;
        let scanned = self.pagemap.each(query, |region| {
            let is = |category| region.categories().contains(category);
            let class = match () {
                () if is(Categories::PFNZERO) => CLASSES[1],
                () if is(Categories::SWAPPED) => CLASSES[4],
                () if is(Categories::HUGE) => CLASSES[3],
                () => CLASSES[2],
            };
            let pages = (region.start() - base) / PAGE..(region.end() - base) / PAGE;
            classes[pages].fill(class);
        });
        scanned.map_err(|e| LabError::io("looking at the memory", e.into()))
    }
}
