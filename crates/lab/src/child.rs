//! Runs of a workload: started in a cgroup, timed, talked to, and never waited for without end.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use deckle_sys::file::{in_memory, set_flags};
use deckle_sys::poll::{poll, to_read};
use deckle_sys::process::{self, Start, at_start};
use deckle_sys::{Errno, Fd, pidfd};

use crate::LabError;
use crate::program::FIGURES_LINE;

/// Longest that a run may take unless told otherwise; a hang ends it.
const DEADLINE: Duration = Duration::from_secs(1800);

/// A workload that runs.
pub struct Running {
    what: String,
    child: Child,
    pidfd: Fd,
    input: Option<ChildStdin>,
    output: File,
    said: Vec<u8>,
    errors: File,
    started: Instant,
    deadline: Duration,
    reaped: bool,
}

/// A workload that ended.
#[derive(Debug)]
pub struct Finished {
    /// Which run, for messages.
    pub what: String,
    /// From before its start to after its end, in seconds.
    pub wall_s: f64,
    /// User and system time of it and of the descendants it waited for, in seconds.
    pub cpu_s: f64,
    /// How it ended.
    pub status: ExitStatus,
    /// What it printed on stdout.
    pub stdout: String,
    /// What it printed on stderr.
    pub stderr: String,
}

impl Finished {
    /// An error that tells how this run ended.
    pub fn failure(&self, why: &str) -> LabError {
        let tail: Vec<&str> = self.stderr.trim_end().lines().rev().take(5).collect();
        let tail: Vec<&str> = tail.into_iter().rev().collect();
        let how = format!("{why} ({}): {}", self.status, tail.join(" | "));
        LabError::Child {
            what: self.what.clone(),
            how,
        }
    }

    /// What the rest of the line of stdout that starts with `prefix` says.
    ///
    /// # Errors
    /// There is no such line, or it cannot be understood.
    pub fn told<T>(
        &self,
        prefix: &str,
        parse: impl FnOnce(&str) -> Option<T>,
    ) -> Result<T, LabError> {
        let told = self.line(prefix).and_then(parse);
        told.ok_or_else(|| self.failure(&format!("did not print '{prefix}' and its figures")))
    }

    /// What its line of figures says.
    ///
    /// # Errors
    /// There is no such line, or it lacks a figure.
    pub fn figures<T: serde::de::DeserializeOwned>(&self) -> Result<T, LabError> {
        self.told(FIGURES_LINE, |line| serde_json::from_str(line).ok())
    }

    /// The rest of the line of stdout that starts with `prefix`.
    pub fn line(&self, prefix: &str) -> Option<&str> {
        self.stdout.lines().find_map(|l| l.strip_prefix(prefix))
    }
}

