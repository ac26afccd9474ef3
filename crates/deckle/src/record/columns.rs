//! The columns of a record.

use deckle_group::{Gauges, Group};
use deckle_mm::{Item, PAGE_SIZE};

/// What a column is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// A level: of two samples that become one the larger counts.
    Gauge,
    /// What only grows: the later one counts.
    Counter,
    /// A setting: the later one counts.
    Setting,
}
use Kind::{Counter, Gauge, Setting};

/// What samples are taken from.
struct Source<'a> {
    group: &'a Group,
    gauges: Gauges,
    processes: u64,
}

impl Source<'_> {
    fn bytes(&self, of: Item) -> u64 {
        bytes(self.group.counter(of))
    }
}

fn bytes(pages: u64) -> u64 {
    // Whoever may write the group's page can lie in it.
    pages.saturating_mul(PAGE_SIZE as u64)
}

/// A column: its name, what it is, and where it comes from. The first, the time, is not here.
type Column = (&'static str, Kind, fn(&Source<'_>) -> u64);

const COLUMNS: [Column; 19] = [
    ("memory_bytes", Gauge, |s| bytes(s.group.usage())),
    ("resident_bytes", Gauge, |s| bytes(s.gauges.resident)),
    ("inactive_bytes", Gauge, |s| bytes(s.gauges.inactive)),
    ("huge_bytes", Gauge, |s| {
        s.bytes(Item::NrThp).saturating_mul(512)
    }),
    ("stored_bytes", Gauge, |s| bytes(s.gauges.stored_pages)),
    ("swapped_bytes", Gauge, |s| bytes(s.gauges.swapped)),
    ("file_bytes", Gauge, |s| bytes(s.gauges.file_pages)),
    // The most so far: no process tells its own.
    ("unmanaged_anon_bytes", Gauge, |s| {
        bytes(s.group.peak_gauges().unmanaged_anon)
    }),
    ("processes", Gauge, |s| s.processes),
    ("pgfault", Counter, |s| s.group.counter(Item::Pgfault)),
    ("pgmajfault", Counter, |s| s.group.counter(Item::Pgmajfault)),
    ("pswpout", Counter, |s| s.group.counter(Item::Pswpout)),
    ("pswpin", Counter, |s| s.group.counter(Item::Pswpin)),
    ("swpout_zero", Counter, |s| {
        s.group.counter(Item::SwpoutZero)
    }),
    ("thp_split_page", Counter, |s| {
        s.group.counter(Item::ThpSplitPage)
    }),
    ("pressure_some_us", Counter, |s| {
        s.group.counter(Item::PressureSome)
    }),
    ("pressure_full_us", Counter, |s| {
        s.group.counter(Item::PressureFull)
    }),
    ("oom_kill", Counter, |s| s.group.oom_kills()),
    // 0: no limit.
    ("memory_max_bytes", Setting, |s| {
        match s.group.limits().max {
            u64::MAX => 0,
            pages => bytes(pages),
        }
    }),
];

/// Numbers of one sample, milliseconds since the start first.
pub(super) type Row = [u64; COLUMNS.len() + 1];

/// The names, that of the time first.
pub(super) fn names() -> Vec<&'static str> {
    let mut names = vec!["t_ms"];
    names.extend(COLUMNS.iter().map(|(name, ..)| *name));
    names
}

/// A sample, `t_ms` after the start.
pub(super) fn sample(group: &Group, processes: usize, t_ms: u64) -> Row {
    let source = Source {
        group,
        gauges: group.gauges(),
        processes: processes as u64,
    };
    let mut row = [t_ms; COLUMNS.len() + 1];
    for ((.., of), to) in COLUMNS.iter().zip(&mut row[1..]) {
        *to = of(&source);
    }
    row
}

/// One sample for two that follow each other.
pub(super) fn merge(earlier: &Row, later: &Row) -> Row {
    let mut row = *later;
    for (i, (_, kind, _)) in COLUMNS.iter().enumerate() {
        if *kind == Gauge {
            row[i + 1] = earlier[i + 1].max(later[i + 1]);
        }
    }
    row
}
