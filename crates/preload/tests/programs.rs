//! Real programs under the library, alone and in a group with a limit.

use crate::common::{self, alone, compile, expect, figure, is_about_the_first, run};
use crate::skipped::skipped;

const LIMIT: [&str; 2] = ["--memory-max", "64M"];

#[test]
fn malloc_and_mmap_keep_their_contracts_alone_and_managed() {
    let program = compile("calls", &[]);
    let program = program.to_str().expect("path");
    expect(&alone(&[program]), "calls right");
    expect(&run(&LIMIT, &[program]), "calls right");
}

#[test]
fn r90_mappings_lie_side_by_side_unless_they_are_asked_onto_huge_pages() {
    let program = compile("placed", &[]);
    let program = [program.to_str().expect("path")];
    let ran = run(&["--memory-max", "max"], &program);
    eprintln!("without: {}", ran.out);
    let aligned = ran.out.split("aligned ").nth(1).expect("a figure");
    let aligned: u32 = aligned[..aligned.find(' ').expect("of")]
        .parse()
        .expect("a number");
    // One after the other, each moves the next by a page: few meet a block by chance.
    assert!(ran.out.contains("whole 32 ") && aligned <= 1, "{}", ran.out);
    let settings = std::env::temp_dir().join(format!("deckle-r90-{}.toml", std::process::id()));
    std::fs::write(&settings, "transparent_hugepage.align_mappings = true\n").expect("a file");
    let config = [
        "--memory-max",
        "max",
        "--config",
        settings.to_str().expect("path"),
    ];
    let ran = run(&config, &program);
    std::fs::remove_file(&settings).expect("the file");
    eprintln!("with: {}", ran.out);
    expect(&ran, "whole 32 aligned 32 of 32");
}

#[test]
fn mappings_of_all_kinds_lie_where_the_program_wants_them_and_lose_no_byte() {
    let program = compile("places", &[]);
    let program = program.to_str().expect("path");
    expect(&alone(&[program, "1", "500", "3"]), "places right");
    for (seed, limit, threads) in [("2", "32M", "3"), ("3", "64M", "1"), ("4", "256M", "3")] {
        let ran = run(&["--memory-max", limit], &[program, seed, "1500", threads]);
        expect(&ran, "places right");
    }
}

/// Calls were carried out on what the service had in its books, which was not there any more: bytes
/// were lost, calls refused, rights not given.
#[test]
fn calls_are_on_what_is_there_whatever_was_there_when_it_was_looked_at() {
    let program = compile("replaced", &[]);
    let program = program.to_str().expect("path");
    let calls = [
        "mremap",
        "odd mremap",
        "madvise",
        "munmap",
        "mmap",
        "mprotect",
        "fork",
    ];
    for call in calls {
        expect(&alone(&[program, call]), "replaced right");
        let ran = run(&["--memory-max", "32M"], &[program, call]);
        expect(&ran, "replaced right");
    }
}

/// The same as it comes about by itself: between an answer to a thread and its call the memory is
/// adopted. Of twelve runs with forks four failed.
#[test]
fn threads_that_map_and_grow_and_unmap_beside_each_other_lose_no_byte() {
    let program = compile("resized", &[]);
    let program = program.to_str().expect("path");
    expect(
        &alone(&[program, "library", "50", "20", "4"]),
        "resized right",
    );
    for (how, forks) in [("library", "30"), ("instructions", "30")] {
        std::thread::scope(|scope| {
            let one = || run(&["--memory-max", "32M"], &[program, how, "400", forks, "4"]);
            let all = [(); 4].map(|()| scope.spawn(one));
            for ran in all {
                expect(&ran.join().expect("a run"), "resized right");
            }
        });
    }
}

/// A program that mapped in no other way never outgrew its first megabyte.
#[test]
fn memory_that_replaces_nothing_at_a_fixed_place_is_managed() {
    let program = compile("noreplace", &[]);
    let program = program.to_str().expect("path");
    expect(&run(&LIMIT, &[program]), "noreplace right");
}

/// What had a hole was given to the kernel before it was looked whether it need be, and was never
/// managed again; and populating went on behind a hole.
#[test]
fn calls_on_ranges_with_holes_mean_what_the_kernel_means_and_leave_them_managed() {
    let program = compile("holes", &[]);
    let program = program.to_str().expect("path");
    // What is open is managed, too, and does not look so.
    let none_open = ["--set", "transparent_hugepage.fault_open_ratio=0"];
    let options = [&LIMIT[..], &none_open].concat();
    expect(&run(&options, &[program]), "holes right");
}

