//! Every clear error: one line that begins with `deckle: `, says what to do, and the status.

use crate::common::*;
use crate::skipped::{not_here, skipped};

fn fails(args: &[&str], status: i32, needles: &[&str]) {
    let (code, out, err) = output(args);
    assert_eq!(code, status, "{args:?}: {err}");
    assert_eq!(out, "", "nothing on standard output: {args:?}");
    assert_eq!(err.lines().count(), 1, "one line: {err}");
    assert!(err.starts_with("deckle: "), "{err}");
    for needle in needles {
        assert!(err.contains(needle), "{args:?}: no `{needle}` in: {err}");
    }
}

#[test]
fn unknown_and_unexecutable_programs() {
    let s = Scratch::new("exec");
    let plain = s.file("plain", b"#!/bin/sh\n", 0o644);
    let lost = s.file("lost", b"#!/no/such/shell\n", 0o755);
    fails(&["run", "--", "no-such-program-here"], 127, &["not found"]);
    fails(&["run", "--", "/no/such/program"], 127, &["not found"]);
    fails(&["run", "--", ""], 127, &["``: not found"]);
    fails(&["run", "--", &plain], 126, &["not executable", "chmod"]);
    fails(
        &["run", "--", "/tmp"],
        126,
        &["is a directory: give a program"],
    );
    fails(&["run", "--", &lost], 126, &["interpreter"]);
}

#[test]
fn sizes_that_make_no_sense() {
    for option in ["--memory-max", "--memory-high", "--swap-max"] {
        for small in ["0", "1K"] {
            let given = ["run", option, small, "--", "true"];
            fails(&given, 125, &[option, small, "too small", "give at least"]);
        }
        fails(&["run", option, "--", "true"], 125, &[option, "value"]);
        fails(
            &["run", option, "12Q", "--", "true"],
            125,
            &[option, "is not a size", "256M"],
        );
        fails(&["run", option, "-5M", "--", "true"], 125, &[option]);
        fails(
            &["run", option, "999999T", "--", "true"],
            125,
            &[option, "check the unit"],
        );
        // The kernel's word for no limit.
        let none = ["run", "--unmanaged", "--quiet", option, "max", "--", "true"];
        assert_eq!(output(&none), (0, String::new(), String::new()), "{option}");
    }
    fails(
        &["run", "--memory-max", "64K", "--", "true"],
        125,
        &["too small to run anything", "at least 4M"],
    );
    let high = [
        "run",
        "--memory-max",
        "64M",
        "--memory-high",
        "65M",
        "--",
        "true",
    ];
    fails(&high, 125, &["above --memory-max"]);
}

#[test]
fn knobs_out_of_range() {
    for bad in ["512", "-1", "x", "70000"] {
        fails(
            &["run", "--max-ptes-none", bad, "--", "true"],
            125,
            &["0 to 511", bad],
        );
    }
    fails(
        &["run", "--thp", "maybe", "--", "true"],
        125,
        &["always, madvise, never"],
    );
    fails(
        &["run", "--swap", "disk", "--", "true"],
        125,
        &["none, zram, zram:lz4, zram:zstd"],
    );
    fails(
        &["run", "--profile", "bsd", "--", "true"],
        125,
        &["deckle, linux"],
    );
    fails(
        &["run", "--shrink-underused", "yes", "--", "true"],
        125,
        &["on, off"],
    );
    fails(
        &["run", "--no-such-option", "--", "true"],
        125,
        &["--no-such-option"],
    );
    for (set, needles) in [
        (
            "vm.page-cluster=9",
            ["--set vm.page-cluster: `9`", "0 to 8"],
        ),
        ("vm.page-cluster", ["--set", "write KEY=VALUE"]),
        ("=3", ["--set: `=3` has no name", "write KEY=VALUE"]),
        (" =3", ["--set: ` =3` has no name", "write KEY=VALUE"]),
        (
            "page-cluster=3",
            ["no such setting", "did you mean `vm.page-cluster`"],
        ),
        ("memory.mx=1G", ["--set memory.mx", "mean `memory.max`"]),
        (
            "split_mode=shatter",
            ["--set split_mode", "such setting; `deckle run --help`"],
        ),
        ("memory.max=2M", ["--set memory.max", "too small"]),
        ("strict=maybe", ["--set strict", "true, false, on, off"]),
    ] {
        fails(&["run", "--set", set, "--", "true"], 125, &needles);
    }
    fails(&["run", "--memory-max", "1G"], 125, &["PROGRAM"]);
    fails(&["run", "true", "x"], 125, &["`true`: `--` must stand"]);
    fails(
        &["run", "--memroy-max", "1G", "--", "true"],
        125,
        &["'--memory-max'; see `deckle run --help`"],
    );
}

