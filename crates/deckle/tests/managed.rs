//! Real programs under the real library: how `deckle run` looks from outside.

use crate::accept::turn;
use crate::common;
use crate::common::*;
use crate::skipped::skipped;
use std::path::Path;

/// The library beside `deckle`; says so if it was not built.
fn library(test: &str) -> bool {
    let beside = Path::new(env!("CARGO_BIN_EXE_deckle")).with_file_name("libdeckle.so");
    let there = beside.is_file();
    if !there {
        skipped(format_args!(
            "{test}: no libdeckle.so beside deckle (cargo build -p deckle-preload)"
        ));
    }
    there
}

fn run(more: &[&str], program: &[&str]) -> (i32, String, String) {
    let mut args = vec!["run"];
    args.extend(more);
    args.push("--");
    args.extend(program);
    output(&args)
}

/// `deckle lab program`, itself under deckle.
fn lab(args: &[&'static str]) -> Vec<&'static str> {
    let mut all = vec![env!("CARGO_BIN_EXE_deckle"), "lab", "program"];
    all.extend(args);
    all
}

/// What the report of a kill says of an option: whether memory would have sufficed with it.
fn fits(err: &str, option: &str) -> bool {
    let mut lines = err.lines().map(str::trim_start);
    let line = lines.find_map(|line| line.strip_prefix(option));
    let line = line.unwrap_or_else(|| panic!("nothing of {option}: {err}"));
    assert!(
        line.contains(" fits, ") != line.contains(" too little, "),
        "{line}"
    );
    line.contains(" fits, ")
}

#[test]
fn what_a_kill_says_would_have_helped_helps_and_nothing_else() {
    let _turn = turn();
    if !library("what_a_kill_says_would_have_helped_helps_and_nothing_else") {
        return;
    }
    let s = Scratch::new("remedy");
    let file = format!("zram:lz4,file:{}", s.0.display());
    for (ratio, lz4_helps) in [("3", true), ("1", false)] {
        let run = |swap: &str, max: &str| {
            let limits = ["--memory-max", max, "--swap", swap];
            run(&limits, &lab(&["fill", "72M", "--ratio", ratio]))
        };
        let (code, _, err) = run("none", "64M");
        assert_eq!(code, 137, "{err}");
        assert_eq!(fits(&err, "--swap zram:lz4:"), lz4_helps, "{err}");
        assert_eq!(fits(&err, "--swap zram:zstd:"), lz4_helps, "{err}");
        assert!(fits(&err, "--swap zram:lz4,file:DIR with "), "{err}");
        for (swap, helps) in [
            ("zram:lz4", lz4_helps),
            ("zram:zstd", lz4_helps),
            (&file, true),
        ] {
            let (code, _, err) = run(swap, "64M");
            let want = if helps { 0 } else { 137 };
            assert_eq!(code, want, "{swap}, ratio {ratio}: {err}");
        }
        let (code, _, err) = run("none", "80M");
        assert_eq!(code, 0, "{err}");
    }
}

#[test]
fn the_limit_of_swap_ends_in_one_report_and_137() {
    let _turn = turn();
    if !library("the_limit_of_swap_ends_in_one_report_and_137") {
        return;
    }
    let s = Scratch::new("swapmax");
    let stats = s.0.join("stats");
    let limits = [
        "--memory-max",
        "64M",
        "--swap-max",
        "32M",
        "--stats",
        stats.to_str().unwrap(),
    ];
    let (code, _, err) = run(&limits, &lab(&["fill", "256M", "--ratio", "6"]));
    assert_eq!(code, 137, "{err}");
    assert_eq!(err.matches("out of memory").count(), 1, "{err}");
    let json: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(stats).unwrap()).unwrap();
    assert_eq!(
        (&json["exit_status"], &json["oom_kills"]),
        (&137.into(), &1.into())
    );
    let peak = json["peak"]["swapped_bytes"].as_u64().unwrap();
    assert!((16 << 20..=32 << 20).contains(&peak), "{peak}");
}

#[test]
fn a_program_inside_its_limit_is_right_and_its_status_passed_on() {
    let _turn = turn();
    if !library("a_program_inside_its_limit_is_right_and_its_status_passed_on") {
        return;
    }
    let fill = lab(&["fill", "128M", "--ratio", "6"]);
    let (code, out, err) = run(&["--memory-max", "48M"], &fill);
    assert_eq!(code, 0, "{out}{err}");
    assert!(err.contains("from swap"), "{err}");
    for (script, status) in [
        ("exit 7", 7),
        ("kill -TERM $$", 143),
        ("/bin/true; exit 3", 3),
    ] {
        let (code, _, err) = run(&["--quiet"], &["sh", "-c", script]);
        assert_eq!((code, err.as_str()), (status, ""), "{script}");
    }
}

#[test]
fn p22_no_service_is_left_or_waited_for() {
    let _turn = turn();
    if !library("p22_no_service_is_left_or_waited_for") {
        return;
    }
    // Small and large programs, one after the other and side by side.
    let script = "for i in 1 2 3 4; do /bin/true; sh -c 'exit 0' & done; wait";
    for _ in 0..5 {
        let (code, _, err) = run(&["--memory-max", "256M", "--quiet"], &["sh", "-c", script]);
        assert_eq!((code, err.as_str()), (0, ""));
    }
    // Ended from outside, as timeout(1) does it.
    let deckle = env!("CARGO_BIN_EXE_deckle");
    let mut c = std::process::Command::new("timeout");
    c.args(["0.2", deckle, "run", "--quiet", "--", "sleep", "1000"]);
    let (code, _, err) = finish(c.output().unwrap());
    assert_eq!((code, err.as_str()), (124, ""));
}

/// A managed python3 that holds memory and sleeps, as a child of the program; its pid.
fn start_python(run: &mut Running) -> u32 {
    run.wait_for("\n").trim().parse().unwrap()
}

const HOLDER: &str = "import os, time
b = bytearray(32 << 20)
b[::4096] = b'x' * (len(b) // 4096)
print(os.getpid(), flush=True)
while True:
    assert b[::4096] == b'x' * (len(b) // 4096)
    time.sleep(0.01)";

/// The service of a program: a task of its own that is the program's child.
fn service_of(program: u32) -> u32 {
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = all.filter_map(|e| e.file_name().to_str()?.parse().ok());
    let is_service = |pid: &u32| {
        deckle_group::proc::proc_stat(*pid).is_ok_and(|s| s.parent == program)
            && std::fs::read_to_string(format!("/proc/{pid}/comm"))
                .is_ok_and(|name| name.trim() == "deckle")
    };
    pids.into_iter().find(is_service).expect("a service")
}

#[test]
fn p22_a_program_dies_with_its_real_service_and_one_line() {
    let _turn = turn();
    if !library("p22_a_program_dies_with_its_real_service_and_one_line") {
        return;
    }
    let args = [
        "run",
        "--quiet",
        "--memory-max",
        "16M",
        "--",
        "python3",
        "-c",
        HOLDER,
    ];
    let mut run = Running::start(&args);
    let program = start_python(&mut run);
    let service = service_of(program);
    // Stopped for a while it only delays the program.
    kill(service, libc::SIGSTOP);
    until("the service stops", || state(service) == 'T');
    std::thread::sleep(std::time::Duration::from_millis(300));
    assert!(!matches!(state(program), '-' | 'Z'), "the program waits");
    kill(service, libc::SIGCONT);
    until("it goes on", || state(service) != 'T');
    kill(service, libc::SIGKILL);
    let (code, _, err) = run.end();
    assert_eq!((code, err.lines().count()), (137, 1), "{err}");
    assert!(err.contains("its memory manager died"), "{err}");
}

/// A third of the limit is a child's, and more than the rest its parent's.
const HEIR: &str = "import os, signal, time
def fill(bytes):
    b = bytearray(bytes)
    for at in range(0, bytes, 4096):
        b[at] = 1 + at // 4096 % 255
    return b
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
read, write = os.pipe()
child = os.fork()
if child == 0:
    b = fill(20 << 20)
    os.write(write, b'x')
    signal.pause()
os.close(write)
assert os.read(read, 1)
print(child, flush=True)
signal.sigwait([signal.SIGUSR1])
b = fill(44 << 20)
assert all(b[at] == 1 + at // 4096 % 255 for at in range(0, len(b), 4096))
print('right', flush=True)
time.sleep(1)";

/// What is asked of `deckle run` may be late on a busy machine: memory is out no more.
#[test]
fn nobody_is_killed_who_has_room_again() {
    let _turn = turn();
    if !library("nobody_is_killed_who_has_room_again") {
        return;
    }
    let limit = ["run", "--memory-max", "64M", "--swap", "none", "--"];
    let mut run = Running::start(&[&limit[..], &["python3", "-c", HEIR]].concat());
    let child = start_python(&mut run);
    let parent_of = |pid| deckle_group::proc::proc_stat(pid).unwrap().parent;
    let (heir, service) = (parent_of(child), service_of(child));
    let supervisor = parent_of(heir);
    kill(supervisor, libc::SIGSTOP);
    until("deckle run stops", || state(supervisor) == 'T');
    kill(heir, libc::SIGUSR1);
    // It fills all that there is, and has its largest process killed: itself.
    std::thread::sleep(std::time::Duration::from_secs(2));
    kill(child, libc::SIGKILL);
    until("the child's memory is given back", || {
        matches!(state(service), '-' | 'Z')
    });
    run.wait_for("right");
    kill(supervisor, libc::SIGCONT);
    let (code, _, err) = run.end();
    assert_eq!(code, 0, "{err}");
    assert!(!err.contains("out of memory"), "{err}");
}

#[test]
fn killing_deckle_ends_the_whole_tree() {
    let _turn = turn();
    if !library("killing_deckle_ends_the_whole_tree") {
        return;
    }
    // A grandchild, which the kernel does not end with deckle.
    let mut run = Running::start(&[
        "run",
        "--quiet",
        "--",
        "sh",
        "-c",
        "python3 -c \"$0\"; exit 1",
        HOLDER,
    ]);
    let program = start_python(&mut run);
    let service = service_of(program);
    run.signal(libc::SIGKILL);
    until("program and service are gone", || {
        [program, service]
            .iter()
            .all(|pid| matches!(state(*pid), '-' | 'Z'))
    });
}

#[test]
fn the_library_comes_before_the_users_own_and_the_self_test_is_passed_on() {
    let _turn = turn();
    // Any file will do for the library: the loader complains and goes on.
    let s = Scratch::new("preload");
    let deckle = copy_of_deckle(&s);
    let library = s.0.canonicalize().unwrap().join("libdeckle.so");
    std::fs::write(&library, b"").unwrap();
    std::fs::write(library.with_file_name("libdeckle.image"), b"").unwrap();
    let own = std::path::Path::new(env!("CARGO_BIN_EXE_deckle")).with_file_name("libdeckle.entry");
    common::copy(&own, &library.with_file_name("libdeckle.entry"));
    let mut c = std::process::Command::new(deckle);
    c.args(["run", "--quiet", "--", "sh", "-c"])
        .arg("echo $LD_PRELOAD; exec cat /dev/shm/deckle-$DECKLE_GROUP >$0")
        .arg(s.0.join("page"))
        .env_remove("container")
        .env("LD_PRELOAD", "libm.so.6");
    let (code, out, err) = finish(c.output().unwrap());
    if err.contains("no userfaultfd") {
        skipped(&err);
        return;
    }
    assert_eq!(code, 0, "{err}");
    assert_eq!(out, format!("{}:libm.so.6\n", library.display()));
    let page = std::fs::read(s.0.join("page")).unwrap();
    let copy = deckle_group::Name::new(format!("copy-{}", std::process::id()).as_bytes()).unwrap();
    let place = format!("/dev/shm/deckle-{}", copy.as_str());
    std::fs::write(&place, page).unwrap();
    let group = deckle_group::Group::attach(copy);
    deckle_group::Group::unlink(copy);
    let bits = group.unwrap().capabilities().expect("recorded");
    assert_eq!(bits, deckle_live::self_test().bits());
}

/// The file is whole whenever it is read, and has every name that users know.
#[test]
fn r149_all_counters_and_knobs_can_be_read_while_the_program_runs() {
    let _turn = turn();
    if !library("r149_all_counters_and_knobs_can_be_read_while_the_program_runs") {
        return;
    }
    let s = Scratch::new("r149");
    let stats = s.0.join("stats");
    let config = s.file(
        "config",
        b"transparent_hugepage.khugepaged.max_ptes_shared = 17\n\
          transparent_hugepage.hugepages-64kB.enabled = \"madvise\"\n",
        0o644,
    );
    let script = format!(
        "{} lab program fill 32M; echo up; until [ -e {} ]; do sleep 0.05; done",
        env!("CARGO_BIN_EXE_deckle"),
        s.0.join("stop").display()
    );
    let mut args = vec!["run", "--memory-max", "64M", "--max-ptes-none", "400"];
    args.extend(["--config", &config, "--stats", stats.to_str().unwrap()]);
    args.extend(["--set", "vm.vma_ra_enabled=off", "--", "sh", "-c", &script]);
    let mut run = Running::start(&args);
    run.wait_for("up");
    let read = || -> Option<serde_json::Value> {
        let text = std::fs::read_to_string(&stats).unwrap();
        // Empty until it is written first; half of it: never.
        (!text.is_empty()).then(|| serde_json::from_str(&text).unwrap())
    };
    let filled = 32 << 20 >> 12;
    let all = |json: &serde_json::Value, name: &str| -> u64 {
        let orders = 2..=9;
        let of = |o| json["sizes"][format!("hugepages-{}kB", 4 << o)][name].as_u64();
        orders.map(|o| of(o).unwrap() << o).sum()
    };
    until("the file says what was filled", || {
        read().is_some_and(|json| {
            assert_eq!(json["exit_status"], serde_json::Value::Null);
            all(&json, "anon_fault_alloc") > filled / 2
        })
    });
    s.file("stop", b"", 0o644);
    let (code, _, err) = run.end();
    assert_eq!(code, 0, "{err}");
    let json = read().unwrap();
    assert_eq!(
        (&json["schema"], &json["exit_status"]),
        (&1.into(), &0.into())
    );
    let counters = "thp_fault_alloc thp_fault_fallback thp_split_page thp_deferred_split_page \
                    thp_underused_split_page thp_split_free thp_split_unmap thp_swpout pswpin \
                    pswpout swpin_zero swpout_zero pgfault pgmajfault pgscan_direct \
                    pgsteal_direct allocstall thp_oom_split_page nr_isolated_anon nr_captured \
                    capture_begin capture_success capture_pages nr_anon_partially_mapped \
                    pgreuse pgcopy pgmigrate_success pgmigrate_fail";
    for name in counters.split_whitespace() {
        assert!(json["counters"][name].is_u64(), "{name}");
    }
    assert!(json["counters"]["thp_fault_alloc"].as_u64() > Some(0));
    for order in 2..=9 {
        let size = format!("hugepages-{}kB", 4 << order);
        for name in "anon_fault_alloc anon_fault_fallback split split_deferred nr_anon \
                     nr_anon_partially_mapped"
            .split_whitespace()
        {
            assert!(json["sizes"][&size][name].is_u64(), "{size} {name}");
        }
        let enabled = &json["knobs"]["transparent_hugepage"][&size]["enabled"];
        assert!(enabled.is_string(), "{size}");
    }
    assert!(
        all(&json, "anon_fault_alloc") > filled / 2,
        "it outlives the process"
    );
    assert_eq!(all(&json, "nr_anon"), 0, "a gauge does not");
    for (at, want) in [
        ("/transparent_hugepage/enabled", "always".into()),
        ("/transparent_hugepage/shrink_underused", true.into()),
        (
            "/transparent_hugepage/hugepages-64kB/enabled",
            "madvise".into(),
        ),
        ("/transparent_hugepage/khugepaged/max_ptes_none", 400.into()),
        ("/transparent_hugepage/khugepaged/max_ptes_swap", 64.into()),
        (
            "/transparent_hugepage/khugepaged/max_ptes_shared",
            17.into(),
        ),
        ("/transparent_hugepage/khugepaged/defrag", false.into()),
        ("/vm/vma_ra_enabled", false.into()),
        (
            "/transparent_hugepage/thp_waste_max",
            serde_json::Value::Null,
        ),
        ("/memory/max", (64u64 << 20).into()),
        ("/memory/high", (60u64 << 20).into()),
        ("/memory/swap/max", serde_json::Value::Null),
    ] {
        assert_eq!(json["knobs"].pointer(at), Some(&want), "{at}");
    }
    for knob in deckle_mm::Tunables::KNOBS {
        let at = format!("/{}", knob.key.replace('.', "/"));
        assert!(json["knobs"].pointer(&at).is_some(), "{at}");
    }
    for entry in std::fs::read_dir(&s.0).unwrap().flatten() {
        let name = entry.file_name();
        let name = name.to_str().unwrap();
        assert!(name == "stats" || !name.contains("stats"), "{name} is left");
    }
}
