//! What a page is when a real program forks, times what the sides do then: the matrix that copy
//! on write of the kernel is tested by, on managed memory.

use crate::common::{self, compile, expect, run};
use std::io::Write;

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
            let _ = writeln!(
                std::io::stderr(),
                "SKIPPED r79_r135_a_page_that_a_real_program_has_pinned_is_never_replaced: \
                 no io_uring here"
            );
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
    let forced = ["env", "DECKLE_FAULT=force:7:1", program, "r"];
    for states in [["huge", "moved"], ["sparse", "cold"], ["forked", "base"]] {
        let ran = run(&LIMIT, &[&forced[..], &states].concat());
        let cases = ran.out.trim().to_owned();
        assert!(cases.ends_with(" cases right"), "{cases}\n{}", ran.err);
        expect(&ran, &cases);
    }
}
