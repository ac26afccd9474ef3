//! `deckle stat` and names: real trees, looked at while they run.

use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use serde_json::Value;

use crate::accept::{compile, deckle_path, gauges, have, root, run_with, turn};
use crate::common::*;
use crate::openmetrics;

pub const MIB: u64 = 1 << 20;

/// A name that no other test and no other run of the tests uses.
pub fn unique(tag: &str) -> String {
    format!("{tag}-{}.t", std::process::id())
}

/// `deckle run --name NAME OPTIONS -- PROGRAM`.
pub fn command(name: &str, options: &str, program: &[&str]) -> Command {
    deckle_path();
    let mut c = deckle(&["run", "--name", name]);
    c.args(options.split_whitespace()).arg("--").args(program);
    c
}

/// The same, begun.
pub fn start(name: &str, options: &str, program: &[&str]) -> Running {
    Running::spawn(&mut command(name, options, program))
}

pub fn json(args: &[&str]) -> Value {
    let (code, out, err) = output(args);
    assert_eq!((code, err.as_str()), (0, ""), "{args:?}");
    serde_json::from_str(&out).unwrap()
}

/// All of one tree.
pub fn stat(name: &str) -> Value {
    let all = json(&["stat", name, "--format", "json"]);
    assert_eq!(all["schema"], 1);
    let [tree] = &all["trees"].as_array().unwrap()[..] else {
        panic!("one tree: {all}");
    };
    tree.clone()
}

pub fn number(of: &Value, at: &str) -> u64 {
    let found = of.pointer(at).and_then(Value::as_u64);
    found.unwrap_or_else(|| panic!("no number at {at}: {of}"))
}

pub fn charged(name: &str) -> u64 {
    number(&stat(name), "/current/memory_bytes")
}

/// `deckle set`; what it says.
pub fn set(name: &str, settings: &[&str]) -> String {
    let args = ["set", name].into_iter().chain(settings.iter().copied());
    let (code, out, err) = output(&args.collect::<Vec<_>>());
    assert_eq!((code, err.as_str()), (0, ""), "{settings:?}");
    out
}

pub fn fails(args: &[&str], needles: &[&str]) {
    let (code, out, err) = output(args);
    assert_eq!((code, out.as_str()), (125, ""), "{args:?}: {err}");
    assert_eq!(err.lines().count(), 1, "{err}");
    for needle in needles {
        assert!(err.contains(needle), "{args:?}: no `{needle}` in: {err}");
    }
}

/// Ends a forest; its memory was right to the end.
pub fn end_well(run: Running, pid: u32) {
    kill(pid, libc::SIGTERM);
    let (code, out, err) = run.end();
    assert_eq!(code, 0, "{out}{err}");
    assert!(out.contains("all right"), "{out}{err}");
}

/// The pid behind `filled`.
pub fn filled(run: &mut Running) -> u32 {
    run.wait_for("filled ");
    run.wait_for("\n").trim().parse().unwrap()
}

#[test]
fn what_is_told_of_fifty_processes_is_what_the_system_says() {
    let test = "what_is_told_of_fifty_processes_is_what_the_system_says";
    let _turn = turn();
    if !root(test) {
        return;
    }
    let forest = compile("forest", &[]);
    let s = Scratch::new("stat");
    let said = s.0.join("said");
    let name = unique("fifty");
    let program = [&forest, "50", "5", "hold"];
    let options = format!("--memory-max 192M --name {name}");
    let ((ran, seen), looks) = gauges::at_rest("stat", &said, "filled", |enter, root| {
        std::thread::scope(|scope| {
            let looker = scope.spawn(|| {
                until("all are filled", || {
                    std::fs::read_to_string(&said).is_ok_and(|text| text.contains("filled"))
                });
                // At rest: what the kernel's counters have in batches has come.
                std::thread::sleep(Duration::from_millis(1000));
                let seen = stat(&name);
                // Meanwhile the cgroup is looked at.
                std::thread::sleep(Duration::from_millis(1500));
                let text = std::fs::read_to_string(&said).unwrap();
                let pid = text.trim().rsplit(' ').next().unwrap().parse().unwrap();
                kill(pid, libc::SIGTERM);
                seen
            });
            let ran = run_with(
                &options,
                &program,
                |c| {
                    enter(c);
                    c.stdout(std::fs::File::create(&said).unwrap());
                },
                |pid| root.store(pid, Relaxed),
            );
            (ran, looker.join().unwrap())
        })
    });
    ran.ended(0);
    let last = looks.last().expect("a look at the cgroup");
    let told = number(&seen, "/current/memory_bytes");
    let off = told as f64 / last.cgroup_held as f64 - 1.0;
    let [told, held] = [told, last.cgroup_held].map(|n| n as f64 / MIB as f64);
    eprintln!(
        "told {told:.1} MiB, by the cgroup {held:.1}: {:+.2} %",
        off * 100.0
    );
    assert!(off.abs() <= 0.02, "2 %");
    let processes = seen["processes"].as_array().unwrap();
    // Their parent has nothing to manage.
    assert_eq!(processes.len(), 50);
    assert_eq!(number(&seen, "/processes_now"), 50);
    // What each tells adds up to what is told of all.
    for (of, all) in [
        ("memory_bytes", "/current/memory_bytes"),
        ("swapped_bytes", "/current/swapped_bytes"),
    ] {
        let sum: u64 = processes.iter().map(|p| p[of].as_u64().unwrap()).sum();
        assert_eq!(sum, number(&seen, all), "{of}");
    }
    assert!(number(&seen, "/current/swapped_bytes") > 50 * MIB);
    // 250 MiB are in the program's hands, resident or in swap, and what malloc has besides: less
    // than a MiB each, of which the kernel may fill holes.
    let has: u64 = (processes.iter())
        .flat_map(|p| {
            ["resident_bytes", "inactive_bytes", "swapped_bytes"]
                .map(|of| number(p, &format!("/{of}")))
        })
        .sum();
    assert!((250 * MIB..=300 * MIB).contains(&has), "{}", has / MIB);
}

