//! OpenMetrics text: of each tree what it uses, its limits and its counters.

use std::fmt::Display;

use deckle_group::is_gauge;
use deckle_inspect::openmetrics::{Family, Text};
use deckle_mm::Item;
use serde_json::Value;

use crate::run::report::Report;

/// Trees by what they are called.
type Trees<'a> = [(&'a String, &'a Report)];

/// A family with a sample of each tree.
fn family<V: Display>(
    out: &mut Text,
    f: &Family<'_>,
    trees: &Trees<'_>,
    of: impl Fn(&Report) -> V,
) {
    out.begin(f);
    for (tree, report) in trees {
        out.sample(f, &[("tree", tree)], of(report));
    }
}

/// A limit; what has none is infinite.
fn limit(bytes: Option<u64>) -> String {
    bytes.map_or("+Inf".to_owned(), |bytes| bytes.to_string())
}

type Amount = (&'static str, &'static str, fn(&Report) -> String);

/// What is measured in bytes.
const BYTES: [Amount; 17] = [
    ("memory_charged", "What memory.max is held against.", |r| {
        r.usage.to_string()
    }),
    ("memory_peak", "The most that was charged.", |r| {
        r.peak.to_string()
    }),
    ("memory_max", "The limit.", |r| limit(r.max)),
    ("memory_high", "Reclaim begins above this.", |r| {
        limit(r.high)
    }),
    (
        "memory_resident",
        "Pages of programs in memory, mapped.",
        |r| r.resident.to_string(),
    ),
    (
        "memory_inactive",
        "Pages in memory, not mapped, to be evicted next.",
        |r| r.inactive.to_string(),
    ),
    ("memory_resident_peak", "The most of them.", |r| {
        r.resident_peak.to_string()
    }),
    (
        "memory_unmanaged_peak",
        "The most that the limit did not hold.",
        |r| r.unmanaged_anon.to_string(),
    ),
    ("swap_used", "Swapped pages, as programs count them.", |r| {
        r.swapped.to_string()
    }),
    ("swap_used_peak", "The most of them.", |r| {
        r.swapped_peak.to_string()
    }),
    ("swap_max", "The limit of swapped pages.", |r| {
        limit(r.swap_max)
    }),
    ("swap_compressed", "Compressed data.", |r| {
        r.stored.to_string()
    }),
    ("swap_compressed_peak", "The most of it.", |r| {
        r.stored_peak.to_string()
    }),
    ("swap_memory", "Memory that compressed data take.", |r| {
        r.store.to_string()
    }),
    ("swap_filed", "Swapped pages that are in files.", |r| {
        r.filed[0].to_string()
    }),
    ("swap_file", "What files take of the disk.", |r| {
        r.filed[1].to_string()
    }),
    (
        "zeros_dropped",
        "Pages of zeros that programs have and that cost nothing.",
        |r| r.counter(Item::NrZero).saturating_mul(4096).to_string(),
    ),
];

/// What is counted otherwise; true: it only grows.
const NUMBERS: [(&str, bool, Amount); 6] = [
    (
        "",
        false,
        ("running", "1 while the tree runs.", |r| {
            u8::from(r.status.is_none()).to_string()
        }),
    ),
    (
        "",
        false,
        ("processes", "Managed processes.", |r| {
            r.processes.to_string()
        }),
    ),
    (
        "",
        true,
        ("programs", "Programs that were managed.", |r| {
            r.programs.to_string()
        }),
    ),
    (
        "",
        true,
        (
            "programs_unmanaged",
            "Programs that ran outside the limit.",
            |r| r.programs_unmanaged.to_string(),
        ),
    ),
    (
        "",
        true,
        ("oom_kills", "Processes killed at the limit.", |r| {
            r.killed.to_string()
        }),
    ),
    (
        "seconds",
        false,
        ("age", "Time since the start.", |r| {
            format!("{:.3}", r.wall_s)
        }),
    ),
];

/// The text of these trees.
pub fn text(trees: &Trees<'_>) -> String {
    let mut out = Text::default();
    for (unit, counter, (name, help, of)) in NUMBERS {
        let f = Family::gauge(&format!("deckle_{name}"), unit, help).counting(counter);
        family(&mut out, &f, trees, of);
    }
    for (name, help, of) in BYTES {
        let f = Family::gauge(&format!("deckle_{name}"), "bytes", help);
        family(&mut out, &f, trees, of);
    }
    pressure(&mut out, trees);
    counters(&mut out, trees);
    sizes(&mut out, trees);
    out.end()
}

fn pressure(out: &mut Text, trees: &Trees<'_>) {
    for (name, item, help) in [
        (
            "deckle_pressure_waiting",
            Item::PressureSome,
            "Time in which somebody waited for memory (PSI some), summed over processes.",
        ),
        (
            "deckle_pressure_stalled",
            Item::PressureFull,
            "The part of it in which the program did nothing else (PSI full).",
        ),
    ] {
        let f = Family::gauge(name, "seconds", help).counting(true);
        family(out, &f, trees, |r| {
            format!("{:.6}", r.counter(item) as f64 / 1e6)
        });
    }
}

/// The counters of /proc/vmstat, under its names.
fn counters(out: &mut Text, trees: &Trees<'_>) {
    for item in Item::ALL {
        if matches!(item, Item::PressureSome | Item::PressureFull) {
            continue;
        }
        let name = format!("deckle_vmstat_{}", item.name());
        let counter = !is_gauge(*item);
        let help = "As in /proc/vmstat, of the tree.";
        let f = Family::gauge(&name, "", help).counting(counter);
        family(out, &f, trees, |r| r.counter(*item));
    }
}

/// Those of each size of folio.
fn sizes(out: &mut Text, trees: &Trees<'_>) {
    for item in deckle_mm::SizeItem::ALL {
        let name = format!("deckle_hugepages_{}", item.name());
        let counter = !item.name().starts_with("nr_");
        let help = "As in hugepages-SIZE/stats, of the tree.";
        let f = Family::gauge(&name, "", help).counting(counter);
        out.begin(&f);
        for (tree, report) in trees {
            for (size, of) in report.sizes.as_object().into_iter().flatten() {
                let size = size.trim_start_matches("hugepages-");
                let value = of.get(item.name()).and_then(Value::as_u64).unwrap_or(0);
                out.sample(&f, &[("tree", tree), ("size", size)], value);
            }
        }
    }
}
