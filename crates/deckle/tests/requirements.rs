//! The columns of tests in docs/requirements.md are what the tests' names say.
//!
//! A test that proves requirement 73 and pitfall 14 is called `r73_p14_what_it_shows`. The column
//! is made of these names and of nothing else, so it cannot claim a test that is not there. What
//! cannot exist here has a reason instead, in [`REASONS`]. What a requirement asks is written by
//! hand, and kept.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use crate::source::{File, files, root, tests};

const MAP: &str = "docs/requirements.md";
const BEGIN: &str = "<!-- requirements: generated -->\n";
const END: &str = "<!-- end -->";
const UPDATE: &str = "DECKLE_UPDATE=1 cargo test -p deckle --test all requirements::";
/// Each series of numbers: its letter, its column, and its last number.
const SERIES: [(char, &str, u32); 2] = [('r', "R", 150), ('p', "P", 30)];

/// Most reasons that there may be.
const FEW: usize = 10;

/// Why all of a requirement, or the part named, cannot exist here. Each is the reason of all the
/// rows that it is one for.
type Reason = (&'static str, &'static [(char, u32)]);

const REASONS: &[Reason] = &[
    (
        "whole in profile `linux`; what profile `deckle` does otherwise is a row of \
         docs/profiles.md",
        &[('r', 40), ('r', 147)],
    ),
    (
        "Linux 6.18 maps its huge page of zeros where a huge page could be, and copies a page of \
         zeros alone, and so does profile `linux`; profile `deckle` shows zeros around the page, \
         and goes by the rules for holes (docs/profiles.md)",
        &[('r', 49), ('r', 59)],
    ),
    (
        "where a mapping may not be written there is no write fault to serve: it is refused",
        &[('r', 50)],
    ),
    (
        "which page is cleared last nobody can choose: the platform makes all zeros of a folio \
         in one call, from huge pages made ready before or as the kernel does",
        &[('r', 51)],
    ),
    (
        "no file-backed or shared memory is managed: every mapping is anonymous, and so is the \
         source of every copy",
        &[('r', 62), ('r', 87)],
    ),
    (
        "what is kept in the store besides is a slot of a page, no folio is in a swap cache; and \
         no pages are merged: no folio has references of either",
        &[('r', 74), ('r', 116)],
    ),
    (
        "there is no gather that can be full: a batch is one call for a block's part",
        &[('r', 86)],
    ),
    (
        "the group's account is a number, no folio has data of its own there",
        &[('r', 96)],
    ),
    (
        "a folio that is split where it is stays on the LRU list while its pages are looked at: \
         the lock of its block and its frozen references keep everybody away from it",
        &[('r', 102)],
    ),
    (
        "no machine here keeps metadata beside a page (memory tags)",
        &[('r', 136)],
    ),
];

/// Tests by crate.
type Tests = BTreeMap<String, BTreeSet<String>>;

/// The numbers of a test's name: `r98_r110_name` has two.
fn numbers(name: &str) -> impl Iterator<Item = (char, u32)> {
    name.split('_').map_while(|part| {
        let letter = part.chars().next()?;
        let digits = &part[1..];
        let is_number = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
        let known = SERIES.iter().any(|(l, _, _)| *l == letter);
        (known && is_number).then(|| (letter, digits.parse().unwrap_or(u32::MAX)))
    })
}

/// What each requirement asks, as the tables in `text` say.
fn texts(text: &str) -> BTreeMap<(char, u32), String> {
    let row = |line: &str| {
        let mut cells = line.strip_prefix("| ")?.split(" | ");
        let (id, asks) = (cells.next()?, cells.next()?);
        let (letter, _, _) = *SERIES
            .iter()
            .find(|(_, column, _)| id.starts_with(column))?;
        Some(((letter, id[1..].parse().ok()?), asks.to_owned()))
    };
    text.lines().filter_map(row).collect()
}

/// Both tables.
fn tables(files: &[File], reasons: &[Reason], texts: &BTreeMap<(char, u32), String>) -> String {
    let mut found: BTreeMap<(char, u32), Tests> = BTreeMap::new();
    for file in files {
        let Some(of) = file.of_crate() else { continue };
        for name in tests(&file.text) {
            for number in numbers(&name) {
                let tests = found.entry(number).or_default();
                tests.entry(of.into()).or_default().insert(name.clone());
            }
        }
    }
    let mut text = String::new();
    for (letter, column, last) in SERIES {
        let _ = write!(
            text,
            "\n| {column} | what it asks | tests |\n|---|---|---|\n"
        );
        let of_series = found.keys().filter(|(l, _)| *l == letter);
        if let Some((_, n)) = of_series.clone().find(|(_, n)| !(1..=last).contains(n)) {
            panic!(
                "there is no {column}{n}, but {:?} names it",
                found[&(letter, *n)]
            );
        }
        for number in 1..=last {
            let asks = (texts.get(&(letter, number)))
                .unwrap_or_else(|| panic!("{MAP} does not say what {column}{number} asks"));
            let tests = found.get(&(letter, number));
            let mut cells: Vec<String> = (tests.into_iter().flatten())
                .map(|(of, names)| {
                    let names: Vec<String> = names.iter().map(|n| format!("`{n}`")).collect();
                    format!("{of}: {}", names.join(", "))
                })
                .collect();
            let mine = |r: &&Reason| r.1.contains(&(letter, number));
            if let Some((why, _)) = reasons.iter().find(mine) {
                let part = if cells.is_empty() { "" } else { "in part " };
                cells.push(format!("*{part}not here*: {why}"));
            }
            if cells.is_empty() {
                cells.push("**none yet**".into());
            }
            let _ = writeln!(text, "| {column}{number} | {asks} | {} |", cells.join("; "));
        }
    }
    text + "\n"
}

