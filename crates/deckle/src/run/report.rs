//! What is said at the end: a summary for people, JSON for programs.

use std::time::Duration;

use deckle_group::Group;
use deckle_mm::{Item, PAGE_SIZE, SIZE_ORDERS, SizeItem};
use serde_json::{Value, json};

use super::knobs;
use super::supervise::End;
use crate::size::show;

const PAGE: u64 = PAGE_SIZE as u64;

/// Everything, in bytes.
pub struct Report {
    /// It is only watched.
    pub unmanaged: bool,
    /// `memory.max`, if there is one.
    pub max: Option<u64>,
    /// The largest that it ever was, if there always was one.
    pub largest_max: Option<u64>,
    /// `memory.high`, if there is one.
    pub high: Option<u64>,
    /// `memory.swap.max`, if there is one.
    pub swap_max: Option<u64>,
    /// None: it runs still.
    pub status: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// Since the start.
    pub wall_s: f64,
    /// What is charged.
    pub usage: u64,
    /// The most that was.
    pub peak: u64,
    /// Pages mapped.
    pub resident: u64,
    /// Those in memory that are not mapped.
    pub inactive: u64,
    /// The most that were mapped.
    pub resident_peak: u64,
    /// Compressed data.
    pub stored: u64,
    /// Memory that it takes.
    pub store: u64,
    /// The most data that there were.
    pub stored_peak: u64,
    /// What the program has in swap.
    pub swapped: u64,
    /// The most that was there.
    pub swapped_peak: u64,
    /// Of this in files, and what it takes there.
    pub filed: [u64; 2],
    /// The most that were.
    pub filed_peak: [u64; 2],
    /// The most that the limit did not hold.
    pub unmanaged_anon: u64,
    /// Managed processes now.
    pub processes: u64,
    /// Managed programs, ever.
    pub programs: u64,
    /// Others.
    pub programs_unmanaged: u64,
    /// Processes killed at the limit.
    pub killed: u64,
    /// Where cold pages go.
    pub swap: String,
    /// All counters and gauges.
    pub counters: Vec<(Item, u64)>,
    /// Those of each size of folio.
    pub sizes: Value,
    /// Of which it is told.
    group: Group,
}

impl Report {
    /// Reads the group: at its end, or as it is `wall` after its start.
    pub fn gather(group: &Group, swap: String, end: Result<&End, Duration>) -> Report {
        let (now, peak) = (group.gauges(), group.peak_gauges());
        let limits = group.limits();
        let limit = |pages: u64| (pages != u64::MAX).then(|| pages.saturating_mul(PAGE));
        // Whoever may write the group's page can lie in it.
        let bytes = |pages: u64| pages.saturating_mul(PAGE);
        Report {
            unmanaged: group.is_unmanaged(),
            max: limit(limits.max),
            largest_max: limit(group.largest_max()),
            high: limit(limits.high),
            swap_max: limit(limits.swap_max),
            status: end.ok().map(|end| end.status),
            signal: end.ok().and_then(|end| end.signal),
            wall_s: end.map_or_else(|wall| wall, |end| end.wall).as_secs_f64(),
            usage: bytes(group.usage()),
            peak: bytes(group.peak()),
            resident: bytes(now.resident),
            inactive: bytes(now.inactive),
            resident_peak: bytes(peak.resident),
            stored: now.stored_bytes,
            store: bytes(now.stored_pages),
            stored_peak: peak.stored_bytes,
            swapped: bytes(now.swapped),
            swapped_peak: bytes(peak.swapped.max(group.swap_peak())),
            filed: [now.filed, now.file_pages].map(bytes),
            filed_peak: [peak.filed, peak.file_pages].map(bytes),
            unmanaged_anon: bytes(peak.unmanaged_anon),
            processes: group.processes().count() as u64,
            programs: group.joins(),
            programs_unmanaged: u64::from(group.unmanaged_programs()),
            killed: group.oom_kills(),
            counters: Item::ALL.iter().map(|i| (*i, group.counter(*i))).collect(),
            sizes: sizes(group),
            group: *group,
            swap,
        }
    }

    /// A counter or gauge.
    pub fn counter(&self, item: Item) -> u64 {
        self.counters
            .iter()
            .find(|(i, _)| *i == item)
            .map_or(0, |(_, n)| *n)
    }

    /// The knobs that are in force.
    pub fn knobs(&self) -> Value {
        knobs::json(&self.group, &self.swap)
    }

    /// JSON with raw integers; amounts of memory in bytes, counters as the kernel counts them.
    /// `stored` is what swapped pages take in the store (`store_memory`: with the room between),
    /// `swapped` what the program sees, `filed`
    /// what of it is in files, and `file` what it takes there.
    /// `exit_status` is null while the program runs. New members may come without a new schema.
    pub fn json(&self) -> Value {
        let mut all = self.head();
        all["counters"] = self
            .counters
            .iter()
            .map(|(i, n)| (i.name().to_owned(), json!(n)))
            .collect();
        all["sizes"] = self.sizes.clone();
        all["knobs"] = self.knobs();
        all
    }

