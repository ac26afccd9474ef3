//! A real compiler that stops in the middle of its work.
//!
//! The last line of the generated file includes a FIFO. When the compiler opens it, it has read
//! all functions and holds them in memory; it goes on when the FIFO has been written.

use std::ffi::CString;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::thread;
use std::time::Duration;

use deckle_sys::file;

use super::{Failure, Watch, compiler};
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
    let end = format!("#include \"{}\"\n", fifo.display());
    let mut cc = compiler::cc(&file, FUNCTIONS, &end)?;
    make_fifo(&fifo)?;
    let cc = cc.stdin(Stdio::null()).spawn();
    let mut cc = cc.map_err(|e| compiler::none("cc", &e))?;
    let met = meet(&mut cc, &fifo, watch);
    if met.is_err() {
        let _ = cc.kill();
    }
    let status = cc.wait().map_err(|e| LabError::io("waiting for cc", e))?;
    met?;
    match status.success() {
        true => Ok(()),
        false => Err(compiler::failed(status, b"").into()),
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
            return Err(compiler::failed(status, b"").into());
        }
        thread::sleep(Duration::from_millis(1));
    };
    watch.settle()?;
    Ok(rest.write_all(b"int rest;\n").map_err(failed)?)
}

fn make_fifo(path: &PathBuf) -> Result<(), LabError> {
    let failed = |e| LabError::file("creating", path, e);
    let name = CString::new(path.as_os_str().as_bytes()).map_err(|e| failed(e.into()))?;
    file::make_fifo(&name, 0o600).map_err(|e| failed(e.into()))
}
