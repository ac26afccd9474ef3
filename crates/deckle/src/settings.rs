//! What a run is to be: the file, then the command line, checked.

use deckle_group::{Limits, SwapFile};
use deckle_mm::knob::Kind;
use deckle_mm::{FaultOrder, PAGE_SIZE, Profile, Tunables};

use crate::args::RunArgs;
use crate::config::{self, Setting};
use crate::fail::Fail;
use crate::swap::{self, Swap};
use crate::{cgroup, size};

/// Least limit that runs anything: one huge page or 64 small ones in reserve for faults, the
/// manager's own tables, and the pages of the loader and the C library.
pub const MEMORY_MAX_LEAST: u64 = 4 << 20;

const PAGE: u64 = PAGE_SIZE as u64;

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

impl Settings {
    /// Reads the file that `args` names and lays `--set` and then the options over it.
    pub fn of(args: &RunArgs) -> Result<Settings, Fail> {
        let mut all = match &args.config {
            Some(path) => config::read(path)?,
            None => Vec::new(),
        };
        all.extend(args.settings()?);
        let mut profile = Tunables::default();
        for setting in all.iter().filter(|s| s.key == "profile") {
            setting.put(&mut profile)?;
        }
        let mut settings = Settings {
            limits: Limits::NONE,
            tunables: defaults(profile.profile),
            swap: Swap::default(),
            swap_file: None,
            strict: args.strict,
            align_mappings: false,
        };
        let (mut max, mut high, mut swap_max) = (None, None, None);
        let mut percent = swap::MAX_POOL_PERCENT;
        for setting in &all {
            match setting.key.as_str() {
                "memory.max" => max = Some(setting.sized()?),
                "memory.high" => high = Some(setting.sized()?),
                "memory.swap.max" => swap_max = Some(setting.sized()?),
                "swap" => {
                    let swap = Swap::parse(&setting.text);
                    settings.swap = swap.map_err(|e| setting.refuse(e))?;
                }
                "zswap.max_pool_percent" => {
                    percent = setting.value(Kind::Number(100, "percent"))? as u32;
                }
                "strict" => settings.strict = args.strict || setting.value(Kind::Flag)? != 0,
                "transparent_hugepage.align_mappings" => {
                    settings.align_mappings = setting.value(Kind::Flag)? != 0;
                }
                _ => setting.put(&mut settings.tunables)?,
            }
        }
        settings.limits = limits(max, high, swap_max, settings.tunables.profile)?;
        settings.swap_file = settings.swap.for_group(percent);
        Ok(settings)
    }
}

/// The knobs of a run, if nobody says otherwise. Programs that know nothing of us get what their
/// faults have shown to pay.
pub fn defaults(profile: Profile) -> Tunables {
    let of_profile = Tunables::of_profile(profile);
    match profile {
        Profile::Linux => of_profile,
        Profile::Deckle => Tunables {
            fault_order: FaultOrder::Auto,
            fault_open_ratio: OPEN_RATIO,
            ..of_profile
        },
    }
}

fn limits(
    max: Option<&Setting>,
    high: Option<&Setting>,
    swap_max: Option<&Setting>,
    profile: Profile,
) -> Result<Limits, Fail> {
    let max = memory_max(max)?;
    let high = match high {
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
        None => high_by_default(max, profile),
    };
    let swap_max = match swap_max {
        Some(given) => given.bytes(PAGE, ": give at least one page (4K), or --swap none")?,
        None => None,
    };
    Ok(Limits {
        max: pages(max),
        high: pages(high),
        swap_max: pages(swap_max),
    })
}

/// A limit in pages, as the group has it.
pub fn pages(bytes: Option<u64>) -> u64 {
    bytes.map_or(u64::MAX, |bytes| bytes / PAGE)
}

/// `memory.high` if nobody says otherwise, bytes.
pub fn high_by_default(max: Option<u64>, profile: Profile) -> Option<u64> {
    max.filter(|_| profile == Profile::Deckle).map(default_high)
}

/// A little below the maximum: 1/64 or 4 MiB, whichever is more, but never below half of it. What
/// is kept free is not there for pages: with twice as much a program whose working set is twice its
/// memory has 2 % (uniform) to 5 % (zipf) more faults, and nothing was faster.
fn default_high(max: u64) -> u64 {
    max - (max / 64).max(4 << 20).min(max / 2)
}

fn memory_max(given: Option<&Setting>) -> Result<Option<u64>, Fail> {
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
            (max, given.place.as_str())
        }
        Some(given) => return given.bytes(MEMORY_MAX_LEAST, &small),
        None if cgroup::in_container() => {
            match cgroup::limit().and_then(|l| cgroup::minus_headroom(l.bytes)) {
                Some(max) => (max, "--memory-max"),
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
