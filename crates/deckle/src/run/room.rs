//! How many processes the supervisor can watch: its limit on open files.

use deckle_sys::process;

use crate::fail::Fail;

/// Descriptors that the supervisor needs itself, those that it opens for a moment among them.
const OWN: u64 = 24;
/// Those of each process: its connection, its userfaultfd, two pidfds, a spare connection, a file
/// for swapped pages.
const EACH: u64 = 6;

/// Raises this process's soft limit on descriptors to the hard one. Returns the limits before, if
/// it could be raised, which the program shall have; and how many processes can be watched.
///
/// # Errors
/// Not one.
pub fn raise() -> Result<(Option<[u64; 2]>, usize), Fail> {
    let Ok(before) = process::raise_file_limit() else {
        // As refused where the hard limit is above what the system allows by now.
        return Ok((None, usize::MAX));
    };
    match processes(before[1]) {
        0 => Err(Fail::own(format!(
            "the hard limit on open files ({}) is too small: at least {} (ulimit -Hn)",
            before[1],
            OWN + EACH
        ))),
        most => Ok((Some(before), most)),
    }
}

fn processes(files: u64) -> usize {
    (files.saturating_sub(OWN) / EACH) as usize
}
