//! What the settings come to, in words.

use crate::knobs::{COLLAPSED, DIR, Knobs};

/// One thing that is so.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// What it is about, for programs.
    pub key: &'static str,
    /// Whether something is wrong with it.
    pub is_wrong: bool,
    /// In words.
    pub text: String,
    /// What to do.
    pub remedy: Option<String>,
}

/// A block of which khugepaged needs no more than this share is one that an allocator had given
/// back: half of it.
const HALF: u32 = 256;
/// What is proposed where there is a choice: a fifth of a huge page in use.
const PROPOSED: u32 = 409;

impl Finding {
    fn fact(key: &'static str, text: impl Into<String>) -> Finding {
        Finding {
            key,
            is_wrong: false,
            text: text.into(),
            remedy: None,
        }
    }

    fn wrong(key: &'static str, text: impl Into<String>, remedy: impl Into<String>) -> Finding {
        Finding {
            key,
            is_wrong: true,
            text: text.into(),
            remedy: Some(remedy.into()),
        }
    }
}

/// The verdict on what is in force; `before`: the same some time ago, if what has happened since
/// then is to be told instead of what has since boot.
pub fn verdict(now: &Knobs, before: Option<&Knobs>) -> Vec<Finding> {
    let Some(enabled) = &now.enabled else {
        let text = "this kernel has no transparent huge pages: they waste nothing";
        return vec![Finding::fact("enabled", text)];
    };
    let mut all = vec![shrinker(now, before)];
    if enabled == "never" {
        let text = "enabled is never: no new huge page is made, and those that are there stay";
        all.push(Finding::fact("enabled", text));
    }
    all.extend(khugepaged(now, before, enabled));
    if let Some(n @ 1..) = now.nr_anon_partially_mapped {
        let text = format!(
            "of {n} huge pages a part was given back, and is held until memory is short: \
             they are split then, whatever the threshold"
        );
        all.push(Finding::fact("partially_mapped", text));
    }
    all
}

/// A counter, and since when.
fn counted(now: &Knobs, before: Option<&Knobs>, name: &str) -> (u64, &'static str) {
    let n = now.counter(name);
    match before {
        Some(before) => (
            n.saturating_sub(before.counter(name)),
            "since the last look",
        ),
        None => (n, "since boot"),
    }
}

fn shrinker(now: &Knobs, before: Option<&Knobs>) -> Finding {
    const KEY: &str = "shrinker";
    let write = |value: u32, name: &str| format!("as root: echo {value} > /{DIR}/{name}");
    let threshold = || write(PROPOSED, "khugepaged/max_ptes_none");
    let none = now.max_ptes_none.unwrap_or(511);
    match (now.shrink_underused, now.threshold()) {
        (None, _) => Finding::wrong(
            KEY,
            "this kernel has no shrinker of underused huge pages: what they waste comes back when \
             their process gives it up",
            "Linux 6.12 or later; until then enabled=madvise for who asks, never for who wastes",
        ),
        (Some(false), _) => Finding::wrong(
            KEY,
            "the shrinker is off: zero-filled pages stay until their process gives them back",
            format!(
                "{} (and {none} is its threshold); it looks at huge pages that are made after that",
                write(1, "shrink_underused")
            ),
        ),
        (Some(true), None) => Finding::wrong(
            KEY,
            format!("the shrinker is on and does nothing: max_ptes_none is {none}"),
            threshold(),
        ),
        (Some(true), Some(threshold)) => {
            let (splits, since) = counted(now, before, "thp_underused_split_page");
            let done = match splits {
                0 => format!("none was {since}: memory was not short, or none is so empty"),
                n => format!("{n} were {since}"),
            };
            Finding::fact(
                KEY,
                format!(
                    "the shrinker is on: when memory is short, huge pages with more than \
                     {threshold} zero-filled pages of 512 are split; {done}"
                ),
            )
        }
    }
}

fn khugepaged(now: &Knobs, before: Option<&Knobs>, enabled: &str) -> Option<Finding> {
    const KEY: &str = "khugepaged";
    let none = now.max_ptes_none?;
    if enabled == "never" || now.pages_to_scan == 0 {
        return None;
    }
    let (made, since) = counted(now, before, COLLAPSED);
    let pages = match 512 - none.min(511) {
        1 => "one page".to_owned(),
        n => format!("{n} pages"),
    };
    let where_asked = if enabled == "madvise" {
        " where a program asks"
    } else {
        ""
    };
    let fills = format!("{pages} of a block's 512 are enough for it{where_asked}");
    let has = format!("it has made {made} huge pages {since}");
    if none < HALF {
        return Some(Finding::fact(KEY, format!("khugepaged: {fills}; {has}")));
    }
    let remedy = "a smaller khugepaged/max_ptes_none: it has to leave alone what the shrinker \
                  splits, and at 64 it fills no more than an eighth of a block";
    Some(match made {
        0 => {
            let text = format!("khugepaged may re-create what an allocator gave back: {fills}");
            Finding::fact(KEY, format!("{text}; so far {has}"))
        }
        _ => {
            let text = format!("khugepaged re-creates what the allocator gave back: {fills}");
            Finding::wrong(KEY, format!("{text}, and {has}"), remedy)
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn knobs(shrink: Option<bool>, none: u32, made: u64) -> Knobs {
        Knobs {
            enabled: Some("always".into()),
            shrink_underused: shrink,
            max_ptes_none: Some(none),
            khugepaged: true,
            pages_to_scan: 4096,
            counters: [(COLLAPSED, made)].into(),
            ..Knobs::default()
        }
    }

    fn said(knobs: &Knobs, key: &str) -> Finding {
        let mut all = verdict(knobs, None).into_iter();
        all.find(|f| f.key == key).expect(key)
    }

    #[test]
    fn the_verdict_names_what_is_wrong() {
        let found = said(&knobs(Some(true), 511, 7), "shrinker");
        let text = "the shrinker is on and does nothing: max_ptes_none is 511";
        assert_eq!(found.text, text);
        assert!(found.is_wrong && found.remedy.unwrap().contains("echo 409"));
        assert!(
            said(&knobs(Some(false), 409, 0), "shrinker")
                .text
                .contains("is off")
        );
        assert!(
            said(&knobs(None, 409, 0), "shrinker")
                .text
                .contains("has no shrinker")
        );
        assert!(!said(&knobs(Some(true), 409, 0), "shrinker").is_wrong);
        let found = said(&knobs(Some(true), 511, 7), "khugepaged");
        assert!(
            found.is_wrong && found.text.contains("re-creates"),
            "{found:?}"
        );
        assert!(!said(&knobs(Some(true), 511, 0), "khugepaged").is_wrong);
        assert!(!said(&knobs(Some(true), 64, 7), "khugepaged").is_wrong);
        let bare = Knobs::default();
        assert!(
            verdict(&bare, None)[0]
                .text
                .contains("no transparent huge pages")
        );
    }

    #[test]
    fn what_has_happened_since_the_last_look_is_told() {
        let (before, now) = (knobs(Some(true), 511, 7), knobs(Some(true), 511, 9));
        let all = verdict(&now, Some(&before));
        let of = |key| all.iter().find(|f| f.key == key).unwrap();
        assert!(
            of("khugepaged")
                .text
                .contains("made 2 huge pages since the last look")
        );
    }
}