/// `text` with what stands between the markers replaced.
fn with_section(text: &str, section: &str) -> Option<String> {
    let start = text.find(BEGIN)? + BEGIN.len();
    let end = start + text[start..].find(END)?;
    Some(format!("{}{section}{}", &text[..start], &text[end..]))
}

#[test]
fn requirements_table_is_what_the_tests_say() {
    let path = root().join(MAP);
    let text = std::fs::read_to_string(&path).unwrap();
    let section = tables(&files("rs"), REASONS, &texts(&text));
    let should = with_section(&text, &section)
        .unwrap_or_else(|| panic!("{MAP} has no section from {BEGIN:?} to {END:?}"));
    if text == should {
        return;
    }
    if std::env::var_os("DECKLE_UPDATE").is_some() {
        std::fs::write(&path, should).unwrap();
        return;
    }
    let differs = (text.lines().zip(should.lines())).find(|(is, want)| is != want);
    panic!(
        "the tests have changed; run\n  {UPDATE}\nfirst difference (is, should be): {differs:?}"
    );
}

#[test]
fn reasons_are_few_and_a_row_has_one() {
    assert!(REASONS.len() <= FEW, "{} reasons", REASONS.len());
    let mut rows: Vec<_> = REASONS.iter().flat_map(|(_, rows)| rows.iter()).collect();
    let all = rows.len();
    rows.sort();
    rows.dedup();
    assert_eq!(rows.len(), all, "a row has two reasons");
}

#[test]
fn names_of_tests_are_found_and_read() {
    let text = "/// Doc: #[test] fn r1_no() {}\n\
        #[test]\nfn r98_r110_p14_one() {}\n\
        #[te\u{73}t] fn r4_same_line() {}\n\
        fn r3_no_test() {}\n\
        proptest! {\n    #[test]\n    #[cfg(unix)]\n    // Why.\n    fn r5_two(n in 1..3) {}\n}\n\
        macro_rules! tests {\n    ($($n:ident)*) => { $(#[test] fn $n() {})* };\n}\n\
        tests! {\n    p30_three\n    four,\n}\n\
        const CASES: &[Case] = cases! {\n    p31_no\n};\n";
    let names = tests(text);
    assert_eq!(
        names,
        [
            "r98_r110_p14_one",
            "r4_same_line",
            "r5_two",
            "p30_three",
            "four"
        ]
    );
    let read: Vec<_> = numbers(&names[0]).collect();
    assert_eq!(read, [('r', 98), ('r', 110), ('p', 14)]);
    assert_eq!(numbers("run_r5_fast").count(), 0);
    assert_eq!(numbers("p_14_x").count(), 0);
    assert_eq!(numbers("r5x_y").count(), 0);

    let file = |path: &str, text: &str| File {
        path: path.into(),
        text: text.into(),
    };
    let files = [
        file("crates/mm/src/a.rs", text),
        file("crates/lab/tests/b.rs", "#[test]\nfn r98_five() {}\n"),
        file("README.md", "#[test]\nfn r99_six() {}\n"),
    ];
    let mut asks: BTreeMap<_, _> = (SERIES.iter())
        .flat_map(|&(letter, _, last)| (1..=last).map(move |n| ((letter, n), "it".into())))
        .collect();
    asks.insert(('r', 98), "zeros go".into());
    let reasons: [Reason; 2] = [
        ("half of it", &[('r', 4)]),
        ("no such thing", &[('r', 6), ('r', 7)]),
    ];
    let table = tables(&files, &reasons, &asks);
    assert_eq!(texts(&table), asks, "what is written by hand is kept");
    assert!(
        table.contains("\n| R4 | it | mm: `r4_same_line`; *in part not here*: half of it |\n"),
        "{table}"
    );
    for row in ["R6", "R7"] {
        let line = format!("\n| {row} | it | *not here*: no such thing |\n");
        assert!(table.contains(&line), "{table}");
    }
    assert!(
        table.contains("\n| R98 | zeros go | lab: `r98_five`; mm: `r98_r110_p14_one` |\n"),
        "{table}"
    );
    assert!(
        table.contains("\n| P30 | it | mm: `p30_three` |\n"),
        "{table}"
    );
    assert!(table.contains("\n| R99 | it | **none yet** |\n"), "{table}");
    assert!(!table.contains("r99") && !table.contains("p31"), "{table}");
}

#[test]
fn the_section_is_replaced_and_nothing_else() {
    let text = format!("a\n{BEGIN}old\n{END}\nb\n");
    let new = with_section(&text, "\nnew\n").unwrap();
    assert_eq!(new, format!("a\n{BEGIN}\nnew\n{END}\nb\n"));
    assert_eq!(with_section("a\n", "new"), None);
    assert_eq!(with_section(&format!("{END}\n{BEGIN}"), "new"), None);
}
