//! What a test cannot do here is said and counted in one place, this one, for all test programs.

use std::fmt::Display;
use std::io::Write;

/// Says that a test, or a part of one, is left out, and why. `scripts/test` names a file in
/// `DECKLE_SKIPS` whose lines it counts in the end; with `DECKLE_NO_SKIP=1` the test fails.
#[track_caller]
pub fn skipped(why: impl Display) {
    let line = say("", why);
    let forbidden = std::env::var("DECKLE_NO_SKIP").is_ok_and(|v| !matches!(&*v, "" | "0"));
    assert!(!forbidden, "DECKLE_NO_SKIP is set: {line}");
}

/// The same for want of a program that is not installed, or where the test is of another system: no
/// right and no kernel would help, so that it is counted and never fails.
#[allow(dead_code, reason = "not every test program needs others")]
pub fn not_here(why: impl Display) {
    say("(not here) ", why);
}

/// Says it, and returns the line.
fn say(mark: &str, why: impl Display) -> String {
    let why = why.to_string();
    let why = why.trim_end().replace('\n', " ");
    // The harness names threads after tests; a case in a process of its own has one thread.
    let test = ["DECKLE_UFFD_FACT", "DECKLE_LIVE_CASE"].map(|case| std::env::var(case).ok());
    let thread = std::thread::current();
    let thread = thread.name().filter(|name| *name != "main");
    let test = test.into_iter().flatten().next();
    let test = test.or(thread.map(str::to_owned)).unwrap_or_default();
    let test = test.rsplit("::").next().unwrap_or_default();
    let named = test.is_empty() || why.starts_with(test);
    let line = match named {
        true => format!("SKIPPED {mark}{why}\n"),
        false => format!("SKIPPED {mark}{test}: {why}\n"),
    };
    // To the descriptor itself: the harness shows it even when the test passes.
    let _ = std::io::stderr().write_all(line.as_bytes());
    if let Some(file) = std::env::var_os("DECKLE_SKIPS") {
        let file = std::fs::File::options().append(true).open(file);
        // One write, so that lines of several programs stay whole.
        file.and_then(|mut f| f.write_all(line.as_bytes()))
            .expect("the file of DECKLE_SKIPS");
    }
    line
}