/// What was moved to was dropped before the kernel had looked whether it can move anything there.
#[test]
fn a_move_that_the_kernel_refuses_takes_nothing_away() {
    let program = compile("refused_moves", &[]);
    let program = program.to_str().expect("path");
    expect(&alone(&[program]), "moves right");
    expect(&run(&LIMIT, &[program]), "moves right");
}

#[test]
fn children_have_no_memory_that_is_kept_from_them() {
    let program = compile("heirs", &[]);
    let program = program.to_str().expect("path");
    expect(&alone(&[program]), "heirs right");
    for limit in ["64M", "256M"] {
        expect(&run(&["--memory-max", limit], &[program]), "heirs right");
    }
}

/// Of 16,384 pages touched one by one and then shared by a fork, of which each side writes half.
#[test]
fn far_below_the_limit_the_kernel_serves_what_is_touched_here_and_there() {
    let program = compile("scattered", &[]);
    let program = [program.to_str().expect("path")];
    let faults = |limit: &str| {
        let ran = run(&["--memory-max", limit], &program);
        expect(&ran, "scattered right");
        figure(&ran.err, "deckle: faults")
    };
    let (far, near) = (faults("1G"), faults("48M"));
    assert!(far < 1000, "{far} faults far below the limit");
    assert!(near > 10_000, "{near} faults beyond it");
}

/// What is stored takes up to a quarter more than its bytes while it comes and goes: that room was
/// not used before the program was killed.
#[test]
fn nobody_is_killed_for_the_room_between_what_is_stored() {
    let program = compile("dense", &[]);
    let ran = run(&["--memory-max", "64M"], &[program.to_str().expect("path")]);
    expect(&ran, "dense right");
}

/// Each call told the service, which noted it and had the kernel note it, too.
#[test]
fn what_is_freed_lazily_far_below_the_limit_is_the_kernels_to_take() {
    let program = compile("lazyfree", &[]);
    let program = [program.to_str().expect("path")];
    let lazy = |limit: &str| {
        let ran = run(&["--memory-max", limit], &program);
        expect(&ran, "lazyfree right");
        figure(&ran.out, "lazy")
    };
    let (far, near) = (lazy("1G"), lazy("20M"));
    assert!(far > 12_000, "{far} KiB far below the limit");
    assert!(near < 1000, "{near} KiB near it");
}

#[test]
fn p21_tools_run_with_the_library_alone() {
    expect(
        &alone(&["sh", "-c", "seq 300000 | sort -R | sort -n | tail -1"]),
        "300000",
    );
    expect(
        &alone(&["python3", "-c", "print(sum(range(10**6)))"]),
        "499999500000",
    );
}

#[test]
fn a_small_process_gets_one_library_and_little_memory() {
    let maps = alone(&["cat", "/proc/self/maps"]);
    assert!(maps.out.contains("libdeckle.so") && !maps.out.contains("libgcc_s"));
    let anonymous = |ran: &common::Ran| -> u64 {
        let lines = ran.out.lines();
        let amounts = lines.filter_map(|l| l.strip_prefix("Anonymous:"));
        let sum = amounts.filter_map(|v| v.split_whitespace().next()?.parse::<u64>().ok());
        sum.sum()
    };
    let ours = alone(&["cat", "/proc/self/smaps"]);
    let plain = common::without(&["cat", "/proc/self/smaps"]);
    let (ours, plain) = (anonymous(&ours), anonymous(&plain));
    assert!(
        plain > 0 && ours <= plain + 256,
        "{ours} KiB, {plain} KiB without"
    );
}

#[test]
fn every_exec_call_takes_the_library_along() {
    if is_about_the_first() {
        return;
    }
    let program = compile("execs", &[]);
    expect(
        &run(&LIMIT, &[program.to_str().expect("path")]),
        "execs right",
    );
}

#[test]
fn system_and_popen_keep_what_they_start_managed() {
    if is_about_the_first() {
        return;
    }
    let program = compile("shells", &[]);
    expect(
        &run(&LIMIT, &[program.to_str().expect("path")]),
        "shells right",
    );
}

