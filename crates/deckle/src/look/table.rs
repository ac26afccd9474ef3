//! Statistics for people: a line for each tree, or all of one.

use std::fmt::Write;

use deckle_mm::Item;

use super::stat::{Process, Seen};
use crate::run::report::Report;

/// Bytes in six columns at most, binary units: `212.3M`.
pub fn short(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["", "K", "M", "G", "T", "P"];
    let (mut value, mut unit) = (bytes as f64, 0);
    while value >= 999.95 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    match unit {
        0 => bytes.to_string(),
        _ => format!("{value:.1}{}", UNITS[unit]),
    }
}

fn limit(bytes: Option<u64>) -> String {
    bytes.map_or("-".to_owned(), short)
}

/// A count in seven columns at most: `123456`, `1234.6k`.
pub fn count(n: f64) -> String {
    match n {
        n if n < 999_999.5 => format!("{n:.0}"),
        n if n < 9_999_950.0 => format!("{:.1}k", n / 1e3),
        n => format!("{:.1}M", n / 1e6),
    }
}

/// How much less memory swapped pages take.
pub fn ratio(logical: u64, memory: u64) -> String {
    match memory {
        0 => "-".to_owned(),
        _ => format!("{:.1}", logical as f64 / memory as f64),
    }
}

fn header(out: &mut String, wide: usize, rates: bool) {
    let [faults, ins] = match rates {
        true => ["faults/s", "swap-in/s"],
        false => ["faults", "swap-ins"],
    };
    let _ = writeln!(
        out,
        "{:<wide$} {:>5} {:>7} {:>7} {:>8} {:>7} {:>7} {:>5} {:>8} {:>9} {:>8}",
        "tree",
        "procs",
        "charged",
        "max",
        "resident",
        "stored",
        "in",
        "ratio",
        faults,
        ins,
        "pressure"
    );
}

/// A line for each tree; with `rates`, what is counted by the second.
pub fn lines(trees: &[Seen], rates: bool, head: bool) -> String {
    let mut out = String::new();
    let wide = trees
        .iter()
        .map(|t| t.called.len())
        .max()
        .unwrap_or(0)
        .max(8);
    if head {
        header(&mut out, wide, rates);
    }
    for t in trees {
        let r = &t.report;
        let [faults, ins] = [Item::Pgfault, Item::Pswpin].map(|item| match rates {
            true => t.rate(item),
            false => r.counter(item) as f64,
        });
        let _ = writeln!(
            out,
            "{:<wide$} {:>5} {:>7} {:>7} {:>8} {:>7} {:>7} {:>5} {:>8} {:>9} {:>7.1}%",
            t.called,
            r.processes,
            short(r.usage),
            limit(r.max),
            short(r.resident.saturating_add(r.inactive)),
            short(r.swapped),
            short(r.store),
            ratio(r.swapped, r.store),
            count(faults),
            count(ins),
            t.pressure(),
        );
    }
    out
}

/// A time for people.
pub fn clock(seconds: f64) -> String {
    let s = seconds as u64;
    format!("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60)
}

/// All of one tree, and its processes.
pub fn whole(t: &Seen) -> String {
    let r = &t.report;
    let (n, s) = (r.processes, if r.processes == 1 { "" } else { "es" });
    let (called, pid, age) = (&t.called, t.pid, clock(r.wall_s));
    let mut out = format!("{called}: deckle run {pid}, {n} process{s}, for {age}\n");
    let mut line = |name: &str, text: String| {
        let _ = writeln!(out, "  {name:<9} {text}");
    };
    if r.unmanaged {
        line("memory", "not managed (--unmanaged)".to_owned());
        return out;
    }
    line("memory", memory(r));
    line("resident", resident(r));
    line("swap", swap(r));
    let zeros = r.counter(Item::NrZero).saturating_mul(4096);
    line("zeros", format!("{} dropped", short(zeros)));
    let [faults, back] = [Item::Pgfault, Item::Pgmajfault].map(|item| r.counter(item));
    line("faults", format!("{faults}, {back} from swap"));
    let stalled = |item| r.counter(item) as f64 / 1e6;
    let [some, full] = [Item::PressureSome, Item::PressureFull].map(stalled);
    line("pressure", format!("some {some:.3} s, full {full:.3} s"));
    let (outside, programs) = (short(r.unmanaged_anon), r.programs_unmanaged);
    let text = format!("at most {outside}, programs unmanaged {programs}");
    line("outside", text);
    if r.killed > 0 {
        line("killed", format!("{} at the limit", r.killed));
    }
    out.push('\n');
    processes(&mut out, &t.processes);
    out
}

fn memory(r: &Report) -> String {
    let limit = |name: &str, bytes: u64| format!("{name} {}", short(bytes));
    let max = r.max.map_or("no limit".to_owned(), |n| limit("max", n));
    let high = r.high.map_or(String::new(), |n| limit(", high", n));
    let [usage, peak] = [r.usage, r.peak].map(short);
    let lowered = if r.is_peak_before_lowered() {
        " before max was lowered"
    } else {
        ""
    };
    format!("{usage} charged ({max}{high}), peak {peak}{lowered}")
}

fn resident(r: &Report) -> String {
    let (now, huge) = (
        short(r.resident.saturating_add(r.inactive)),
        r.counter(Item::NrThp),
    );
    format!("{now}, with {huge} huge pages")
}

fn swap(r: &Report) -> String {
    let of = |max| format!(" of {}", short(max));
    let most = r.swap_max.map_or(String::new(), of);
    let filed = match r.filed.map(short) {
        _ if r.filed[0] == 0 => String::new(),
        [filed, file] => format!(", {filed} of it in {file} of files"),
    };
    let (now, memory, swap) = (short(r.swapped), short(r.store), &r.swap);
    let ratio = ratio(r.swapped, r.store);
    format!("{now}{most} kept in {memory} (ratio {ratio}){filed} [{swap}]")
}

fn processes(out: &mut String, all: &[Process]) {
    let _ = writeln!(
        out,
        "{:>8} {:>7} {:>8} {:>7} {:>7} {:>5} {:>7} {:>5} {:>8} {:>8}  command",
        "pid",
        "charged",
        "resident",
        "stored",
        "in",
        "ratio",
        "zeros",
        "huge",
        "faults",
        "swap-ins"
    );
    for p in all {
        let _ = writeln!(
            out,
            "{:>8} {:>7} {:>8} {:>7} {:>7} {:>5} {:>7} {:>5} {:>8} {:>8}  {}",
            p.pid,
            short(p.charged),
            short(p.resident.saturating_add(p.inactive)),
            short(p.swapped),
            short(p.store),
            ratio(p.swapped, p.store),
            short(p.counter(Item::NrZero).saturating_mul(4096)),
            p.counter(Item::NrThp),
            count(p.counter(Item::Pgfault) as f64),
            count(p.counter(Item::Pswpin) as f64),
            p.command
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_keep_to_their_columns() {
        for (bytes, text) in [
            (0, "0"),
            (999, "999"),
            (1000, "1.0K"),
            (4096, "4.0K"),
            (1023 << 10, "1.0M"),
            (256 << 20, "256.0M"),
            (u64::MAX, "16384.0P"),
        ] {
            assert_eq!(short(bytes), text);
        }
        for (n, text) in [
            (0.4, "0"),
            (999_999.0, "999999"),
            (1e6, "1000.0k"),
            (2e7, "20.0M"),
        ] {
            assert_eq!(count(n), text);
        }
        assert_eq!((ratio(0, 0), ratio(8, 2)), ("-".into(), "4.0".into()));
    }
}
