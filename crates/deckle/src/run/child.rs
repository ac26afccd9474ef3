//! Starting the program.

use std::ffi::{CString, OsStr, OsString};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use deckle_group::Name;
use deckle_sys::Errno;
use deckle_sys::process::{self, Start, at_start};
use deckle_sys::signal::Signals;

use super::nested::{GROUP, OUTER, PRELOAD, variable};
use crate::fail::{Fail, plain};

/// What to execute.
pub struct Program {
    /// The file.
    pub path: PathBuf,
    /// Its arguments, the name as given first.
    pub argv: Vec<OsString>,
    /// The preload library; `None`: unmanaged.
    pub library: Option<PathBuf>,
    /// It is to stop after its exec, so that the second door can be put in.
    pub traced: bool,
    /// Its limits on descriptors, if the supervisor has raised its own.
    pub files: Option<[u64; 2]>,
}

impl Program {
    /// Starts it with signals as they were before `signals`; its pid, and whether it is traced, if
    /// it is to be.
    pub fn start(&self, group: Name, signals: &Signals) -> Result<(u32, Option<bool>), Fail> {
        let first = self.argv.first().cloned().unwrap_or_default();
        let mut direct = Command::new(&self.path);
        direct.arg0(&first).args(&self.argv[1..]);
        match self.spawn(&mut direct, group, signals) {
            // No format that the kernel knows: as execvp and every shell do.
            Err(e) if e.raw_os_error() == Some(libc::ENOEXEC) => {
                let mut shell = Command::new("/bin/sh");
                shell.arg(&self.path).args(&self.argv[1..]);
                self.spawn(&mut shell, group, signals)
            }
            other => other,
        }
        .map_err(|e| self.failed(&e))
    }

    /// Executes it in the place of this process. Comes back with an error only.
    pub fn replace(&self) -> Fail {
        let text = |text: &OsStr| CString::new(text.as_bytes()).unwrap_or_default();
        let mut argv: Vec<_> = self.argv.iter().map(|word| text(word)).collect();
        let env: Vec<_> = std::env::vars_os().map(|(k, v)| variable(&k, &v)).collect();
        let path = text(self.path.as_os_str());
        let mut errno = process::execute(&path, &argv, &env, false);
        if errno == Errno(libc::ENOEXEC) {
            argv.splice(..1, [c"/bin/sh".to_owned(), path]);
            errno = process::execute(c"/bin/sh", &argv, &env, false);
        }
        self.failed(&std::io::Error::from_raw_os_error(errno.0))
    }

    fn failed(&self, e: &std::io::Error) -> Fail {
        let text = format!("{}: cannot be executed: {}", self.path.display(), plain(e));
        let status = match e.raw_os_error() {
            Some(libc::ENOENT) => 127,
            Some(libc::EAGAIN | libc::ENOMEM) => 125,
            _ => 126,
        };
        Fail { status, text }
    }

    fn spawn(
        &self,
        command: &mut Command,
        group: Name,
        signals: &Signals,
    ) -> std::io::Result<(u32, Option<bool>)> {
        if let Some(library) = &self.library {
            let mut preload = library.clone().into_os_string();
            if let Some(users) = std::env::var_os(PRELOAD).filter(|v| !v.is_empty()) {
                preload.push(":");
                preload.push(users);
            }
            command.env(PRELOAD, preload).env(GROUP, group.as_str());
        }
        command.env_remove(OUTER);
        let (traced, (mut told, tell)) = (self.traced, std::io::pipe()?);
        let start = Start {
            signals: Some(signals.before()),
            traced: traced.then_some(tell),
            files: self.files,
            ..Start::default()
        };
        // An unmanaged program has no service that would end it with us.
        at_start(command, start);
        // Not waited for through this handle: the supervisor reaps whatever ends.
        let child = command.spawn()?.id();
        let mut answer = [0];
        let is_traced = traced.then(|| told.read(&mut answer).is_ok() && answer == [1]);
        Ok((child, is_traced))
    }
}
