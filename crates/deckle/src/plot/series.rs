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
    /// A limit at each time, with its name; 0 where there is none.
    pub limit: Option<(&'static str, Vec<f64>)>,
}

/// The times of all points, in milliseconds, and the panels.
pub(super) fn panels(record: &Record) -> (Vec<u64>, Vec<Panel>) {
    let source = Source::new(record);
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
        limit: Some(("limit", source.last(&record.limits()))),
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
            Unit::Percent => return self.share(column),
        };
        self.rate(column).iter().map(|n| n * factor).collect()
    }

    /// The largest of each group; 0 where the record has no such column.
    fn gauge(&self, column: &str) -> Vec<f64> {
        let all = self.column(column);
        let most = |group: &[u64]| group.iter().copied().max().unwrap_or(0) as f64;
        all.chunks(self.each).map(most).collect()
    }

    /// The last of each group.
    fn last(&self, all: &[u64]) -> Vec<f64> {
        let last = |group: &[u64]| group[group.len() - 1] as f64;
        all.chunks(self.each).map(last).collect()
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

    /// Per cent of the time that microseconds of waiting are, 100 for each process at most.
    ///
    /// A wait is told when it is over, and each process tells a few times a second: what is more
    /// than there was time for since the group before was waited for in the time before.
    fn share(&self, column: &str) -> Vec<f64> {
        let ms = |n: &u64| *n as f64;
        let mut times: Vec<f64> = self.times().iter().map(ms).collect();
        let mut waits = self.last(&self.column(column));
        for of in [&mut times, &mut waits] {
            for i in (1..of.len()).rev() {
                of[i] = (of[i] - of[i - 1]).max(0.0);
            }
        }
        let processes = self.gauge("processes");
        let mut later = 0.0;
        for i in (0..waits.len()).rev() {
            // One that has ended since the group before was there for a part of the time.
            let most = processes[i].max(processes[i.saturating_sub(1)]).max(1.0);
            let room = times[i] * 1e3 * most;
            let wait = waits[i] + later;
            later = (wait - room).max(0.0);
            waits[i] = match times[i] {
                0.0 => 0.0,
                ms => wait.min(room) / (ms * 10.0),
            };
        }
        waits
    }

    fn column(&self, name: &str) -> Vec<u64> {
        let none = || vec![0; self.times.len()];
        self.record.column(name).unwrap_or_else(none)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A record of a process that has waited so many microseconds at each time.
    fn record(samples: &[[u64; 2]], processes: u64) -> Record {
        let head = r#"{"deckle_record":1,"columns":["t_ms","pressure_some_us","processes"]}"#;
        let row = |[t, us]: &[u64; 2]| format!("\n[{t},{us},{processes}]");
        let rows: String = samples.iter().map(row).collect();
        Record::parse(&format!("{head}{rows}")).unwrap()
    }

    #[test]
    fn what_is_told_late_was_waited_for_before() {
        let share = |samples: &[[u64; 2]], processes| {
            let record = record(samples, processes);
            Source::new(&record).of("pressure_some_us", Unit::Percent)
        };
        // Nothing new was told at 200, and all of it at 300.
        let late = [[0, 0], [100, 90_000], [200, 90_000], [300, 270_000]];
        assert_eq!(share(&late, 1), [0.0, 90.0, 80.0, 100.0]);
        assert_eq!(share(&late, 2), [0.0, 90.0, 0.0, 180.0]);
        // A wait of a second that is told at its end.
        let mut long: Vec<[u64; 2]> = (0..=20).map(|n| [n * 100, 0]).collect();
        long[20][1] = 1_000_000;
        let shown = share(&long, 1);
        assert!(shown[..11].iter().all(|n| *n == 0.0), "{shown:?}");
        assert!(shown[11..].iter().all(|n| *n == 100.0), "{shown:?}");
    }

    #[test]
    fn no_process_waits_for_more_than_all_of_the_time_and_no_wait_is_lost() {
        let mut random = 7_u64;
        let mut dice = |most: u64| {
            random = random.wrapping_mul(0xd134_2543_de82_ef95).wrapping_add(1);
            (random >> 33) % most
        };
        for _ in 0..200 {
            let processes = 1 + dice(3);
            let (mut samples, mut now, mut told) = (vec![[0, 0]], 0, 0);
            for _ in 0..50 {
                now += 1 + dice(300);
                // By chance nothing is told, or all that was waited for by now, or a part.
                if dice(3) > 0 {
                    let room = now * 1000 * processes - told;
                    told += dice(room + 1);
                }
                samples.push([now, told]);
            }
            let record = record(&samples, processes);
            let shown = Source::new(&record).of("pressure_some_us", Unit::Percent);
            let times = samples.windows(2).map(|two| (two[1][0] - two[0][0]) as f64);
            let sum: f64 = shown[1..]
                .iter()
                .zip(times)
                .map(|(n, ms)| n * ms * 10.0)
                .sum();
            let most = 100.0 * processes as f64 + 1e-9;
            assert!(shown.iter().all(|n| (0.0..=most).contains(n)), "{shown:?}");
            assert!((sum - told as f64).abs() < 1.0, "{sum} of {told}");
        }
    }
}
