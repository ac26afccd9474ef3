//! The knobs, with the kernel's names, and the two policy profiles.

use core::fmt;

/// Which decisions the manager makes where the kernel's and our own differ.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Profile {
    /// The decisions of Linux 6.18: order at fault and its fallback, queueing, the underused
    /// rule (511 means off), zero-drop, when a charge fails.
    Linux,
    /// The default: goes beyond where that is better (see the fields of [`Tunables`]).
    #[default]
    Deckle,
}

/// `transparent_hugepage/enabled`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ThpMode {
    /// Everywhere, unless the VMA is advised against.
    #[default]
    Always,
    /// Where the VMA is advised `MADV_HUGEPAGE`.
    Madvise,
    /// Nowhere.
    Never,
}

/// The knobs of one manager. Plain values: a change of a knob makes a new set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tunables {
    /// Policy profile.
    pub profile: Profile,
    /// `enabled`: where faults get huge pages.
    pub thp: ThpMode,
    /// `khugepaged/max_ptes_none`, 0..=511: a huge page with more zero-filled subpages than
    /// this is underused.
    pub max_ptes_none: u16,
    /// `shrink_underused`: whether underused huge pages are split under pressure.
    pub shrink_underused: bool,
    /// Before an out-of-memory kill, look at every huge folio for droppable zero pages,
    /// whatever the other knobs say.
    pub oom_zero_drop: bool,
    /// Largest order, below the block's, that a fault may allocate.
    pub fault_order_max: u8,
}

impl Tunables {
    /// Defaults of a profile. `Linux`: those of Linux 6.18, where the sizes below the PMD's
    /// are off; `Deckle`: huge pages always, 409 (80 %), folios up to 64 KiB besides.
    pub const fn of_profile(profile: Profile) -> Tunables {
        match profile {
            Profile::Linux => Tunables {
                profile,
                thp: ThpMode::Always,
                max_ptes_none: 511,
                shrink_underused: true,
                oom_zero_drop: false,
                fault_order_max: 0,
            },
            Profile::Deckle => Tunables {
                profile,
                thp: ThpMode::Always,
                max_ptes_none: 409,
                shrink_underused: true,
                oom_zero_drop: true,
                fault_order_max: 4,
            },
        }
    }

    /// Checks the ranges.
    pub fn validate(&self) -> Result<(), TunableError> {
        if self.max_ptes_none > 511 {
            return Err(TunableError::MaxPtesNone(self.max_ptes_none));
        }
        if self.fault_order_max > 8 || self.fault_order_max == 1 {
            return Err(TunableError::FaultOrder(self.fault_order_max));
        }
        Ok(())
    }
}

impl Default for Tunables {
    fn default() -> Tunables {
        Tunables::of_profile(Profile::Deckle)
    }
}

/// A knob out of its range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TunableError {
    /// `max_ptes_none` above 511.
    MaxPtesNone(u16),
    /// `fault_order_max` is 1 (a large folio needs order 2 at least) or above 8.
    FaultOrder(u8),
}

impl fmt::Display for TunableError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TunableError::MaxPtesNone(n) => {
                write!(
                    f,
                    "max_ptes_none is {n}, but must be 0 to 511 (zero pages of 512)"
                )
            }
            TunableError::FaultOrder(n) => {
                write!(f, "fault_order_max is {n}, but must be 0 or 2 to 8")
            }
        }
    }
}

impl core::error::Error for TunableError {}
