//! `deckle doctor`: the facts that it must state, against the system's own files.

use crate::accept::turn;
use crate::common::*;
use crate::skipped::{not_here, skipped};
use serde_json::Value;
use std::process::Command;

#[test]
fn doctor_states_the_facts_as_text_and_as_json() {
    let _turn = turn();
    let (code, out, err) = output(&["doctor"]);
    assert_eq!((code, err.as_str()), (0, ""));
    assert!(out.starts_with("mode of `deckle run` here: "), "{out}");
    let (code, out, err) = output(&["doctor", "--format", "json"]);
    assert_eq!((code, err.as_str()), (0, ""));
    let json: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(json["schema"], 1);
    let find = |name: &str| -> Value {
        let all = json["findings"].as_array().unwrap();
        all.iter()
            .find(|f| f["name"] == name)
            .unwrap_or_else(|| panic!("no {name}"))
            .clone()
    };
    let read = |path: &str| std::fs::read_to_string(path).unwrap().trim().to_owned();
    assert_eq!(find("kernel")["value"], read("/proc/sys/kernel/osrelease"));
    let maps: u64 = read("/proc/sys/vm/max_map_count").parse().unwrap();
    assert_eq!(find("vm.max_map_count")["value"], maps);
    let enabled = find("enabled")["value"].as_str().unwrap().to_owned();
    assert!(read("/sys/kernel/mm/transparent_hugepage/enabled").contains(&format!("[{enabled}]")));
    assert!(
        ["fault", "collapse", "none"]
            .iter()
            .any(|m| find("can be had")["value"] == *m)
    );
    for name in [
        "RAM",
        "cgroup limit",
        "RLIMIT_AS",
        "vm.overcommit_memory",
        "user-mode-only",
    ] {
        find(name);
    }
    for kind in ["docker", "podman", "kubernetes"] {
        assert!(json["containers"][kind].is_string());
    }
}

#[test]
fn doctor_says_that_dev_shm_is_full_and_what_to_do() {
    if deckle_sys::process::effective_user() != 0 {
        return skipped("needs root to mount");
    }
    let _turn = turn();
    let exe = env!("CARGO_BIN_EXE_deckle");
    for (options, part, remedy) in [
        ("size=64k", "full: 64.0 KiB free", "remount,size=64M"),
        ("nr_inodes=1", "no file can be made", "nr_inodes="),
        ("ro", "read-only", "remount,rw"),
    ] {
        let script = format!("mount -t tmpfs -o {options} tmpfs /dev/shm && exec {exe} doctor");
        let mut c = Command::new("unshare");
        c.args(["--mount", "sh", "-c", &script])
            .env_remove("LD_PRELOAD");
        let Ok(done) = c.output() else {
            return not_here("no unshare");
        };
        let (code, out, err) = finish(done);
        assert_eq!((code, err.as_str()), (1, ""), "{options}: {out}");
        assert!(out.starts_with("mode of `deckle run` here: none"), "{out}");
        assert!(
            out.contains(part) && out.contains(remedy),
            "{options}: {out}"
        );
    }
}

#[test]
fn lab_checks_its_options_before_it_runs_anything() {
    for (args, needle) in [
        (&["lab", "pageout", "--size", "3M"][..], "multiple of 2M"),
        (&["lab", "pageout", "--size", "0"], "zero"),
        (&["lab", "pageout", "--on", "mars"], "mars"),
        (&["lab", "oom", "--on", "live,live"], "twice"),
        (&["lab", "pageout", "--runs", "0"], "--runs"),
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
fn lab_programs_are_this_binary() {
    let (code, out, err) = output(&[
        "lab",
        "program",
        "oom-sparse",
        "--size",
        "4M",
        "--stride",
        "50K",
    ]);
    assert_eq!(code, 0, "{out}{err}");
    assert_ne!(output(&["lab", "program", "no-such"]).0, 0);
}