    /// The same without what has many members of its own.
    pub fn head(&self) -> Value {
        json!({
            "schema": 1,
            "managed": !self.unmanaged,
            "exit_status": self.status,
            "signal": self.signal,
            "wall_s": self.wall_s,
            "memory_max_bytes": self.max,
            "memory_max_largest_bytes": self.largest_max,
            "memory_high_bytes": self.high,
            "swap": self.swap,
            "swap_max_bytes": self.swap_max,
            "peak": {
                "memory_bytes": self.peak,
                "resident_bytes": self.resident_peak,
                "stored_bytes": self.stored_peak,
                "swapped_bytes": self.swapped_peak,
                "filed_bytes": self.filed_peak[0],
                "file_bytes": self.filed_peak[1],
                "unmanaged_anon_bytes": self.unmanaged_anon,
            },
            "current": {
                "memory_bytes": self.usage,
                "resident_bytes": self.resident,
                "inactive_bytes": self.inactive,
                "stored_bytes": self.stored,
                "store_memory_bytes": self.store,
                "swapped_bytes": self.swapped,
                "filed_bytes": self.filed[0],
                "file_bytes": self.filed[1],
            },
            "pressure": {
                "some_us": self.counter(Item::PressureSome),
                "full_us": self.counter(Item::PressureFull),
            },
            "processes_now": self.processes,
            "programs_managed": self.programs,
            "programs_unmanaged": self.programs_unmanaged,
            "oom_kills": self.killed,
            "counters": null,
            "sizes": null,
            "knobs": null,
        })
    }

    /// The summary for standard error.
    pub fn text(&self) -> String {
        let mut out = String::new();
        let mut line = |name: &str, text: String| {
            out.push_str(&format!("deckle: {name:<9}{text}\n"));
        };
        if self.unmanaged {
            let anon = show(self.unmanaged_anon);
            line(
                "memory",
                format!("not managed (--unmanaged); anonymous peak {anon} (sampled)"),
            );
            return out;
        }
        line("memory", self.memory());
        line("swap", self.swapped());
        if self.filed_peak[0] > 0 {
            line("file", self.filed());
        }
        let zeros = self
            .counter(Item::SwpoutZero)
            .saturating_add(self.counter(Item::ThpSplitUnmap));
        line(
            "zeros",
            format!(
                "{zeros} pages dropped ({})",
                show(zeros.saturating_mul(PAGE))
            ),
        );
        line(
            "faults",
            format!(
                "{} ({} from swap), {} huge pages, {} fell back",
                self.counter(Item::Pgfault),
                self.counter(Item::Pgmajfault),
                self.counter(Item::ThpFaultAlloc),
                self.counter(Item::ThpFaultFallback),
            ),
        );
        line("pressure", self.pressure());
        line(
            "outside",
            format!(
                "unmanaged_anon {} (stacks, .bss, shared), programs unmanaged {}",
                show(self.unmanaged_anon),
                self.programs_unmanaged
            ),
        );
        if self.killed > 0 {
            line(
                "killed",
                match self.killed {
                    1 => "one process at the limit".to_owned(),
                    n => format!("{n} processes at the limit"),
                },
            );
        }
        out
    }

    /// Whether the peak is above `memory.max` because that was lowered later.
    pub fn is_peak_before_lowered(&self) -> bool {
        let was_larger = |max| self.largest_max.is_none_or(|largest| largest > max);
        self.max
            .is_some_and(|max| self.peak > max && was_larger(max))
    }

    fn memory(&self) -> String {
        let max = |max: Option<u64>| max.map_or("no limit".to_owned(), show);
        let [peak, resident] = [self.peak, self.resident_peak].map(show);
        let limit = if self.max.is_some() { "limit " } else { "" };
        let lowered = match self.is_peak_before_lowered() {
            true => format!(
                "; the peak was before it was lowered from {}",
                max(self.largest_max)
            ),
            false => String::new(),
        };
        let of = max(self.max);
        format!("peak {peak} ({limit}{of}{lowered}), resident peak {resident}")
    }

    /// Pages of a counter, as bytes.
    fn pages(&self, item: Item) -> String {
        show(self.counter(item).saturating_mul(PAGE))
    }

    fn swapped(&self) -> String {
        let [out, back] = [Item::Pswpout, Item::Pswpin].map(|item| self.pages(item));
        let [peak, kept] = [self.swapped_peak, self.stored_peak].map(show);
        // What is in files was not kept there.
        let ratio = ratio(self.swapped_peak, self.stored_peak, self.filed_peak[0]);
        let swap = &self.swap;
        format!("{out} out, {back} in; peak {peak} kept in {kept}{ratio} [{swap}]")
    }

    fn filed(&self) -> String {
        let [out, back] = [Item::Zswpwb, Item::SwpinFile].map(|item| self.pages(item));
        let [filed, file] = self.filed_peak.map(show);
        format!("{out} on from there, {back} in; peak {filed} kept in {file}")
    }

    fn pressure(&self) -> String {
        let stalled = |item| self.counter(item) as f64 / 1e6;
        let (some, full) = (stalled(Item::PressureSome), stalled(Item::PressureFull));
        // Each process has a clock of its own.
        let summed = match some > self.wall_s {
            true => ", summed over processes",
            false => "",
        };
        format!(
            "some {some:.3} s, full {full:.3} s of {:.3} s{summed}",
            self.wall_s
        )
    }
}

/// What is counted for each size of folio, under the kernel's name of the size.
fn sizes(group: &Group) -> Value {
    let size = |order| -> Value {
        let one = |i: &SizeItem| (i.name().to_owned(), json!(group.size_counter(order, *i)));
        SizeItem::ALL.iter().map(one).collect()
    };
    SIZE_ORDERS
        .map(|order| {
            (
                format!("hugepages-{}kB", (PAGE_SIZE >> 10) << order),
                size(order),
            )
        })
        .collect()
}

fn ratio(logical: u64, stored: u64, filed: u64) -> String {
    if stored == 0 || filed > 0 {
        return String::new();
    }
    format!(" ({:.1}:1)", logical as f64 / stored as f64)
}
