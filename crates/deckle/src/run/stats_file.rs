//! The file of `--stats` and that of `--metrics`: written anew from time to time, so that it can be
//! read while the program runs, and at the end.
//!
//! Who reads it must never see half of it, so a new file takes the place of the old one. Only a
//! file that nothing is lost by replacing is replaced: a regular one, ours, with one name, in a
//! directory where another can be made. Anything else (a pipe, say) is written once, at the end.
//! A pipe that no process reads at the start is opened then, too.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::replace::{self, Place};

/// When the file is written first, after the start, and how often from then on.
const EVERY: Duration = Duration::from_secs(1);

/// The file, open since the start: what cannot be written fails before the program runs.
pub struct StatsFile {
    /// `None`: to be opened at the end.
    file: Option<File>,
    path: PathBuf,
    /// Where the next one goes, if it can take this one's place.
    replace: Option<Place>,
    next: Instant,
}

impl StatsFile {
    /// Opens and empties `path`. `unique` is a word that no other `deckle run` has now.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn create(path: &Path, unique: &str) -> io::Result<StatsFile> {
        let file = replace::open(path)?;
        let replace = match &file {
            Some(file) => Place::of(file, path, unique)?,
            None => None,
        };
        Ok(StatsFile {
            file,
            path: path.to_owned(),
            replace,
            next: Instant::now() + EVERY,
        })
    }

    /// When [`work`](StatsFile::work) has something to do next.
    pub fn deadline(&self) -> Option<Instant> {
        self.replace.as_ref().map(|_| self.next)
    }

    /// Writes what `now` says if it is time. A failure is no reason to disturb the program:
    /// the file is written at the end then, or its error told.
    pub fn work(&mut self, now: impl FnOnce() -> Vec<u8>) {
        if self.replace.is_none() || Instant::now() < self.next {
            return;
        }
        if self.put(&now()).is_err() {
            self.replace = None;
        }
        self.next = Instant::now() + EVERY;
    }

    /// Writes the last one.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn end(mut self, last: &[u8]) -> io::Result<()> {
        if self.replace.is_some() && self.put(last).is_ok() {
            return Ok(());
        }
        let mut file = match self.file {
            Some(file) => file,
            None => File::create(&self.path)?,
        };
        file.set_len(0).or_else(not_a_file)?;
        file.write_all(last)
    }

    fn put(&mut self, text: &[u8]) -> io::Result<()> {
        if let (Some(place), Some(file)) = (&self.replace, &mut self.file) {
            // What is written after this, if no other file can be made, goes where readers look.
            *file = place.put(file, text)?;
        }
        Ok(())
    }
}

/// A pipe has no length, and needs none.
fn not_a_file(e: io::Error) -> io::Result<()> {
    match e.raw_os_error() {
        Some(libc::EINVAL) => Ok(()),
        _ => Err(e),
    }
}
