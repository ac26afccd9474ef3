//! `underused PROGRAM`: the programs of the underused experiment.
//!
//! Each works for a while and then says [`SETTLE_LINE`] and waits for a line on stdin, so that
//! its memory can be pressed and looked at while it holds what it will go on with. Then it goes
//! on, checks what it holds, and says `took: SECONDS`, the time without the wait.

use std::time::Instant;

use deckle_sys::mapping::Advice;

use super::{Failure, compiler, differs, parse, say, wait_for_a_line};
use crate::region::{self, failed};

mod churn;
mod compile;
mod python;
mod sparse;

pub use churn::{BYTES as CHURN_BYTES, run as churn};
pub use sparse::{BYTES as SPARSE_BYTES, run as sparse};

/// What is said when the memory can be looked at.
pub const SETTLE_LINE: &str = "settle";
/// What the line of the time starts with.
pub const TOOK_LINE: &str = "took: ";

named! {
    /// A program of the experiment.
    pub enum Program {
        /// One byte in each 50 KiB of 256 MiB, as the test of the series; then the same again.
        Sparse = "sparse",
        /// An allocator with many size classes, and a live set that grows and shrinks.
        Churn = "churn",
        /// python3 with a script of dictionaries, text and a filter of 64 MiB.
        Python = "python",
        /// `cc` on a generated file.
        Compile = "compile",
    }
}

impl Program {
    /// The command of the system that it needs, if any.
    pub const fn needs(self) -> Option<&'static str> {
        match self {
            Self::Sparse | Self::Churn => None,
            Self::Python => Some("python3"),
            Self::Compile => Some("cc"),
        }
    }

    /// About as many bytes as it touches.
    pub const fn bytes(self) -> usize {
        match self {
            Self::Sparse => SPARSE_BYTES,
            Self::Churn => CHURN_BYTES / 2,
            Self::Python => 256 << 20,
            Self::Compile => 128 << 20,
        }
    }
}

/// Memory as a program uses it: one mapping that holds zeros at first.
pub trait Memory {
    /// Why something could not be done.
    type Error;
    /// Writes `bytes` at byte `at`.
    ///
    /// # Errors
    /// An access that is not served.
    fn write(&mut self, at: usize, bytes: &[u8]) -> Result<(), Self::Error>;
    /// Reads from byte `at` on.
    ///
    /// # Errors
    /// An access that is not served.
    fn read(&mut self, at: usize, bytes: &mut [u8]) -> Result<(), Self::Error>;
    /// Gives whole pages back; they hold zeros again.
    ///
    /// # Errors
    /// What the system says.
    fn give_back(&mut self, at: usize, bytes: usize) -> Result<(), Self::Error>;
    /// The error for a byte that is not what was written.
    fn wrong(at: usize, found: u8, want: u8) -> Self::Error;
}

/// Compares what is at byte `at` with what was written there.
fn check<M: Memory>(memory: &mut M, at: usize, want: &[u8]) -> Result<(), M::Error> {
    let mut found = [0; 4096];
    for (i, want) in want.chunks(found.len()).enumerate() {
        let at = at + i * found.len();
        let found = &mut found[..want.len()];
        memory.read(at, found)?;
        if found != want {
            let k = differs(found, want);
            return Err(M::wrong(at + k, found[k], want[k]));
        }
    }
    Ok(())
}

impl Memory for deckle_sys::Memory {
    type Error = Failure;

    fn write(&mut self, at: usize, bytes: &[u8]) -> Result<(), Failure> {
        self[at..at + bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn read(&mut self, at: usize, bytes: &mut [u8]) -> Result<(), Failure> {
        bytes.copy_from_slice(&self[at..at + bytes.len()]);
        Ok(())
    }

    fn give_back(&mut self, at: usize, bytes: usize) -> Result<(), Failure> {
        let done = self.advise(at..at + bytes, Advice::DontNeed);
        Ok(done.map_err(failed("giving memory back"))?)
    }

    fn wrong(at: usize, found: u8, want: u8) -> Failure {
        Failure::Mismatch {
            page: at / 4096,
            offset: at % 4096,
            found,
            want,
        }
    }
}

#[derive(clap::Parser)]
#[command(name = "underused", no_binary_name = true)]
struct Options {
    program: Program,
}

pub(super) fn main(args: &[&str]) -> Result<(), Failure> {
    let options: Options = parse(args)?;
    let mut watch = Watch::new();
    let mut settle = |_: &mut deckle_sys::Memory| watch.settle();
    match options.program {
        Program::Sparse => sparse(&mut region::map(SPARSE_BYTES)?, &mut settle)?,
        Program::Churn => churn(&mut region::map(CHURN_BYTES)?, &mut settle)?,
        Program::Python => return Err(python::run().into()),
        Program::Compile => compile::run(&mut watch)?,
    }
    say(format_args!("{TOOK_LINE}{:.6}", watch.seconds()))?;
    Ok(())
}

/// The time of a program, without its waits.
struct Watch {
    started: Instant,
    waited: f64,
}

impl Watch {
    fn new() -> Self {
        Self {
            started: Instant::now(),
            waited: 0.0,
        }
    }

    /// Says that the memory can be looked at, and waits.
    fn settle(&mut self) -> Result<(), Failure> {
        let from = Instant::now();
        say(format_args!("{SETTLE_LINE}"))?;
        wait_for_a_line()?;
        self.waited += from.elapsed().as_secs_f64();
        Ok(())
    }

    fn seconds(&self) -> f64 {
        self.started.elapsed().as_secs_f64() - self.waited
    }
}
