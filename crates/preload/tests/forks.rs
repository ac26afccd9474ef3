//! Forks of programs whose memory is partly in the store.

use crate::common::{self, compile, expect, figure, is_about_the_first, mebibytes, run};

const FILL: &str = "
import os, random, sys, time
N = 100 << 20
def fill(k):
    b = bytearray(N); r = random.Random(k)
    for o in range(0, N, 4096): b[o:o+400] = r.randbytes(400)
    return b
def right(b, k, step=4096):
    r = random.Random(k)
    for o in range(0, N, 4096):
        want = r.randbytes(400)
        if o % step == 0 and b[o:o+400] != want: return False
    return True
def child(work):
    p = os.fork()
    if p == 0:
        try: os._exit(0 if work() else 3)
        except BaseException as e: print('child:', e, file=sys.stderr); os._exit(4)
    return p
def well(p): assert os.waitpid(p, 0)[1] == 0
b = fill(7)
";

fn python(limit: &str, script: &str) -> common::Ran {
    run(
        &["--memory-max", limit],
        &["python3", "-c", &format!("{FILL}{script}")],
    )
}

#[test]
fn p20_a_child_reads_what_its_parent_had_in_the_store_and_both_write_on() {
    let ran = python(
        "64M",
        "
def work():
    if not right(b, 7, 1 << 14): return False
    for o in range(0, N, 1 << 16): b[o] = 255
    return all(b[o] == 255 for o in range(0, N, 1 << 16))
well(child(work))
p = child(lambda: right(b, 7))
for o in range(4096, N, 1 << 16): b[o] = 254
well(p)
assert all(b[o] == 254 for o in range(4096, N, 1 << 16))
well(child(lambda: all(b[o] == 254 for o in range(4096, N, 1 << 16))))
print('both right')
",
    );
    expect(&ran, "both right");
    assert!(ran.err.contains("from swap"), "{}", ran.err);
}

