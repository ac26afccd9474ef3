//! One limit for several processes.

use crate::accept::*;
use crate::common;

/// 200 MiB that wait beside a process that does what the arguments of the keeper say.
fn beside_an_idle_one(what: &str, active: &str) -> Ran {
    let keeper = compile("keeper", &[]);
    let s = common::Scratch::new("group");
    let said = s.0.join("said");
    let script = "
        $0 200 wait >$1 & idle=$!
        until grep -q filled $1; do sleep 0.05; done
        $0 $2 || exit 2
        kill -USR1 $idle
        wait $idle || exit 3
        cat $1";
    let script = script.replace("$2", active);
    let program = ["bash", "-c", &script, &keeper, said.to_str().unwrap()];
    let ran = run("--memory-max 256M", &program);
    ran.tell(what);
    ran.ended(0);
    assert_eq!(ran.out.matches("all right").count(), 2, "{}", ran.out);
    assert_eq!(ran.stats["oom_kills"], 0);
    ran
}

#[test]
fn r150_an_idle_process_makes_room_for_one_that_grows() {
    let _turn = turn();
    beside_an_idle_one("200M idle, 200M growing, in 256M", "200 check");
}

#[test]
fn r150_the_idle_process_is_evicted_and_not_the_busy_one() {
    let _turn = turn();
    let ran = beside_an_idle_one("200M idle, 160M checked ten times, in 256M", "160 ten");
    // Without an eye on what comes back, every round evicts what the next one reads: 3 GiB.
    let out = ran.counter("pswpout") << 12;
    assert!(out < 768 << 20, "{} MiB were swapped out", out >> 20);
}

#[test]
fn r150_the_hog_is_killed_and_the_shell_goes_on() {
    let _turn = turn();
    let keeper = compile("keeper", &[]);
    let script = "
        x=$(seq 1000 | sort | tail -1)
        $0 400 check; echo \"hog ended with $?\"
        y=$(seq 1000 | sort | tail -1)
        [ \"$x\" = \"$y\" ] && echo shell goes on";
    let ran = run(
        "--memory-max 96M --swap none",
        &["bash", "-c", script, &keeper],
    );
    ran.tell("a hog beside a shell");
    ran.expect("hog ended with 137");
    ran.expect("shell goes on");
    assert_eq!(ran.stats["oom_kills"], 1);
    assert_eq!(ran.err.matches("deckle: out of memory").count(), 1);
}

#[test]
fn r137_few_zeros_in_the_huge_pages_of_another_process_go_before_anybody_is_killed() {
    let _turn = turn();
    let zeros = compile("zeros", &[]);
    let s = common::Scratch::new("zeros");
    let said = s.0.join("said");
    // 96 MiB of which 11 are zeros, and 98 more: 5 too many, but for the zeros.
    let script = "
        $0 hold 96 60 >$1 & holder=$!
        until grep -q ready $1; do sleep 0.05; done
        $0 grow 98 || exit 2
        kill -USR1 $holder
        wait $holder || exit 3
        cat $1";
    let program = ["bash", "-c", script, &zeros, said.to_str().unwrap()];
    let ran = run("--memory-max 190M --swap none", &program);
    ran.tell("96M with few zeros idle, 98M growing, in 190M without swap");
    ran.ended(0);
    assert_eq!(ran.out.matches("all right").count(), 2, "{}", ran.out);
    assert_eq!(ran.stats["oom_kills"], 0);
}

/// Two groups at the same time, each with underused huge pages: the limit of one is met.
#[test]
fn r117_a_limit_looks_at_the_huge_pages_of_its_own_group_alone() {
    let _turn = turn();
    let zeros = compile("zeros", &[]);
    let s = common::Scratch::new("two-groups");
    let file = |name: &str| s.0.join(name).to_str().unwrap().to_owned();
    let (stats, first, second) = (file("stats"), file("first"), file("second"));
    // 470 of 512 pages hold zeros.
    let mut other = common::Running::start(&[
        "run",
        "--memory-max",
        "256M",
        "--max-ptes-none",
        "409",
        "--stats",
        &stats,
        "--",
        "sh",
        "-c",
        "echo $$; exec $0 hold 96 470",
        &zeros,
    ]);
    let said = other.wait_for("ready\n");
    let pid: u32 = said.lines().next().unwrap().parse().unwrap();

    // Two processes that together have more huge pages than their group may.
    let script = "
        $0 hold 64 470 >$1 & one=$!
        until grep -q ready $1; do sleep 0.05; done
        $0 hold 64 470 >$2 & two=$!
        until grep -q ready $2; do sleep 0.05; done
        kill -USR1 $one $two
        wait $one || exit 2
        wait $two || exit 3
        cat $1 $2";
    let program = ["bash", "-c", script, &zeros, &first, &second];
    let options = "--memory-max 100M --swap none --max-ptes-none 409";
    let ran = run(options, &program);
    ran.tell("two times 64M of huge pages that are mostly zeros, in 100M");
    ran.ended(0);
    assert_eq!(ran.out.matches("all right").count(), 2, "{}", ran.out);
    assert_eq!(ran.stats["oom_kills"], 0);
    assert!(ran.counter("thp_underused_split_page") > 0);

    common::kill(pid, libc::SIGUSR1);
    let (code, out, err) = other.end();
    assert!(code == 0 && out.contains("all right"), "{code} {out} {err}");
    let stats: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(&stats).unwrap()).unwrap();
    let counter = |name: &str| stats["counters"][name].as_u64().unwrap();
    assert!(counter("thp_fault_alloc") >= 48);
    for name in [
        "thp_underused_scan",
        "thp_underused_split_page",
        "pgscan_direct",
        "pgscan_kswapd",
        "pswpout",
    ] {
        assert_eq!(counter(name), 0, "{name}");
    }
}
