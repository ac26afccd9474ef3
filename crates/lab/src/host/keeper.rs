//! The keeper: a process that gives the host's settings back when the run ends, in whatever way
//! the run ends.
//!
//! It reads journal lines from stdin and sits out the run. Stdin closes when the guard is dropped
//! and also when its process panics, is interrupted or is killed; then the keeper undoes. Its
//! stdout is the journal file itself: that keeps the file's lock held until all is restored.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::process::ExitCode;

use deckle_sys::{process, signal};

use super::journal;

/// Runs the keeper until its stdin closes. Exit status 0 if everything was given back.
pub fn main() -> ExitCode {
    // Ctrl-C at the terminal, and a hang-up, are meant for the run: this process has to outlive it.
    process::begin_session();
    signal::ignore(&[libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGPIPE]);
    match keep() {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            let _ = writeln!(io::stderr(), "deckle lab: settings not restored:\n{why}");
            ExitCode::FAILURE
        }
    }
}

fn keep() -> Result<(), String> {
    // Holds no directory of the run busy; failing to move is no reason not to keep.
    let _ = std::env::set_current_dir("/");
    let mut text = Vec::new();
    io::stdin()
        .lock()
        .read_to_end(&mut text)
        .map_err(|e| format!("reading the journal: {e}"))?;
    journal::undo_all(&journal::parse(&String::from_utf8_lossy(&text)))?;
    let file = io::stdout().as_fd().try_clone_to_owned().map(File::from);
    file.and_then(|f| f.set_len(0))
        .map_err(|e| format!("emptying the journal: {e}"))
}
