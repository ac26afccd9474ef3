//! Every way to make a child, while other threads use every lock that a fork meets, with the
//! parent's memory there and away. `DECKLE_FORKS` says how many children each case makes.

mod common;
use common::{compile, run};

const LOCKS: [&str; 5] = ["stdio", "nss", "dlopen", "malloc", "atfork"];
/// Other threads.
const THREADS: [&str; 2] = ["1", "8"];

/// All cases of one way to make a child. All are run, and those that fail are told.
fn all(kind: &str) {
    let program = compile("fork_matrix", &[]);
    let program = program.to_str().expect("path");
    let count = std::env::var("DECKLE_FORKS").unwrap_or_else(|_| "10".into());
    let mut bad = Vec::new();
    for (lock, threads) in LOCKS.into_iter().flat_map(|l| THREADS.map(|t| (l, t))) {
        // As large as half of the limit, and half as large again as the limit.
        for (state, mib) in [("resident", "16"), ("evicted", "48")] {
            let args = [program, kind, lock, threads, state, count.as_str(), mib];
            let ran = run(&["--memory-max", "32M"], &args);
            if ran.status != 0 || !ran.out.lines().any(|l| l == "fork_matrix right") {
                let (out, err) = (ran.out.trim_end(), ran.err.trim_end());
                let status = ran.status;
                bad.push(format!(
                    "{kind} {lock}, {threads} threads, {state}: status {status}\n{out}\n{err}"
                ));
            }
        }
    }
    assert!(bad.is_empty(), "{}", bad.join("\n"));
}

#[test]
fn children_of_fork_find_their_bytes_whoever_holds_a_lock() {
    all("fork");
}

#[test]
fn children_of_bare_fork_find_their_bytes_whoever_holds_a_lock() {
    all("_Fork");
}

#[test]
fn children_of_vfork_are_made_whoever_holds_a_lock() {
    all("vfork");
}

#[test]
fn children_of_clone_find_their_bytes_whoever_holds_a_lock() {
    all("clone");
}

#[test]
fn children_of_clone3_find_their_bytes_whoever_holds_a_lock() {
    all("clone3");
}

#[test]
fn children_of_posix_spawn_are_made_whoever_holds_a_lock() {
    all("posix_spawn");
}