#[test]
fn p19_calls_on_managed_memory_mean_what_the_kernel_means() {
    let program = compile("meanings", &[]);
    expect(
        &run(&LIMIT, &[program.to_str().expect("path"), "64"]),
        "meanings right",
    );
}

#[test]
fn r121_r125_what_is_written_is_not_missing_for_a_userfaultfd_of_the_programs_own() {
    let program = compile("received", &[]);
    expect(
        &run(&LIMIT, &[program.to_str().expect("path")]),
        "received right",
    );
}

#[test]
fn p19_huge_pages_that_a_program_asks_for_are_made_at_once() {
    let program = compile("collapse", &[]);
    let program = program.to_str().expect("path");
    let never = [LIMIT[0], LIMIT[1], "--thp", "never"];
    expect(&run(&never, &[program, "64"]), "collapse right");
}

#[test]
fn p18_p19_what_the_kernel_refuses_for_want_of_mappings_changes_nothing() {
    let program = compile("mappings", &[]);
    let ran = run(&LIMIT, &[program.to_str().expect("path")]);
    expect(&ran, "refusals right");
}

#[test]
fn p6_p19_locks_bring_in_and_keep_and_have_the_limits_of_the_kernel() {
    let program = compile("locks", &[]);
    let program = program.to_str().expect("path");
    expect(&common::without(&[program]), "locks right");
    expect(&run(&LIMIT, &[program, "64"]), "locks right");
}

/// Found a folio that was put on the LRU only after its block's lock was dropped: a munmap in
/// between freed it first.
#[test]
fn p22_handlers_coroutines_and_ending_threads_reach_evicted_memory() {
    let program = compile("handlers", &[]);
    expect(
        &run(&LIMIT, &[program.to_str().expect("path"), "10"]),
        "handlers right",
    );
}

/// A program that becomes another user by its file's mode. `None`: that needs root.
fn privileged() -> Option<std::path::PathBuf> {
    use std::os::unix::fs::PermissionsExt;
    let to = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("set-user-id");
    common::copy(std::path::Path::new("/bin/true"), &to);
    if std::os::unix::fs::chown(&to, Some(65534), None).is_err() {
        skipped("not root");
        return None;
    }
    let mode = std::fs::Permissions::from_mode(0o4755);
    std::fs::set_permissions(&to, mode).expect("mode");
    Some(to)
}

#[test]
fn a_set_user_id_program_is_reported_and_with_strict_refused() {
    let Some(program) = privileged() else { return };
    let shell = format!("{}; echo status $?", program.display());
    let free = run(&LIMIT, &["sh", "-c", &shell]);
    expect(&free, "status 0");
    assert!(free.err.contains("set-user-id"), "{}", free.err);
    let strict = run(&["--memory-max", "64M", "--strict"], &["sh", "-c", &shell]);
    expect(&strict, "status 126");
    assert!(strict.err.contains("not executed"), "{}", strict.err);
}

const PYTHON_FORK: &str = "
import os
x = bytearray(24 << 20)
for i in range(0, len(x), 4096): x[i] = i >> 12 & 255
z = bytearray(4 << 20); s = sum(z)
for n in range(4):
    p = os.fork()
    if p == 0:
        assert all(x[i] == i >> 12 & 255 for i in range(0, len(x), 4096))
        for i in range(0, len(x), 8192): x[i] = 3
        for i in range(0, len(z), 4096): z[i] = 9
        assert all(x[i] == (3 if i % 8192 == 0 else i >> 12 & 255) for i in range(0, len(x), 4096))
        assert sum(z) == 9 * 1024
        os._exit(7)
    assert os.WEXITSTATUS(os.waitpid(p, 0)[1]) == 7
    assert all(x[i] == i >> 12 & 255 for i in range(0, len(x), 4096)) and sum(z) == 0
print('forks right')
";

#[test]
fn p20_p7_a_forked_child_reads_its_own_bytes_and_goes_on() {
    expect(&run(&LIMIT, &["python3", "-c", PYTHON_FORK]), "forks right");
    let script = "for i in 1 2 3; do (x=$(seq 200000 | tail -1); echo $x) ; done";
    expect(&run(&LIMIT, &["bash", "-c", script]), "200000");
}

