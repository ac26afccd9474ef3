//! How reports for people say whether what is wanted was found.

use std::fmt::Write;

/// Appends a block with this title, a line for each: whether it holds, what is wanted, what was
/// found. Nothing where there is nothing to judge.
pub(crate) fn write(
    text: &mut String,
    title: &str,
    all: impl IntoIterator<Item = (bool, String, f64)>,
) {
    for (i, (holds, what, found)) in all.into_iter().enumerate() {
        if i == 0 {
            let _ = writeln!(text, "\n{title}");
        }
        let holds = if holds { "yes" } else { "NO" };
        let _ = writeln!(text, "  {holds:<3} {what}: {found:.3}");
    }
}

/// How a bound is called.
pub(crate) fn bound(at_least: bool) -> &'static str {
    match at_least {
        true => "at least",
        false => "at most ",
    }
}

/// Whether what was found keeps a bound; what could not be measured, NaN, keeps none.
pub(crate) fn holds(at_least: bool, want: f64, found: f64) -> bool {
    match at_least {
        true => found >= want,
        false => found <= want,
    }
}