#[test]
fn settings_files_are_refused_with_the_line() {
    let s = Scratch::new("config");
    let cases: &[(&str, &str, &[&str])] = &[
        (
            "a",
            "profile = \"linux\"\n\n[memory]\nmaxx = \"1G\"\n",
            &["line 4", "maxx"],
        ),
        (
            "b",
            "memory.max = \"1Q\"\n",
            &["line 1", "1Q", "not a size"],
        ),
        ("c", "\nmemory.swap.max = 0\n", &["line 2", "too small"]),
        ("d", "transparent_hugepage.enabled = 3\n", &["line 1"]),
        ("e", "\n\n[memory\n", &["line 3"]),
        (
            "f",
            "transparent_hugepage.khugepaged.max_ptes_none = 512\n",
            &["line 1", "512", "0 to 511"],
        ),
        (
            "g",
            "transparent_hugepage.enabled = \"maybe\"\n",
            &["line 1", "maybe", "always"],
        ),
        (
            "i",
            "transparent_hugepage.fault_order = \"best\"\n",
            &["line 1", "best", "fixed", "auto"],
        ),
        (
            "l",
            "transparent_hugepage.thp_waste_max = \"64Q\"\n",
            &["line 1", "64Q", "not a size"],
        ),
        (
            "j",
            "[transparent_hugepage.hugepages-64kB]\nenabled = \"yes\"\n",
            &["line 2", "yes", "inherit"],
        ),
        (
            "k",
            "[transparent_hugepage.hugepages-8kB]\nenabled = \"always\"\n",
            &["line 2", "hugepages-8kB"],
        ),
        (
            "m",
            "transparent_hugepage.khugepaged.max_ptes_swap = 512\n",
            &["line 1", "512", "0 to 511"],
        ),
        (
            "o",
            "transparent_hugepage.khugepaged.max_ptes_shared = 512\n",
            &["line 1", "512", "0 to 511"],
        ),
        ("n", "vm.page-cluster = 9\n", &["line 1", "9", "0 to 8"]),
        (
            "h",
            "memory.max = \"2M\"\n",
            &["h: line 1: memory.max", "too small"],
        ),
        (
            "p",
            "[transparent_hugepage]\nhugepages-64kB = \"always\"\n",
            &["line 2", "hugepages-64kB.enabled`"],
        ),
    ];
    for (name, text, needles) in cases {
        let path = s.file(name, text.as_bytes(), 0o644);
        fails(&["run", "--config", &path, "--", "true"], 125, needles);
    }
    fails(
        &["run", "--config", "/no/such/file", "--", "true"],
        125,
        &["/no/such/file"],
    );
    let all = "profile = \"linux\"\nswap = \"none\"\nstrict = false\n\
               memory.max = \"20M\"\n\
               memory.high = 10485760\nmemory.swap.max = \"1G\"\n\
               transparent_hugepage.enabled = \"always\"\n\
               transparent_hugepage.khugepaged.max_ptes_none = 450\n\
               transparent_hugepage.khugepaged.pages_to_scan = 8192\n\
               transparent_hugepage.fault_order = \"auto\"\n\
               transparent_hugepage.thp_waste_max = \"8M\"\n\
               transparent_hugepage.align_mappings = true\n\
               transparent_hugepage.hugepages-64kB.enabled = \"inherit\"\n\
               zswap.max_pool_percent = 40\n\
               vm.page-cluster = 3\nvm.swap_cache = true\n";
    let path = s.file("all", all.as_bytes(), 0o644);
    let run = |more: &[&str]| {
        let mut args = vec!["run", "--quiet", "--unmanaged", "--config", &path];
        args.extend(more);
        args.extend(["--", "true"]);
        output(&args)
    };
    assert_eq!(run(&[]), (0, String::new(), String::new()));
    // Options win: this one makes memory.high of the file too large.
    for win in [["--memory-max", "5M"], ["--set", "memory.max=5M"]] {
        let (code, _, err) = run(&win);
        assert_eq!(code, 125);
        assert!(err.contains("all: line 5: memory.high"), "{err}");
    }
    let (code, _, err) = run(&["--set", "memory.max=40M", "--memory-max", "5M"]);
    assert_eq!(code, 125);
    assert!(err.contains("all: line 5: memory.high"), "{err}");
}

