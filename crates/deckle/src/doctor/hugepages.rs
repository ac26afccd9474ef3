//! Transparent huge pages: the settings, and by trial how one can be had here.

use deckle_sys::mapping::Advice;
use deckle_sys::{Memory, PAGE};
use serde_json::json;

use super::{Finding, State};
use crate::procfs;

const SECTION: &str = "transparent huge pages";
const DIR: &str = "/sys/kernel/mm/transparent_hugepage";
const BLOCK: usize = 2 << 20;

pub(super) fn findings() -> Vec<Finding> {
    let mut all = Vec::new();
    for (name, file) in [
        ("enabled", "enabled"),
        ("defrag", "defrag"),
        ("khugepaged/max_ptes_none", "khugepaged/max_ptes_none"),
        ("shrink_underused", "shrink_underused"),
    ] {
        if let Ok(text) = std::fs::read_to_string(format!("{DIR}/{file}")) {
            all.push(Finding::fact(SECTION, name, chosen(text.trim())));
        }
    }
    let by_fault = Trial::new().is_some_and(|t| t.by_fault());
    let by_collapse = Trial::new().is_some_and(|t| t.by_collapse());
    let (text, value) = match (by_fault, by_collapse) {
        (true, _) => ("by page fault", "fault"),
        (false, true) => ("by collapse, in the background", "collapse"),
        (false, false) => ("not at all", "none"),
    };
    let f = Finding::fact(SECTION, "can be had", text).value(json!(value));
    all.push(match value {
        "fault" => f,
        "collapse" => f.state(
            State::Note,
            format!("faster by fault, as root: echo madvise > {DIR}/enabled"),
        ),
        _ => f.state(
            State::Note,
            format!(
                "small pages only; as root: echo madvise > {DIR}/enabled (or memory is fragmented)"
            ),
        ),
    });
    all
}

/// `always [madvise] never` -> `madvise`; anything else as it is.
fn chosen(text: &str) -> String {
    let inner = text.split_once('[').and_then(|(_, r)| r.split_once(']'));
    inner.map_or(text, |(word, _)| word).to_owned()
}

/// An aligned block of fresh memory.
struct Trial(Memory);

impl Trial {
    fn new() -> Option<Trial> {
        Memory::map_aligned(BLOCK, BLOCK).ok().map(Trial)
    }

    fn advise(&mut self, advice: Advice) -> bool {
        self.0.advise(0..BLOCK, advice).is_ok()
    }

    fn touch(&mut self, bytes: usize) {
        (0..bytes).step_by(PAGE).for_each(|at| self.0.touch(at, 1));
    }

    /// Whether the block is one huge page, by `AnonHugePages` of its mapping.
    fn is_huge(&self) -> bool {
        let text = std::fs::read_to_string("/proc/self/smaps").unwrap_or_default();
        let address = self.0.as_ptr().addr();
        let mut inside = false;
        for line in text.lines() {
            if let Some(range) = procfs::range(line) {
                inside = range.contains(&(address as u64));
            }
            if inside && let Some(rest) = line.strip_prefix("AnonHugePages:") {
                return rest.split_whitespace().next().is_some_and(|n| n != "0");
            }
        }
        false
    }

    fn by_fault(mut self) -> bool {
        self.advise(Advice::HugePage) && {
            self.touch(1);
            self.is_huge()
        }
    }

    fn by_collapse(mut self) -> bool {
        // As on a block that is filled by small pages: first not huge, then collapsed.
        self.advise(Advice::NoHugePage);
        self.touch(BLOCK);
        self.advise(Advice::HugePage);
        self.advise(Advice::Collapse) && self.is_huge()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_chosen_setting_is_the_one_in_brackets() {
        assert_eq!(chosen("always [madvise] never"), "madvise");
        assert_eq!(chosen("511"), "511");
    }

    #[test]
    fn a_block_of_small_pages_is_not_taken_for_a_huge_one() {
        let mut t = Trial::new().unwrap();
        assert!(t.advise(Advice::NoHugePage));
        t.touch(BLOCK);
        assert!(!t.is_huge());
    }
}
