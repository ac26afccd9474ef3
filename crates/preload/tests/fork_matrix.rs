//! Every way to make a child, while other threads use every lock that a fork meets, with the
//! parent's memory there and away. `DECKLE_FORKS` says how many children each case makes.

use crate::common::{Ran, compile, run, run_behind};
use crate::skipped::skipped;

const LOCKS: [&str; 5] = ["stdio", "nss", "dlopen", "malloc", "atfork"];
/// Other threads.
const THREADS: [&str; 2] = ["1", "8"];

/// All cases of one way to make a child, each told by its arguments to `run`. All are run, and
/// those that fail are told.
fn all(kind: &str, threads: &[&str], run: impl Fn(&[&str]) -> Ran) {
    let program = compile("fork_matrix", &[]);
    let program = program.to_str().expect("path");
    let count = std::env::var("DECKLE_FORKS").unwrap_or_else(|_| "10".into());
    let mut bad = Vec::new();
    for (lock, threads) in LOCKS
        .iter()
        .flat_map(|l| threads.iter().map(move |t| (l, t)))
    {
        // As large as half of the limit, and half as large again as the limit.
        for (state, mib) in [("resident", "16"), ("evicted", "48")] {
            let ran = run(&[program, kind, lock, threads, state, count.as_str(), mib]);
            let managed = ran.err.contains("programs unmanaged 0");
            if ran.status != 0 || !managed || !ran.out.lines().any(|l| l == "fork_matrix right") {
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

const LIMIT: [&str; 2] = ["--memory-max", "32M"];

fn all_here(kind: &str) {
    all(kind, &THREADS, |program| run(&LIMIT, program));
}

/// Every way that there is in a container: Docker's default filter has no `clone3`.
fn all_confined(user: &str) {
    if deckle_sys::process::effective_user() != 0
        || !std::path::Path::new("/dev/userfaultfd").exists()
    {
        skipped("only root can give /dev/userfaultfd to another user");
        return;
    }
    let confined = compile("confined", &[]);
    let before = [confined.to_str().expect("path"), user];
    for kind in ["fork", "_Fork", "vfork", "clone", "posix_spawn"] {
        all(kind, &THREADS[1..], |program| {
            run_behind(&before, &LIMIT, program)
        });
    }
}

#[test]
fn in_a_container_children_of_all_kinds_are_managed() {
    all_confined("0");
}

#[test]
fn an_unprivileged_users_children_of_all_kinds_are_managed() {
    all_confined("65534");
}

#[test]
fn children_of_fork_find_their_bytes_whoever_holds_a_lock() {
    all_here("fork");
}

#[test]
fn children_of_bare_fork_find_their_bytes_whoever_holds_a_lock() {
    all_here("_Fork");
}

#[test]
fn children_of_vfork_are_made_whoever_holds_a_lock() {
    all_here("vfork");
}

#[test]
fn children_of_clone_find_their_bytes_whoever_holds_a_lock() {
    all_here("clone");
}

#[test]
fn children_of_clone3_find_their_bytes_whoever_holds_a_lock() {
    all_here("clone3");
}

#[test]
fn children_of_posix_spawn_are_made_whoever_holds_a_lock() {
    all_here("posix_spawn");
}
