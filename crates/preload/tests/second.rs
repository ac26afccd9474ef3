//! Programs into which no library can be loaded: static, musl's, Go's, and those that leave their
//! environment behind.

use crate::common::{Ran, compile, expect, figure, mebibytes, run};
use crate::skipped::not_here;
use std::path::{Path, PathBuf};
use std::process::Command;

const LIMIT: [&str; 2] = ["--memory-max", "32M"];

/// Whether a tool is there; said if not.
fn has(tool: &str) -> bool {
    let there = Command::new(tool).arg("--help").output().is_ok();
    if !there {
        not_here(format_args!("no {tool} here"));
    }
    there
}

/// The program ended well, all of it was managed, and its memory was in the limit.
fn managed(ran: &Ran, line: &str) {
    expect(ran, line);
    assert!(
        ran.err.contains("programs unmanaged 0"),
        "stderr:\n{}",
        ran.err
    );
    let outside = mebibytes(&ran.err, "unmanaged_anon ");
    assert!(outside <= 4.0, "outside the limit:\n{}", ran.err);
}

fn path(program: &Path) -> &str {
    program.to_str().expect("path")
}

/// `second.c` for musl; `None`: that is not installed here.
fn for_musl(name: &str, how: &[&str]) -> Option<PathBuf> {
    if !has("musl-gcc") {
        return None;
    }
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/second.c");
    let to = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    let mut command = Command::new("musl-gcc");
    command.args(["-O1", "-o"]).arg(&to).arg(source).args(how);
    let done = command.output().expect("musl-gcc");
    let err = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{err}");
    Some(to)
}

/// Defect 27: what does not go through a C library that we can replace was outside the limit.
#[test]
fn d27_a_static_program_has_all_its_memory_in_the_limit() {
    let program = compile("second", &["-static"]);
    managed(&run(&LIMIT, &[path(&program)]), "second right");
    managed(&run(&LIMIT, &[path(&program), "64"]), "second right");
}

/// By the first door: its `.bss`, which the loader has mapped, and a heap that it asks for with
/// `sbrk`, were outside the limit.
#[test]
fn a_dynamic_program_has_its_heap_and_data_in_the_limit() {
    let program = compile("second", &[]);
    managed(&run(&LIMIT, &[path(&program), "48"]), "second right");
}

#[test]
fn d27_programs_of_musl_have_all_their_memory_in_the_limit() {
    for (name, how) in [
        ("second-musl-static", &["-static"][..]),
        ("second-musl", &[]),
    ] {
        if let Some(program) = for_musl(name, how) {
            managed(&run(&LIMIT, &[path(&program)]), "second right");
        }
    }
}

/// musl's `posix_spawn` gives its child 5 KiB of stack in the middle of its parent's. What the
/// kernel saves for the handler takes up to half of it, and of what is left the handler leaves
/// some: inlining has taken more before.
#[test]
fn a_child_with_as_little_stack_as_musls_can_execute() {
    let program = compile("smallstack", &["-static"]);
    let ran = run(&LIMIT, &[path(&program)]);
    managed(&ran, "smallstack right");
    let unused = figure(&ran.out, "unused");
    assert!(unused >= 512, "{unused} bytes are left");
}

/// By a shell, which the first door is in, and from there on in every program, without any
/// environment.
#[test]
fn d27_programs_in_between_pass_the_door_on() {
    let program = compile("second", &["-static"]);
    let shell = format!("{0} 8 && exec env -i {0} 8", path(&program));
    let ran = run(&LIMIT, &["sh", "-c", &shell]);
    managed(&ran, "second right");
    assert_eq!(ran.out.matches("second right").count(), 2);
}

/// A tracer of the program's own has the process for itself: it runs outside, and is counted.
#[test]
fn who_is_traced_already_runs_outside_and_is_counted() {
    let tracer = compile("second", &[]);
    let program = compile("second", &["-static"]);
    let ran = run(&LIMIT, &[path(&tracer), "traced", path(&program), "4"]);
    expect(&ran, "second right");
    assert!(ran.err.contains("programs unmanaged 1"), "{}", ran.err);
    assert!(ran.err.contains("statically linked"), "{}", ran.err);
}

const GO: &str = include_str!("programs/second.go");

/// The heap of a Go program, its goroutines' stacks and collections: with and without a C library
/// in it.
#[test]
fn d27_go_programs_have_all_their_memory_in_the_limit() {
    let there = Command::new("go").arg("version").output();
    if !there.is_ok_and(|out| out.status.success()) {
        not_here("no go here");
        return;
    }
    for (cgo, text) in [
        ("0", GO.to_string()),
        ("1", GO.replace("// CGO", "import \"C\"")),
    ] {
        let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("go-{cgo}"));
        std::fs::create_dir_all(&dir).expect("directory");
        std::fs::write(dir.join("main.go"), text).expect("source");
        let mut command = Command::new("go");
        command.args(["build", "-o", "program", "main.go"]);
        command.env("CGO_ENABLED", cgo).current_dir(&dir);
        let done = command.output().expect("go");
        let err = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success(), "{err}");
        managed(&run(&LIMIT, &[path(&dir.join("program"))]), "go right");
    }
}
