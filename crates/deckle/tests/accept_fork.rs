//! Forks and execs of real programs.

use crate::accept::*;

#[test]
fn p20_p7_forks_of_every_kind_while_memory_is_away() {
    let _turn = turn();
    let program = compile("spawns", &[]);
    let ran = run("--memory-max 768M", &[&program, "150"]);
    ran.tell("fork, vfork, posix_spawn, system, popen with 150M away");
    ran.expect("all right");
    assert!(ran.peak("swapped_bytes") > 100 << 20);
}

#[test]
fn p20_a_fork_with_more_than_the_limit_is_right() {
    let _turn = turn();
    let program = compile("spawns", &[]);
    let ran = run("--memory-max 96M", &[&program, "150"]);
    ran.tell("forks with 150M under 96M");
    ran.expect("all right");
}

#[test]
fn p20_shells_pipe_substitute_and_loop() {
    let _turn = turn();
    if !have("p20_shells_pipe_substitute_and_loop", "bash") {
        return;
    }
    let script = "
        set -e
        big=$(head -c 6000000 /dev/zero | tr '\\0' 'x')
        n=$(echo \"$big\" | wc -c)
        for i in 1 2 3 4 5 6 7 8; do seq 20000 | sort -r | head -1 >/dev/null || true; done
        sum=$(seq 1000 |
            while read x; do echo $((x * 2)); done | paste -sd+ | (read s; echo $(($s))))
        ( big=y; [ \"$big\" = y ] )
        x=$(sh -c 'sh -c \"exit 7\"; echo $?')
        echo \"$n $sum $x ${#big}\"";
    let ran = run("--memory-max 128M", &["bash", "-c", script]);
    ran.tell("bash pipelines");
    ran.expect("6000001 1001000 7 6000000");
}

const PYTHON: &str = "
import subprocess, multiprocessing, os, threading, sys
b = bytearray(60 << 20)
for i in range(0, len(b), 4096): b[i] = 1 + (i >> 12) % 250
def right(): return all(b[i] == 1 + (i >> 12) % 250 for i in range(0, len(b), 4096))
assert subprocess.run(['cat'], input=b'x' * 3000000, capture_output=True).stdout == b'x' * 3000000
assert subprocess.run('echo a | tr a b', shell=True, capture_output=True).stdout == b'b\\n'
assert os.popen('echo c').read() == 'c\\n' and os.system('exit 3') >> 8 == 3
def work(k): return k * sum(b[::4096]) if right() else -1
if __name__ == '__main__':
    with multiprocessing.get_context('fork').Pool(2) as p:
        s = sum(b[::4096])
        assert p.map(work, range(6)) == [k * s for k in range(6)]
    stop = []
    def spin():
        while not stop: assert right()
    t = threading.Thread(target=spin); t.start()
    for k in range(4):
        p = os.fork()
        if p == 0: os._exit(10 + k if right() else 1)
        assert os.waitpid(p, 0)[1] >> 8 == 10 + k
    stop.append(1); t.join()
    assert right()
    print('all right')
";

#[test]
fn p20_python_runs_programs_pools_and_threads() {
    let _turn = turn();
    if !have("p20_python_runs_programs_pools_and_threads", "python3") {
        return;
    }
    let ran = run("--memory-max 512M", &["python3", "-c", PYTHON]);
    ran.tell("python3 with subprocess, multiprocessing and threads");
    ran.expect("all right");
}

/// 120 MiB of pages that differ, and what children and parent do with them.
const SHARING: &str = "
import os, random, sys
M = 1 << 20
N = 120 * M
def page(k, o): return random.Random(k << 40 | o).randbytes(300)
def fill(b, k, step=4096):
    for o in range(0, len(b), step): b[o:o+300] = page(k, o)
def right(b, k, step=4096, skip=0):
    for o in range(0, len(b), step):
        if skip and o % skip == 0: continue
        if b[o:o+300] != page(k, o): return False
    return True
def child(work):
    p = os.fork()
    if p == 0:
        try: os._exit(0 if work() else 3)
        except BaseException as e: print('child:', e, file=sys.stderr); os._exit(4)
    return p
def well(p): assert os.waitpid(p, 0)[1] == 0
b = bytearray(N); fill(b, 1)
assert right(b, 1)
";

fn shared(options: &str, what: &str, script: &str) -> Option<Ran> {
    if !have(what, "python3") {
        return None;
    }
    let script = format!("{SHARING}{script}");
    let ran = run(options, &["python3", "-c", &script]);
    ran.tell(&format!("{what}, {options}"));
    ran.expect("all right");
    Some(ran)
}

/// The script under both settings for huge pages, in a limit: nobody is killed.
fn under_both(limit: &str, what: &str, script: &str, check: impl Fn(&Ran)) {
    let _turn = turn();
    for thp in ["always", "never"] {
        let options = format!("--memory-max {limit} --thp {thp}");
        let Some(ran) = shared(&options, what, script) else {
            return;
        };
        check(&ran);
        assert_eq!(ran.stats["oom_kills"], 0);
    }
}

#[test]
fn p20_what_children_only_read_is_charged_once_and_what_they_write_to_them() {
    let script = "
well(child(lambda: right(b, 1)))
def quarter():
    fill(b, 2, 4 * 4096)
    return right(b, 2, 4 * 4096) and right(b, 1, 4096, 4 * 4096)
well(child(quarter))
assert right(b, 1)
for n in range(50):
    p = os.fork()
    if p == 0: os.execvp('true', ['true'])
    well(p)
two = [child(lambda: right(b, 1)) for n in range(2)]
for p in two: well(p)
c = bytearray(50 * M); fill(c, 3)
assert right(b, 1) and right(c, 3)
print('all right')";
    under_both(
        "200M",
        "children read, write a quarter, execute",
        script,
        |ran| {
            // Nothing had to make room, and the end of the children has left no charge.
            assert_eq!(ran.peak("swapped_bytes"), 0);
            assert!(ran.peak("memory_bytes") <= 200 << 20);
        },
    );
}

#[test]
fn p20_both_sides_write_all_that_they_share_and_the_limit_holds() {
    let script = "
r, w = os.pipe(); r2, w2 = os.pipe()
def waits():
    os.write(w, b'.'); os.read(r2, 1)
    if not right(b, 1): return False
    fill(b, 4)
    return right(b, 4)
p = child(waits)
os.read(r, 1)
fill(b, 5)
assert right(b, 5)
os.write(w2, b'.')
fill(b, 6)
well(p)
assert right(b, 6)
c = bytearray(50 * M); fill(c, 3)
assert right(b, 6) and right(c, 3)
print('all right')";
    under_both("200M", "both write all", script, |ran| {
        assert!(ran.peak("swapped_bytes") > 10 << 20, "it does not fit");
        // The limit is passed by what the child's copies take in the store (docs/forks.md), here by
        // 15 MiB at most: of 120 MiB and an interpreter 300 bytes a page, and 1.21 times that of
        // memory (store: ram_is_at_most_1_21_of_live_bytes_after_any_churn), with the tables of
        // them. Promised are 16.
        assert!(ran.peak("memory_bytes") <= 216 << 20);
    });
}

#[test]
fn p20_a_child_that_outlives_its_parent_and_forks_pays_for_itself() {
    let script = "
r, w = os.pipe(); r2, w2 = os.pipe()
def grandchild():
    fill(b, 8, 16 * 4096)
    return right(b, 8, 16 * 4096) and right(b, 1, 4096, 16 * 4096)
def middle():
    os.close(w2)
    well(child(grandchild))
    if not right(b, 1): return False
    fill(b, 7, 8 * 4096)
    # Orphaned from here on.
    if os.read(r2, 1) != b'': return False
    well(child(lambda: right(b, 7, 8 * 4096) and right(b, 1, 4096, 8 * 4096)))
    fill(b, 9)
    os.write(w, b'y' if right(b, 9) else b'n')
    return True
def first():
    child(middle)
    return right(b, 1)
p = child(first)
os.close(w2)
well(p)
assert os.read(r, 1) == b'y'
assert right(b, 1)
print('all right')";
    under_both("300M", "three generations", script, |_| {});
}

#[test]
fn p20_what_six_children_share_is_charged_once_when_their_parent_has_ended() {
    let script = "
import time
r, w = os.pipe(); r2, w2 = os.pipe()
def last():
    os.close(w2)
    os.read(r2, 1)
    os.write(w, b'y' if right(b, 2) else b'n')
    return True
def first():
    fill(b, 2)
    for n in range(6): child(last)
    return True
well(child(first))
time.sleep(1)
os.close(w2)
assert [os.read(r, 1) for n in range(6)] == [b'y'] * 6
assert right(b, 1)
print('all right')";
    under_both("300M", "six orphans", script, |ran| {
        // What the first has and what its child had written: nothing had to make room.
        assert_eq!(ran.peak("swapped_bytes"), 0);
        assert!(ran.peak("memory_bytes") <= 300 << 20);
    });
}

#[test]
fn p20_memory_outside_of_the_limit_is_told_from_what_a_fork_shares() {
    let _turn = turn();
    let script = "
import ctypes, time
libc = ctypes.CDLL(None); libc.mmap.restype = ctypes.c_void_p
def raw(n):
    # Shared memory, which no limit holds.
    a = libc.mmap(None, ctypes.c_size_t(n), 3, 0x21, -1, ctypes.c_long(0))
    ctypes.memset(ctypes.c_void_p(a), 1, n)
r, w = os.pipe(); r2, w2 = os.pipe()
def waits():
    os.write(w, b'.'); os.read(r2, 1)
    return right(b, 1)
p = child(waits)
os.read(r, 1)
if sys.argv[1:]: fill(b, 5); raw(40 * M)
time.sleep(2.5)
os.write(w2, b'.')
well(p)
print('all right')";
    if !have("p20_memory_outside_of_the_limit_is_told", "python3") {
        return;
    }
    let script = format!("{SHARING}{script}");
    let outside = |more: &[&str]| {
        let program = [&["python3", "-c", &script], more].concat();
        let ran = run("--memory-max 400M", &program);
        ran.expect("all right");
        let bytes = ran.peak("unmanaged_anon_bytes");
        eprintln!("outside of the limit: {} KiB", bytes >> 10);
        bytes
    };
    // Two processes with the same 120 MiB, which the limit holds once; then the parent has
    // others in their place, and its own charge for the child's hides nothing.
    let little = outside(&[]);
    assert!(little < 24 << 20, "{little}");
    let more = outside(&["raw"]);
    assert!((40 << 20..64 << 20).contains(&more), "{more}");
}
