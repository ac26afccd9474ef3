//! `deckle inspect`, on real processes.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::accept::turn;
use crate::common::*;
use crate::skipped::{not_here, skipped};

/// 64 MiB of huge pages, a byte in each 50 KiB: 471 of 512 pages are zeros. Then it waits.
const SPARSE: &str = "
import mmap, sys, time
size = 64 << 20
memory = mmap.mmap(-1, size + (2 << 20), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
memory.madvise(mmap.MADV_HUGEPAGE)
for at in range(0, len(memory), 50 << 10):
    memory[at] = 90
print('there', flush=True)
time.sleep(600)
";

struct Python(Child);

impl Python {
    fn start() -> Option<Python> {
        let mut command = Command::new("python3");
        command
            .args(["-c", SPARSE])
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        let Ok(mut child) = command.spawn() else {
            not_here("no python3");
            return None;
        };
        let mut line = String::new();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let read = out.read_line(&mut line);
        let python = Python(child);
        assert_eq!(line, "there\n", "{read:?}");
        Some(python)
    }

    fn pid(&self) -> String {
        self.0.id().to_string()
    }
}

impl Drop for Python {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn json(args: &[&str]) -> Value {
    let (code, out, err) = output(args);
    assert_eq!((code, err.as_str()), (0, ""), "{out}");
    serde_json::from_str(&out).unwrap()
}

#[test]
fn inspect_tells_what_a_process_wastes_and_what_gives_it_back() {
    // Under some settings there are no huge pages.
    if host::is_set() {
        return;
    }
    let Some(python) = Python::start() else {
        return;
    };
    let pid = python.pid();
    let said = json(&["inspect", &pid, "--budget", "1M", "--format", "json"]);
    let read = |path: &str| std::fs::read_to_string(path).unwrap().trim().to_owned();
    assert_eq!(said["kernel"], read("/proc/sys/kernel/osrelease"));
    let process = &said["processes"][0];
    assert_eq!(process["pid"].to_string(), pid);
    let huge = process["huge_pages"].as_u64().unwrap();
    if huge < 32 {
        return skipped("no huge pages to be had by a touch");
    }
    let freed = |n: &str| process["would_free_bytes"][n]["value"].as_u64().unwrap();
    assert!(freed("470") >= 31 * 471 * 4096, "{process}");
    assert_eq!(freed("255"), freed("450"));
    assert_eq!(freed("510"), 0);
    assert_eq!(
        said["budget"]["change"], "max_ptes_none",
        "{}",
        said["budget"]
    );
    let (code, out, err) = output(&["inspect", &pid, "--budget", "1M", "--vmas"]);
    assert_eq!((code, err.as_str()), (0, ""));
    for needle in [
        "Linux ",
        "max_ptes_none",
        "python3",
        "Budget 1.0M: ",
        "huge mappings",
    ] {
        assert!(out.contains(needle), "{needle}: {out}");
    }
    let args = [
        "inspect",
        &pid,
        "--format",
        "csv",
        "--interval",
        "0.05",
        "--count",
        "3",
    ];
    let (code, out, err) = output(&args);
    assert_eq!(
        (code, err.as_str(), out.lines().count()),
        (0, "", 4),
        "{out}"
    );
    let (code, out, err) = output(&["inspect", &pid, "--format", "openmetrics"]);
    assert_eq!((code, err.as_str()), (0, ""));
    assert!(out.ends_with("# EOF\n"));
}

#[test]
fn inspect_applies_nothing_in_a_dry_run() {
    let _turn = turn();
    let Some(python) = Python::start() else {
        return;
    };
    let pid = python.pid();
    let args = ["inspect", &pid, "--budget", "1M", "--apply", "--dry-run"];
    let before = json(&["inspect", &pid, "--format", "json"]);
    let (code, out, err) = output(&args);
    assert_eq!((code, err.as_str()), (0, ""), "{out}");
    let after = json(&["inspect", &pid, "--format", "json"]);
    assert_eq!(before["knobs"], after["knobs"]);
    assert_eq!(before["processes"], after["processes"]);
}

#[test]
fn inspect_says_what_to_do_where_it_cannot() {
    for (args, needle) in [
        (&["inspect", "no-such-name"][..], "give a PID"),
        (&["inspect", "no/such/group"], "is no cgroup"),
        (&["inspect", "2147483647"], "there is no process"),
        (&["inspect", "0"], "there is no process 0"),
        (&["inspect", "--sample", "0"], "more than 0"),
        (&["inspect", "--sample", "-1"], "more than 0"),
        (&["inspect", "--sample", "x"], "not a number"),
        (&["inspect", "--interval", "0"], "0.01 to 86400 seconds"),
        (&["inspect", "--interval", "nan"], "0.01 to 86400 seconds"),
        (&["inspect", "--budget", "lots"], "--budget"),
        (&["inspect", "--budget", "-1"], "--budget: `-1`"),
        (&["inspect", "--count", "3"], "not provided: --interval"),
        (&["inspect", "--verify"], "PROGRAM"),
        (
            &["inspect", "--verify", "--settle", "nan", "--", "true"],
            "--settle: NaN: give 0.1 to 600 seconds",
        ),
        (
            &["inspect", "--verify", "--settle", "-1", "--", "true"],
            "--settle: -1: give 0.1 to 600 seconds",
        ),
    ] {
        let (code, out, err) = output(args);
        assert_eq!((code, out.as_str()), (125, ""), "{args:?}: {err}");
        assert!(
            err.contains(needle) && err.lines().count() == 1,
            "{args:?}: {err}"
        );
    }
}

#[test]
fn inspect_verify_is_within_two_per_cent_of_what_the_kernel_frees() {
    let _turn = turn();
    // It sets what the host has, and another may have set.
    if host::is_set() {
        return;
    }
    if deckle_sys::process::effective_user() != 0 {
        return skipped("needs root");
    }
    let args = [
        "inspect", "--verify", "--format", "json", "--settle", "0.5", "--",
    ];
    let (code, out, err) = output(&[&args[..], &["python3", "-c", SPARSE]].concat());
    if code == 125 && (err.contains("not allowed") || err.contains("gives us no memory cgroup")) {
        return skipped(err);
    }
    assert_eq!(code, 0, "{out}{err}");
    let said: Value = serde_json::from_str(&out).unwrap();
    let rows = said["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 4);
    let predicted = |row: &Value| row["predicted_bytes"].as_u64().unwrap();
    assert!(predicted(&rows[0]) > 55 << 20, "{out}");
    assert!(rows.iter().all(|row| row["holds"] == true), "{out}");
}

/// Not that there is no such process.
#[test]
fn inspect_says_who_has_no_memory() {
    // The kernel's own, where it is seen, and a child that has ended and was not waited for.
    let mut child = Command::new("true").spawn().unwrap();
    let pid = child.id().to_string();
    let state = || std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    until("it has ended", || state().contains(") Z "));
    let kernel = std::fs::read_to_string("/proc/2/comm");
    let kernel = kernel.is_ok_and(|name| name == "kthreadd\n");
    for pid in [&pid, "2"].into_iter().take(1 + usize::from(kernel)) {
        let (code, _, err) = output(&["inspect", pid]);
        assert_eq!(code, 125);
        assert!(
            err.contains(&format!("process {pid} has no memory")),
            "{err}"
        );
    }
    child.wait().unwrap();
}

#[test]
fn inspect_says_what_needs_root() {
    if deckle_sys::process::effective_user() != 0 {
        return skipped("needs root, to be somebody else");
    }
    let s = Scratch::new("nobody");
    let copy = copy_of_deckle(&s);
    let as_nobody = |args: &[&str]| {
        use std::os::unix::process::CommandExt;
        let mut c = Command::new(&copy);
        let c = c.args(args).uid(65534).gid(65534).current_dir("/");
        finish(c.output().unwrap())
    };
    let me = std::process::id().to_string();
    for (args, needle) in [
        (&["inspect", &me][..], "run as root or as its user"),
        (
            &["inspect", "--verify", "--", "true"],
            "needs root, to set huge pages and to make a cgroup",
        ),
    ] {
        let (code, out, err) = as_nobody(args);
        assert_eq!((code, out.as_str()), (125, ""), "{args:?}: {err}");
        assert!(err.contains(needle) && !err.contains("--on"), "{err}");
    }
}
