//! COMPAT.md as text.

use std::collections::BTreeSet;
use std::fmt::Write;

use super::Row;
use super::explained::EXPLANATIONS;
use super::view::Difference;

const SYSTEM: &str = "System: ";

/// A file of the kernel's, in one line.
fn read(path: &str) -> String {
    let text = std::fs::read_to_string(path).unwrap_or_else(|_| "none".into());
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// What of the system the answers depend on.
fn system() -> String {
    let release = read("/proc/sys/kernel/osrelease");
    let release: Vec<&str> = release.split('.').take(2).collect();
    let huge = read("/sys/kernel/mm/transparent_hugepage/enabled");
    let huge = huge.split(['[', ']']).nth(1).unwrap_or("none").to_owned();
    let swap = read("/proc/swaps").split_whitespace().count() > 5;
    format!(
        "{SYSTEM}Linux {}, transparent huge pages `{huge}`, {} swap, overcommit {}, {} \
         pages in the pool of MAP_HUGETLB, {}.",
        release.join("."),
        if swap { "with" } else { "no" },
        read("/proc/sys/vm/overcommit_memory"),
        read("/proc/sys/vm/nr_hugepages"),
        match read("/proc/cpuinfo").contains(" pku ") {
            true => "protection keys",
            false => "no protection keys",
        }
    )
}

/// The line of a COMPAT.md that says which system it is of.
pub fn system_of(text: &str) -> Option<&str> {
    text.lines().find(|l| l.starts_with(SYSTEM))
}

const HEAD: &str = "# Calls on memory, natively and under deckle

Generated: `DECKLE_UPDATE=1 cargo test --release -p deckle-preload --test all compat::` writes this
file anew, and the same test fails when it is not true, or when a difference has no explanation.
Each case is made in a process of its own, natively and under `deckle run --memory-max 64M`.

";

const WORDS: &str = "
The call is made by the function of the C library on 64 KiB of private anonymous memory (on 2 MiB in
state *huge*), in these states:

| state | |
|---|---|
| `-` | there is no memory but what the call maps |
| fresh | mapped, never touched |
| written | every page has bytes of its own |
| evicted | the same, then `MADV_PAGEOUT`, which without swap does nothing natively |
| zeros | zeros were written, then `MADV_PAGEOUT` |
| huge | 2 MiB, aligned, `MADV_HUGEPAGE`, every page written |
| forked | written, and a child has a copy |
| locked | written, and `mlock` |

*Bytes* are what every page has afterwards, in sixteenths of the memory (with `p` in pages):
*kept*, *zero*, *other* and a sum, *unmapped* and *refused* (SIGSEGV with SEGV_MAPERR,
SEGV_ACCERR), *-ro* where it cannot be written, *-lost* where what was written is not read. *Other
side* is the same for the process on the other side of a fork, after this one has written to all
pages. */proc* is how much is resident (none, some, all; where they differ: Rss of smaps, mincore,
present by pagemap), huge and locked, and flags of smaps. Not among these are `um` and `uw`
(userfaultfd), `dc`, and `nh`, which all managed memory has, and `hg`, which none has: deckle
decides itself what is huge and what a child gets. Under *deckle* stands what differs, with the
number of its explanation.
";

/// The first word of a call's name: what the tables are grouped by.
fn group(row: &Row) -> &str {
    let name = row.call.split_whitespace().next().unwrap_or_default();
    name.trim_end_matches(',')
}

/// What differs in words: for each explanation what it explains.
fn differs(row: &Row) -> String {
    let mut parts = Vec::new();
    let mut said = BTreeSet::new();
    for (difference, why) in &row.differences {
        let (what, text) = match difference {
            Difference::Result => ("result", row.managed.result.clone()),
            Difference::Bytes | Difference::Child => ("bytes", row.managed.all_bytes()),
            _ => ("/proc", row.managed.proc()),
        };
        let text = match said.insert(what) {
            true => format!("{what}: {text} "),
            false => String::new(),
        };
        parts.push((text, *why + 1));
    }
    let mut text = String::new();
    let mut last = 0;
    for (part, why) in parts {
        if part.is_empty() && why == last {
            continue;
        }
        let gap = if text.is_empty() || part.is_empty() {
            ""
        } else {
            "; "
        };
        let _ = write!(text, "{gap}{part}[{why}](#{why})");
        last = why;
    }
    if text.is_empty() { "=".into() } else { text }
}

fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}

/// Rows of one group; states in which the same is seen share one.
fn table(rows: &[&Row]) -> String {
    let mut text =
        "| call | state | result | bytes | /proc | deckle |\n|---|---|---|---|---|---|\n"
            .to_owned();
    let mut lines: Vec<(&str, Vec<&str>, String)> = Vec::new();
    for row in rows {
        let seen = format!(
            "{} | {} | {} | {}",
            cell(&row.native.result),
            cell(&row.native.all_bytes()),
            cell(&row.native.proc()),
            cell(&differs(row))
        );
        let mut same = lines.iter_mut().filter(|(call, _, _)| *call == row.call);
        match same.find(|(_, _, text)| *text == seen) {
            Some((_, states, _)) => states.push(&row.state),
            None => lines.push((&row.call, vec![&row.state], seen)),
        }
    }
    for (call, states, seen) in lines {
        let _ = writeln!(text, "| {} | {} | {seen} |", cell(call), states.join(", "));
    }
    text
}

/// The whole file. `rows` in the order of parts; written in the order of groups as they come.
pub fn file(rows: &[Row]) -> String {
    let equal = rows.iter().filter(|r| r.differences.is_empty()).count();
    let beyond = |d: Difference| d <= Difference::Child;
    let same = |r: &&Row| !r.differences.iter().any(|(d, _)| beyond(*d));
    let means = rows.iter().filter(same).count();
    let mut text = format!("{HEAD}{}\n\n", system());
    let _ = write!(
        text,
        "| | cases |\n|---|---|\n| all | {} |\n| equal in all that is seen | {equal} |\n\
         | equal in result and bytes, /proc differs | {} |\n\
         | differing in result or bytes | {} |\n",
        rows.len(),
        means - equal,
        rows.len() - means
    );
    text += WORDS;
    text += "\n## Why they differ\n\n| | cases | |\n|---|---|---|\n";
    for (i, explanation) in EXPLANATIONS.iter().enumerate() {
        let cases = rows
            .iter()
            .filter(|r| r.differences.iter().any(|(_, why)| *why == i));
        let n = i + 1;
        let _ = writeln!(
            text,
            "| <a id=\"{n}\"></a>{n} | {} | {} |",
            cases.count(),
            explanation.text
        );
    }
    let mut groups: Vec<&str> = Vec::new();
    for row in rows {
        if !groups.contains(&group(row)) {
            groups.push(group(row));
        }
    }
    for name in groups {
        let rows: Vec<&Row> = rows.iter().filter(|r| group(r) == name).collect();
        let _ = write!(text, "\n## {name}\n\n{}", table(&rows));
    }
    text
}
