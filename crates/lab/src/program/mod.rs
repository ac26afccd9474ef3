//! Workload programs: `deckle lab program NAME ARGS`.
//!
//! Each is an ordinary program over anonymous memory. They say what their content
//! is, check every byte they wrote, and end with 0 if all was right, 1 if a byte was wrong, and
//! 2 if their arguments make no sense or the system refused something.

use std::ffi::OsString;
use std::fmt;
use std::io::{self, BufRead, Write};
use std::panic::resume_unwind;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use deckle_sys::process;

use crate::LabError;
use crate::experiment::bad;
use crate::region::failed;
use crate::size::{self, PAGE};

pub mod anon;
mod compiler;
pub mod fill;
pub mod oracle;
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
        Some(["oracle", rest @ ..]) => oracle::main(rest),
        Some(["pageout", rest @ ..]) => pageout::main(rest),
        Some(["oom-sparse", rest @ ..]) => sparse::main(rest),
        Some(["readzero-then-write", rest @ ..]) => read_zero::main(rest),
        Some(["torture", rest @ ..]) => torture::main(rest),
        Some(["underused", rest @ ..]) => underused::main(rest),
        Some(["walk", rest @ ..]) => walk::main(rest),
        Some(["warm", rest @ ..]) => warm::main(rest),
        Some(["keeper"]) => return crate::host::keeper::main(),
        _ => bad(
            "usage: program anon|faults|fill|oracle|pageout|oom-sparse|readzero-then-write|\
             torture|underused|walk|warm ARGS",
        )
        .map_err(Failure::Lab),
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

/// The first byte in which what was read differs from what was written.
pub(crate) fn differs(found: &[u8], want: &[u8]) -> usize {
    found
        .iter()
        .zip(want)
        .position(|(a, b)| a != b)
        .unwrap_or(0)
}

/// Starts the line with the figures of a program, as JSON.
pub(crate) const FIGURES_LINE: &str = "figures: ";

/// Prints the figures of a program.
pub(crate) fn say_figures(figures: impl serde::Serialize) -> Result<(), Failure> {
    let line = serde_json::to_string(&figures).map_err(|e| LabError::io("JSON", e.into()))?;
    Ok(say(format_args!("{FIGURES_LINE}{line}"))?)
}

/// Compares one page with what it should hold.
pub(crate) fn check(page_no: usize, found: &[u8], want: &[u8]) -> Result<(), Failure> {
    if found == want {
        return Ok(());
    }
    let offset = differs(found, want);
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
    let pages = bytes.len() / PAGE;
    let bar = fill::progress(pages as u64, "checking");
    for (n, found) in bytes.chunks_exact(PAGE).enumerate() {
        want(n, &mut page);
        check(n, found, &page)?;
        fill::step(&bar, n);
    }
    bar.finish_and_clear();
    say(format_args!("checked: {pages} pages, every byte right"))?;
    Ok(())
}

/// A size argument, in whole pages.
pub(crate) fn pages_of(text: &str) -> Result<usize, LabError> {
    Ok(size::parse(text)?.div_ceil(PAGE))
}

/// An argument of seconds.
pub(crate) fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    Duration::try_from_secs_f64(seconds).map_err(|e| e.to_string())
}

/// The options of a workload.
pub(crate) fn parse<T: clap::Parser>(args: &[&str]) -> Result<T, LabError> {
    T::try_parse_from(args).or_else(|e| {
        if e.kind() == clap::error::ErrorKind::DisplayHelp {
            e.exit();
        }
        let (text, usage) = (e.to_string(), T::command().render_usage());
        let why = text.lines().next().unwrap_or_default();
        bad(format!(
            "{}; {usage}",
            why.trim_start_matches("error: ").trim_end_matches(':')
        ))
    })
}

/// Waits for a line on stdin.
pub(crate) fn wait_for_a_line() -> Result<(), LabError> {
    let read = io::stdin().lock().read_line(&mut String::new());
    read.map(|_| ())
        .map_err(|e| LabError::io("waiting for a line on stdin", e))
}

/// Does `each` of the work in a thread of its own; what they return, in their order.
pub(crate) fn in_threads<W: Send, T: Send>(
    work: impl IntoIterator<Item = W>,
    each: impl Fn(W) -> T + Sync,
) -> Vec<T> {
    thread::scope(|scope| {
        let each = &each;
        let threads = work.into_iter().map(|work| scope.spawn(move || each(work)));
        let threads: Vec<_> = threads.collect();
        let join = |thread: thread::ScopedJoinHandle<'_, T>| {
            thread.join().unwrap_or_else(|panic| resume_unwind(panic))
        };
        threads.into_iter().map(join).collect()
    })
}

/// Does `work` in a forked child, which has to say that it went well.
#[expect(
    unsafe_code,
    reason = "a fork while there are threads is its caller's to answer for"
)]
pub(crate) fn in_child(work: impl FnOnce() -> bool) -> Result<(), LabError> {
    // SAFETY: the work of this crate makes no thread.
    let raw = unsafe { process::in_child(work) }.map_err(failed("forking"))?;
    if raw == 0 {
        return Ok(());
    }
    let (what, how) = (
        "a forked child".into(),
        format!("ended with status {raw:#x}"),
    );
    Err(LabError::Child { what, how })
}

/// Page faults until now, minor and major, of this process (`RUSAGE_SELF`) or of the children that
/// it has waited for.
pub(crate) fn faults(of: i32) -> u64 {
    let usage = process::usage(of);
    usage.ru_minflt.cast_unsigned() + usage.ru_majflt.cast_unsigned()
}
