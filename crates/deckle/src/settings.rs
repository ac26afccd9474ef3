//! What a run is to be: the file, then the command line, checked.

use deckle_group::{Limits, SwapKind};
use deckle_mm::{FaultOrder, PAGE_SIZE, Profile, SizeMode, ThpMode, Tunables};

use crate::args::RunArgs;
use crate::config::{self, Config, Khugepaged};
use crate::fail::Fail;
use crate::words::Word;
use crate::{cgroup, size};

/// Least limit that runs anything: one huge page or 64 small ones in reserve for faults, the
/// manager's own tables, and the pages of the loader and the C library.
pub const MEMORY_MAX_LEAST: u64 = 4 << 20;

/// Settings of one run.
#[derive(Debug)]
pub struct Settings {
    /// Limits, pages.
    pub limits: Limits,
    /// Knobs.
    pub tunables: Tunables,
    /// Where cold pages go.
    pub swap: SwapKind,
    /// Refuse what cannot be managed.
    pub strict: bool,
    /// Place every large mapping for huge pages.
    pub align_mappings: bool,
}

fn bad(option: &str, what: impl std::fmt::Display) -> Fail {
    Fail::own(format!("{option}: {what}"))
}

/// A size; `max` is the kernel's word for no limit.
fn bytes(option: &str, text: &str) -> Result<Option<u64>, Fail> {
    if text == "max" {
        return Ok(None);
    }
    size::parse(text).map(Some).map_err(|e| bad(option, e))
}

impl Settings {
    /// Reads the file that `args` names and lays the options over it.
    pub fn of(args: &RunArgs) -> Result<Settings, Fail> {
        let file = match &args.config {
            Some(path) => config::read(path)?,
            None => Config::default(),
        };
        let tunables = tunables(args, &file)?;
        let max = memory_max(args, &file)?;
        let swap = match args.swap.as_deref().or(file.swap.as_deref()) {
            Some(text) => SwapKind::parse("--swap", text)?,
            None => SwapKind::default(),
        };
        let pick = |flag: &Option<String>, file: &Option<config::SizeText>| {
            flag.clone().or_else(|| file.as_ref().map(|s| s.0.clone()))
        };
        let high = match pick(&args.memory_high, &file.memory.high) {
            Some(text) => {
                let high = bytes("--memory-high", &text)?;
                if max.is_some_and(|max| high.is_some_and(|high| high > max)) {
                    return Err(bad(
                        "--memory-high",
                        "is above --memory-max: give a smaller size",
                    ));
                }
                high
            }
            None => max
                .filter(|_| tunables.profile == Profile::Deckle)
                .map(default_high),
        };
        let swap_max = match pick(&args.swap_max, &file.memory.swap.max) {
            Some(text) => bytes("--swap-max", &text)?,
            None => None,
        };
        let pages = |b: Option<u64>| b.map_or(u64::MAX, |b| b / PAGE_SIZE as u64);
        Ok(Settings {
            limits: Limits {
                max: pages(max),
                high: pages(high),
                swap_max: pages(swap_max),
            },
            tunables,
            swap,
            align_mappings: file.transparent_hugepage.align_mappings.unwrap_or(false),
            strict: args.strict || file.strict.unwrap_or(false),
        })
    }
}

/// A little below the maximum: 1/32 or 4 MiB, whichever is more, but never below half of it.
fn default_high(max: u64) -> u64 {
    max - (max / 32).max(4 << 20).min(max / 2)
}

fn memory_max(args: &RunArgs, file: &Config) -> Result<Option<u64>, Fail> {
    let option = "--memory-max";
    let text = args
        .memory_max
        .as_deref()
        .or(file.memory.max.as_ref().map(|s| s.0.as_str()));
    let max = match text {
        Some("auto") => {
            let limit = cgroup::limit().ok_or_else(|| {
                bad(
                    option,
                    "auto: no memory cgroup above this process has a limit: \
                     give a size, such as 2G",
                )
            })?;
            cgroup::minus_headroom(limit.bytes).ok_or_else(|| {
                bad(
                    option,
                    format_args!(
                        "auto: the cgroup's limit of {} ({}) leaves nothing above \
                         the headroom of 64M: raise it, or give a size",
                        size::show(limit.bytes),
                        limit.path.display()
                    ),
                )
            })?
        }
        Some(text) => match bytes(option, text)? {
            Some(max) => max,
            None => return Ok(None),
        },
        None if cgroup::in_container() => {
            match cgroup::limit().and_then(|l| cgroup::minus_headroom(l.bytes)) {
                Some(max) => max,
                None => return Ok(None),
            }
        }
        None => return Ok(None),
    };
    if max < MEMORY_MAX_LEAST {
        return Err(bad(
            option,
            format_args!(
                "{} is too small to run anything: give at least {}M",
                size::show(max),
                MEMORY_MAX_LEAST >> 20
            ),
        ));
    }
    Ok(Some(max))
}

