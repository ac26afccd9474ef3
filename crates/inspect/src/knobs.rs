//! The kernel, and its settings of huge pages that are in force.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use crate::tally;

/// Counters that tell what has become of huge pages, of `/proc/vmstat`.
const COUNTERS: [&str; 4] = [
    "thp_fault_alloc",
    "thp_collapse_alloc",
    "thp_split_page",
    "thp_underused_split_page",
];
/// Huge pages that khugepaged has made; `thp_collapse_alloc` has those that programs asked for,
/// too.
pub const COLLAPSED: &str = "pages_collapsed";

/// What is in force.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Knobs {
    /// Release of the kernel.
    pub kernel: String,
    /// `enabled`; none on a kernel without huge pages.
    pub enabled: Option<String>,
    /// `defrag`.
    pub defrag: String,
    /// `shrink_underused`; none where there is no such shrinker.
    pub shrink_underused: Option<bool>,
    /// `khugepaged/max_ptes_none`, which is the shrinker's threshold, too.
    pub max_ptes_none: Option<u32>,
    /// `khugepaged/defrag`.
    pub khugepaged: bool,
    /// `khugepaged/pages_to_scan`.
    pub pages_to_scan: u64,
    /// `khugepaged/scan_sleep_millisecs`.
    pub scan_sleep_millisecs: u64,
    /// Sizes below the huge page's that are not off, in KiB, with their mode.
    pub sizes: BTreeMap<u64, String>,
    /// Bytes of swap space.
    pub swap: u64,
    /// Counters of what has become of huge pages since boot, those that this kernel has.
    pub counters: BTreeMap<&'static str, u64>,
    /// Huge pages of the machine that are no file's, if that is told.
    pub nr_anon: Option<u64>,
    /// Of these, those of which a part was given back.
    pub nr_anon_partially_mapped: Option<u64>,
}

/// Where the settings are.
pub const DIR: &str = "sys/kernel/mm/transparent_hugepage";

impl Knobs {
    /// Those of this machine.
    pub fn read() -> Knobs {
        Knobs::read_in(Path::new("/"))
    }

    /// The same of a copy of its files.
    pub fn read_in(root: &Path) -> Knobs {
        let text = |path: &str| fs::read_to_string(root.join(path)).ok();
        let knob = |name: &str| Some(chosen(&text(&format!("{DIR}/{name}"))?));
        let number = |name: &str| knob(name)?.parse::<u64>().ok();
        let vmstat = text("proc/vmstat").unwrap_or_default();
        let counter = |name: &'static str| {
            let line = vmstat
                .lines()
                .find_map(|l| l.strip_prefix(name)?.strip_prefix(' '))?;
            Some((name, line.trim().parse().ok()?))
        };
        let collapsed = number("khugepaged/pages_collapsed").map(|n| (COLLAPSED, n));
        Knobs {
            kernel: text("proc/sys/kernel/osrelease")
                .unwrap_or_default()
                .trim()
                .to_owned(),
            enabled: knob("enabled"),
            defrag: knob("defrag").unwrap_or_default(),
            shrink_underused: number("shrink_underused").map(|n| n != 0),
            max_ptes_none: number("khugepaged/max_ptes_none").map(|n| n as u32),
            khugepaged: number("khugepaged/defrag") == Some(1),
            pages_to_scan: number("khugepaged/pages_to_scan").unwrap_or(0),
            scan_sleep_millisecs: number("khugepaged/scan_sleep_millisecs").unwrap_or(0),
            sizes: sizes(&root.join(DIR)),
            swap: swap(&text("proc/swaps").unwrap_or_default()),
            counters: COUNTERS
                .into_iter()
                .filter_map(counter)
                .chain(collapsed)
                .collect(),
            nr_anon: number("hugepages-2048kB/stats/nr_anon"),
            nr_anon_partially_mapped: number("hugepages-2048kB/stats/nr_anon_partially_mapped"),
        }
    }

    /// The threshold in force, if the shrinker does anything.
    pub fn threshold(&self) -> Option<u32> {
        let is_on = self.shrink_underused == Some(true);
        self.max_ptes_none.filter(|&n| is_on && tally::shrinks(n))
    }

    /// A counter; 0 if this kernel does not have it.
    pub fn counter(&self, name: &str) -> u64 {
        self.counters.get(name).copied().unwrap_or(0)
    }
}

/// `always [madvise] never` -> `madvise`; anything else as it is.
fn chosen(text: &str) -> String {
    let text = text.trim();
    let inner = text
        .split_once('[')
        .and_then(|(_, rest)| rest.split_once(']'));
    inner.map_or(text, |(word, _)| word).to_owned()
}

fn sizes(dir: &Path) -> BTreeMap<u64, String> {
    let of = |entry: fs::DirEntry| {
        let name = entry.file_name();
        let kib = name
            .to_str()?
            .strip_prefix("hugepages-")?
            .strip_suffix("kB")?;
        let kib: u64 = kib.parse().ok()?;
        let mode = chosen(&fs::read_to_string(entry.path().join("enabled")).ok()?);
        (mode != "never" && kib << 10 < crate::BLOCK).then_some((kib, mode))
    };
    let entries = fs::read_dir(dir).into_iter().flatten();
    entries.flatten().filter_map(of).collect()
}

fn swap(swaps: &str) -> u64 {
    let size = |line: &str| line.split_whitespace().nth(2)?.parse::<u64>().ok();
    let kib: u64 = swaps.lines().skip(1).filter_map(size).sum();
    kib << 10
}
