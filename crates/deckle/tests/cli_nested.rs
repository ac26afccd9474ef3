//! `deckle run` inside `deckle run`: the smaller of both limits holds, and both end.

use crate::accept::{Ran, compile, deckle_path, run, turn};
use crate::common::*;

/// What of a peak may be above the limit: charges that are never refused.
const FORCED: u64 = 2 << 20;

/// `deckle run OUTER -- deckle run INNER -- PROGRAM`.
fn nested(outer: &str, inner: &str, program: &[&str]) -> Ran {
    let mut words = vec![deckle_path(), "run"];
    words.extend(inner.split_whitespace());
    words.push("--");
    words.extend(program);
    run(outer, &words)
}

#[test]
fn a_run_within_a_run_ends_with_the_status_of_its_program() {
    for inner in ["--memory-max 48M", "--memory-max 200M", "", "--strict"] {
        let ran = nested("--memory-max 96M --quiet", inner, &["sh", "-c", "exit 7"]);
        ran.ended(7);
        let joins = ran.err.contains("inside another deckle run");
        assert_eq!(joins, inner != "--memory-max 48M", "{inner}: {}", ran.err);
        assert!(!ran.err.contains("have not"), "{inner}: {}", ran.err);
    }
    let missing = nested("--quiet", "--memory-max 48M --quiet", &["/no/such/program"]);
    missing.ended(127);
}

#[test]
fn the_smaller_limit_holds_for_the_inner_program() {
    let _turn = turn();
    let (dynamic, fixed) = (compile("keeper", &[]), compile("keeper", &["-static"]));
    let s = Scratch::new("nested");
    let stats = s.path("stats");
    for (keeper, strict) in [(&dynamic, ""), (&fixed, ""), (&fixed, " --strict")] {
        let check = |outer: &str, inner: &str| {
            let [outer, inner] = [outer, inner].map(|limits| format!("{limits}{strict}"));
            let ran = nested(&outer, &inner, &[keeper, "60", "check"]);
            ran.expect("all right");
            ran
        };
        let stated = format!("--memory-max 32M --stats {stats}");
        let ran = check("--memory-max 96M", &stated);
        let text = std::fs::read(&stats).unwrap();
        let inner: serde_json::Value = serde_json::from_slice(&text).unwrap();
        let peak = inner["peak"]["memory_bytes"].as_u64().unwrap();
        assert!((16 << 20..=(32 << 20) + FORCED).contains(&peak), "{peak}");
        let outer = ran.peak("memory_bytes");
        assert!((32 << 20..=(96 << 20) + FORCED).contains(&outer), "{outer}");

        let ran = check("--memory-max 32M", "--memory-max 96M");
        let outer = ran.peak("memory_bytes");
        assert!((16 << 20..=(32 << 20) + FORCED).contains(&outer), "{outer}");
    }
}

#[test]
fn a_script_calls_deckle_twice_and_a_third_level_has_room() {
    let _turn = turn();
    let script = "
        for i in 1 2; do
            $0 run --memory-max 40M --quiet -- $0 run --memory-max 30M --quiet -- \
                sh -c 'exit '$i; echo ended-$?
        done";
    let ran = run("--memory-max 64M", &["sh", "-c", script, deckle_path()]);
    ran.ended(0);
    assert_eq!(ran.out, "ended-1\nended-2\n", "{}", ran.err);
    let peak = ran.peak("memory_bytes");
    assert!((40 << 20..=(64 << 20) + FORCED).contains(&peak), "{peak}");
}

#[test]
fn an_inner_limit_that_does_not_fit_is_refused_and_cold_memory_makes_room() {
    let _turn = turn();
    let (keeper, s) = (compile("keeper", &[]), Scratch::new("nested-room"));
    let said = s.path("said");
    let script = "
        $0 40 wait >$1 & idle=$!
        until grep -q filled $1; do sleep 0.05; done
        $2 run --memory-max 32M --quiet -- true; echo ended-$?
        kill -USR1 $idle; wait $idle";
    let program = ["bash", "-c", script, &keeper, &said, deckle_path()];
    let ran = run("--memory-max 64M --swap none", &program);
    ran.expect("ended-125");
    assert!(ran.err.contains("does not fit"), "{}", ran.err);
    // It compresses to a quarter.
    let ran = run("--memory-max 64M", &program);
    ran.expect("ended-0");
}

#[test]
fn a_static_program_may_call_deckle_for_the_outer_limit_alone() {
    let spawns = compile("callers", &["-static"]);
    let call = |max: &str| {
        let inner = [
            deckle_path(),
            "run",
            "--memory-max",
            max,
            "--",
            "sh",
            "-c",
            "exit 7",
        ];
        run("--memory-max 64M", &[&[&spawns[..]], &inner[..]].concat())
    };
    call("96M").ended(7);
    let refused = call("32M");
    refused.ended(125);
    assert!(refused.err.contains("static program"), "{}", refused.err);
}