#[test]
fn a_program_of_another_machine_cannot_be_managed_and_says_so() {
    let s = Scratch::new("machine");
    let mut elf = static_elf();
    // IA-64.
    elf[18] = 50;
    let prog = s.file("prog", &elf, 0o755);
    let script = s.file("script", format!("#!{prog}\n").as_bytes(), 0o755);
    for program in [&prog, &script] {
        fails(
            &["run", "--strict", "--", program],
            125,
            &["cannot be managed", "another processor"],
        );
    }
    // What no kernel knows is a shell's.
    let text = s.file("text", b"exit 3\n", 0o755);
    let stats = s.0.join("stats");
    let (code, _, err) = output(&["run", "--stats", stats.to_str().unwrap(), "--", &text]);
    assert_eq!(code, 3, "it runs all the same: {err}");
    assert!(
        err.contains("cannot be managed and runs outside the limit"),
        "{err}"
    );
    let json: serde_json::Value = serde_json::from_slice(&std::fs::read(stats).unwrap()).unwrap();
    assert_eq!(json["programs_unmanaged"], 1);
}

/// The least that a program can be: two instructions and a system call, in a page of its own.
#[test]
fn a_program_of_three_instructions_is_managed() {
    if cfg!(not(target_arch = "x86_64")) {
        not_here("x86-64 code");
        return;
    }
    let s = Scratch::new("static");
    let prog = s.file("prog", &static_elf(), 0o755);
    let stats = s.0.join("stats");
    let (code, _, err) = output(&[
        "run",
        "--strict",
        "--stats",
        stats.to_str().unwrap(),
        "--",
        &prog,
    ]);
    if err.contains("no userfaultfd") {
        skipped(&err);
        return;
    }
    assert_eq!(code, 3, "{err}");
    let json: serde_json::Value = serde_json::from_slice(&std::fs::read(stats).unwrap()).unwrap();
    assert_eq!(json["programs_unmanaged"], 0);
}

#[test]
fn without_its_library_nothing_is_run() {
    let s = Scratch::new("alone");
    let copy = copy_of_deckle(&s);
    let touched = s.0.join("touched");
    let mut c = std::process::Command::new(&copy);
    c.args(["run", "--", "touch", touched.to_str().unwrap()]);
    let (code, _, err) = finish(c.output().unwrap());
    assert_eq!(code, 125, "{err}");
    assert!(
        err.contains("libdeckle.so") || err.contains("no userfaultfd"),
        "{err}"
    );
    assert!(!touched.exists());
}

#[test]
fn stats_that_cannot_be_written_fail_before_the_program_runs() {
    let s = Scratch::new("nostats");
    let touched = s.0.join("touched");
    let touched = touched.to_str().unwrap();
    let args = [
        "run",
        "--unmanaged",
        "--stats",
        "/no/dir/x",
        "--",
        "touch",
        touched,
    ];
    fails(&args, 125, &["--stats", "/no/dir/x"]);
    assert!(!std::path::Path::new(touched).exists());
}

