//! The gauge of a tree's anonymous memory that needs no cgroup.

use crate::alone;
use crate::skipped::skipped;
use std::ffi::OsString;
use std::process::{Command, Stdio};

use deckle_lab::child::Running;
use deckle_lab::host::pss::anon_of_tree;

#[test]
fn r150_anonymous_memory_of_a_tree_is_seen() {
    let _alone = alone();
    let mut idle = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
    let small = anon_of_tree(idle.id());
    drop(idle.stdin.take());
    assert!(idle.wait().unwrap().success());
    let small = small.unwrap();
    assert!((1..32 << 20).contains(&small), "{small}");

    // A shell in between, so that the memory is not the first process's own. The program holds it
    // in huge pages and waits; were swap on meanwhile, one byte of each page would go there.
    let program = env!("CARGO_BIN_EXE_lab-program");
    let script = format!("echo; {program} pageout 64 4095 512 --check; exit $?");
    let command = ["sh", "-c", &script].map(OsString::from);
    let mut run = Running::start("program in a shell", &command, Vec::new()).unwrap();
    assert!(run.wait_for("paged out").unwrap());
    let swaps = std::fs::read_to_string("/proc/swaps").unwrap();
    let bytes = anon_of_tree(run.pid()).unwrap();
    run.go_on().unwrap();
    assert!(run.finish().unwrap().status.success());
    if swaps.lines().count() > 1 {
        skipped("the host swaps");
        return;
    }
    assert!((64 << 20..72 << 20).contains(&bytes), "{bytes}");
}
