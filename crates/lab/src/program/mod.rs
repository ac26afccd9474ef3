//! Workload programs: `deckle lab program NAME ARGS`.
//!
//! Each is an ordinary program over anonymous memory. They say what their content
//! is, check every byte they wrote, and end with 0 if all was right, 1 if a byte was wrong, and
//! 2 if their arguments make no sense or the system refused something.

use std::ffi::OsString;
use std::fmt;
use std::io::{self, Write};
use std::process::ExitCode;

use crate::LabError;
use crate::size::{self, PAGE};

pub mod anon;
pub mod fill;
pub mod pageout;
pub mod read_zero;
pub mod sparse;
pub mod torture;
pub mod underused;
pub mod walk;
pub mod warm;

/// How a workload failed.
#[derive(Debug)]
pub enum Failure {
    /// Memory does not hold what was written.
    Mismatch {
        /// Page, counted from the start of the workload's memory.
        page: usize,
        /// Byte within the page.
        offset: usize,
        /// What was read.
        found: u8,
        /// What was written.
        want: u8,
    },
    /// Arguments, or a system call.
    Lab(LabError),
}

impl From<LabError> for Failure {
    fn from(e: LabError) -> Self {
        Self::Lab(e)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mismatch {
                page,
                offset,
                found,
                want,
            } => write!(
                f,
                "wrong byte in page {page} at offset {offset}: read {found:#04x}, wrote {want:#04x}"
            ),
            Self::Lab(e) => write!(f, "{e}"),
        }
    }
}

/// Runs one workload or helper. `args` starts with its name. Prints results on stdout and errors
/// on stderr.
pub fn programs_main(args: &[OsString]) -> ExitCode {
    let words: Option<Vec<&str>> = args.iter().map(|a| a.to_str()).collect();
    let done = match words.as_deref() {
        Some(["anon", rest @ ..]) => anon::main(rest),
        Some(["faults", rest @ ..]) => walk::faults::main(rest),
        Some(["fill", rest @ ..]) => fill::main(rest),
        Some(["pageout", rest @ ..]) => pageout::main(rest),
        Some(["oom-sparse", rest @ ..]) => sparse::main(rest),
        Some(["readzero-then-write", rest @ ..]) => read_zero::main(rest),
        Some(["torture", rest @ ..]) => torture::main(rest),
        Some(["underused", rest @ ..]) => underused::main(rest),
        Some(["walk", rest @ ..]) => walk::main(rest),
        Some(["warm", rest @ ..]) => warm::main(rest),
        Some(["keeper"]) => return crate::host::keeper::main(),
        _ => Err(LabError::Option(
            "usage: program anon|faults|fill|pageout|oom-sparse|readzero-then-write|torture|\
             underused|walk|warm ARGS"
                .into(),
        )
        .into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            // A closed stderr is no reason to hide the exit status.
            let _ = writeln!(io::stderr(), "lab program: {failure}");
            ExitCode::from(match failure {
                Failure::Mismatch { .. } => 1,
                Failure::Lab(_) => 2,
            })
        }
    }
}

/// Prints one line of result at once, also into a pipe.
pub(crate) fn say(line: fmt::Arguments<'_>) -> Result<(), LabError> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}")
        .and_then(|()| out.flush())
        .map_err(|e| LabError::io("writing to stdout", e))
}

/// Compares one page with what it should hold.
pub(crate) fn check(page_no: usize, found: &[u8], want: &[u8]) -> Result<(), Failure> {
    if found == want {
        return Ok(());
    }
    let offset = found
        .iter()
        .zip(want)
        .position(|(a, b)| a != b)
        .unwrap_or(0);
    Err(Failure::Mismatch {
        page: page_no,
        offset,
        found: found[offset],
        want: want[offset],
    })
}

/// Compares every page with what `want` says it holds (a page, by its number), and says so.
pub(crate) fn check_all(
    bytes: &[u8],
    mut want: impl FnMut(usize, &mut [u8; PAGE]),
) -> Result<(), Failure> {
    let mut page = [0; PAGE];
    for (n, found) in bytes.chunks_exact(PAGE).enumerate() {
        want(n, &mut page);
        check(n, found, &page)?;
    }
    let pages = bytes.len() / PAGE;
    say(format_args!("checked: {pages} pages, every byte right"))?;
    Ok(())
}

/// Takes the value of `--name` out of `args`, if it is there.
pub(crate) fn option<'a>(args: &mut Vec<&'a str>, name: &str) -> Result<Option<&'a str>, LabError> {
    let Some(i) = args.iter().position(|a| *a == name) else {
        return Ok(None);
    };
    if i + 1 == args.len() {
        return Err(LabError::Option(format!("{name} needs a value")));
    }
    let value = args.remove(i + 1);
    args.remove(i);
    Ok(Some(value))
}

/// Takes the switch `--name` out of `args`; true if it was there.
pub(crate) fn switch(args: &mut Vec<&str>, name: &str) -> bool {
    let before = args.len();
    args.retain(|a| *a != name);
    args.len() != before
}

/// A number argument.
pub(crate) fn number<T: std::str::FromStr>(what: &str, text: &str) -> Result<T, LabError> {
    text.parse()
        .map_err(|_| LabError::Option(format!("{what} '{text}': not a number")))
}

/// A size argument, in whole pages.
pub(crate) fn pages_of(text: &str) -> Result<usize, LabError> {
    Ok(size::parse(text)?.div_ceil(size::PAGE))
}