const PYTHON_FILL: &str = "
import random, os
b = bytearray(160 << 20)
r = random.Random(5)
for o in range(0, len(b), 4096): b[o:o+682] = r.randbytes(682)
os.closerange(3, 1 << 20)
r = random.Random(5)
for o in range(0, len(b), 4096): assert b[o:o+682] == r.randbytes(682), o
print('bytes right')
";

#[test]
fn p30_p1_more_memory_than_the_limit_survives_closefrom() {
    let ran = run(&LIMIT, &["python3", "-c", PYTHON_FILL]);
    expect(&ran, "bytes right");
    assert!(ran.err.contains("from swap"), "{}", ran.err);
}

const PYTHON_READ: &str = "
import os
b = bytearray(100 << 20)
for i in range(0, len(b), 4096): b[i] = 1 + (i >> 12) % 250
# System calls that are given evicted memory.
f = os.memfd_create('x')
v = memoryview(b)
done = 0
while done < len(b): done += os.write(f, v[done:done + (1 << 20)])
c = os.pread(f, len(b), 0)
assert c == b
print('calls read right')
";

#[test]
fn p1_system_calls_read_evicted_memory() {
    let ran = run(&["--memory-max", "128M"], &["python3", "-c", PYTHON_READ]);
    expect(&ran, "calls read right");
}

const PYTHON_THREADS: &str = "
import threading, random
def work(k):
    b = bytearray(24 << 20); r = random.Random(k)
    for o in range(0, len(b), 4096): b[o:o+400] = r.randbytes(400)
    for _ in range(2):
        r = random.Random(k)
        for o in range(0, len(b), 4096): assert b[o:o+400] == r.randbytes(400), (k, o)
    done.append(k)
done = []
ts = [threading.Thread(target=work, args=(k,)) for k in range(4)]
[t.start() for t in ts]; [t.join() for t in ts]
assert sorted(done) == [0, 1, 2, 3]
print('threads right')
";

#[test]
fn p22_p9_threads_share_a_limit_and_lose_no_byte() {
    expect(
        &run(&LIMIT, &["python3", "-c", PYTHON_THREADS]),
        "threads right",
    );
}

#[test]
fn what_does_not_compress_is_killed_at_the_limit_with_a_report() {
    let script = "import os\nb = [os.urandom(1 << 20) for _ in range(200)]\nprint('too far')";
    let ran = run(&LIMIT, &["python3", "-c", script]);
    assert_eq!(ran.status, 137, "{}\n{}", ran.out, ran.err);
    assert!(ran.err.contains("out of memory"), "{}", ran.err);
    assert!(!ran.out.contains("too far"));
}

const TWO: &str = "
import os, random
def fill(k):
    b = bytearray(48 << 20); r = random.Random(k)
    for o in range(0, len(b), 4096): b[o:o+682] = r.randbytes(682)
    return b
def right(k, b):
    r = random.Random(k)
    return all(b[o:o+682] == r.randbytes(682) for o in range(0, len(b), 4096))
r, w = os.pipe(); r2, w2 = os.pipe()
p = os.fork()
if p == 0:
    b = fill(1)
    os.write(w, b'x'); os.read(r2, 1)
    os._exit(0 if right(1, b) else 3)
os.read(r, 1)
b = fill(2)
assert right(2, b)
os.write(w2, b'x')
assert os.waitpid(p, 0)[1] == 0
print('both right')
";

#[test]
fn an_idle_process_gives_its_memory_to_one_that_grows() {
    expect(&run(&LIMIT, &["python3", "-c", TWO]), "both right");
}

const KILL_SERVICE: &str = "
import os, signal
b = bytearray(90 << 20)
for i in range(0, len(b), 4096): b[i] = 1
me = str(os.getpid())
for pid in filter(str.isdigit, os.listdir('/proc')):
    try: stat = open('/proc/' + pid + '/stat').read()
    except OSError: continue
    name, rest = stat.rsplit(')', 1)
    if name.endswith('(deckle') and rest.split()[1] == me: os.kill(int(pid), signal.SIGKILL)
assert sum(b[::4096]) == len(b) // 4096
while True: pass
";

#[test]
fn p22_the_program_dies_with_one_line_when_its_service_does() {
    let ran = run(&LIMIT, &["python3", "-c", KILL_SERVICE]);
    assert_eq!(ran.status, 137, "{}\n{}", ran.out, ran.err);
    assert!(ran.err.contains("memory manager died"), "{}", ran.err);
}
