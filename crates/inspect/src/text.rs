//! A survey for people.

use std::fmt::Write;

use crate::budget::Change;
use crate::knobs::Knobs;
use crate::look::Looked;
use crate::sample::Estimate;
use crate::survey::Survey;
use crate::verdict::Finding;
use crate::{BLOCK, THRESHOLDS};

/// What is shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shown {
    /// At most so many processes.
    pub top: usize,
    /// Each mapping, too.
    pub vmas: bool,
}

/// Bytes in few characters, as `1.5G`.
pub fn short(bytes: f64) -> String {
    const UNITS: [&str; 6] = ["", "K", "M", "G", "T", "P"];
    let (mut value, mut unit) = (bytes.max(0.0), 0);
    while value >= 999.5 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    match unit > 0 && value < 9.95 {
        true => format!("{value:.1}{}", UNITS[unit]),
        false => format!("{value:.0}{}", UNITS[unit]),
    }
}

/// A figure; one that is not exact with the ends of its interval.
fn figure(e: Estimate) -> String {
    match e.is_exact() {
        true => short(e.value),
        false => format!("{} ({} to {})", short(e.value), short(e.low), short(e.high)),
    }
}

fn count(e: Estimate) -> String {
    match e.is_exact() {
        true => format!("{:.0}", e.value),
        false => format!("{:.0} ({:.0} to {:.0})", e.value, e.low.max(0.0), e.high),
    }
}

/// All of it.
pub fn text(survey: &Survey, change: Option<(u64, &Change)>, shown: Shown) -> String {
    let mut out = head(&survey.knobs, &survey.findings);
    out += "\n";
    out += &summary(survey);
    if survey.huge() > 0 {
        out += "\n";
        out += &levels(survey);
    }
    if !survey.looked.is_empty() {
        out += "\n";
        out += &table(survey, shown);
    }
    if let Some((budget, change)) = change {
        out += "\n";
        out += &told(budget, change);
    }
    out
}

/// The kernel, the settings and the verdict.
pub fn head(k: &Knobs, findings: &[Finding]) -> String {
    let mut out = format!("Linux {}\n", k.kernel);
    if let Some(enabled) = &k.enabled {
        let shrink = match k.shrink_underused {
            None => "none",
            Some(true) => "on",
            Some(false) => "off",
        };
        let none = k.max_ptes_none.map_or("none".to_owned(), |n| n.to_string());
        let _ = writeln!(
            out,
            "  enabled {enabled}, defrag {}, shrink_underused {shrink}, max_ptes_none {none}",
            k.defrag
        );
        let _ = writeln!(
            out,
            "  khugepaged: defrag {}, {} pages every {} ms",
            u8::from(k.khugepaged),
            k.pages_to_scan,
            k.scan_sleep_millisecs
        );
        let sizes: Vec<String> = (k.sizes.iter())
            .map(|(kib, mode)| format!("{} {mode}", short((kib << 10) as f64)))
            .collect();
        let sizes = if sizes.is_empty() {
            "none".to_owned()
        } else {
            sizes.join(", ")
        };
        let swap = if k.swap == 0 {
            "none".to_owned()
        } else {
            short(k.swap as f64)
        };
        let _ = writeln!(out, "  smaller sizes: {sizes}; swap: {swap}");
    }
    for found in findings {
        let mark = if found.is_wrong { '!' } else { '-' };
        let _ = writeln!(out, "{mark} {}", found.text);
        if let Some(remedy) = &found.remedy {
            let _ = writeln!(out, "  -> {remedy}");
        }
    }
    out
}

fn summary(s: &Survey) -> String {
    let (huge, zeros) = (s.huge(), s.zeros());
    let bytes = (huge * BLOCK) as f64;
    let share = if huge > 0 {
        zeros.value * 100.0 / bytes
    } else {
        0.0
    };
    let with = s.looked.iter().filter(|one| one.huge() > 0);
    let processes = match with.count() {
        1 => "1 process".to_owned(),
        n => format!("{n} processes"),
    };
    let mut out = format!(
        "{} with {huge} huge pages ({}); {} of that are zeros, {share:.0} %\n",
        processes,
        short(bytes),
        figure(zeros)
    );
    let sampled = match s.options.sample < 100.0 {
        true => format!(
            "a sample of {} %, each interval holds in at least 95 of 100; ",
            s.options.sample
        ),
        false => String::new(),
    };
    let _ = writeln!(
        out,
        "{sampled}{} huge pages read in {:.2} s, {:.2} s of it on a CPU",
        s.seen(),
        s.wall.as_secs_f64(),
        s.cpu.as_secs_f64()
    );
    if s.refused > 0 {
        let what = match s.told_frames {
            true => "not even to root",
            false => "run as root",
        };
        let _ = writeln!(out, "{} processes were not shown to us: {what}", s.refused);
    }
    if !s.told_frames {
        out += "huge pages that are not mapped as a whole are not seen: run as root\n";
    }
    if let (true, true, Some(all)) = (s.of_all, s.told_frames, s.knobs.nr_anon)
        && all > huge
    {
        let _ = writeln!(
            out,
            "the kernel has {all} such huge pages: {} are in no process \
             that was looked at, or have come or gone meanwhile",
            all - huge
        );
    }
    out
}

