//! Job control: an interactive shell on a pseudo-terminal, with `deckle run` as its job.

use deckle_sys::poll::is_ready;

use crate::common::*;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};

/// A shell with its terminal.
pub struct Terminal {
    shell: Child,
    master: File,
    seen: String,
}

impl Terminal {
    pub fn start() -> Terminal {
        let mut c = Command::new("sh");
        c.args(["-i"])
            .env("PS1", "prompt$ ")
            .env_remove("ENV")
            .env_remove("container");
        Terminal::lead(&mut c)
    }

    /// A terminal of whose session this command is the leader.
    pub fn lead(c: &mut Command) -> Terminal {
        // Nobody else has the master: its end hangs up.
        let new = libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC;
        // SAFETY: the calls take numbers.
        let (master, slave) = unsafe {
            let master = libc::posix_openpt(new);
            assert!(master >= 0 && libc::unlockpt(master) == 0);
            (master, libc::ioctl(master, libc::TIOCGPTPEER, new))
        };
        assert!(slave >= 0);
        // SAFETY: just opened, and nobody else's.
        let (master, slave) = unsafe { (File::from_raw_fd(master), OwnedFd::from_raw_fd(slave)) };
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

    /// Takes the terminal away; the leader's exit status.
    pub fn hang_up(&mut self) -> i32 {
        self.master = File::open("/dev/null").unwrap();
        let mut status = None;
        until("the leader has ended", || {
            status = self.shell.try_wait().unwrap();
            status.is_some()
        });
        status.and_then(|s| s.code()).unwrap_or(-1)
    }

    pub fn type_in(&mut self, text: &str) {
        self.master.write_all(text.as_bytes()).unwrap();
    }

    /// What was shown so far is not waited for.
    pub fn forget(&mut self) {
        self.seen.clear();
    }

    /// Waits until the screen has shown `text` after what was waited for before; what was shown
    /// up to it.
    pub fn wait_for(&mut self, text: &str) -> String {
        let mut buf = [0u8; 4096];
        let begun = std::time::Instant::now();
        loop {
            if let Some(at) = self.seen.find(text) {
                let rest = self.seen.split_off(at + text.len());
                return std::mem::replace(&mut self.seen, rest);
            }
            // What is shown again and again always comes.
            let came = begun.elapsed() < PATIENCE && is_ready(self.master.as_raw_fd(), PATIENCE);
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

/// A terminal of that size, and its settings as `stty -g` tells them.
fn in_80_columns() -> (Terminal, String) {
    let mut t = Terminal::start();
    t.wait_for("prompt$ ");
    t.type_in("stty cols 80 rows 24; stty -g\n");
    t.wait_for("stty -g\r\n");
    let before = t.wait_for("\r\n");
    (t, before)
}

#[test]
fn top_shows_a_tree_in_80_columns_and_leaves_the_terminal_as_it_was() {
    let (mut t, before) = in_80_columns();
    let deckle = env!("CARGO_BIN_EXE_deckle");
    let name = format!("top-{}", std::process::id());
    let program = "lab program walk 16 uniform 1 --seconds 60";
    t.type_in(&format!(
        "{deckle} run --quiet --name {name} --memory-max 64M -- {deckle} {program} >/dev/null &\n"
    ));
    t.wait_for("prompt$ ");
    for (ends, how) in [("q", "by its key"), ("\x03", "by Ctrl-C")] {
        // It has to have begun.
        t.type_in(&format!(
            "until {deckle} top {name} --interval 0.1 2>/dev/null; do sleep 0.1; done\n"
        ));
        t.wait_for("\x1b[?1049h");
        t.wait_for(&name);
        t.wait_for("of 64.0M");
        // Names of columns, a row of the program, and what it is sorted by.
        t.wait_for(">charged");
        t.wait_for("deckle");
        t.type_in("f");
        t.wait_for(">flt/s");
        t.type_in("/nobody");
        t.wait_for("/nobody_");
        t.type_in("\x1b");
        t.wait_for("q quit");
        t.type_in(ends);
        t.wait_for("\x1b[?1049l");
        t.wait_for("prompt$ ");
        t.type_in("stty -g\n");
        t.wait_for("stty -g\r\n");
        assert_eq!(t.wait_for("\r\n"), before, "{how}");
    }
    t.type_in("kill %1; wait; echo ended\n");
    t.wait_for("echo ended");
    t.wait_for("ended");
}

#[test]
fn top_ends_by_a_signal_where_nobody_reads_its_terminal() {
    let (mut t, before) = in_80_columns();
    let deckle = env!("CARGO_BIN_EXE_deckle");
    t.wait_for("prompt$ ");
    t.type_in(&format!("{deckle} top --interval 0.01; echo status-$?-\n"));
    t.wait_for("q quit");
    let pid = deckle_top(&t);
    until("it sleeps in a write", || {
        let call = std::fs::read_to_string(format!("/proc/{pid}/syscall"));
        call.is_ok_and(|call| call.starts_with(&format!("{} ", libc::SYS_write)))
    });
    kill(pid, libc::SIGTERM);
    until("it has ended", || matches!(state(pid), 'Z' | '-'));
    t.wait_for("status-143-");
    t.wait_for("prompt$ ");
    t.type_in("stty -g\n");
    t.wait_for("stty -g\r\n");
    assert_eq!(t.wait_for("\r\n"), before);
}

#[test]
fn top_is_stopped_by_ctrl_z_and_goes_on() {
    let (mut t, before) = in_80_columns();
    let deckle = env!("CARGO_BIN_EXE_deckle");
    t.wait_for("prompt$ ");
    t.type_in(&format!("{deckle} top --interval 0.1\n"));
    for ctrl_z in [true, false] {
        t.wait_for("\x1b[?1049h");
        t.wait_for("q quit");
        match ctrl_z {
            true => t.type_in("\x1a"),
            false => {
                // What the shell would send by `kill -TSTP`.
                let pid = deckle_top(&t);
                kill(pid, libc::SIGTSTP);
            }
        }
        t.wait_for("\x1b[?1049l");
        t.wait_for("prompt$ ");
        assert_eq!(state(deckle_top(&t)), 'T');
        t.type_in("stty -g\n");
        t.wait_for("stty -g\r\n");
        assert_eq!(t.wait_for("\r\n"), before, "Ctrl-Z {ctrl_z}");
        t.wait_for("prompt$ ");
        t.type_in("fg\n");
    }
    t.wait_for("\x1b[?1049h");
    t.wait_for("q quit");
    t.type_in("q");
    t.wait_for("\x1b[?1049l");
    t.type_in("echo status-$?-\n");
    t.wait_for("status-0-");
}

/// The job of the shell.
fn deckle_top(t: &Terminal) -> u32 {
    let shell = t.shell.id();
    let children = std::fs::read_to_string(format!("/proc/{shell}/task/{shell}/children"));
    children.unwrap().trim().parse().unwrap()
}

#[test]
fn what_a_terminal_cannot_do_is_not_asked_of_it() {
    let mut t = Terminal::start();
    t.wait_for("prompt$ ");
    let deckle = env!("CARGO_BIN_EXE_deckle");
    for (name, coloured) in [("dumb", false), ("xterm", true)] {
        t.type_in(&format!(
            "TERM={name} {deckle} inspect 0; echo status-$?-\n"
        ));
        let said = t.wait_for("status-125-");
        assert_eq!(said.contains("\x1b[1;31m"), coloured, "{said}");
        t.wait_for("prompt$ ");
    }
    t.type_in(&format!("TERM=dumb {deckle} top; echo status-$?-\n"));
    let said = t.wait_for("status-125-");
    assert!(
        said.contains("TERM=dumb") && said.contains("deckle stat --interval 1"),
        "{said}"
    );
    assert!(!said.contains('\x1b'), "{said}");
    // One that does not say how large it is.
    t.type_in(&format!("stty cols 0 rows 0; {deckle} top\n"));
    t.wait_for("\x1b[?1049h");
    t.wait_for("q quit");
    t.type_in("q");
    t.wait_for("\x1b[?1049l");
}