impl Running {
    /// Starts `command`. Before it runs it writes itself into the cgroup files `doors`; it dies if
    /// the calling thread does. `what` names the run in errors.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn start(what: &str, command: &[OsString], doors: Vec<File>) -> Result<Self, LabError> {
        let fail = |e| LabError::io(format!("starting {what}"), e);
        let [program, args @ ..] = command else {
            return Err(LabError::Option(format!("{what}: the command is empty")));
        };
        let errors = in_memory(c"deckle-lab-stderr").map_err(|e| fail(e.into()))?;
        let errors = File::from(OwnedFd::from(errors));
        let mut build = Command::new(program);
        build.args(args);
        build.stdin(Stdio::piped()).stdout(Stdio::piped());
        build.stderr(errors.try_clone().map_err(fail)?);
        let start = Start {
            doors,
            ..Start::default()
        };
        at_start(&mut build, start);
        let started = Instant::now();
        let mut child = build.spawn().map_err(fail)?;
        let pidfd = pidfd::open(child.id()).inspect_err(|_| {
            let _ = child.kill();
            let _ = child.wait();
        });
        let pidfd = pidfd.map_err(|e| fail(e.into()))?;
        let input = child.stdin.take();
        let output = child
            .stdout
            .take()
            .map(|out| File::from(OwnedFd::from(out)));
        let output = output.ok_or_else(|| fail(io::ErrorKind::BrokenPipe.into()))?;
        set_flags(&output, libc::O_NONBLOCK).map_err(|e| fail(e.into()))?;
        Ok(Self {
            what: what.into(),
            child,
            pidfd,
            input,
            output,
            said: Vec::new(),
            errors,
            started,
            deadline: DEADLINE,
            reaped: false,
        })
    }

    /// Ends the run as hung if it takes longer than this from its start (default: half an hour).
    pub fn within(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// The process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until the workload prints `line`. False if it ended before.
    ///
    /// # Errors
    /// If it takes longer than any run may.
    pub fn wait_for(&mut self, line: &str) -> Result<bool, LabError> {
        loop {
            let ended = self.listen(DEADLINE)?;
            if self.has_said(line) {
                return Ok(true);
            }
            if ended {
                return Ok(false);
            }
        }
    }

    /// Whether the workload has printed `line`, as far as was listened to it.
    pub fn has_said(&self, line: &str) -> bool {
        (self.said.split(|b| *b == b'\n')).any(|l| l == line.as_bytes())
    }

    /// Waits until the workload prints something or ends, at most so long; true if it ended.
    ///
    /// # Errors
    /// If it takes longer than any run may.
    pub fn listen(&mut self, most: Duration) -> Result<bool, LabError> {
        self.poll(true, most)
    }

    /// Sends the workload an empty line.
    ///
    /// # Errors
    /// If it does not read any more.
    pub fn go_on(&mut self) -> Result<(), LabError> {
        let input = self.input.as_mut();
        input
            .ok_or_else(|| io::Error::from(io::ErrorKind::BrokenPipe))
            .and_then(|input| input.write_all(b"\n"))
            .map_err(|e| LabError::io(format!("talking to {}", self.what), e))
    }

    /// Waits for the end, at most so long; true if it ended.
    ///
    /// # Errors
    /// If it takes longer than any run may.
    pub fn ended_within(&mut self, most: Duration) -> Result<bool, LabError> {
        self.poll(false, most)
    }

    /// Waits for the end.
    ///
    /// # Errors
    /// If it takes longer than any run may (it is killed then), or cannot be waited for.
    pub fn finish(mut self) -> Result<Finished, LabError> {
        while !self.poll(false, DEADLINE)? {}
        let (status, cpu_s) = self.reap()?;
        let wall_s = self.started.elapsed().as_secs_f64();
        self.drain();
        let mut stderr = Vec::new();
        let read = self
            .errors
            .rewind()
            .and_then(|()| self.errors.read_to_end(&mut stderr));
        read.map_err(|e| LabError::io(format!("reading the stderr of {}", self.what), e))?;
        Ok(Finished {
            what: self.what.clone(),
            wall_s,
            cpu_s,
            status,
            stdout: String::from_utf8_lossy(&self.said).into_owned(),
            stderr: String::from_utf8_lossy(&stderr).into_owned(),
        })
    }

    /// Waits for the end, which has to be a good one.
    ///
    /// # Errors
    /// Those of [`Running::finish`]; another end.
    pub fn succeed(self) -> Result<Finished, LabError> {
        let end = self.finish()?;
        match end.status.success() {
            true => Ok(end),
            false => Err(end.failure("failed")),
        }
    }

    /// Waits until it prints or ends, at most so long; true if it ended. Output that ended is not
    /// waited for again.
    fn poll(&mut self, output: bool, most: Duration) -> Result<bool, LabError> {
        let left = self.deadline.saturating_sub(self.started.elapsed());
        if left.is_zero() {
            let how = format!(
                "did not end within {} s and was killed",
                self.deadline.as_secs()
            );
            return Err(LabError::Child {
                what: self.what.clone(),
                how,
            });
        }
        let mut fds = [self.pidfd.raw(), self.output.as_raw_fd()].map(to_read);
        let count = if output { 2 } else { 1 };
        let wait = i32::try_from(left.min(most).as_millis()).unwrap_or(i32::MAX);
        match poll(&mut fds[..count], wait) {
            Ok(_) => {}
            Err(Errno(libc::EINTR)) => return Ok(false),
            Err(e) => return Err(LabError::io(format!("waiting for {}", self.what), e.into())),
        }
        if fds[1].revents != 0 && !self.drain() {
            // Closed its stdout: only its end is left to wait for.
            return self.poll(false, most);
        }
        Ok(fds[0].revents != 0)
    }

    /// Reads what is there; false at the end of the output.
    fn drain(&mut self) -> bool {
        let mut buffer = [0; 4096];
        loop {
            match self.output.read(&mut buffer) {
                Ok(0) => return false,
                Ok(n) => self.said.extend_from_slice(&buffer[..n]),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return true,
            }
        }
    }

    fn reap(&mut self) -> Result<(ExitStatus, f64), LabError> {
        let ended = process::wait_usage(self.child.id() as i32);
        let (status, usage) =
            ended.map_err(|e| LabError::io(format!("waiting for {}", self.what), e.into()))?;
        self.reaped = true;
        let seconds = |t: libc::timeval| t.tv_sec as f64 + t.tv_usec as f64 / 1e6;
        let cpu_s = seconds(usage.ru_utime) + seconds(usage.ru_stime);
        Ok((ExitStatus::from_raw(status), cpu_s))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.reaped {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(script: &str) -> Running {
        let command = ["sh", "-c", script].map(OsString::from);
        Running::start("test", &command, Vec::new()).unwrap()
    }

    #[test]
    fn r150_runs_are_talked_to_and_their_end_is_told() {
        let mut run = sh("echo ready; read x; echo after; echo oops >&2; exit 3");
        assert!(run.wait_for("ready").unwrap());
        run.go_on().unwrap();
        let end = run.finish().unwrap();
        assert_eq!(end.status.code(), Some(3));
        assert_eq!(end.line("af"), Some("ter"));
        let error = end.failure("failed").to_string();
        assert!(error.contains("oops") && error.contains('3'), "{error}");
    }

    #[test]
    fn r150_a_run_that_ends_early_or_closes_stdout_does_not_hang() {
        assert!(!sh("exit 0").wait_for("ready").unwrap());
        assert!(!sh("exec >&-; sleep 0.2").wait_for("ready").unwrap());
        let hung = sh("exec sleep 600")
            .within(Duration::from_millis(50))
            .finish()
            .unwrap_err();
        assert!(hung.to_string().contains("did not end"), "{hung}");
        assert_eq!(sh("kill -9 $$").finish().unwrap().status.signal(), Some(9));
    }
}