#[test]
fn help_is_for_newcomers_and_on_standard_output() {
    let (code, out, err) = output(&["--help"]);
    assert_eq!((code, err.as_str()), (0, ""));
    assert!(
        out.contains("deckle run --memory-max 256M -- python3 job.py"),
        "{out}"
    );
    let (code, out, _) = output(&["run", "--help"]);
    assert_eq!(code, 0);
    for needle in [
        "Examples:",
        "137",
        "--max-ptes-none",
        "memory.max = ",
        "auto",
    ] {
        assert!(out.contains(needle), "no `{needle}` in: {out}");
    }
    // Since there is a second door.
    assert!(!out.contains("statically linked"), "{out}");
}

/// What the help says of settings can be used as a settings file as it stands.
#[test]
fn every_setting_of_the_help_is_one() {
    let (_, help, _) = output(&["run", "--help"]);
    let lines = help.lines().filter(|line| line.starts_with("  "));
    let settings: Vec<&str> = lines.filter(|line| line.contains(" = ")).collect();
    assert!(settings.len() > 30, "{help}");
    let s = Scratch::new("help");
    let path = s.file("config", settings.join("\n").as_bytes(), 0o644);
    let args = ["run", "--quiet", "--unmanaged", "--config", &path];
    let ran = output(&[&args[..], &["--", "true"]].concat());
    assert_eq!(ran, (0, String::new(), String::new()));
}

#[test]
fn memory_that_cannot_be_fetched() {
    let own = std::process::id().to_string();
    let at = format!("{:p}", &raw const own);
    fails(&["fetch", "4194305", &at], 125, &["no process 4194305"]);
    fails(&["fetch", "0", &at], 125, &["PID"]);
    fails(&["fetch", &own], 125, &["ADDRESS", "deckle fetch --help"]);
    fails(
        &["fetch", &own, "table"],
        125,
        &["`table` is not an address"],
    );
    fails(&["fetch", &own, &at, "0"], 125, &["zero"]);
    fails(&["fetch", &own, &at, "4X"], 125, &["is not a size"]);
    fails(&["fetch", &own, "0xffffffffffffffff"], 125, &["so large"]);
    fails(
        &["fetch", &own, "0x1000"],
        125,
        &["nothing mapped at 0x1000"],
    );
    // SAFETY: a new mapping, which changes no other.
    let closed = unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let none = std::ptr::null_mut();
        libc::mmap(none, 4096, libc::PROT_NONE, flags, -1, 0)
    };
    let closed = format!("{closed:p}");
    if deckle_sys::process::effective_user() == 0 {
        fails(&["fetch", &own, &closed], 125, &["itself may not read"]);
        // It is under no deckle, and nothing is wrong with that.
        let (status, out, err) = output(&["fetch", &own, &at, "1"]);
        assert_eq!((status, err.as_str()), (0, ""));
        assert!(out.contains("4096 bytes at 0x"), "{out}");
    }
}

#[test]
fn files_for_swapped_pages_that_cannot_be() {
    let s = Scratch::new("swapfile");
    let plain = format!("file:{}", s.file("plain", b"", 0o644));
    let swap = |text: &str, needles: &[&str]| {
        fails(&["run", "--swap", text, "--", "true"], 125, needles);
    };
    swap(&plain, &["not a directory", "such as /var/tmp"]);
    swap(
        "zram,file:/no/such/dir",
        &["/no/such/dir", "give a directory"],
    );
    swap("file:", &["--swap", "write file:DIR"]);
    swap("none,file:/tmp", &["--swap", "write file:DIR"]);
    swap("zram,file:/tmp:much", &["`much` is not a size"]);
    let two = "zram,file:/tmp,file:/var/tmp";
    swap(two, &["--swap", "says nothing of a file"]);
    let config = s.file("deckle.toml", b"swap = \"zram,disk\"\n", 0o644);
    let with = ["run", "--config", &config, "--", "true"];
    fails(&with, 125, &["line 1", "`disk` is no file"]);
    let config = s.file("share", b"zswap.max_pool_percent = 101\n", 0o644);
    let with = ["run", "--config", &config, "--", "true"];
    fails(&with, 125, &["line 1", "0 to 100"]);
}
