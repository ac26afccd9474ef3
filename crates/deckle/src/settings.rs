//! What a run is to be: the file, then the command line, checked.

use std::fmt;
use std::path::Path;

use deckle_group::{Limits, SwapFile};
use deckle_mm::{FaultOrder, PAGE_SIZE, Profile, Tunables};

use crate::args::RunArgs;
use crate::config::{self, Config, Khugepaged, Memory, SizeText};
use crate::fail::Fail;
use crate::size::SizeError;
use crate::swap::{self, Swap};
use crate::words::Word;
use crate::{cgroup, size};

/// Least limit that runs anything: one huge page or 64 small ones in reserve for faults, the
/// manager's own tables, and the pages of the loader and the C library.
const MEMORY_MAX_LEAST: u64 = 4 << 20;

/// Percent of `memory.high` below which the kernel fills small holes.
const OPEN_RATIO: u8 = 50;

/// Settings of one run.
#[derive(Debug)]
pub struct Settings {
    /// Limits, pages.
    pub limits: Limits,
    /// Knobs.
    pub tunables: Tunables,
    /// Where cold pages go.
    pub swap: Swap,
    /// And on to a file from there.
    pub swap_file: Option<SwapFile>,
    /// Refuse what cannot be managed.
    pub strict: bool,
    /// Place every large mapping for huge pages.
    pub align_mappings: bool,
}

/// A size, as it was given.
struct Given {
    /// Where: the option, or the file and the key in it.
    name: String,
    text: String,
}

impl Given {
    /// That of the option `name`, else of the file's `key`.
    fn of(
        args: &RunArgs,
        (name, option): (&str, &Option<String>),
        (key, file): (&str, &Option<SizeText>),
    ) -> Option<Given> {
        let path = args.config.as_deref().unwrap_or(Path::new(""));
        let in_file = |size: &SizeText| Given {
            name: format!("{}: {key}", path.display()),
            text: size.0.clone(),
        };
        match option {
            Some(text) => Some(Given {
                name: name.to_owned(),
                text: text.clone(),
            }),
            None => file.as_ref().map(in_file),
        }
    }

    fn refuse(&self, why: impl fmt::Display) -> Fail {
        Fail::own(format!("{}: {why}", self.name))
    }

    /// Bytes, if there is a limit: `max` is the kernel's word for none. What is below `least` is
    /// too small, and `remedy` says what to do.
    fn bytes(&self, least: u64, remedy: &str) -> Result<Option<u64>, Fail> {
        if self.text == "max" {
            return Ok(None);
        }
        let bytes = match size::parse(&self.text) {
            Err(SizeError::Zero) => 0,
            other => other.map_err(|e| self.refuse(e))?,
        };
        match bytes < least {
            true => Err(self.refuse(format_args!("`{}` is too small{remedy}", self.text))),
            false => Ok(Some(bytes)),
        }
    }
}

/// What `option` says.
fn word<T: Word>(option: &str, text: &str) -> Result<T, Fail> {
    T::parse(text).map_err(|e| Fail::own(format!("{option}: {e}")))
}

impl Settings {
    /// Reads the file that `args` names and lays the options over it.
    pub fn of(args: &RunArgs) -> Result<Settings, Fail> {
        let file = match &args.config {
            Some(path) => config::read(path)?,
            None => Config::default(),
        };
        let tunables = tunables(args, &file)?;
        let limits = limits(args, &file, tunables.profile)?;
        let swap = match &args.swap {
            Some(text) => Swap::parse(text).map_err(|e| Fail::own(format!("--swap: {e}")))?,
            None => file.swap.clone().unwrap_or_default(),
        };
        let percent = file
            .zswap
            .max_pool_percent
            .map_or(swap::MAX_POOL_PERCENT, u32::from);
        Ok(Settings {
            limits,
            tunables,
            swap_file: swap.for_group(percent),
            swap,
            align_mappings: file.transparent_hugepage.align_mappings.unwrap_or(false),
            strict: args.strict || file.strict.unwrap_or(false),
        })
    }
}

fn limits(args: &RunArgs, file: &Config, profile: Profile) -> Result<Limits, Fail> {
    const PAGE: u64 = PAGE_SIZE as u64;
    let Memory { max, high, swap } = &file.memory;
    let max = memory_max(Given::of(
        args,
        ("--memory-max", &args.memory_max),
        ("memory.max", max),
    ))?;
    let high = match Given::of(
        args,
        ("--memory-high", &args.memory_high),
        ("memory.high", high),
    ) {
        Some(given) => {
            let high = given.bytes(PAGE, ": give at least one page (4K)")?;
            if max.is_some_and(|max| high.is_some_and(|high| high > max)) {
                return Err(given.refuse(format_args!(
                    "`{}` is above --memory-max: give a smaller size",
                    given.text
                )));
            }
            high
        }
        None => max.filter(|_| profile == Profile::Deckle).map(default_high),
    };
    let swap_max = match Given::of(
        args,
        ("--swap-max", &args.swap_max),
        ("memory.swap.max", &swap.max),
    ) {
        Some(given) => given.bytes(PAGE, ": give at least one page (4K), or --swap none")?,
        None => None,
    };
    let pages = |bytes: Option<u64>| bytes.map_or(u64::MAX, |bytes| bytes / PAGE);
    Ok(Limits {
        max: pages(max),
        high: pages(high),
        swap_max: pages(swap_max),
    })
}

