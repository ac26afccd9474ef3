//! What a page is when a real program forks, times what the sides do then: the matrix that copy
//! on write of the kernel is tested by, on managed memory.

use crate::common::{self, compile, expect, run};
use crate::skipped::skipped;

const LIMIT: [&str; 2] = ["--memory-max", "256M"];
/// States times acts; see programs/cow.c.
const CASES: &str = "940 cases right";
/// States that are different when they are stored in part; two have "half" in their names.
const PARTS: [&str; 8] = [
    "base",
    "huge",
    "half",
    "moved",
    "sparse",
    "collapsed",
    "zero-dropped",
    "forked-still",
];
/// Most runs that are to meet what comes by force.
const RUNS: u32 = 10;
const PARTS_CASES: &str = "423 cases right";

fn cow(arguments: &[&str]) -> common::Ran {
    let program = compile("cow", &[]);
    let program = [&[program.to_str().expect("path")], arguments].concat();
    run(&LIMIT, &program)
}

#[test]
fn r79_r80_no_side_of_a_real_fork_sees_the_others_writes_whatever_the_page_was() {
    expect(&cow(&["r"]), CASES);
}

#[test]
fn r79_r80_r103_no_side_of_a_real_fork_sees_the_others_writes_to_what_was_in_the_store() {
    let ran = cow(&["s"]);
    expect(&ran, CASES);
    assert!(ran.err.contains("from swap"), "{}", ran.err);
}

#[test]
fn r79_r80_r103_no_side_of_a_real_fork_sees_the_others_writes_to_what_was_stored_in_part() {
    expect(&cow(&[&["p"], &PARTS[..]].concat()), PARTS_CASES);
}

#[test]
fn r79_r80_r103_no_side_of_a_real_fork_sees_the_others_writes_to_what_was_read_back() {
    expect(&cow(&[&["b"], &PARTS[..]].concat()), PARTS_CASES);
}

#[test]
fn r79_r135_a_page_that_a_real_program_has_pinned_is_never_replaced() {
    for residence in ["r", "s"] {
        let ran = cow(&[residence, "pins"]);
        if ran.out.contains("no io_uring") {
            skipped("no io_uring here");
            return;
        }
        expect(&ran, "340 cases right");
    }
}

/// Small and huge pages, whole and in part, are made, split and shattered by force meanwhile.
#[test]
fn r79_r80_r98_forks_and_forced_splits_and_collapses_lose_no_byte() {
    let program = compile("cow", &[]);
    let program = program.to_str().expect("path");
    let file = std::env::temp_dir().join(format!("deckle-cow-{}", std::process::id()));
    let limit = [&LIMIT[..], &["--stats", file.to_str().expect("path")]].concat();
    // How many huge pages were split where they are, and made of small ones.
    let counts = |force: &str, states: [&str; 2], cases: &str| {
        let program = ["env", force, program, "r", states[0], states[1]];
        expect(&run(&limit, &program), cases);
        let text = std::fs::read_to_string(&file).expect("statistics");
        let _ = std::fs::remove_file(&file);
        ["thp_split_page", "thp_collapse_alloc"].map(|what| -> u64 {
            let (_, rest) = text.split_once(&format!("\"{what}\": ")).expect(what);
            let figure = rest.split([',', '\n']).next().expect("a figure");
            figure.parse().expect("a number")
        })
    };
    // 47 acts in each state; three of them are "forked".
    for (states, cases) in [
        (["huge", "moved"], "94 cases right"),
        (["sparse", "cold"], "94 cases right"),
        (["forked", "base"], "188 cases right"),
    ] {
        let plain = counts("DECKLE_FAULT=", states, cases);
        // How often it is forced depends on how long the program takes: again until it was met.
        let met = (1..=RUNS).find(|run| {
            let forced = counts("DECKLE_FAULT=force:7:1", states, cases);
            eprintln!("{states:?}: {plain:?}, by force {forced:?} in run {run}");
            forced[0] > plain[0] && forced[1] > plain[1]
        });
        assert!(met.is_some(), "no force");
    }
}