#[test]
fn p20_grandchildren_and_children_who_outlive_their_parent_read_their_own_bytes() {
    let ran = python(
        "64M",
        "
r, w = os.pipe()
def orphan():
    time.sleep(1)
    ok = right(b, 7, 1 << 14)
    os.write(w, b'y' if ok else b'n')
    return ok
def middle():
    b[0] = 1; b[N // 2] = 2
    if os.fork() == 0:
        os._exit(0 if (b[0], b[N // 2]) == (1, 2) and not right(b, 7, 1 << 15) else 9)
    well_ = os.waitpid(-1, 0)[1]
    b[0:400] = random.Random(7).randbytes(400)
    r2 = random.Random(7)
    for o in range(0, N, 4096):
        x = r2.randbytes(400)
        if o == N // 2: b[o:o+400] = x
    child(orphan)
    return well_ == 0
well(child(middle))
b = None
assert os.read(r, 1) == b'y'
print('all right')
",
    );
    expect(&ran, "all right");
}

#[test]
fn forks_that_execute_programs_leave_no_charge_behind() {
    let ran = python(
        "64M",
        "
for n in range(40):
    p = os.fork()
    if p == 0: os.execvp('true', ['true'])
    well(p)
assert right(b, 7)
c = bytearray(30 << 20)
for o in range(0, len(c), 4096): c[o] = 1
assert right(b, 7) and sum(c[::4096]) == len(c) // 4096
print('no charge left')
",
    );
    expect(&ran, "no charge left");
}

#[test]
fn multiprocessing_pools_share_what_is_in_the_store() {
    let ran = python(
        "96M",
        "
import multiprocessing as mp
def part(k):
    return sum(b[o] for o in range(k * 4096, N, 8 * 4096))
want = [part(k) for k in range(8)]
with mp.get_context('fork').Pool(3) as pool: assert pool.map(part, range(8)) == want
print('pool right')
",
    );
    expect(&ran, "pool right");
}

/// What they share can go nowhere before all give it up: without that each of their faults would
/// wait for as long as there is.
#[test]
fn p20_r150_children_above_memory_high_give_up_what_they_share() {
    let script = "
def work():
    return sum(b[0:N:4096]) >= 0
both = [child(work), child(work)]
for p in both: well(p)
assert right(b, 7, 1 << 14)
print('high right')
";
    let ran = run(
        &["--memory-max", "96M", "--memory-high", "56M"],
        &["python3", "-c", &format!("{FILL}{script}")],
    );
    expect(&ran, "high right");
}

/// What reclaim passes by since a fork left no room for 12 MiB: each touch of them was a fault, for
/// 5 GiB and more out of the program and back.
#[test]
fn p20_what_is_shared_makes_room_for_what_is_in_use() {
    let program = compile("crowded", &[]);
    for who in ["parent", "child", "stranger"] {
        let ran = run(
            &["--memory-max", "64M"],
            &[program.to_str().expect("path"), who],
        );
        expect(&ran, "crowded right");
        let out = mebibytes(&ran.err, "swap ");
        assert!((1.0..2048.0).contains(&out), "{who}: {}", ran.err);
    }
}

/// Reclaim passed by what a child had shared until its parent's next look, a tenth of a second
/// later: what was read just then went instead, a quarter of it.
#[test]
fn p20_what_a_child_that_has_ended_shared_goes_before_what_is_in_use() {
    let program = compile("survivor", &[]);
    let program = program.to_str().expect("path");
    let ran = run(&["--memory-max", "32M"], &[program]);
    expect(&ran, "survivor right");
    // Of ten rounds one child's end may be learnt of late.
    let missing = figure(&ran.out, "missing");
    assert!(missing < 1024, "{missing} of 10240 pages");
}

#[test]
fn p20_a_child_that_the_library_does_not_know_gets_no_wrong_byte() {
    if is_about_the_first() {
        return;
    }
    let program = compile("bare_fork", &[]);
    let program = program.to_str().expect("path");
    let ran = run(&["--memory-max", "64M"], &[program]);
    expect(&ran, "bare forks right");
}

#[test]
fn p10_signal_handlers_that_fault_map_and_fork_do_not_hang() {
    let program = compile("timer", &[]);
    let program = program.to_str().expect("path");
    let ran = run(&["--memory-max", "64M"], &[program, "5"]);
    expect(&ran, "timer right");
}

/// A fork charged the process with all that it shared with a parent of its own: a chain of forks
/// was 40 MiB above its limit. Above it may be what the store needs for a copy of the 88 MiB, of
/// whose pages a tenth is no zeros, and what a child is charged for itself.
#[test]
fn what_is_shared_is_charged_once_in_a_chain_of_forks() {
    let program = compile("d24_chain", &[]);
    let program = program.to_str().expect("path");
    let ran = run(&["--memory-max", "64M"], &[program, "eperm", "managed"]);
    expect(&ran, "d24 right");
    assert!(peak(&ran) <= f64::from(64 + 9 + 2), "{}", ran.err);
}

/// The most that was charged, in MiB.
fn peak(ran: &common::Ran) -> f64 {
    mebibytes(&ran.err, "deckle: memory   peak ")
}

/// Every worker was made the owner of what it shares, where nothing of it could be stored: 284 MiB
/// of 64, and the server was killed as well. Above the limit may be each process's own metadata,
/// 0.6 MiB, and what replaces a huge page that is taken apart, 2 MiB for each of four tasks.
#[test]
fn p20_the_process_that_grows_is_killed_and_what_others_share_is_not_copied() {
    let program = compile("prefork", &[]);
    let program = program.to_str().expect("path");
    // Workers without memory of their own; and such as have more each than the server has.
    for (what, others) in [
        (["20", "10", "0", "60"], 12.0),
        (["4", "8", "5", "60"], 10.0),
    ] {
        let args: Vec<&str> = [program].into_iter().chain(what).collect();
        let ran = run(&["--memory-max", "64M"], &args);
        expect(&ran, "prefork right");
        assert!(ran.err.contains("killed   one process"), "{}", ran.err);
        assert!(
            peak(&ran) <= 64.0 + 8.0 + 0.6 * others,
            "{what:?}: {}",
            ran.err
        );
    }
}

/// Runs `family`, whose processes must have found all their bytes right, under a limit.
fn family(limit: &str, args: &[&str]) -> common::Ran {
    let program = compile("family", &[]);
    let command = [&[program.to_str().expect("path")], args].concat();
    let ran = run(&["--memory-max", limit], &command);
    expect(&ran, "family right");
    ran
}

/// Each child stored all that it shared in a store of its own, and was charged with tables that it
/// had not written: a limit of 56 MiB killed 7 of 12 children of 64 MiB. All read it three times at
/// most: the bound is a quarter of what is stored if each stores all of it each time.
#[test]
fn p20_a_family_that_only_reads_stores_its_memory_once() {
    let ran = family("56M", &["12", "64"]);
    assert!(!ran.err.contains("killed"), "{}", ran.err);
    let swap = ran.err.split("swap ").nth(1).expect("a summary").trim();
    let out: f64 = match swap.split_once(" MiB out") {
        Some((number, _)) => number.parse().expect("a number"),
        None => panic!("{swap}"),
    };
    assert!(out <= 13.0 * 64.0 * 3.0 / 4.0, "{}", ran.err);
    assert!(peak(&ran) <= 56.0 + 16.0, "{}", ran.err);
}

/// Each of 60 children was charged for a copy of its parent's tables and for the rest of an open
/// segment, 1.9 MiB, of which it had none: the parent was killed.
#[test]
fn p20_children_that_wait_cost_what_they_write() {
    let ran = family("48M", &["60", "64", "idle"]);
    assert!(!ran.err.contains("killed"), "{}", ran.err);
    assert!(peak(&ran) <= 48.0 + 4.0, "{}", ran.err);
}

/// A fork was charged with what the child takes whatever there was: 60 of them, faster than one is
/// killed, took twice the limit, and their parent was killed as well.
#[test]
fn p20_forks_that_find_no_room_are_out_of_memory_before_they_are_made() {
    let ran = family("48M", &["60", "40", "write"]);
    assert!(ran.err.contains("fork of process"), "{}", ran.err);
    assert!(peak(&ran) <= 48.0 + 16.0, "{}", ran.err);
}

/// The largest process was killed, whatever is to be killed first.
#[test]
fn a_process_of_a_high_oom_score_adj_is_killed_before_a_larger_one() {
    let program = compile("prefork", &[]);
    let program = program.to_str().expect("path");
    let args = [program, "1", "1", "60", "60", "500"];
    let ran = run(&["--memory-max", "96M"], &args);
    expect(&ran, "prefork right");
}

/// The kernel moves no page of a huge page whose first one is shared.
#[test]
fn p7_what_children_do_not_inherit_of_a_huge_page_can_be_moved() {
    let program = compile("parted", &[]);
    let ran = run(&["--memory-max", "64M"], &[program.to_str().expect("path")]);
    expect(&ran, "both halves moved");
}
