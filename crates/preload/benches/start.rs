//! What the library costs a process that stays small: time to start and end `/bin/true`, and
//! anonymous memory before the program needs more than a megabyte.
//!
//! With and without the library alternate; medians are compared. The library is the one of the
//! profile that the bench is built with. Budget: 0.3 ms, 256 KiB.

mod common;

use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Instant;

use common::{built, median};

const RUNS: usize = 400;

fn command(program: &str, with: bool) -> Command {
    let mut command = Command::new(program);
    command.env_clear().arg0("program");
    if with {
        // The group is looked for when the program grows, which this one does not.
        command
            .env("LD_PRELOAD", built("libdeckle.so"))
            .env("DECKLE_GROUP", "start-bench");
    }
    command
}

/// Milliseconds of one.
fn once(with: bool) -> f64 {
    let mut command = command("/bin/true", with);
    command.stdin(Stdio::null());
    let start = Instant::now();
    let status = command.status().expect("/bin/true");
    let time = start.elapsed();
    assert!(status.success());
    time.as_secs_f64() * 1e3
}

const SMALL: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
int main(void)
{
    char *p = malloc(1000), line[200];
    memset(p, 1, 1000);
    FILE *f = fopen("/proc/self/smaps_rollup", "r");
    unsigned long kib;
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "Anonymous: %lu", &kib) == 1)
            printf("%lu\n", kib);
    free(p);
    return 0;
}
"#;

fn small_program() -> PathBuf {
    let place = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let (source, program) = (place.join("small.c"), place.join("small"));
    std::fs::write(&source, SMALL).expect("a temporary file");
    let done = Command::new("cc")
        .arg("-O1")
        .arg("-o")
        .arg(&program)
        .arg(&source)
        .status();
    assert!(done.expect("a C compiler").success());
    program
}

fn anonymous_kib(program: &str, with: bool) -> i64 {
    let out = command(program, with).output().expect("a small program");
    let text = String::from_utf8_lossy(&out.stdout);
    text.trim().parse().expect("a number")
}

fn main() {
    let (mut plain, mut ours) = (Vec::new(), Vec::new());
    for run in 0..RUNS + 20 {
        let pair = (once(false), once(true));
        if run >= 20 {
            plain.push(pair.0);
            ours.push(pair.1);
        }
    }
    let (plain, ours) = (median(plain), median(ours));
    println!(
        "/bin/true: plain {:.3} ms, with libdeckle.so {:.3} ms: {:+.3} ms, {:.2} times \
         (budget +0.300 ms)",
        plain,
        ours,
        ours - plain,
        ours / plain
    );
    let program = small_program();
    let program = program.to_str().expect("path");
    let (plain, ours) = (anonymous_kib(program, false), anonymous_kib(program, true));
    println!(
        "small C program, anonymous: plain {plain} KiB, with libdeckle.so {ours} KiB: {:+} KiB \
         (budget +256 KiB)",
        ours - plain
    );
}
