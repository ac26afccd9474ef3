//! What one case has shown, and in which respects two of them differ.

use std::collections::BTreeSet;
use std::fmt;

/// Flags that managed mappings always have, or never, whatever the program has asked for. Of
/// `hg` and `nh` deckle decides by itself.
const MARKS: [&str; 5] = ["dc", "hg", "nh", "um", "uw"];

/// A respect in which two cases differ.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Difference {
    /// What the calls answered, or how the process died.
    Result,
    /// What the program has in its memory afterwards.
    Bytes,
    /// What the other side of a fork has.
    Child,
    /// Less is resident than natively.
    Less,
    /// More is resident.
    More,
    /// Huge pages.
    Huge,
    /// Whether smaps says locked.
    Locked,
    /// Other flags of smaps.
    Flags,
}

/// What /proc shows of a part of the memory.
#[derive(Clone, PartialEq, Eq, Default)]
struct Shown {
    name: String,
    /// Shares, in the order of the words: rss, mincore, present; none where nothing is mapped.
    resident: Vec<u8>,
    huge: u8,
    locked: u8,
    /// Sets of flags of neighbouring mappings.
    flags: Vec<BTreeSet<String>>,
}

/// What one case has shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Case {
    /// Answers of the calls, or how the process died.
    pub result: String,
    /// What the pages have.
    pub bytes: String,
    /// What they have on the other side of a fork.
    pub child: String,
    shown: Vec<Shown>,
}

const SHARES: [&str; 3] = ["none", "some", "all"];

fn share(word: &str) -> u8 {
    let at = SHARES.iter().position(|s| *s == word);
    at.unwrap_or_else(|| panic!("no share: {word:?}")) as u8
}

impl Shown {
    fn of(text: &str) -> Shown {
        let (name, text) = text.split_once(": ").unwrap_or(("", text));
        let mut shown = Shown {
            name: name.into(),
            ..Shown::default()
        };
        for part in text.split(", ").filter(|p| *p != "nothing mapped") {
            let (word, rest) = part.split_once(' ').unwrap_or((part, ""));
            match word {
                "rss" | "mincore" | "present" => shown.resident.push(share(rest)),
                "huge" => shown.huge = share(rest),
                "locked" => shown.locked = share(rest),
                "flags" => shown.flags = flags(rest),
                "swap" | "swapped" => {}
                _ => panic!("{part:?} of {text:?}"),
            }
        }
        shown
    }

    fn without_locks(&self) -> Vec<BTreeSet<String>> {
        let mut flags: Vec<_> = self.flags.clone();
        flags.iter_mut().for_each(|set| {
            set.remove("lo");
        });
        flags.dedup();
        flags
    }

    fn locks(&self) -> (u8, Vec<bool>) {
        let mut parts: Vec<bool> = self.flags.iter().map(|f| f.contains("lo")).collect();
        parts.dedup();
        (self.locked, parts)
    }
}

/// Sets of flags without marks; neighbours that are the same are one.
fn flags(text: &str) -> Vec<BTreeSet<String>> {
    let set = |part: &str| {
        let words = part
            .split_whitespace()
            .filter(|w| *w != "-" && !MARKS.contains(w));
        words.map(str::to_owned).collect()
    };
    let mut sets: Vec<BTreeSet<String>> = text.split('|').map(set).collect();
    sets.dedup();
    sets
}

impl Case {
    /// From the fields of a line.
    pub fn of(result: &str, bytes: &str, child: &str, proc: &str) -> Case {
        let shown = proc.split("; ").filter(|p| !p.is_empty());
        Case {
            result: result.into(),
            bytes: bytes.into(),
            child: child.into(),
            shown: shown.map(Shown::of).collect(),
        }
    }

    /// What /proc shows, in words.
    pub fn proc(&self) -> String {
        let shown: Vec<String> = self.shown.iter().map(Shown::to_string).collect();
        shown.join("; ")
    }

    /// What the program and its child have, in words.
    pub fn all_bytes(&self) -> String {
        match self.child.is_empty() {
            true => self.bytes.clone(),
            false => format!("{}; other side: {}", self.bytes, self.child),
        }
    }
}

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.name.is_empty() {
            write!(f, "{}: ", self.name)?;
        }
        match self.resident[..] {
            [] => return write!(f, "nothing mapped"),
            [a, b, c] if a == b && b == c => write!(f, "{}", SHARES[a as usize])?,
            _ => {
                let words: Vec<&str> = self.resident.iter().map(|s| SHARES[*s as usize]).collect();
                write!(f, "{}", words.join("/"))?;
            }
        }
        for (word, share) in [("huge", self.huge), ("locked", self.locked)] {
            if share > 0 {
                write!(f, ", {word} {}", SHARES[share as usize])?;
            }
        }
        // In the order of /proc.
        let order = ["rd", "wr", "ex", "sh"];
        let place = |w: &&String| order.iter().position(|o| o == w).unwrap_or(order.len());
        let words = |set: &BTreeSet<String>| {
            let mut words: Vec<&String> = set.iter().collect();
            words.sort_by_key(place);
            let words: Vec<&str> = words.into_iter().map(String::as_str).collect();
            if words.is_empty() {
                "-".to_owned()
            } else {
                words.join(" ")
            }
        };
        let sets: Vec<String> = self.flags.iter().map(words).collect();
        write!(f, ", {}", sets.join(" | "))
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}; {}", self.result, self.all_bytes(), self.proc())
    }
}

/// In which respects a case differs from what happens natively.
pub fn differences(native: &Case, managed: &Case) -> BTreeSet<Difference> {
    let mut all = BTreeSet::new();
    let mut note = |differs: bool, what| {
        if differs {
            all.insert(what);
        }
    };
    note(native.result != managed.result, Difference::Result);
    note(native.bytes != managed.bytes, Difference::Bytes);
    note(native.child != managed.child, Difference::Child);
    // Where parts are looked at that there are not natively, the result is another, too.
    for (a, b) in native.shown.iter().zip(&managed.shown) {
        let mut pairs = a.resident.iter().zip(&b.resident);
        let mapped = a.resident.is_empty() == b.resident.is_empty();
        note(!mapped || pairs.any(|(a, b)| b < a), Difference::Less);
        let mut pairs = a.resident.iter().zip(&b.resident);
        note(!mapped || pairs.any(|(a, b)| b > a), Difference::More);
        note(a.huge != b.huge, Difference::Huge);
        note(a.locks() != b.locks(), Difference::Locked);
        note(a.without_locks() != b.without_locks(), Difference::Flags);
    }
    all
}