#[test]
fn two_trees_are_told_apart_by_name_and_by_pid() {
    let [one, two] = ["one", "two"].map(unique);
    let script = "echo pid $$; exec sleep 1000";
    let begin = |name: &str, more: &str| {
        let mut run = start(
            name,
            &format!("--unmanaged --quiet {more}"),
            &["sh", "-c", script],
        );
        run.wait_for("pid ");
        let program: u32 = run.wait_for("\n").trim().parse().unwrap();
        (run, program)
    };
    let (first, program) = begin(&one, "--memory-max 64M");
    let (second, _) = begin(&two, "--memory-max 128M");
    for (name, max, run) in [(&one, 64, &first), (&two, 128, &second)] {
        let seen = stat(name);
        assert_eq!(number(&seen, "/memory_max_bytes"), max * MIB);
        assert_eq!(seen["name"], name.as_str());
        assert_eq!(number(&seen, "/pid"), u64::from(run.pid()));
        assert_eq!(stat(&run.pid().to_string())["name"], name.as_str());
    }
    let supervisor = parent(program);
    assert_eq!(stat(&supervisor.to_string())["name"], one.as_str());
    let all = json(&["stat", "--format", "json"]);
    let names: Vec<_> = all["trees"]
        .as_array()
        .unwrap()
        .iter()
        .map(|t| &t["name"])
        .collect();
    for name in [&one, &two] {
        assert_eq!(names.iter().filter(|n| **n == name.as_str()).count(), 1);
    }
    // A name is one tree's.
    let pid = first.pid().to_string();
    fails(
        &["run", "--name", &one, "--", "true"],
        &[&one, &pid, "give another"],
    );
    set(&one, &["memory.max=80M"]);
    assert_eq!(number(&stat(&two), "/memory_max_bytes"), 128 * MIB);
    first.signal(libc::SIGTERM);
    assert_eq!(first.end().0, 143);
    fails(&["stat", &one], &["no tree that runs is called", &two]);
    fails(
        &["set", &one, "memory.max=1G"],
        &["no tree that runs is called"],
    );
    // It is free again.
    let (again, _) = begin(&one, "");
    assert_eq!(number(&stat(&one), "/pid"), u64::from(again.pid()));
    fails(&["stat", "1"], &["process 1 is in no tree that runs"]);
    fails(&["stat", "4194305"], &["there is no process 4194305"]);
}

#[test]
fn of_many_that_want_one_name_at_once_one_gets_it() {
    let name = unique("race");
    let go = |_| {
        let options = "--unmanaged --quiet";
        start(&name, options, &["sleep", "1000"])
    };
    let runs: Vec<Running> = (0..8).map(go).collect();
    let held = || json(&["stat", "--format", "json"]);
    let (mut ended, mut runs) = (Vec::new(), runs);
    until("all but one have ended", || {
        let (done, left): (Vec<_>, Vec<_>) = std::mem::take(&mut runs)
            .into_iter()
            .map(|mut run| (run.0.try_wait().unwrap().is_some(), run))
            .partition(|(done, _)| *done);
        ended.extend(done.into_iter().map(|(_, run)| run));
        runs = left.into_iter().map(|(_, run)| run).collect();
        runs.len() <= 1
    });
    assert_eq!(runs.len(), 1, "one of them runs");
    until("it is called so", || stat_or_none(&name).is_some());
    let all = held();
    let trees = all["trees"].as_array().unwrap().iter();
    assert_eq!(trees.filter(|t| t["name"] == name.as_str()).count(), 1);
    for run in ended {
        let (code, _, err) = run.end();
        assert_eq!(code, 125);
        assert!(err.contains("is the name of the tree of process"), "{err}");
    }
}

