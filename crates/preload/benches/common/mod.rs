//! What the benchmarks of the boundary share.

#![allow(dead_code)] // Each benchmark uses its own part of this module.

use std::path::{Path, PathBuf};
use std::process::Command;

/// A file of the profile that the bench is built with.
pub fn built(name: &str) -> PathBuf {
    let exe = std::env::current_exe().expect("own path");
    let profile = exe.parent().and_then(|deps| deps.parent()).expect("target");
    let path = profile.join(name);
    assert!(path.exists(), "{}: scripts/build", path.display());
    path
}

/// The upper one of the two in the middle.
pub fn median(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}

/// Where a program of the benchmark's is put.
pub fn made(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("boundary-{name}"))
}

/// Where the source of such a program is.
pub fn source(name: &str) -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.join("benches/programs").join(name)
}

/// Makes a program with a compiler; false if there is none, or it cannot.
pub fn make(compiler: &str, args: &[&str]) -> bool {
    let done = Command::new(compiler).args(args).output();
    match done {
        Ok(done) if done.status.success() => true,
        Ok(done) => {
            eprint!("{}", String::from_utf8_lossy(&done.stderr));
            false
        }
        Err(_) => false,
    }
}
