//! Changes of the host that are certain to be undone.

use std::ffi::OsString;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::journal::{self, Undo};
use super::{is_root, read, refused, write};
use crate::LabError;

/// The journal, and the lock that lets one run at a time change the host.
pub const JOURNAL: &str = "/run/deckle-lab.journal";
/// How long another run that holds the lock is waited for.
const PATIENCE: Duration = Duration::from_secs(300);

/// Permission to change the host. Every change is written down first, in the journal file and to
/// a keeper process; when the guard is dropped, panics past, or its process dies, all changes are
/// undone. What a crash of both leaves is undone by the next guard.
pub struct Guard {
    file: File,
    keeper: Child,
    journal: Vec<Undo>,
    set: Vec<(PathBuf, String)>,
}

impl Guard {
    /// Waits for other runs to end, undoes what a crashed one left, and starts the keeper, as
    /// `program_cmd keeper`.
    ///
    /// # Errors
    /// Not root; another run holds the lock for five minutes; leftovers that cannot be undone.
    pub fn new(program_cmd: &[OsString]) -> Result<Self, LabError> {
        if !is_root() {
            return Err(LabError::Host {
                what: "changing the host's memory settings needs root".into(),
                remedy: "run as root, or leave the kernel side out with --on".into(),
            });
        }
        let at = Path::new(JOURNAL);
        let fail = |e| refused("opening", at, e);
        let mut file = OpenOptions::new()
            .read(true)
            .append(true)
            .create(true)
            .mode(0o600)
            .open(at)
            .map_err(fail)?;
        lock(&file, at)?;

        let mut left = String::new();
        file.rewind()
            .and_then(|()| file.read_to_string(&mut left))
            .map_err(fail)?;
        if !left.is_empty() {
            eprintln!(
                "deckle lab: undoing what an earlier run left behind:\n{}",
                left.trim_end()
            );
            journal::undo_all(&journal::parse(&left)).map_err(LabError::NotRestored)?;
            file.set_len(0).map_err(fail)?;
        }

        let [program, args @ ..] = program_cmd else {
            return Err(LabError::Option(
                "the command of the workload programs is empty".into(),
            ));
        };
        let output = file.try_clone().map_err(fail)?;
        let keeper = Command::new(program)
            .args(args)
            .arg("keeper")
            .stdin(Stdio::piped())
            .stdout(output)
            .spawn()
            .map_err(|e| LabError::file("starting the keeper", program, e))?;
        Ok(Self {
            file,
            keeper,
            journal: Vec::new(),
            set: Vec::new(),
        })
    }

    /// Writes down how to undo a change. Call it before making the change.
    ///
    /// # Errors
    /// If it cannot be written down; do not make the change then.
    pub fn note(&mut self, undo: Undo) -> Result<(), LabError> {
        let line = format!("{undo}\n");
        self.file
            .write_all(line.as_bytes())
            .map_err(|e| LabError::file("writing", JOURNAL, e))?;
        let pipe = self.keeper.stdin.as_mut();
        pipe.ok_or_else(|| std::io::Error::from(std::io::ErrorKind::BrokenPipe))
            .and_then(|pipe| pipe.write_all(line.as_bytes()))
            .map_err(|e| LabError::io("telling the keeper", e))?;
        self.journal.push(undo);
        Ok(())
    }

    /// Sets a setting file (of the form `value` or `one [two] three`) until the guard goes.
    ///
    /// # Errors
    /// If it cannot be read, written, or does not take the value.
    pub fn set(&mut self, path: &Path, value: &str) -> Result<(), LabError> {
        let before = current(&read(path)?);
        if before != value {
            let noted = |undo: &Undo| matches!(undo, Undo::Write { path: p, .. } if p == path);
            if !self.journal.iter().any(noted) {
                self.note(Undo::Write {
                    path: path.into(),
                    value: before,
                })?;
            }
            write(path, value)?;
        }
        self.set.retain(|(p, _)| p != path);
        self.set.push((path.into(), value.into()));
        self.undisturbed()
    }

    /// Checks that every setting still is what the guard set.
    ///
    /// # Errors
    /// [`LabError::Disturbed`] if somebody else changed one.
    pub fn undisturbed(&self) -> Result<(), LabError> {
        for (path, want) in &self.set {
            let found = current(&read(path)?);
            if found != *want {
                let (path, want) = (path.clone(), want.clone());
                return Err(LabError::Disturbed { path, want, found });
            }
        }
        Ok(())
    }

    /// Gives everything back and says whether that worked (dropping can only print it).
    ///
    /// # Errors
    /// [`LabError::NotRestored`].
    pub fn finish(mut self) -> Result<(), LabError> {
        self.restore()
    }

    /// Process of the keeper, for tests that take it away.
    pub fn keeper_pid(&self) -> u32 {
        self.keeper.id()
    }

    fn restore(&mut self) -> Result<(), LabError> {
        if self.keeper.stdin.take().is_none() {
            return Ok(());
        }
        let status = self.keeper.wait();
        if status.as_ref().is_ok_and(|s| s.success()) {
            return Ok(());
        }
        // The keeper was killed or could not do it: do it here. Undoing twice is harmless.
        journal::undo_all(&self.journal).map_err(LabError::NotRestored)?;
        self.file
            .set_len(0)
            .map_err(|e| LabError::file("emptying", JOURNAL, e))
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if let Err(e) = self.restore() {
            eprintln!("deckle lab: {e}");
        }
    }
}

/// The value of a setting: the word in brackets where there is a choice, else the whole line.
pub(super) fn current(text: &str) -> String {
    let text = text.trim();
    let chosen = text
        .split_once('[')
        .and_then(|(_, rest)| rest.split_once(']'));
    chosen.map_or(text, |(word, _)| word).to_owned()
}

fn lock(file: &File, at: &Path) -> Result<(), LabError> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(()),
            Err(TryLockError::WouldBlock) => {}
            Err(TryLockError::Error(e)) => return Err(LabError::file("locking", at, e)),
        }
        if Instant::now() > deadline {
            return Err(LabError::Host {
                what: "another run of the lab holds the host's memory settings".into(),
                remedy: format!("wait for it to end, or see who locks {}", at.display()),
            });
        }
        thread::sleep(Duration::from_millis(100));
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn r150_current_value_of_settings() {
        assert_eq!(super::current("always [madvise] never\n"), "madvise");
        assert_eq!(super::current("511\n"), "511");
        assert_eq!(super::current("[lzo-rle] lzo lz4 \n"), "lzo-rle");
    }
}