/// What the kernel would free, by thresholds.
fn levels(s: &Survey) -> String {
    let mut out = String::from("When memory is short the kernel frees, by max_ptes_none:\n");
    let now = s.knobs.threshold();
    let mut thresholds: Vec<u32> = THRESHOLDS.to_vec();
    thresholds.extend(now.filter(|n| !THRESHOLDS.contains(n)));
    thresholds.sort_unstable();
    for n in thresholds {
        let mark = if now == Some(n) { "  <- in force" } else { "" };
        let _ = writeln!(
            out,
            "  {n:>3}  {:<22} of {} huge pages{mark}",
            figure(s.freed_at(n)),
            count(s.split_at(n))
        );
    }
    if now.is_none() {
        let partial: u64 = s.looked.iter().map(Looked::partial).sum();
        let _ = match partial {
            0 => writeln!(out, "  now  nothing: the shrinker does nothing"),
            n => writeln!(out, "  now  nothing but of {n} that are mapped in part"),
        };
    }
    out
}

fn table(s: &Survey, shown: Shown) -> String {
    let mut out = format!(
        "{:>7}  {:<15} {:>6} {:>6}",
        "PID", "COMMAND", "HUGE", "ZEROS"
    );
    THRESHOLDS.iter().for_each(|n| {
        let _ = write!(out, " {:>5}", format!(">{n}"));
    });
    out += "   NOW  BLOCKED\n";
    for one in s.looked.iter().take(shown.top) {
        row(&mut out, s, one);
        if shown.vmas {
            vmas(&mut out, one);
        }
    }
    match s.looked.len().saturating_sub(shown.top) {
        0 => {}
        n => {
            let _ = writeln!(out, "... and {n} more; --top N shows more");
        }
    }
    out
}

fn row(out: &mut String, s: &Survey, one: &Looked) {
    let name = one.process.name.as_str();
    let _ = write!(
        out,
        "{:>7}  {name:<15} {:>6} {:>6}",
        one.process.pid,
        short((one.huge() * BLOCK) as f64),
        short(one.zeros().value)
    );
    for n in THRESHOLDS {
        let _ = write!(out, " {:>5}", short(one.freed_at(n).value));
    }
    // 511 is off: what is mapped in part goes all the same.
    let now = s.knobs.threshold().unwrap_or(511);
    let _ = write!(out, " {:>5}", short(one.freed_at(now).value));
    let blocked = blocked(one);
    let _ = writeln!(out, "  {}", if blocked.is_empty() { "-" } else { &blocked });
    let sizes = one.sizes.iter().map(|(size, bytes)| {
        let (size, bytes) = (short(*size as f64), short(*bytes as f64));
        format!("{bytes} in folios of {size}")
    });
    let mut notes: Vec<String> = sizes.collect();
    if one.apart > 0 {
        notes.push(format!("{} huge pages not mapped as a whole", one.apart));
    }
    if one.unmapped > 0 {
        notes.push(format!(
            "{} held and mapped nowhere",
            short(one.unmapped as f64)
        ));
    }
    if one.managed {
        notes.push("under deckle, whose own max_ptes_none takes them apart".to_owned());
    }
    let _ = writeln!(out, "{:>7}  {}", "", notes.join("; "));
}

/// Zeros that stay, and why.
pub fn blocked(one: &Looked) -> String {
    let why = [
        (one.locked().value, "mlocked"),
        (one.shared().value, "shared"),
        (
            (one.pinned as f64).min((one.huge() * BLOCK) as f64),
            "pinned at most",
        ),
    ];
    let why = why.iter().filter(|(bytes, _)| *bytes > 0.0);
    let why: Vec<String> = why
        .map(|(bytes, why)| format!("{} {why}", short(*bytes)))
        .collect();
    why.join(", ")
}

fn vmas(out: &mut String, one: &Looked) {
    for looked in &one.vmas {
        let (vma, tally) = (&looked.vma, &looked.tally);
        let name = if vma.name.is_empty() {
            "anonymous"
        } else {
            &vma.name
        };
        let advice = match vma.advice {
            Some(true) => ", advised huge",
            Some(false) => ", advised against huge",
            None => "",
        };
        let _ = writeln!(
            out,
            "         {:#x}-{:#x} {:>6} {:>6}  {name}{advice}",
            vma.start,
            vma.end,
            short((tally.all * BLOCK) as f64),
            short(tally.zeros().value)
        );
    }
}

/// What keeps the budget.
pub fn told(budget: u64, change: &Change) -> String {
    let budget = short(budget as f64);
    match change {
        Change::None { wastes } => {
            format!("Budget {budget}: kept, {} are wasted\n", figure(*wastes))
        }
        Change::TooSmall { leaves, locked } => format!(
            "Budget {budget}: no threshold keeps it; at 0 {} are wasted still, {} of it mlocked\n",
            figure(*leaves),
            figure(*locked)
        ),
        Change::Threshold {
            max_ptes_none,
            in_force,
            frees,
            leaves,
            splits,
            of,
            pids,
        } => {
            let what = match in_force {
                true => format!(
                    "the settings in force keep it once memory is short \
                     ({max_ptes_none} is enough)"
                ),
                false => format!(
                    "shrink_underused 1 and khugepaged/max_ptes_none {max_ptes_none} \
                     keep it once memory is short"
                ),
            };
            let pids: Vec<String> = pids.iter().map(u32::to_string).collect();
            format!(
                "Budget {budget}: {what}\n  frees {}, leaves {}; costs {} of {of} huge mappings\n  \
                 enough to reclaim from: {}\n",
                figure(*frees),
                figure(*leaves),
                count(*splits),
                pids.join(" ")
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_take_few_characters() {
        for (bytes, text) in [
            (0.0, "0"),
            (512.0, "512"),
            (4096.0, "4.0K"),
            ((2 << 20) as f64, "2.0M"),
            ((25 << 20) as f64, "25M"),
            ((1000 << 20) as f64, "1.0G"),
            (1.5e12, "1.4T"),
        ] {
            assert_eq!(short(bytes), text);
            assert!(short(bytes).len() <= 5);
        }
    }
}
