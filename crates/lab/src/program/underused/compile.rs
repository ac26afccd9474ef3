//! A real compiler that stops in the middle of its work.
//!
//! The last line of the generated file includes a FIFO. When the compiler opens it, it has read
//! all functions and holds them in memory; it goes on when the FIFO has been written.

use std::ffi::CString;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use super::super::anon::compile::source;
use super::{Failure, Watch};
use crate::LabError;

/// Functions of the file.
const FUNCTIONS: usize = 60;

pub(super) fn run(watch: &mut Watch) -> Result<(), Failure> {
    let dir = std::env::temp_dir().join(format!("deckle-lab-cc-{}", std::process::id()));
    fs::create_dir(&dir).map_err(|e| LabError::file("creating", &dir, e))?;
    let done = compile(watch, &dir);
    let _ = fs::remove_dir_all(&dir);
    done
}

fn compile(watch: &mut Watch, dir: &Path) -> Result<(), Failure> {
    let (file, fifo) = (dir.join("a.c"), dir.join("rest"));
    let text = format!("{}#include \"{}\"\n", source(FUNCTIONS), fifo.display());
    fs::write(&file, text).map_err(|e| LabError::file("writing", &file, e))?;
    make_fifo(&fifo)?;
    let mut cc = Command::new("cc")
        // -pipe: no file for the assembler's input; nothing is written.
        .args(["-O1", "-pipe", "-c", "-o", "/dev/null"])
        .arg(&file)
        .stdin(Stdio::null())
        .spawn()
        .map_err(|e| LabError::Host {
            what: format!("the compile program runs cc, which cannot be started ({e})"),
            remedy: "install a C compiler, or leave compile out with --program".into(),
        })?;
    let met = meet(&mut cc, &fifo, watch);
    if met.is_err() {
        let _ = cc.kill();
    }
    let status = cc.wait().map_err(|e| LabError::io("waiting for cc", e))?;
    met?;
    match status.success() {
        true => Ok(()),
        false => Err(ended(status)),
    }
}

/// Waits for the compiler at the FIFO, and lets it go on.
fn meet(cc: &mut Child, fifo: &PathBuf, watch: &mut Watch) -> Result<(), Failure> {
    let failed = |e| LabError::file("opening", fifo, e);
    let mut rest = loop {
        // Opening it succeeds once somebody reads it; waiting for that would wait for a dead one.
        let mut open = OpenOptions::new();
        match open.write(true).custom_flags(libc::O_NONBLOCK).open(fifo) {
            Err(e) if e.raw_os_error() == Some(libc::ENXIO) => {}
            other => break other.map_err(failed)?,
        }
        let gone = cc.try_wait();
        if let Some(status) = gone.map_err(|e| LabError::io("waiting for cc", e))? {
            return Err(ended(status));
        }
        thread::sleep(Duration::from_millis(1));
    };
    watch.settle()?;
    Ok(rest.write_all(b"int rest;\n").map_err(failed)?)
}

fn ended(status: std::process::ExitStatus) -> Failure {
    let (what, how) = ("cc".into(), status.to_string());
    LabError::Child { what, how }.into()
}

fn make_fifo(path: &PathBuf) -> Result<(), LabError> {
    let failed = |e| LabError::file("creating", path, e);
    let name = CString::new(path.as_os_str().as_bytes()).map_err(|e| failed(e.into()))?;
    // SAFETY: the name is terminated and lives through the call.
    match unsafe { libc::mkfifo(name.as_ptr(), 0o600) } {
        0 => Ok(()),
        _ => Err(failed(io::Error::last_os_error())),
    }
}