fn stat_or_none(name: &str) -> Option<Value> {
    let (code, out, _) = output(&["stat", name, "--format", "json"]);
    (code == 0).then(|| serde_json::from_str(&out).unwrap())
}

#[test]
fn what_cannot_be_asked_is_one_line_with_what_to_do() {
    for bad in ["", "4711", "a b", "a/b", "-x", &"x".repeat(33)] {
        let name = format!("--name={bad}");
        fails(&["run", &name, "--", "true"], &["--name", "digits"]);
    }
    let name = unique("errors");
    let mut run = start(
        &name,
        "--unmanaged --memory-max 64M",
        &["sh", "-c", "echo; sleep 1000"],
    );
    run.wait_for("\n");
    fails(&["set", &name], &["KEY=VALUE"]);
    fails(&["set", &name, "memory.max"], &["write KEY=VALUE"]);
    fails(
        &["set", &name, "memory.high=65M"],
        &["above memory.max, 64M"],
    );
    fails(
        &["set", &name, "profile=linux"],
        &["cannot change while the tree runs"],
    );
    fails(
        &["set", &name, "swap=none"],
        &["start it anew with `deckle run --set swap=none`"],
    );
    fails(
        &["set", &name, "memory.max=1G", "vm.page-cluster=99"],
        &["0 to 8"],
    );
    assert_eq!(
        number(&stat(&name), "/memory_max_bytes"),
        64 * MIB,
        "all or nothing"
    );
    fails(
        &["stat", &name, "--interval", "0"],
        &["--interval", "0.01 to 86400"],
    );
    fails(&["stat", &name, "--count", "2"], &["--interval"]);
}

/// Files with the prefix of groups, removed at the end.
struct Litter(Vec<std::path::PathBuf>);

impl Drop for Litter {
    fn drop(&mut self) {
        for path in &self.0 {
            let _ = std::fs::remove_dir(path).or_else(|_| std::fs::remove_file(path));
        }
    }
}

#[test]
fn what_else_lies_beside_the_pages_does_no_harm() {
    let at = |tag: &str| format!("/dev/shm/deckle-litter-{}-{tag}", std::process::id()).into();
    let litter = Litter(
        ["empty", "text", "huge", "lie", "pipe", "dir", "link"]
            .map(at)
            .to_vec(),
    );
    let [empty, text, huge, lie, pipe, dir, link] = &litter.0[..] else {
        unreachable!()
    };
    let name = unique("litter");
    let mut run = start(&name, "--unmanaged", &["sh", "-c", "echo; sleep 1000"]);
    run.wait_for("\n");
    let page = group_page(run.pid()).unwrap();
    std::fs::write(empty, "").unwrap();
    std::fs::write(text, "deckleGP, it says").unwrap();
    std::fs::File::create(huge)
        .unwrap()
        .set_len(1 << 40)
        .unwrap();
    // The head of a page, and then nothing but ones.
    let mut bytes = std::fs::read(&page).unwrap();
    bytes[24..].fill(0xff);
    std::fs::write(lie, &bytes).unwrap();
    let path = std::ffi::CString::new(pipe.to_str().unwrap()).unwrap();
    deckle_sys::file::make_fifo(&path, 0o600).unwrap();
    std::fs::create_dir(dir).unwrap();
    std::os::unix::fs::symlink(&page, link).unwrap();
    for format in ["text", "json", "openmetrics"] {
        let (code, out, err) = output(&["stat", "--format", format]);
        assert_eq!((code, err.as_str()), (0, ""), "{out}");
        assert!(out.contains(&name), "{out}");
    }
    assert_eq!(number(&stat(&name), "/pid"), u64::from(run.pid()));
    fails(&["run", "--name", &name, "--", "true"], &["give another"]);
}

