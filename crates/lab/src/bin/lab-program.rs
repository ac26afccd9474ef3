//! The workload programs by themselves, and the kernel's side of the experiments, for tests.

use std::ffi::OsString;
use std::process::ExitCode;

fn main() -> ExitCode {
    let args: Vec<OsString> = std::env::args_os().skip(1).collect();
    deckle_lab::programs_main(&args)
}
