//! The host gets its settings back, however a run ends. Needs root and an unused zram0.

use std::ffi::OsString;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::alone;
use crate::skipped::skipped;
use deckle_lab::LabError;
use deckle_lab::host::{Guard, JOURNAL, thp};

const PROGRAM: &str = env!("CARGO_BIN_EXE_lab-program");

/// Everything the lab may change, as it is now.
#[derive(PartialEq, Debug)]
struct Host {
    settings: Vec<String>,
    swaps: String,
}

impl Host {
    fn now() -> Self {
        let mut files = thp::files().to_vec();
        files.extend(["disksize", "comp_algorithm"].map(|f| Path::new("/sys/block/zram0").join(f)));
        let read = |path: &Path| fs::read_to_string(path).unwrap_or_default();
        Self {
            settings: files.iter().map(|f| read(f)).collect(),
            swaps: read(Path::new("/proc/swaps")),
        }
    }
}

/// A process that holds changed settings.
struct Holder {
    child: Child,
    keeper: u32,
    sleeper: u32,
}

impl Holder {
    /// None, said loudly, where this host does not let us.
    fn start(test: &str) -> Option<Self> {
        let mut command = Command::new(PROGRAM);
        command
            .arg("hold")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        // SAFETY: two system calls between fork and exec. Who runs the tests in the background
        // may have SIGINT ignored, by nohup SIGHUP too, and this is inherited.
        unsafe {
            command.pre_exec(|| {
                libc::signal(libc::SIGINT, libc::SIG_DFL);
                libc::signal(libc::SIGHUP, libc::SIG_DFL);
                Ok(())
            })
        };
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        let words: Vec<&str> = line.split_whitespace().collect();
        let ["held", keeper, sleeper] = words[..] else {
            child.wait().unwrap();
            skipped(format_args!("{test}: {}", line.trim_end()));
            return None;
        };
        let (keeper, sleeper) = (keeper.parse().unwrap(), sleeper.parse().unwrap());
        Some(Self {
            child,
            keeper,
            sleeper,
        })
    }

    fn signal(&self, signal: i32) {
        kill(self.child.id(), signal);
    }

    fn end(mut self) -> std::process::ExitStatus {
        drop(self.child.stdin.take());
        self.child.wait().unwrap()
    }
}

fn kill(pid: u32, signal: i32) {
    deckle_sys::signal::send(pid as i32, signal).expect("a process of this test");
}

/// A guard can be had only after all of an earlier one is undone.
fn wait_until_free() {
    Guard::new(&[OsString::from(PROGRAM)])
        .unwrap()
        .finish()
        .unwrap();
}

fn nothing_left(before: &Host, sleeper: u32) {
    assert_eq!(*before, Host::now());
    assert_eq!(fs::read_to_string(JOURNAL).unwrap(), "");
    let mounts = fs::read_dir("/sys/fs/cgroup").unwrap().flatten();
    for mount in mounts
        .map(|m| m.path())
        .chain([Path::new("/sys/fs/cgroup").into()])
    {
        for entry in fs::read_dir(mount).into_iter().flatten().flatten() {
            let name = entry.file_name().into_string().unwrap();
            assert!(
                !(name.starts_with("deckle-lab-") && name.ends_with("-hold")),
                "{name}"
            );
        }
    }
    let state = fs::read_to_string(format!("/proc/{sleeper}/stat")).unwrap_or_default();
    let state = state
        .rsplit_once(')')
        .map_or("gone", |(_, rest)| &rest[..2]);
    assert!(matches!(state, "gone" | " Z"), "the sleeper lives: {state}");
}

#[test]
fn r150_settings_come_back_after_an_ordinary_end() {
    let _alone = alone();
    let before = Host::now();
    let Some(holder) = Holder::start("r150_settings_come_back_after_an_ordinary_end") else {
        return;
    };
    assert_ne!(before, Host::now(), "nothing was changed");
    let sleeper = holder.sleeper;
    assert!(holder.end().success());
    nothing_left(&before, sleeper);
}

#[test]
fn r150_settings_come_back_after_signals() {
    let _alone = alone();
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGKILL] {
        let before = Host::now();
        let Some(holder) = Holder::start("r150_settings_come_back_after_signals") else {
            return;
        };
        assert_ne!(before, Host::now(), "nothing was changed");
        let sleeper = holder.sleeper;
        holder.signal(signal);
        assert!(!holder.end().success());
        wait_until_free();
        nothing_left(&before, sleeper);
    }
}

#[test]
fn r150_settings_come_back_when_the_keeper_is_killed() {
    let _alone = alone();
    let before = Host::now();
    let Some(holder) = Holder::start("r150_settings_come_back_when_the_keeper_is_killed") else {
        return;
    };
    let sleeper = holder.sleeper;
    kill(holder.keeper, libc::SIGKILL);
    assert!(holder.end().success());
    nothing_left(&before, sleeper);
}

#[test]
fn r150_the_next_run_undoes_what_a_crash_of_both_left() {
    let _alone = alone();
    let before = Host::now();
    let Some(holder) = Holder::start("r150_the_next_run_undoes_what_a_crash_of_both_left") else {
        return;
    };
    let sleeper = holder.sleeper;
    holder.signal(libc::SIGSTOP);
    kill(holder.keeper, libc::SIGKILL);
    holder.signal(libc::SIGKILL);
    assert!(!holder.end().success());
    assert_ne!(before, Host::now(), "somebody undid it already");
    wait_until_free();
    nothing_left(&before, sleeper);
}

#[test]
fn r150_settings_come_back_after_a_panic_and_meddling_is_seen() {
    let _alone = alone();
    let before = Host::now();
    let [.., max_ptes_none, _] = thp::files();
    let mut guard = match Guard::new(&[OsString::from(PROGRAM)]) {
        Err(e @ LabError::Host { .. }) => {
            skipped(e);
            return;
        }
        other => other.unwrap(),
    };
    let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || {
        // Setting what is set already must not hide what was there before.
        let now = fs::read_to_string(&max_ptes_none).unwrap();
        guard.set(&max_ptes_none, now.trim()).unwrap();
        guard.set(&max_ptes_none, "77").unwrap();
        assert_eq!(fs::read_to_string(&max_ptes_none).unwrap(), "77\n");
        fs::write(&max_ptes_none, "78").unwrap();
        match guard.undisturbed() {
            Err(LabError::Disturbed { want, found, .. }) => {
                assert_eq!((&*want, &*found), ("77", "78"))
            }
            other => panic!("not seen: {other:?}"),
        }
        panic!("on purpose");
    }));
    assert_eq!(
        *panic.unwrap_err().downcast::<&str>().unwrap(),
        "on purpose"
    );
    assert_eq!(before, Host::now());
}
