//! Files and terminals that are not as they should be: a full disk, a file without an end, a
//! terminal that can show nothing but text. Whatever it is, it is said, and nothing is lost that
//! could be kept.

use crate::common::*;
use crate::skipped::{not_here, skipped};
use std::fs::File;
use std::process::Command;

/// Exit status and standard error of a command whose standard output is a full disk.
fn to_full(args: &[&str]) -> (i32, String) {
    let full = File::options().write(true).open("/dev/full").unwrap();
    let (code, _, err) = finish(deckle(args).stdout(full).output().unwrap());
    (code, err)
}

/// The same as [`output`], where no more than 4 GiB of addresses are to be had.
fn bounded(args: &[&str]) -> (i32, String, String) {
    let mut c = Command::new("sh");
    c.args(["-c", "ulimit -v 4194304; exec \"$0\" \"$@\""]);
    c.arg(env!("CARGO_BIN_EXE_deckle")).args(args);
    finish(c.output().unwrap())
}

#[test]
fn what_a_full_disk_does_not_take_is_a_failure() {
    for args in [
        &["--help"][..],
        &["--version"],
        &["run", "--help"],
        &["lab", "--help"],
        &["doctor"],
        &["stat"],
        &["inspect", "--format", "json"],
        &["setup", "--dry-run"],
    ] {
        let (code, err) = to_full(args);
        assert_eq!((code, err.lines().count()), (125, 1), "{args:?}: {err}");
        assert!(
            err.starts_with("deckle: output: no space left"),
            "{args:?}: {err}"
        );
    }
}

/// Records a program that does nothing.
fn make_record(path: &str) {
    let options = ["run", "--unmanaged", "--quiet", "--record", path];
    let run = [&options[..], &["--", "true"]].concat();
    assert_eq!(output(&run).0, 0);
}

#[test]
fn a_reader_that_has_gone_is_no_mistake() {
    let s = Scratch::new("gone");
    let file = s.file("data", &[7; 1 << 16], 0o600);
    let (record, me) = (s.path("a.rec"), std::process::id().to_string());
    make_record(&record);
    let lab = "lab capture --threads 1 --memory 64M --capture on --seeds 1";
    let lab: Vec<&str> = lab.split(' ').collect();
    let cdi = ["setup", "--cdi"];
    for args in [
        &["--help"][..],
        &["--version"],
        &["run", "--help"],
        &["stat", "--help"],
        &["lab", "anon-folio", "--help"],
        &["stat"],
        &["stat", "--format", "json"],
        &["stat", "--interval", "0.01"],
        &["doctor"],
        &["inspect", &me, "--format", "csv"],
        &["fit", &file],
        &["plot", &record],
        &lab,
        &["setup", "--dry-run"],
        &cdi,
    ] {
        let (read, write) = std::io::pipe().unwrap();
        drop(read);
        let (code, _, err) = finish(deckle(args).stdout(write).output().unwrap());
        assert_eq!((code, err.as_str()), (141, ""), "{args:?}");
    }
}

#[test]
fn a_file_that_is_full_costs_neither_the_others_nor_the_status() {
    let s = Scratch::new("full");
    let metrics = s.path("metrics");
    for (program, status) in [("exit 0", 125), ("exit 7", 7)] {
        let files = ["--stats", "/dev/full", "--metrics", &metrics];
        let args = [
            &["run", "--unmanaged"],
            &files[..],
            &["--", "sh", "-c", program],
        ];
        let (code, out, err) = output(&args.concat());
        assert_eq!((code, out.as_str()), (status, ""), "{err}");
        assert!(
            err.contains("deckle: --stats: /dev/full: cannot be written: no space left"),
            "{err}"
        );
        assert!(err.contains("memory"), "no summary: {err}");
        let text = std::fs::read_to_string(&metrics).unwrap();
        assert!(text.ends_with("# EOF\n"), "{text}");
        std::fs::remove_file(&metrics).unwrap();
    }
}