/// A little below the maximum: 1/64 or 4 MiB, whichever is more, but never below half of it. What
/// is kept free is not there for pages: with twice as much a program whose working set is twice its
/// memory has 2 % (uniform) to 5 % (zipf) more faults, and nothing was faster.
fn default_high(max: u64) -> u64 {
    max - (max / 64).max(4 << 20).min(max / 2)
}

fn memory_max(given: Option<Given>) -> Result<Option<u64>, Fail> {
    let small = format!(
        " to run anything: give at least {}M",
        MEMORY_MAX_LEAST >> 20
    );
    let (max, name) = match given {
        Some(given) if given.text == "auto" => {
            let limit = cgroup::limit().ok_or_else(|| {
                given.refuse(
                    "auto: no memory cgroup above this process has a limit: \
                     give a size, such as 2G",
                )
            })?;
            let max = cgroup::minus_headroom(limit.bytes).ok_or_else(|| {
                given.refuse(format_args!(
                    "auto: the cgroup's limit of {} ({}) leaves nothing above \
                     the headroom of 64M: raise it, or give a size",
                    size::show(limit.bytes),
                    limit.path.display()
                ))
            })?;
            (max, given.name)
        }
        Some(given) => return given.bytes(MEMORY_MAX_LEAST, &small),
        None if cgroup::in_container() => {
            match cgroup::limit().and_then(|l| cgroup::minus_headroom(l.bytes)) {
                Some(max) => (max, "--memory-max".to_owned()),
                None => return Ok(None),
            }
        }
        None => return Ok(None),
    };
    if max < MEMORY_MAX_LEAST {
        // What is left of the container's limit.
        return Err(Fail::own(format!(
            "{name}: auto: {} is too small{small}",
            size::show(max)
        )));
    }
    Ok(Some(max))
}

fn tunables(args: &RunArgs, file: &Config) -> Result<Tunables, Fail> {
    let profile = match &args.profile {
        Some(text) => word("--profile", text)?,
        None => file.profile.unwrap_or_default(),
    };
    let mut t = Tunables::of_profile(profile);
    let thp = &file.transparent_hugepage;
    t.thp = match &args.thp {
        Some(text) => word("--thp", text)?,
        None => thp.enabled.unwrap_or(t.thp),
    };
    t.max_ptes_none = match &args.max_ptes_none {
        Some(text) => text.parse().ok().filter(|n| *n <= 511).ok_or_else(|| {
            Fail::own(format!(
                "--max-ptes-none: `{text}` is not in 0 to 511: how many of 512 subpages may be \
                 zero"
            ))
        })?,
        None => thp.khugepaged.max_ptes_none.unwrap_or(t.max_ptes_none),
    };
    t.shrink_underused = match &args.shrink_underused {
        Some(text) => word("--shrink-underused", text)?,
        None => thp.shrink_underused.unwrap_or(t.shrink_underused),
    };
    let waste = ("transparent_hugepage.thp_waste_max", &thp.thp_waste_max);
    if let Some(given) = Given::of(args, ("", &None), waste) {
        t.thp_waste_max = given.bytes(0, "")?.unwrap_or(u64::MAX);
    }
    khugepaged(&mut t, &thp.khugepaged);
    t.page_cluster = file.vm.page_cluster.map_or(t.page_cluster, |n| n as u8);
    t.swap_cache = file.vm.swap_cache.unwrap_or(t.swap_cache);
    // Programs that know nothing of us get what their faults have shown to pay.
    if t.profile == Profile::Deckle {
        t.fault_order = FaultOrder::Auto;
        t.fault_open_ratio = OPEN_RATIO;
    }
    t.fault_order = thp.fault_order.unwrap_or(t.fault_order);
    t.fault_open_ratio = thp.fault_open_ratio.map_or(t.fault_open_ratio, |n| n as u8);
    for (order, enabled) in thp.sizes() {
        t.sizes = t.sizes.with(order, enabled);
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
        assert_eq!(default_high(1 << 30), (1 << 30) - (16 << 20));
        assert_eq!(default_high(64 << 20), 60 << 20);
        assert_eq!(default_high(8 << 20), 4 << 20);
        assert_eq!(default_high(4 << 20), 2 << 20);
    }
}
