//! What has to be undone on the host, written down before it is done.
//!
//! One line per change, in the order of the changes; undoing goes backwards. Undoing twice does no
//! harm, so whoever is left may do it: the keeper, the guard, or the next run that finds the file.

use std::ffi::CString;
use std::fmt;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use deckle_sys::{file, signal};

/// How long processes of a removed cgroup and busy devices are waited for.
const PATIENCE: Duration = Duration::from_secs(10);

/// One change to undo.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Undo {
    /// Write `value` to a setting.
    Write {
        /// The setting's file.
        path: PathBuf,
        /// What it held before.
        value: String,
    },
    /// Stop swapping to a device.
    SwapOff(PathBuf),
    /// Kill what runs in a cgroup and remove it.
    RemoveCgroup(PathBuf),
}

impl fmt::Display for Undo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Write { path, value } => write!(f, "write\t{}\t{value}", path.display()),
            Self::SwapOff(device) => write!(f, "swapoff\t{}", device.display()),
            Self::RemoveCgroup(dir) => write!(f, "rmcgroup\t{}", dir.display()),
        }
    }
}

impl Undo {
    fn parse(line: &str) -> Option<Self> {
        let mut fields = line.splitn(3, '\t');
        let undo = match (fields.next()?, fields.next()?, fields.next()) {
            ("write", path, Some(value)) => Self::Write {
                path: path.into(),
                value: value.into(),
            },
            ("swapoff", device, None) => Self::SwapOff(device.into()),
            ("rmcgroup", dir, None) => Self::RemoveCgroup(dir.into()),
            _ => return None,
        };
        Some(undo)
    }

    /// Undoes the change. Has no effect if that was done before.
    ///
    /// # Errors
    /// What the system says, after some patience with what is busy.
    pub fn apply(&self) -> io::Result<()> {
        match self {
            Self::Write { path, value } => fs::write(path, value),
            Self::SwapOff(device) => swap_off(device),
            Self::RemoveCgroup(dir) => remove_cgroup(dir),
        }
    }
}

/// Parses a journal. A last line without its newline was cut short while being written, so its
/// change was never made: it is left out, as is anything not understood.
pub fn parse(text: &str) -> Vec<Undo> {
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    whole.lines().filter_map(Undo::parse).collect()
}

/// Undoes all changes, last one first, and goes on after a failure.
///
/// # Errors
/// One line for each change that could not be undone.
pub fn undo_all(journal: &[Undo]) -> Result<(), String> {
    let failed: Vec<String> = journal
        .iter()
        .rev()
        .filter_map(|undo| undo.apply().err().map(|e| format!("{undo}: {e}")))
        .collect();
    if failed.is_empty() {
        Ok(())
    } else {
        Err(failed.join("\n"))
    }
}

fn swap_off(device: &Path) -> io::Result<()> {
    let swaps = fs::read_to_string("/proc/swaps")?;
    if !swaps
        .lines()
        .any(|l| l.split_whitespace().next() == device.to_str())
    {
        return Ok(());
    }
    let path = CString::new(device.as_os_str().as_bytes())?;
    Ok(file::swap_off(&path)?)
}

fn remove_cgroup(dir: &Path) -> io::Result<()> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let pids = match fs::read_to_string(dir.join("cgroup.procs")) {
            Ok(pids) => pids,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(e) => return Err(e),
        };
        for pid in pids
            .lines()
            .filter_map(|p| p.parse::<i32>().ok())
            .filter(|pid| *pid > 1)
        {
            // Read from our own cgroup just now.
            let _ = signal::send(pid, libc::SIGKILL);
        }
        match fs::remove_dir(dir) {
            Ok(()) => return Ok(()),
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(e) if Instant::now() > deadline => return Err(e),
            Err(_) => thread::sleep(Duration::from_millis(5)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r150_journal_survives_being_cut_short() {
        let all = [
            Undo::Write {
                path: "/sys/a b".into(),
                value: "x\ty".into(),
            },
            Undo::SwapOff("/dev/zram0".into()),
            Undo::RemoveCgroup("/sys/fs/cgroup/x".into()),
        ];
        let text: String = all.iter().map(|u| format!("{u}\n")).collect();
        assert_eq!(parse(&text), all);
        assert_eq!(parse(&text[..text.len() - 1]), all[..2]);
        assert_eq!(parse("nonsense\n"), []);
        assert_eq!(parse(""), []);
    }

    #[test]
    fn r150_undo_goes_backwards_and_on_after_a_failure() {
        let dir = std::env::temp_dir().join(format!("deckle-lab-journal-{}", std::process::id()));
        fs::create_dir(&dir).unwrap();
        let file = dir.join("setting");
        fs::write(&file, "third").unwrap();
        let write = |path: &Path, value: &str| Undo::Write {
            path: path.into(),
            value: value.into(),
        };
        let missing = dir.join("no/such");
        let said = undo_all(&[
            write(&file, "first"),
            write(&missing, "x"),
            write(&file, "second"),
        ]);
        assert!(said.unwrap_err().contains("no/such"));
        assert_eq!(fs::read_to_string(&file).unwrap(), "first");
        fs::remove_dir_all(&dir).unwrap();
    }
}