#[test]
fn two_files_of_a_run_are_not_one() {
    let s = Scratch::new("one");
    let (a, link) = (s.path("a"), s.path("link"));
    std::os::unix::fs::symlink(&a, &link).unwrap();
    let run = |one: [&str; 2], other: [&str; 2]| {
        let args = [&["run", "--unmanaged", "--quiet"], &one[..], &other];
        output(&[&args.concat()[..], &["--", "true"]].concat())
    };
    // There neither is anything yet; then it is there.
    for other in [&a, &link] {
        let (code, _, err) = run(["--stats", &a], ["--record", other]);
        assert_eq!(code, 125, "{err}");
        assert!(
            err.contains("--stats and --record: both name") && err.lines().count() == 1,
            "{err}"
        );
        std::fs::write(&a, "kept").unwrap();
    }
    assert_eq!(std::fs::read_to_string(&a).unwrap(), "kept");
    let null = run(["--stats", "/dev/null"], ["--metrics", "/dev/null"]);
    assert_eq!(null, (0, String::new(), String::new()));
}

#[test]
fn a_file_without_an_end_is_not_read_to_it() {
    let zero = "/dev/zero";
    for args in [
        &["run", "--config", zero, "--", "true"][..],
        &["setup", "--seccomp", zero],
        &["plot", zero],
    ] {
        let (code, out, err) = bounded(args);
        assert_eq!((code, out.as_str()), (125, ""), "{args:?}: {err}");
        assert!(
            err.contains("/dev/zero: ") && err.contains("more than"),
            "{err}"
        );
        assert_eq!(err.lines().count(), 1, "{err}");
    }
}

#[test]
fn a_record_is_not_replaced_by_its_picture() {
    let s = Scratch::new("over");
    let record = s.path("a.svg");
    make_record(&record);
    let before = std::fs::read(&record).unwrap();
    let (code, _, err) = output(&["plot", &record, "-o", &record]);
    assert_eq!(code, 125);
    assert!(err.contains("is the record"), "{err}");
    assert_eq!(std::fs::read(&record).unwrap(), before);
}

#[test]
fn an_experiment_is_told_also_where_its_picture_cannot_be_written() {
    let args = "lab capture --threads 1 --memory 64M --capture on --seeds 1 --plot /dev/full";
    let (code, out, err) = output(&args.split(' ').collect::<Vec<_>>());
    assert_eq!(code, 125);
    assert!(err.contains("--plot /dev/full: no space left"), "{err}");
    assert!(out.contains("capture") && out.contains("p99"), "{out}");
    // And one that does not begin takes no older picture with it.
    let s = Scratch::new("picture");
    let old = s.file("old.svg", b"old", 0o600);
    let args = format!("lab capture --threads 0 --memory 64M --plot {old}");
    assert_ne!(output(&args.split(' ').collect::<Vec<_>>()).0, 0);
    assert_eq!(std::fs::read(&old).unwrap(), b"old");
}

#[test]
fn without_the_proc_of_this_namespace_it_is_said_what_to_do() {
    if deckle_sys::process::effective_user() != 0 {
        return skipped("needs root");
    }
    let exe = env!("CARGO_BIN_EXE_deckle");
    let in_new = |args: &[&str]| {
        let mut c = Command::new("unshare");
        c.args(args).env_remove("LD_PRELOAD");
        c.output().ok().map(finish)
    };
    let me = std::process::id().to_string();
    let foreign = "deckle: inspect: /proc is of another PID namespace: mount that of this one";
    for verb in ["inspect", "fit"] {
        let Some((code, out, err)) = in_new(&["--fork", "--pid", exe, verb, &me]) else {
            return not_here("no unshare");
        };
        assert_eq!((code, out.as_str()), (125, ""), "{verb}: {err}");
        let foreign = foreign.rsplit_once("inspect: ").unwrap().1;
        assert!(err.contains(foreign), "{verb}: {err}");
    }
    for verb in ["inspect", "run -- true", "fit 1"] {
        let script = format!("umount -l /proc && exec {exe} {verb}");
        let (code, out, err) = in_new(&["--mount", "sh", "-c", &script]).unwrap();
        assert_eq!((code, out.as_str()), (125, ""), "{verb}: {err}");
        assert!(
            err.contains("no /proc here: as root, mount"),
            "{verb}: {err}"
        );
    }
}