fn tunables(args: &RunArgs, file: &Config) -> Result<Tunables, Fail> {
    let profile = match args.profile.as_deref().or(file.profile.as_deref()) {
        Some(text) => Profile::parse("--profile", text)?,
        None => Profile::default(),
    };
    let mut t = Tunables::of_profile(profile);
    let thp = &file.transparent_hugepage;
    if let Some(text) = args.thp.as_deref().or(thp.enabled.as_deref()) {
        t.thp = ThpMode::parse("--thp", text)?;
    }
    let none = match &args.max_ptes_none {
        Some(text) => Some(text.clone()),
        None => thp.khugepaged.max_ptes_none.map(|n| n.to_string()),
    };
    if let Some(text) = none {
        t.max_ptes_none = text.parse().ok().filter(|n| *n <= 511).ok_or_else(|| {
            bad(
                "--max-ptes-none",
                format_args!("`{text}` is not in 0..=511: how many of 512 subpages may be zero"),
            )
        })?;
    }
    if let Some(text) = args.shrink_underused.as_deref() {
        t.shrink_underused = bool::parse("--shrink-underused", text)?;
    } else if let Some(on) = thp.shrink_underused {
        t.shrink_underused = on;
    }
    if let Some(text) = &thp.thp_waste_max {
        t.thp_waste_max = bytes("thp_waste_max", &text.0)?.unwrap_or(u64::MAX);
    }
    khugepaged(&mut t, &thp.khugepaged);
    t.page_cluster = file.vm.page_cluster.unwrap_or(t.page_cluster);
    t.swap_cache = file.vm.swap_cache.unwrap_or(t.swap_cache);
    // Programs that know nothing of us get what their faults have shown to pay.
    if t.profile == Profile::Deckle {
        t.fault_order = FaultOrder::Auto;
    }
    if let Some(text) = &thp.fault_order {
        t.fault_order = FaultOrder::parse("fault_order", text)?;
    }
    for (order, enabled) in thp.sizes() {
        t.sizes = t
            .sizes
            .with(order, SizeMode::parse(&config::size_name(order), enabled)?);
    }
    t.validate().map_err(|e| Fail::own(e.to_string()))?;
    Ok(t)
}

fn khugepaged(t: &mut Tunables, file: &Khugepaged) {
    let ticks = |millisecs: u32| millisecs.div_ceil(Tunables::TICK_MILLISECS);
    t.max_ptes_swap = file.max_ptes_swap.unwrap_or(t.max_ptes_swap);
    t.max_ptes_shared = file.max_ptes_shared.unwrap_or(t.max_ptes_shared);
    t.khugepaged_pages_to_scan = file.pages_to_scan.unwrap_or(t.khugepaged_pages_to_scan);
    let sleep = file.scan_sleep_millisecs.map(ticks);
    t.khugepaged_scan_sleep = sleep.unwrap_or(t.khugepaged_scan_sleep);
    let sleep = file.alloc_sleep_millisecs.map(ticks);
    t.khugepaged_alloc_sleep = sleep.unwrap_or(t.khugepaged_alloc_sleep);
    t.khugepaged_defrag = file.defrag.unwrap_or(t.khugepaged_defrag);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn high_is_a_little_below_max_and_never_nothing() {
        assert_eq!(default_high(1 << 30), (1 << 30) - (32 << 20));
        assert_eq!(default_high(64 << 20), 60 << 20);
        assert_eq!(default_high(8 << 20), 4 << 20);
        assert_eq!(default_high(4 << 20), 2 << 20);
    }
}
