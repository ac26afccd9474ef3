//! Job control: an interactive shell on a pseudo-terminal, with `deckle run` as its job.

use deckle_sys::poll::is_ready;

use crate::common::*;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};

/// A shell with its terminal.
struct Terminal {
    shell: Child,
    master: File,
    seen: String,
}

impl Terminal {
    fn start() -> Terminal {
        let (mut master, mut slave) = (-1, -1);
        let none = std::ptr::null_mut();
        // SAFETY: two live words; name, settings and size are not asked for.
        let rc = unsafe { libc::openpty(&mut master, &mut slave, none, none.cast(), none.cast()) };
        assert_eq!(rc, 0);
        // SAFETY: just opened, and nobody else's.
        let (master, slave) = unsafe { (File::from_raw_fd(master), OwnedFd::from_raw_fd(slave)) };
        let mut c = Command::new("sh");
        c.args(["-i"])
            .env("PS1", "prompt$ ")
            .env_remove("ENV")
            .env_remove("container");
        let copy = || slave.try_clone().unwrap();
        c.stdin(copy()).stdout(copy()).stderr(copy());
        let raw = slave.as_raw_fd();
        // SAFETY: system calls on numbers.
        unsafe {
            c.pre_exec(move || {
                if libc::setsid() < 0 || libc::ioctl(raw, libc::TIOCSCTTY, 0) < 0 {
                    return Err(std::io::Error::last_os_error());
                }
                // Ignored where the tests run in the background of a shell.
                libc::signal(libc::SIGINT, libc::SIG_DFL);
                Ok(())
            })
        };
        let shell = c.spawn().unwrap();
        Terminal {
            shell,
            master,
            seen: String::new(),
        }
    }

    fn type_in(&mut self, text: &str) {
        self.master.write_all(text.as_bytes()).unwrap();
    }

    /// Waits until the screen has shown `text` after what was waited for before; what was shown
    /// up to it.
    fn wait_for(&mut self, text: &str) -> String {
        let mut buf = [0u8; 4096];
        loop {
            if let Some(at) = self.seen.find(text) {
                let rest = self.seen.split_off(at + text.len());
                return std::mem::replace(&mut self.seen, rest);
            }
            let came = is_ready(self.master.as_raw_fd(), PATIENCE);
            assert!(came, "never came: `{text}`; the screen: {}", self.seen);
            let n = self.master.read(&mut buf).unwrap();
            self.seen += &String::from_utf8_lossy(&buf[..n]);
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // The end of the session's leader hangs up the terminal, and with it every job.
        let _ = self.shell.kill();
        let _ = self.shell.wait();
    }
}

#[test]
fn ctrl_z_and_ctrl_c_work_as_without_deckle() {
    let mut t = Terminal::start();
    t.wait_for("prompt$ ");
    let deckle = env!("CARGO_BIN_EXE_deckle");
    t.type_in(&format!(
        "{deckle} run --unmanaged --quiet -- sh -c 'echo pid=$$=; exec sleep 1000'\n"
    ));
    t.wait_for("\npid=");
    let program: u32 = t.wait_for("=").trim_end_matches('=').parse().unwrap();
    let deckle = parent(parent(program));
    until("the program sleeps", || state(program) == 'S');

    for _ in 0..3 {
        t.type_in("\x1a");
        until("both are stopped", || {
            state(program) == 'T' && state(deckle) == 'T'
        });
        // The shell has its terminal back.
        t.type_in("echo here-$((6 * 7))\n");
        t.wait_for("here-42");
        t.type_in("fg\n");
        until("both go on", || {
            state(program) == 'S' && state(deckle) == 'S'
        });
    }

    t.type_in("\x03");
    until("the program is gone", || {
        matches!(state(program), '-' | 'Z')
    });
    t.type_in("echo status-$?-\n");
    t.wait_for("status-130-");
}
