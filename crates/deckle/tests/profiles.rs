//! docs/profiles.md: each difference between the profiles is a row with a test, and no row has
//! none.

use crate::source::{files, root};
use crate::specification::{all_tests, faults_of_proof};
use deckle_mm::knob::Knob;
use deckle_mm::{Beyond, Profile, Tunables};
use std::collections::BTreeSet;

const PROFILES: &str = "docs/profiles.md";
/// Files of the core that may ask for the profile: who says what it is, and what it decides.
const MAY_ASK: [&str; 4] = ["beyond.rs", "knob.rs", "lib.rs", "tunables.rs"];
/// What `deckle run` sets for itself.
const OF_RUN: [&str; 3] = [
    "transparent_hugepage.fault_order",
    "transparent_hugepage.fault_open_ratio",
    "memory.high",
];

/// Rows of the table: what each is called, and its other cells.
fn rows(text: &str) -> Vec<(Vec<String>, Vec<String>)> {
    let rows = text.lines().filter(|line| line.starts_with("| `"));
    rows.map(|row| {
        let mut cells = row.trim_matches(['|', ' ']).split(" | ").map(str::to_owned);
        let names = cells.next().unwrap_or_default();
        let names = names.split(' ').map(|name| name.trim_matches('`').into());
        (names.collect(), cells.collect())
    })
    .collect()
}

/// What differs: in the core, by a knob's default, and by what `deckle run` sets.
fn differences() -> BTreeSet<String> {
    let (linux, deckle) = (
        Tunables::of_profile(Profile::Linux),
        Tunables::of_profile(Profile::Deckle),
    );
    let differs = |knob: &&Knob| knob.value(&linux) != knob.value(&deckle);
    let knobs = Tunables::KNOBS.iter().filter(differs);
    (Beyond::ALL.iter().map(|b| b.name()))
        .chain(knobs.map(|knob| knob.key).filter(|key| *key != "profile"))
        .chain(OF_RUN)
        .map(str::to_owned)
        .collect()
}

#[test]
fn every_difference_between_the_profiles_is_a_row_with_its_reason_and_its_test() {
    let text = std::fs::read_to_string(root().join(PROFILES)).unwrap();
    let tests = all_tests();
    let mut named = BTreeSet::new();
    for (names, cells) in rows(&text) {
        let [does, why, proof] = &cells[..] else {
            panic!("{names:?}: not four cells");
        };
        assert!(!does.is_empty() && !why.is_empty(), "{names:?}");
        assert_eq!(faults_of_proof(proof, &tests), [""; 0], "{names:?}");
        for name in names {
            assert!(named.insert(name.clone()), "{name} has two rows");
        }
    }
    assert_eq!(named, differences());
}

#[test]
fn nothing_else_in_the_core_asks_which_profile_it_is() {
    for file in files("rs") {
        let Some(name) = file.path.strip_prefix("crates/mm/src/") else {
            continue;
        };
        let asks = file.text.contains("Profile::") || file.text.contains(".profile");
        let is_test = name.contains("tests");
        assert!(!asks || is_test || MAY_ASK.contains(&name), "{name} asks");
    }
}
