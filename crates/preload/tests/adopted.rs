//! `adopt = true`: memory that programs map by instructions of their own is found, and managed
//! where it is.

use crate::common::{compile, expect, run};

const LIMIT: [&str; 4] = ["--memory-max", "96M", "--set", "adopt=true"];

/// Two thirds of what it touches do not fit; it would be outside the limit for good without that.
#[test]
fn memory_mapped_by_instructions_is_managed_and_right() {
    let program = compile("adopted", &[]);
    let ran = run(&LIMIT, &[program.to_str().expect("path"), "96"]);
    expect(&ran, "adopted right");
}
