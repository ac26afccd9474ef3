//! A survey for who collects: CSV, and OpenMetrics text.

use std::fmt::Write;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::look::Looked;
use crate::openmetrics::{Family, Text};
use crate::sample::Estimate;
use crate::survey::Survey;
use crate::{BLOCK, THRESHOLDS};

/// Seconds since 1970.
fn now() -> f64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0.0, |d| d.as_secs_f64())
}

/// The first line of [`csv`].
pub fn csv_head() -> String {
    let mut out = String::from(
        "time,pid,comm,rss_bytes,huge_pages,seen,unmapped_bytes,zero_bytes,zero_low,zero_high",
    );
    THRESHOLDS.iter().for_each(|n| {
        let _ = write!(out, ",would_free_{n}");
    });
    out + ",would_free_now,mlocked_zero_bytes,shared_zero_bytes,pinned_at_most\n"
}

/// A line for each process, at most `top`.
pub fn csv(survey: &Survey, top: usize) -> String {
    let (mut out, time) = (String::new(), now());
    let in_force = survey.knobs.threshold().unwrap_or(511);
    for one in survey.looked.iter().take(top) {
        let zeros = one.zeros();
        let _ = write!(
            out,
            "{time:.3},{},{},{},{},{},{},{},{},{}",
            one.process.pid,
            quoted(&one.process.name),
            one.rss,
            one.huge(),
            one.seen(),
            one.unmapped,
            whole(zeros.value),
            whole(zeros.low),
            whole(zeros.high)
        );
        for n in THRESHOLDS.into_iter().chain([in_force]) {
            let _ = write!(out, ",{}", whole(one.freed_at(n).value));
        }
        let blocked = [one.locked(), one.shared()].map(|e| whole(e.value));
        let _ = writeln!(out, ",{},{},{}", blocked[0], blocked[1], one.pinned);
    }
    out
}

fn whole(bytes: f64) -> u64 {
    bytes.max(0.0).round() as u64
}

fn quoted(text: &str) -> String {
    match text.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text.to_owned(),
    }
}

/// A family of gauges: name without prefix and unit, unit, help.
fn family<'a>(out: &mut Text, name: &str, unit: &'a str, help: &'a str) -> Family<'a> {
    let family = Family::gauge(&format!("deckle_inspect_{name}"), unit, help);
    out.begin(&family);
    family
}

/// What is told of a process: name, unit, help, and how it is found.
type Gauge = (&'static str, &'static str, &'static str, fn(&Looked) -> f64);

const GAUGES: [Gauge; 8] = [
    ("huge_pages", "", "Huge pages of anonymous memory.", |one| {
        one.huge() as f64
    }),
    ("huge", "bytes", "Bytes in huge pages.", |one| {
        (one.huge() * BLOCK) as f64
    }),
    ("zero", "bytes", "Zero-filled bytes in huge pages.", |one| {
        one.zeros().value
    }),
    (
        "zero_low",
        "bytes",
        "Lower end of the interval of zero-filled bytes.",
        |one| one.zeros().low,
    ),
    (
        "zero_high",
        "bytes",
        "Upper end of the interval of zero-filled bytes.",
        |one| one.zeros().high,
    ),
    (
        "unmapped",
        "bytes",
        "Bytes held since another part of their huge page is mapped.",
        |one| one.unmapped as f64,
    ),
    (
        "mlocked_zero",
        "bytes",
        "Zero-filled bytes that no threshold frees: mlocked.",
        |one| one.locked().value,
    ),
    (
        "shared_zero",
        "bytes",
        "Zero-filled bytes in huge pages of several processes.",
        |one| one.shared().value,
    ),
];

/// OpenMetrics text, whole.
pub fn openmetrics(survey: &Survey, top: usize) -> String {
    let mut out = Text::default();
    let looked = || {
        let top = survey.looked.iter().take(top);
        top.map(|one| (one, one.process.pid.to_string()))
    };
    fn labels<'a>(one: &'a Looked, pid: &'a str) -> [(&'a str, &'a str); 2] {
        [("pid", pid), ("comm", &one.process.name)]
    }
    let k = &survey.knobs;
    let settings = [
        (
            "max_ptes_none",
            "Zero-filled pages above which a huge page is split.",
            k.max_ptes_none,
        ),
        (
            "shrink_underused",
            "Whether the shrinker is on.",
            k.shrink_underused.map(u32::from),
        ),
    ];
    for (name, help, value) in settings {
        if let Some(value) = value {
            let of = family(&mut out, name, "", help);
            out.sample(&of, &[], value);
        }
    }
    let help = "Whether the verdict on a setting is bad.";
    let of = family(&mut out, "wrong", "", help);
    for found in &survey.findings {
        out.sample(&of, &[("about", found.key)], u8::from(found.is_wrong));
    }
    for (name, unit, help, value) in GAUGES {
        let of = family(&mut out, name, unit, help);
        for (one, pid) in looked() {
            out.sample(&of, &labels(one, &pid), whole(value(one)));
        }
    }
    let help = "Bytes that the kernel frees when memory is short, by max_ptes_none.";
    let of = family(&mut out, "would_free", "bytes", help);
    for (one, pid) in looked() {
        for n in THRESHOLDS {
            let [a, b] = labels(one, &pid);
            let Estimate { value, .. } = one.freed_at(n);
            let threshold = n.to_string();
            let all = [a, b, ("max_ptes_none", threshold.as_str())];
            out.sample(&of, &all, whole(value));
        }
    }
    let help = "CPU time that the look took.";
    let of = family(&mut out, "cpu", "seconds", help);
    out.sample(&of, &[], survey.cpu.as_secs_f64());
    out.end()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_hold_anything_are_quoted() {
        assert_eq!(quoted("a,\"b"), "\"a,\"\"b\"");
        assert_eq!(quoted("redis"), "redis");
    }
}
