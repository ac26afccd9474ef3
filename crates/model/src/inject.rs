//! Failures that the model produces on purpose.

use crate::rng::Rng;

/// How often something happens: this many times in 1024 operations.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Chance(pub u32);

impl Chance {
    /// Not at all.
    pub const NEVER: Chance = Chance(0);
    /// Every time.
    pub const ALWAYS: Chance = Chance(1024);

    pub(crate) fn roll(self, rng: &mut Rng) -> bool {
        // No number is drawn for what is off, so that switching one injection on does not
        // shift the numbers that everything else sees.
        self.0 > 0 && rng.chance(self.0, 1024)
    }
}

/// Which failures the model injects, and how often. An operation that is hit stops at a
/// random page of its run (huge mappings: at its first page, if frames are RAM).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Injection {
    /// `unmap` stops with `Busy`, as for a pinned page.
    pub unmap_busy: Chance,
    /// `map`, `map_zero`, `unmap`, `close` and `close_empty` stop with `Retry`.
    pub retry: Chance,
    /// `map`, `map_shared`, `map_zero`, `fill_zero`, `copy`, `open`, `protect`, `write_protect`
    /// and `create_space` stop with `NoMemory`.
    pub no_memory: Chance,
    /// `map_zero` stops with `Exists`: before its page was protected the program has written it.
    /// Only where the system has frames of its own.
    pub exists: Chance,
}
