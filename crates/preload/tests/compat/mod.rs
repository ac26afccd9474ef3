//! COMPAT.md: each call on memory, natively and under deckle, and why where they differ.
//!
//! `tests/programs/compat.c` makes the calls, natively and under `deckle run`. What it says is
//! compared line by line, and each difference needs an explanation in [`explained`]. The file is
//! made of that alone: `DECKLE_UPDATE=1` writes it anew, and without it the test fails where the
//! file is no longer true.

mod explained;
mod table;
mod view;

use crate::common;
use crate::skipped::{not_here, skipped};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use explained::EXPLANATIONS;
use view::{Case, Difference, differences};

const UPDATE: &str = "DECKLE_UPDATE=1 cargo test --release -p deckle-preload --test all compat::";
/// The program is run in so many parts, so that none takes long.
const PARTS: usize = 8;

/// A call in a state of memory, and what came of it.
pub struct Row {
    /// Its name.
    pub call: String,
    /// Name of the state.
    pub state: String,
    /// Natively.
    pub native: Case,
    /// Under deckle.
    pub managed: Case,
    /// Each with the number of its explanation.
    pub differences: Vec<(Difference, usize)>,
}

fn file() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../COMPAT.md")
}

/// Lines of one part: call, state, and what was seen.
fn lines(ran: &common::Ran) -> Vec<(String, String, Case)> {
    assert_eq!(ran.status, 0, "{}\n{}", ran.out, ran.err);
    let parse = |line: &str| {
        let fields: Vec<&str> = line.split('\t').collect();
        let [call, state, result, bytes, child, proc] = fields[..] else {
            panic!("{line:?}\n{}", ran.err);
        };
        let case = Case::of(result, bytes, child, proc);
        (call.to_owned(), state.to_owned(), case)
    };
    ran.out.lines().map(parse).collect()
}

/// All calls, natively and managed, two parts at a time.
fn run_all() -> Vec<Row> {
    let program = common::compile("compat", &[]);
    let program = program.to_str().expect("path");
    let parts: Mutex<Vec<usize>> = Mutex::new((0..PARTS).collect());
    let rows_of_parts = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some(part) = { parts.lock().expect("parts").pop() } {
                    let args = [program, "", &part.to_string(), &PARTS.to_string()];
                    let native = lines(&common::without(&args));
                    let managed = lines(&common::run(&["--memory-max", "64M"], &args));
                    assert_eq!(native.len(), managed.len(), "part {part}");
                    let both = native.into_iter().zip(managed);
                    let pairs: Vec<_> = both.collect();
                    rows_of_parts.lock().expect("rows").push((part, pairs));
                }
            });
        }
    });
    // Part by part every eighth call, with its states; in the order of calls again.
    let mut rows: Vec<(usize, Row)> = Vec::new();
    for (part, pairs) in rows_of_parts.into_inner().expect("rows") {
        let (mut nr, mut last) = (part, String::new());
        for ((call, state, native), (same, state_too, managed)) in pairs {
            assert_eq!((&call, &state), (&same, &state_too));
            if !last.is_empty() && last != call {
                nr += PARTS;
            }
            last.clone_from(&call);
            let differences = Vec::new();
            let row = Row {
                call,
                state,
                native,
                managed,
                differences,
            };
            rows.push((nr, row));
        }
    }
    rows.sort_by_key(|(nr, _)| *nr);
    rows.into_iter().map(|(_, row)| row).collect()
}

/// Gives each difference its explanation. What has none, and explanations that nothing needs, are
/// returned in words.
fn explain(rows: &mut [Row]) -> Vec<String> {
    let (mut wrong, mut used) = (Vec::new(), BTreeSet::new());
    for row in rows {
        for difference in differences(&row.native, &row.managed) {
            let fits = |e: &explained::Explanation| e.fits(row, difference);
            match EXPLANATIONS.iter().position(fits) {
                Some(why) => {
                    used.insert(why);
                    row.differences.push((difference, why));
                }
                None => wrong.push(format!(
                    "{} [{}], {difference:?}:\n    natively {}\n    managed  {}",
                    row.call, row.state, row.native, row.managed
                )),
            }
        }
    }
    let unused = (0..EXPLANATIONS.len()).filter(|i| !used.contains(i));
    wrong.extend(unused.map(|i| format!("nothing needs: {}", EXPLANATIONS[i].text)));
    wrong
}

#[test]
fn compat_md_is_what_the_calls_do() {
    if deckle_sys::process::effective_user() != 0 {
        skipped("not root");
        return;
    }
    let mut rows = run_all();
    let evicted = rows
        .iter()
        .find(|r| r.call == "mincore" && r.state == "evicted");
    let evicted = evicted.expect("a case");
    assert_eq!(evicted.managed.result, "mincore 0, none", "is not managed");
    let wrong = explain(&mut rows);
    let count = wrong.len();
    assert!(
        wrong.is_empty(),
        "{count} differences:\n{}",
        wrong.join("\n")
    );
    let should = table::file(&rows);
    let is = std::fs::read_to_string(file()).unwrap_or_default();
    if is == should {
        return;
    }
    if std::env::var_os("DECKLE_UPDATE").is_some() {
        std::fs::write(file(), should).expect("COMPAT.md");
        return;
    }
    if table::system_of(&is) != table::system_of(&should) {
        not_here("in part: COMPAT.md is of another system; all is explained here, too");
        return;
    }
    let differs = is.lines().zip(should.lines()).find(|(is, want)| is != want);
    panic!("COMPAT.md is not true; run\n  {UPDATE}\nfirst (is, should be): {differs:#?}");
}