#[test]
fn another_user_neither_sees_nor_changes_a_tree() {
    if !root("another_user_neither_sees_nor_changes_a_tree") {
        return;
    }
    let name = unique("foreign");
    let options = "--unmanaged --memory-max 64M";
    let mut run = start(&name, options, &["sh", "-c", "echo; sleep 1000"]);
    run.wait_for("\n");
    let s = Scratch::new("foreign");
    let copy = copy_of_deckle(&s);
    let as_nobody = |args: &[&str]| {
        let mut c = Command::new(&copy);
        c.args(args).gid(65534).uid(65534).current_dir("/");
        finish(c.output().unwrap())
    };
    for args in [
        &["stat", &name][..],
        &["set", &name, "memory.max=1G"],
        &["reclaim", &name, "1M"],
    ] {
        let (code, out, err) = as_nobody(args);
        assert_eq!((code, out.as_str()), (125, ""), "{args:?}");
        assert!(
            err.contains("trees of other users are theirs and root's"),
            "{err}"
        );
    }
    let (code, out, _) = as_nobody(&["stat"]);
    assert_eq!((code, out.as_str()), (0, "no tree runs under deckle\n"));
    assert_eq!(number(&stat(&name), "/memory_max_bytes"), 64 * MIB);
}

#[test]
fn statistics_come_again_until_the_tree_ends() {
    let name = unique("again");
    let script = "echo; until [ -e $0 ]; do sleep 0.02; done";
    let s = Scratch::new("again");
    let stop = s.0.join("stop");
    let program = ["sh", "-c", script, stop.to_str().unwrap()];
    let mut run = start(&name, "--unmanaged --quiet", &program);
    run.wait_for("\n");
    let words = ["stat", &name, "--interval", "0.05"];
    let counted: Vec<&str> = words
        .into_iter()
        .chain(["--count", "3", "--format", "json"])
        .collect();
    let (code, out, err) = output(&counted);
    assert_eq!((code, err.as_str()), (0, ""));
    assert_eq!(out.lines().count(), 3);
    for line in out.lines() {
        let all: Value = serde_json::from_str(line).unwrap();
        assert_eq!(all["trees"][0]["name"], name.as_str());
    }
    let mut watch = Running::start(&words);
    watch.wait_for("faults/s");
    watch.wait_for(&name);
    s.file("stop", b"", 0o644);
    assert_eq!(run.end().0, 0);
    let (code, _, err) = watch.end();
    assert_eq!((code, err.as_str()), (0, "deckle: the tree has ended\n"));
}

#[test]
fn metrics_are_openmetrics_text_of_each_tree() {
    let _turn = turn();
    let keeper = compile("keeper", &[]);
    let name = unique("metrics");
    let s = Scratch::new("metrics");
    let file = s.0.join("deckle.prom");
    let options = format!("--memory-max 64M --metrics {}", file.display());
    let mut run = start(&name, &options, &[&keeper, "96", "wait"]);
    let pid = filled(&mut run);
    until("the file is there", || {
        let text = std::fs::read_to_string(&file).unwrap();
        text.is_empty()
            || openmetrics::parse(&text).is_ok_and(|m| {
                m.get("deckle_swap_used_bytes", &name)
                    .is_some_and(|n| n > 30e6)
            })
    });
    until("it is written", || {
        !std::fs::read_to_string(&file).unwrap().is_empty()
    });
    let (code, out, err) = output(&["stat", &name, "--format", "openmetrics"]);
    assert_eq!((code, err.as_str()), (0, ""));
    let seen = stat(&name);
    let metrics = openmetrics::parse(&out).unwrap();
    for (family, at) in [
        ("deckle_memory_max_bytes", "/memory_max_bytes"),
        ("deckle_memory_charged_bytes", "/current/memory_bytes"),
        ("deckle_swap_used_bytes", "/current/swapped_bytes"),
        ("deckle_vmstat_pgfault_total", "/counters/pgfault"),
        ("deckle_vmstat_nr_anon", "/counters/nr_anon"),
        ("deckle_programs_total", "/programs_managed"),
    ] {
        let value = metrics.get(family, &name).expect(family);
        let told = number(&seen, at) as f64;
        assert!(
            (value - told).abs() <= told * 0.02,
            "{family}: {value}, {told}"
        );
    }
    assert_eq!(
        metrics.get("deckle_swap_max_bytes", &name),
        Some(f64::INFINITY)
    );
    assert_eq!(metrics.get("deckle_running", &name), Some(1.0));
    kill(pid, libc::SIGUSR1);
    assert_eq!(run.end().0, 0);
    let text = std::fs::read_to_string(&file).unwrap();
    let last = openmetrics::parse(&text).unwrap();
    assert_eq!(last.get("deckle_running", &name), Some(0.0));
    assert_eq!(last.get("deckle_processes", &name), Some(0.0));
    assert!(last.get("deckle_vmstat_pswpout_total", &name) > Some(1000.0));
    if have("metrics_are_openmetrics_text_of_each_tree", "promtool") {
        openmetrics::promtool(&s.0, &text);
    }
    let missing = s.0.join("no/such");
    let args = ["run", "--metrics", missing.to_str().unwrap(), "--", "true"];
    fails(&args, &["--metrics", "no such file"]);
}
