//! `adopt = true`: memory that programs map by instructions of their own is found, and managed
//! where it is.

use crate::common::{compile, expect, figure, run};

const LIMIT: [&str; 4] = ["--memory-max", "96M", "--set", "adopt=true"];

/// Two thirds of what it touches do not fit; it would be outside the limit for good without that.
#[test]
fn memory_mapped_by_instructions_is_managed_and_right() {
    let program = compile("adopted", &[]);
    let ran = run(&LIMIT, &[program.to_str().expect("path"), "96"]);
    expect(&ran, "adopted right");
}

/// Whose page was taken out at the place where another came at that moment cannot be told: then the
/// program is ended, which is seldom, and never goes on with wrong bytes.
#[test]
fn what_is_moved_over_managed_memory_is_right_or_the_program_ends() {
    let program = compile("moved_over", &[]);
    let ran = run(&LIMIT, &[program.to_str().expect("path")]);
    let told = "the program has moved it here by a system call that was not seen; killed";
    if !ran.err.contains(told) {
        expect(&ran, "moved over right");
        assert!(figure(&ran.err, "rounds: ") > 20, "{}", ran.err);
    }
}

#[test]
fn forks_are_made_beside_a_thread_that_maps_and_unmaps_by_instructions() {
    let program = compile("mapped_beside_forks", &[]);
    let ran = run(&LIMIT, &[program.to_str().expect("path")]);
    expect(&ran, "mapped right");
    for what in ["rounds: ", "forks: "] {
        assert!(figure(&ran.err, what) > 20, "{}", ran.err);
    }
}
