//! What is drawn of a record: panels of series over time, of at most so many points.

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
    let gauge = |name, colour, column: &str| Series {
        name,
        colour,
        values: source.gauge(column),
    };
    let rate = |name, colour, column: &str, factor: f64| Series {
        name,
        colour,
        values: source.rate(column).iter().map(|n| n * factor).collect(),
    };
    let (mapped, huge) = (source.gauge("resident_bytes"), source.gauge("huge_bytes"));
    let of_both = |f: fn(f64, f64) -> f64| (mapped.iter().zip(&huge)).map(move |(m, h)| f(*m, *h));
    let head = |key: &str| record.head[key].as_f64();
    let limit = head("memory_max_bytes").map(|bytes| ("limit", bytes));
    let panels = vec![
        Panel {
            title: "Memory",
            unit: Unit::Bytes,
            areas: vec![
                Series {
                    name: "huge pages",
                    colour: "#1f5a8a",
                    values: of_both(f64::min).collect(),
                },
                Series {
                    name: "other pages",
                    colour: "#6aa7d6",
                    values: of_both(|m, h| (m - h).max(0.0)).collect(),
                },
                gauge("unmapped", "#bcd7ec", "inactive_bytes"),
                gauge("compressed", "#e0a458", "stored_bytes"),
            ],
            lines: vec![gauge("charged", "#222222", "memory_bytes")],
            limit,
        },
        Panel {
            title: "Swap",
            unit: Unit::Bytes,
            areas: Vec::new(),
            lines: vec![
                gauge("as the programs see it", "#8a4f9e", "swapped_bytes"),
                gauge("compressed", "#e0a458", "stored_bytes"),
                gauge("in files", "#777777", "file_bytes"),
            ],
            limit: None,
        },
        Panel {
            title: "Faults",
            unit: Unit::PerSecond,
            areas: Vec::new(),
            lines: vec![
                rate("all", "#6aa7d6", "pgfault", 1.0),
                rate("from swap", "#c0392b", "pgmajfault", 1.0),
            ],
            limit: None,
        },
        Panel {
            title: "To and from swap",
            unit: Unit::BytesPerSecond,
            areas: Vec::new(),
            lines: vec![
                rate("out", "#e0a458", "pswpout", 4096.0),
                rate("in", "#c0392b", "pswpin", 4096.0),
            ],
            limit: None,
        },
        Panel {
            title: "Pressure",
            unit: Unit::Percent,
            areas: Vec::new(),
            lines: vec![
                // Microseconds in a second, as percent.
                rate("some", "#e0a458", "pressure_some_us", 1e-4),
                rate("full", "#c0392b", "pressure_full_us", 1e-4),
            ],
            limit: None,
        },
    ];
    (source.times(), panels)
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
