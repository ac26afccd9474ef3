//! Starting the program.

use std::ffi::OsString;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use deckle_group::Name;
use deckle_sys::process::{Start, at_start};
use deckle_sys::signal::Signals;

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
        .map_err(|e| {
            let text = format!("{}: cannot be executed: {}", self.path.display(), plain(&e));
            let status = match e.raw_os_error() {
                Some(libc::ENOENT) => 127,
                Some(libc::EAGAIN | libc::ENOMEM) => 125,
                _ => 126,
            };
            Fail { status, text }
        })
    }

    fn spawn(
        &self,
        command: &mut Command,
        group: Name,
        signals: &Signals,
    ) -> std::io::Result<(u32, Option<bool>)> {
        if let Some(library) = &self.library {
            let mut preload = library.clone().into_os_string();
            if let Some(users) = std::env::var_os("LD_PRELOAD").filter(|v| !v.is_empty()) {
                preload.push(":");
                preload.push(users);
            }
            command
                .env("LD_PRELOAD", preload)
                .env("DECKLE_GROUP", group.as_str());
        }
        let (traced, (mut told, tell)) = (self.traced, std::io::pipe()?);
        let start = Start {
            signals: Some(signals.before()),
            traced: traced.then_some(tell),
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
