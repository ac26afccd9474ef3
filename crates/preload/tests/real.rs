//! Programs that people run, with allocators, compilers and collectors of their own: the same
//! result as without a limit, all of them inside. Those that this system lacks are skipped, and
//! that is said.

use crate::common::{Ran, expect, mebibytes, run, without};
use crate::skipped::{not_here, skipped};
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Whether a program answers.
pub fn have(program: &str, question: &str) -> bool {
    let mut ask = Command::new(program);
    ask.arg(question)
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let there = ask.status().is_ok_and(|s| s.success());
    if !there {
        not_here(format_args!("no {program} here"));
    }
    there
}

/// A file with this text in a place of the test's own.
fn file(name: &str, text: &str) -> PathBuf {
    let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("real");
    std::fs::create_dir_all(&dir).expect("directory");
    let path = dir.join(name);
    std::fs::write(&path, text).expect("file");
    path
}

/// Mebibytes of anonymous memory outside of the limit, by the summary.
fn outside(ran: &Ran) -> f64 {
    mebibytes(&ran.err, "unmanaged_anon ")
}

/// It says under a limit what it says without, and no program of it is outside.
fn the_same(limit: &str, program: &[&str]) -> Ran {
    let native = without(program);
    let ran = run(&["--memory-max", limit], program);
    assert_eq!((native.status, ran.status), (0, 0), "{}", ran.err);
    assert_eq!(native.out, ran.out);
    assert!(ran.err.contains("programs unmanaged 0"), "{}", ran.err);
    ran
}

/// The compiler has an allocator of its own (jemalloc) in its executable.
#[test]
fn d28_rustc_compiles_a_program() {
    if !have("rustc", "-V") {
        return;
    }
    let source = file("hello.rs", "fn main() { println!(\"built inside\"); }");
    let made = source.with_extension("");
    let (from, to) = (source.to_str().expect("path"), made.to_str().expect("path"));
    let built = the_same("512M", &["rustc", "-O", "-o", to, from]);
    assert!(outside(&built) <= 16.0, "{}", built.err);
    expect(&without(&[to]), "built inside");
}

/// V8 maps by address hints, in large reservations without rights.
#[test]
fn d26_the_heap_of_node_is_inside() {
    if !have("node", "--version") {
        return;
    }
    let script = "let a = []; for (let i = 0; i < 200; i++) a.push(new Array(1e5).fill(i + 0.5));
        console.log(a.reduce((sum, b) => sum + b[5] + b[99999], 0))";
    let ran = the_same("128M", &["node", "-e", script]);
    assert!(outside(&ran) <= 16.0, "{}", ran.err);
}

/// A collector that reserves its heap, and commits and discards parts of it.
#[test]
fn d26_the_heap_of_a_java_program_is_inside() {
    if !have("java", "-version") {
        return;
    }
    let source = file(
        "Heap.java",
        "public class Heap { public static void main(String[] none) { long sum = 0;
            byte[][] kept = new byte[100][]; for (int i = 0; i < 1000; i++) {
            byte[] b = new byte[1 << 18]; b[i] = (byte) i; kept[i % 100] = b; sum += b[i]; }
            System.out.println(\"sum \" + sum); } }",
    );
    let path = source.to_str().expect("path");
    let program = ["java", "-XX:+UseG1GC", "-Xmx128m", path];
    the_same("256M", &program);
}

/// It has another pid there: its memory was counted again, as that of a stranger.
#[test]
fn d10_memory_in_another_pid_namespace_is_counted_once() {
    let script = "import time; b = b'x' * (100 << 20); time.sleep(2); print(len(b))";
    let program = ["unshare", "-p", "-f", "python3", "-c", script];
    if without(&["unshare", "-p", "-f", "true"]).status != 0 {
        return skipped("no right to make a pid namespace");
    }
    let ran = run(&["--memory-max", "256M"], &program);
    expect(&ran, "104857600");
    assert!(outside(&ran) <= 16.0, "{}", ran.err);
}
