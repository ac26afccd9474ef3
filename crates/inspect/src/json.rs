//! A survey for programs, as JSON: raw integers and a schema number.

use serde_json::{Map, Value, json};

use crate::budget::Change;
use crate::look::{Looked, LookedVma};
use crate::sample::Estimate;
use crate::survey::Survey;
use crate::verdict::Finding;
use crate::{BLOCK, THRESHOLDS};

/// A figure; of a sample with its interval.
fn figure(e: Estimate) -> Value {
    let whole = |x: f64| json!(x.max(0.0).round() as u64);
    match e.is_exact() {
        true => json!({ "value": whole(e.value) }),
        false => json!({
            "value": whole(e.value), "low": whole(e.low), "high": whole(e.high)
        }),
    }
}

fn by_threshold(of: impl Fn(u32) -> Estimate) -> Value {
    let all = THRESHOLDS.iter().map(|n| (n.to_string(), figure(of(*n))));
    Value::Object(all.collect::<Map<_, _>>())
}

/// All of it; processes the most wasteful first, at most `top`.
pub fn json(survey: &Survey, change: Option<(u64, &Change)>, top: usize, vmas: bool) -> Value {
    let k = &survey.knobs;
    let now = k.threshold().unwrap_or(511);
    let looked = survey.looked.iter().take(top);
    let processes: Vec<Value> = looked.map(|one| process(one, now, vmas)).collect();
    json!({
        "schema": 1,
        "kernel": k.kernel,
        "knobs": {
            "enabled": k.enabled, "defrag": k.defrag,
            "shrink_underused": k.shrink_underused, "max_ptes_none": k.max_ptes_none,
            "khugepaged_defrag": k.khugepaged, "pages_to_scan": k.pages_to_scan,
            "scan_sleep_millisecs": k.scan_sleep_millisecs,
            "sizes_kib": k.sizes, "swap_bytes": k.swap,
        },
        "counters": k.counters,
        "verdict": survey.findings.iter().map(finding).collect::<Vec<_>>(),
        "sample_percent": survey.options.sample,
        "cpu_percent_max": survey.options.cpu,
        "cpu_us": survey.cpu.as_micros() as u64,
        "wall_us": survey.wall.as_micros() as u64,
        "refused": survey.refused,
        "told_frames": survey.told_frames,
        "total": {
            "processes": survey.looked.len(),
            "huge_pages": survey.huge(), "huge_bytes": survey.huge() * BLOCK,
            "seen": survey.seen(), "kernel_huge_pages": k.nr_anon,
            "zero_bytes": figure(survey.zeros()), "waste_bytes": figure(survey.waste()),
            "would_free_bytes": by_threshold(|n| survey.freed_at(n)),
            "would_split": by_threshold(|n| survey.split_at(n)),
            "would_free_now_bytes": figure(survey.freed_at(now)),
            "mlocked_zero_bytes": figure(survey.locked()),
        },
        "processes": processes,
        "budget": change.map(|(budget, change)| self::change(budget, change)),
    })
}

fn finding(f: &Finding) -> Value {
    json!({ "key": f.key, "wrong": f.is_wrong, "text": f.text, "remedy": f.remedy })
}

fn process(one: &Looked, now: u32, vmas: bool) -> Value {
    let sizes: Map<String, Value> = (one.sizes.iter())
        .map(|(size, bytes)| ((size >> 10).to_string(), json!(bytes)))
        .collect();
    let mut value = json!({
        "pid": one.process.pid, "comm": one.process.name, "managed": one.managed,
        "rss_bytes": one.rss, "anonymous_bytes": one.anonymous,
        "folio_bytes_by_kib": sizes,
        "huge_pages": one.huge(), "huge_bytes": one.huge() * BLOCK, "seen": one.seen(),
        "not_mapped_whole": one.apart, "mapped_in_part": one.partial(),
        "unmapped_bytes": one.unmapped,
        "zero_bytes": figure(one.zeros()), "waste_bytes": figure(one.waste()),
        "would_free_bytes": by_threshold(|n| one.freed_at(n)),
        "would_split": by_threshold(|n| one.split_at(n)),
        "would_free_now_bytes": figure(one.freed_at(now)),
        "blocked": {
            "mlocked_zero_bytes": figure(one.locked()),
            "shared_zero_bytes": figure(one.shared()),
            "pinned_bytes_at_most": one.pinned,
        },
    });
    if vmas {
        value["vmas"] = one.vmas.iter().map(vma).collect();
    }
    value
}

fn vma(looked: &LookedVma) -> Value {
    let vma = &looked.vma;
    json!({
        "start": vma.start, "end": vma.end, "name": vma.name,
        "huge_pages": looked.tally.all, "zero_bytes": figure(looked.tally.zeros()),
        "mlocked": vma.locked, "advised_huge": vma.advice,
    })
}

fn change(budget: u64, change: &Change) -> Value {
    let mut value = match change {
        Change::None { wastes } => json!({ "change": "none", "waste_bytes": figure(*wastes) }),
        Change::TooSmall { leaves, locked } => json!({
            "change": "impossible", "leaves_bytes": figure(*leaves),
            "mlocked_zero_bytes": figure(*locked),
        }),
        Change::Threshold {
            max_ptes_none,
            in_force,
            frees,
            leaves,
            splits,
            of,
            pids,
        } => json!({
            "change": "max_ptes_none", "max_ptes_none": max_ptes_none, "in_force": in_force,
            "frees_bytes": figure(*frees), "leaves_bytes": figure(*leaves),
            "splits": figure(*splits), "of_huge_pages": of, "pids": pids,
        }),
    };
    value["budget_bytes"] = json!(budget);
    value
}
