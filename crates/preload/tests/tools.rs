//! Tools that look into a program, and programs that do what few do.

use crate::common::{Ran, compile, expect, is_about_the_first, run, without};
use crate::real::have;
use crate::skipped::not_here;
use std::path::PathBuf;
use std::process::Command;

const LIMIT: [&str; 2] = ["--memory-max", "64M"];
/// Tools keep shadows of what the program has.
const LARGE: [&str; 2] = ["--memory-max", "1G"];

/// Does by a program, built so, what few do.
fn unusual(options: &[&str], what: &str) -> Ran {
    let program = compile("unusual", options);
    let ran = run(&LIMIT, &[program.to_str().expect("path"), what]);
    expect(&ran, "unusual right");
    ran
}

/// The program read them, and so it crashed.
#[test]
fn pointers_that_lead_nowhere_are_an_error_of_the_call() {
    unusual(&[], "pointers");
}

/// The service read the clock there.
#[test]
fn a_program_without_a_vdso_stays_managed() {
    // The allocator that dynamic programs have reads the clock there, too.
    let ran = unusual(&["-static"], "vdso");
    assert!(ran.err.contains("programs unmanaged 0"), "{}", ran.err);
    assert!(!ran.err.contains("died"), "{}", ran.err);
}

/// Such a child closed a descriptor that was another file's by then.
#[test]
fn processes_that_share_descriptors_and_not_memory_are_managed() {
    unusual(&[], "files");
}

/// The program with planted errors, built for a sanitizer; `None`: the compiler has none.
fn sanitized(by: &str) -> Option<PathBuf> {
    let option = format!("-fsanitize={by}");
    let empty = std::env::temp_dir().join(format!("deckle-empty-{by}-{}", std::process::id()));
    let mut build = Command::new("sh");
    let script = "echo 'int main(void) { return 0; }' | cc $1 -x c - -o $2 && $2";
    build.args(["-c", script, "sh", &option]).arg(&empty);
    let is_there = build.output().is_ok_and(|ran| ran.status.success());
    let _ = std::fs::remove_file(&empty);
    if !is_there {
        not_here(format_args!("no {option} here"));
    }
    is_there.then(|| compile("planted", &[&option, "-g"]))
}

fn finds(ran: &Ran, what: &str) {
    assert!(
        ran.err.contains(what) && ran.status != 0,
        "{}\n{}",
        ran.out,
        ran.err
    );
    assert!(ran.err.contains("programs unmanaged 0"), "{}", ran.err);
}

#[test]
fn thread_sanitizer_finds_a_race() {
    if is_about_the_first() {
        return;
    }
    let Some(program) = sanitized("thread") else {
        return;
    };
    let program = program.to_str().expect("path");
    expect(&run(&LARGE, &[program, "none"]), "planted");
    finds(&run(&LARGE, &[program, "race"]), "data race");
}

/// libc's own check of a block that is freed twice.
#[test]
fn libc_finds_a_block_that_is_freed_twice() {
    if is_about_the_first() {
        return;
    }
    let program = compile("planted", &[]);
    let ran = run(&LARGE, &[program.to_str().expect("path"), "twice"]);
    assert_eq!(ran.status, 134, "{}", ran.err);
    assert!(ran.err.contains("double free detected"), "{}", ran.err);
}

/// It has no vDSO, and its malloc is its own.
#[test]
fn valgrind_finds_a_block_that_is_freed_twice() {
    if is_about_the_first() || !have("valgrind", "--version") {
        return;
    }
    let program = compile("planted", &["-g"]);
    let program = program.to_str().expect("path");
    let tool = ["valgrind", "-q", "--error-exitcode=9", program, "twice"];
    assert_eq!(without(&tool).status, 9);
    let ran = run(&LARGE, &tool);
    assert!(ran.err.contains("Invalid free()"), "{}", ran.err);
    assert_eq!(ran.status, 9, "{}", ran.err);
}

/// It hung: it is loaded before a program, and asks for its malloc.
#[test]
fn heaptrack_counts_what_is_allocated() {
    if is_about_the_first() || !have("heaptrack", "--version") {
        return;
    }
    let program = compile("planted", &["-g"]);
    let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("heaptrack");
    std::fs::create_dir_all(&dir).expect("a directory");
    let to = dir.join("planted");
    let (to, program) = (to.to_str().expect("path"), program.to_str().expect("path"));
    let tool = ["heaptrack", "-o", to, program, "none"];
    let count = |ran: &Ran| {
        assert_eq!(ran.status, 0, "{}\n{}", ran.out, ran.err);
        let line = ran.err.lines().find(|line| line.contains("\tallocations:"));
        line.expect("a line of the statistics").to_owned()
    };
    assert_eq!(count(&run(&LARGE, &tool)), count(&without(&tool)));
}
