//! What is drawn of a record: panels of series over time, of at most so many points.

use deckle_mm::PAGE_SIZE;

use crate::record::Record;

/// Most points of a series: more than there are pixels.
const POINTS: usize = 1200;

/// Numbers over time.
pub(super) struct Series {
    pub name: &'static str,
    pub colour: &'static str,
    pub values: Vec<f64>,
}

/// How the numbers of a panel are shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Unit {
    Bytes,
    BytesPerSecond,
    PerSecond,
    Percent,
}

impl Unit {
    /// A number of this unit.
    pub fn show(self, n: f64) -> String {
        match self {
            Unit::Bytes => crate::size::show(n as u64),
            Unit::BytesPerSecond => format!("{}/s", crate::size::show(n as u64)),
            Unit::PerSecond if n >= 1e4 => format!("{:.0}k/s", n / 1e3),
            Unit::PerSecond => format!("{n:.0}/s"),
            Unit::Percent => format!("{n:.0} %"),
        }
    }
}

/// Series in one plane.
pub(super) struct Panel {
    pub title: &'static str,
    pub unit: Unit,
    /// Those that stand on each other, the lowest first.
    pub areas: Vec<Series>,
    pub lines: Vec<Series>,
    /// A limit, with its name.
    pub limit: Option<(&'static str, f64)>,
}

/// The times of all points, in milliseconds, and the panels.
pub(super) fn panels(record: &Record) -> (Vec<u64>, Vec<Panel>) {
    let source = Source::new(record);
    let limit = record.head["memory_max_bytes"].as_f64();
    let lines = |title, unit, lines: &[Line]| {
        let lines = lines.iter().map(|&(name, colour, column)| Series {
            name,
            colour,
            values: source.of(column, unit),
        });
        Panel {
            title,
            unit,
            areas: Vec::new(),
            lines: lines.collect(),
            limit: None,
        }
    };
    let charged = [("charged", "#222222", "memory_bytes")];
    let memory = Panel {
        areas: memory(&source),
        limit: limit.map(|bytes| ("limit", bytes)),
        ..lines("Memory", Unit::Bytes, &charged)
    };
    let swap = [
        ("as the programs see it", "#8a4f9e", "swapped_bytes"),
        ("compressed", "#e0a458", "stored_bytes"),
        ("in files", "#777777", "file_bytes"),
    ];
    let faults = [
        ("all", "#6aa7d6", "pgfault"),
        ("from swap", "#c0392b", "pgmajfault"),
    ];
    let moved = [("out", "#e0a458", "pswpout"), ("in", "#c0392b", "pswpin")];
    let pressure = [
        ("some", "#e0a458", "pressure_some_us"),
        ("full", "#c0392b", "pressure_full_us"),
    ];
    let panels = vec![
        memory,
        lines("Swap", Unit::Bytes, &swap),
        lines("Faults", Unit::PerSecond, &faults),
        lines("To and from swap", Unit::BytesPerSecond, &moved),
        lines("Pressure", Unit::Percent, &pressure),
    ];
    (source.times(), panels)
}

/// A line: its name, its colour, and its column.
type Line = (&'static str, &'static str, &'static str);

/// What memory is, the lowest first.
fn memory(source: &Source<'_>) -> Vec<Series> {
    let (mapped, huge) = (source.gauge("resident_bytes"), source.gauge("huge_bytes"));
    let both = || mapped.iter().zip(&huge);
    let series = |name, colour, values| Series {
        name,
        colour,
        values,
    };
    let huge = both().map(|(m, h)| m.min(*h)).collect();
    let rest = both().map(|(m, h)| (m - h).max(0.0)).collect();
    vec![
        series("huge pages", "#1f5a8a", huge),
        series("other pages", "#6aa7d6", rest),
        series("unmapped", "#bcd7ec", source.gauge("inactive_bytes")),
        series("compressed", "#e0a458", source.gauge("stored_bytes")),
    ]
}

/// The samples in groups, of each of which one point is made.
struct Source<'a> {
    record: &'a Record,
    times: Vec<u64>,
    each: usize,
}

impl<'a> Source<'a> {
    fn new(record: &'a Record) -> Source<'a> {
        let times = record.samples.iter().map(|row| row[0]).collect::<Vec<_>>();
        let each = times.len().div_ceil(POINTS).max(1);
        Source {
            record,
            times,
            each,
        }
    }

    fn times(&self) -> Vec<u64> {
        let groups = self.times.chunks(self.each);
        groups.map(|group| group[group.len() - 1]).collect()
    }

    /// Numbers of a unit: levels are in bytes, and what only grows in events, pages or
    /// microseconds.
    fn of(&self, column: &str, unit: Unit) -> Vec<f64> {
        let factor = match unit {
            Unit::Bytes => return self.gauge(column),
            Unit::PerSecond => 1.0,
            Unit::BytesPerSecond => PAGE_SIZE as f64,
            // Microseconds in a second.
            Unit::Percent => 1e-4,
        };
        self.rate(column).iter().map(|n| n * factor).collect()
    }

    /// The largest of each group; 0 where the record has no such column.
    fn gauge(&self, column: &str) -> Vec<f64> {
        let all = self.column(column);
        let most = |group: &[u64]| group.iter().copied().max().unwrap_or(0) as f64;
        all.chunks(self.each).map(most).collect()
    }

    /// By how much a second it has grown since the group before.
    fn rate(&self, column: &str) -> Vec<f64> {
        let all = self.column(column);
        let last = all.chunks(self.each).map(|group| group[group.len() - 1]);
        let mut before = (0, 0);
        last.zip(self.times())
            .map(|(n, t)| {
                let (grown, ms) = (n.saturating_sub(before.0), t.saturating_sub(before.1));
                before = (n, t);
                if ms == 0 {
                    0.0
                } else {
                    grown as f64 * 1e3 / ms as f64
                }
            })
            .collect()
    }

    fn column(&self, name: &str) -> Vec<u64> {
        let none = || vec![0; self.times.len()];
        self.record.column(name).unwrap_or_else(none)
    }
}
