//! Transparent huge pages: the settings, and by trial how one can be had here.

use std::ptr;

use serde_json::json;

use super::{Finding, State};

const SECTION: &str = "transparent huge pages";
const DIR: &str = "/sys/kernel/mm/transparent_hugepage";
const BLOCK: usize = 2 << 20;
const MADV_COLLAPSE: i32 = 25;

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
struct Trial {
    map: *mut u8,
    block: *mut u8,
}

impl Trial {
    fn new() -> Option<Trial> {
        // SAFETY: a new private mapping at an address of the kernel's choice.
        let map = unsafe {
            libc::mmap(
                ptr::null_mut(),
                2 * BLOCK,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if map == libc::MAP_FAILED {
            return None;
        }
        let map = map.cast::<u8>();
        // SAFETY: the aligned block lies inside the mapping of twice its size.
        let block = unsafe { map.add(map.align_offset(BLOCK)) };
        Some(Trial { map, block })
    }

    fn advise(&self, advice: i32) -> bool {
        // SAFETY: the block is ours; none of these advices loses data that anyone needs.
        unsafe { libc::madvise(self.block.cast(), BLOCK, advice) == 0 }
    }

    fn touch(&self, bytes: usize) {
        for at in (0..bytes).step_by(4096) {
            // SAFETY: inside the block, which is writable.
            unsafe { self.block.add(at).write_volatile(1) };
        }
    }

    /// Whether the block is one huge page, by `AnonHugePages` of its mapping.
    fn is_huge(&self) -> bool {
        let text = std::fs::read_to_string("/proc/self/smaps").unwrap_or_default();
        let address = self.block as usize;
        let mut inside = false;
        for line in text.lines() {
            if let Some((range, _)) = line.split_once(' ')
                && let Some((start, end)) = range.split_once('-')
            {
                let number = |s| usize::from_str_radix(s, 16).unwrap_or(0);
                inside = (number(start)..number(end)).contains(&address);
            }
            if inside && let Some(rest) = line.strip_prefix("AnonHugePages:") {
                return rest.split_whitespace().next().is_some_and(|n| n != "0");
            }
        }
        false
    }

    fn by_fault(&self) -> bool {
        self.advise(libc::MADV_HUGEPAGE) && {
            self.touch(1);
            self.is_huge()
        }
    }

    fn by_collapse(&self) -> bool {
        // As on a block that is filled by small pages: first not huge, then collapsed.
        self.advise(libc::MADV_NOHUGEPAGE);
        self.touch(BLOCK);
        self.advise(libc::MADV_HUGEPAGE);
        self.advise(MADV_COLLAPSE) && self.is_huge()
    }
}

impl Drop for Trial {
    fn drop(&mut self) {
        // SAFETY: our own mapping, not used after this.
        unsafe { libc::munmap(self.map.cast(), 2 * BLOCK) };
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
        let t = Trial::new().unwrap();
        assert!(t.advise(libc::MADV_NOHUGEPAGE));
        t.touch(BLOCK);
        assert!(!t.is_huge());
    }
}
