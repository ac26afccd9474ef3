//! docs/specification.md: every promise has a test that is in the tree, or is said to be pending.
//!
//! A promise is a row of a table: its number, what is promised, and who proves it, as
//! ``mm: `a_test`, `another`; store: `a_third` `` or `*pending*: why`, or first tests and then
//! what is pending. In which file of its crate a test is does not matter.

use std::collections::{BTreeMap, BTreeSet};

use crate::source::{files, root, tests};

const SPECIFICATION: &str = "docs/specification.md";

/// Tests by crate.
type Tests = BTreeMap<String, BTreeSet<String>>;

/// All tests of the workspace.
pub fn all_tests() -> Tests {
    let mut all = Tests::new();
    for file in files("rs") {
        let Some(of) = file.of_crate() else { continue };
        let of_crate = all.entry(of.into()).or_default();
        of_crate.extend(tests(&file.text));
    }
    all
}

/// What is wrong with a cell that says who proves a promise.
pub fn faults_of_proof(proof: &str, tests: &Tests) -> Vec<String> {
    let (named, pending) = match proof.split_once("*pending*: ") {
        Some((named, why)) => (named.trim_end_matches("; "), Some(why)),
        None => (proof, None),
    };
    if pending.is_some_and(|why| why.trim().is_empty()) {
        return vec!["pending, but not why".into()];
    }
    if named.is_empty() {
        return match pending {
            Some(_) => Vec::new(),
            None => vec!["neither a test nor what is pending".into()],
        };
    }
    let mut faults = Vec::new();
    for part in named.split("; ") {
        let Some((of, names)) = part.split_once(": ") else {
            faults.push(format!("no crate before a test: {part}"));
            continue;
        };
        let Some(of_crate) = tests.get(of) else {
            faults.push(format!("no crate `{of}`"));
            continue;
        };
        for name in names.split(", ") {
            let bare = name.strip_prefix('`').and_then(|n| n.strip_suffix('`'));
            if bare.is_none_or(|n| !of_crate.contains(n)) {
                faults.push(format!("no test {name} in {of}"));
            }
        }
    }
    faults
}

/// What is wrong with a specification, one line each, and how many promises it has.
fn faults(text: &str, tests: &Tests) -> (Vec<String>, usize) {
    let mut faults = Vec::new();
    let mut last = 0;
    for row in text.lines().filter(|line| line.starts_with("| D")) {
        let cells: Vec<&str> = row.trim_matches(['|', ' ']).split(" | ").collect();
        let [id, promise, proof] = cells[..] else {
            faults.push(format!("not three cells: {row}"));
            continue;
        };
        last += 1;
        if id != format!("D{last}") {
            faults.push(format!("{id} stands where D{last} should"));
        }
        if promise.is_empty() {
            faults.push(format!("{id}: promises nothing"));
        }
        let of_proof = faults_of_proof(proof, tests);
        faults.extend(of_proof.into_iter().map(|fault| format!("{id}: {fault}")));
    }
    (faults, last)
}

#[test]
fn every_promise_has_a_test_that_exists_or_is_pending() {
    let text = std::fs::read_to_string(root().join(SPECIFICATION)).unwrap();
    let (faults, promises) = faults(&text, &all_tests());
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
    assert!(promises > 50, "only {promises} promises were found");
}

#[test]
fn each_wrong_promise_is_seen() {
    let names = |names: &[&str]| names.iter().map(|n| n.to_string()).collect();
    let tests = Tests::from([
        ("mm".into(), names(&["one", "two"])),
        ("store".into(), names(&["three"])),
    ]);
    let good = "# Title\n\n| | promise | tests |\n|---|---|---|\n\
        | D1 | It holds. | mm: `one`, `two`; store: `three` |\n\
        | D2 | Both. | mm: `one`; *pending*: the other half |\n\
        | D3 | Some day. | *pending*: nobody has looked; yet |\n";
    assert_eq!(faults(good, &tests), (Vec::new(), 3));
    for bad in [
        "| D1 | It holds. | mm: `four` |",
        "| D1 | It holds. | mm: `three` |",
        "| D1 | It holds. | mm: one |",
        "| D1 | It holds. | `one` |",
        "| D1 | It holds. | lab: `one` |",
        "| D1 | It holds. | mm: `one`; `two` |",
        "| D1 | It holds. | *pending*: |",
        "| D1 | It holds. | pending |",
        "| D1 | It holds. |",
        "| D2 | It holds. | mm: `one` |",
        "| D1 |  | mm: `one` |",
    ] {
        assert_eq!(faults(bad, &tests).0.len(), 1, "{bad}");
    }
}
