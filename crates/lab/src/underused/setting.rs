//! The settings that are compared.

use std::fmt;

use deckle_mm::{Profile, ThpMode, Tunables};
use serde::{Serialize, Serializer};

use crate::experiment::bad;
use crate::host::Guard;
use crate::host::thp::{MAX_PTES_NONE, Thp};
use crate::{LabError, Side};

/// Where huge pages come from, and what becomes of those that are mostly zeros.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Setting {
    /// None: huge pages only where the program asks for them, and these do not ask.
    Madvise,
    /// Everywhere, and they stay.
    Always,
    /// Everywhere; under pressure those with more than so many zero pages are split.
    Shrink(u16),
    /// What the manager does by default, in its own profile.
    Deckle,
}

/// The threshold of the series.
pub const META: Setting = Setting::Shrink(409);

impl Setting {
    /// All of them, in the order of reports: the three of the series, the sweep, the default.
    pub const ALL: [Self; 11] = [
        Self::Madvise,
        Self::Always,
        META,
        Self::Shrink(0),
        Self::Shrink(64),
        Self::Shrink(255),
        Self::Shrink(450),
        Self::Shrink(470),
        Self::Shrink(490),
        Self::Shrink(511),
        Self::Deckle,
    ];

    /// Parses a name.
    ///
    /// # Errors
    /// [`LabError::Option`] for a name that there is not.
    pub fn parse(name: &str) -> Result<Self, LabError> {
        let number = name.strip_prefix("shrink-").and_then(|n| n.parse().ok());
        match (name, number) {
            ("madvise", _) => Ok(Self::Madvise),
            ("always", _) => Ok(Self::Always),
            ("deckle", _) => Ok(Self::Deckle),
            (_, Some(n)) if u32::from(n) <= MAX_PTES_NONE => Ok(Self::Shrink(n)),
            _ => bad(format!(
                "unknown setting '{name}' (known: madvise, always, shrink-0 to shrink-511, deckle)"
            )),
        }
    }

    /// Whether its time counts, as one of the series' three or as the default.
    pub(super) fn is_timed(self) -> bool {
        matches!(self, Self::Madvise | Self::Always | Self::Deckle) || self == META
    }

    /// Whether a side has it.
    pub(super) fn is_on(self, side: Side) -> bool {
        side != Side::Kernel || self != Self::Deckle
    }

    /// The manager's knobs. Profile `linux` but for the default: what is compared is the
    /// kernel's policy, and nothing else may take a zero page away.
    pub fn tunables(self) -> Tunables {
        let linux = Tunables::of_profile(Profile::Linux);
        match self {
            Self::Madvise => Tunables {
                thp: ThpMode::Madvise,
                shrink_underused: false,
                ..linux
            },
            Self::Always => Tunables {
                shrink_underused: false,
                ..linux
            },
            Self::Shrink(max_ptes_none) => Tunables {
                max_ptes_none,
                ..linux
            },
            Self::Deckle => Tunables::default(),
        }
    }

    /// The same as options of `deckle run`.
    pub(super) fn options(self) -> Vec<String> {
        let t = self.tunables();
        if self == Self::Deckle {
            return Vec::new();
        }
        let (thp, none) = (self.thp(), t.max_ptes_none);
        let shrink = if t.shrink_underused { "on" } else { "off" };
        let words = format!(
            "--profile linux --thp {thp} --shrink-underused {shrink} --max-ptes-none {none}"
        );
        words.split(' ').map(String::from).collect()
    }

    /// `enabled` of huge pages.
    fn thp(self) -> &'static str {
        if self == Self::Madvise {
            "madvise"
        } else {
            "always"
        }
    }

    /// Sets the host's knobs for a kernel row.
    pub(super) fn set(self, guard: &mut Guard) -> Result<(), LabError> {
        let t = self.tunables();
        let thp = Thp {
            max_ptes_none: u32::from(t.max_ptes_none),
            shrink_underused: t.shrink_underused,
        };
        thp.set(guard, self.thp())
    }
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Madvise => f.write_str("madvise"),
            Self::Always => f.write_str("always"),
            Self::Shrink(n) => write!(f, "shrink-{n}"),
            Self::Deckle => f.write_str("deckle"),
        }
    }
}

impl Serialize for Setting {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r138_settings_are_named_once_and_make_sense() {
        for setting in Setting::ALL {
            assert_eq!(Setting::parse(&setting.to_string()).unwrap(), setting);
            setting.tunables().validate().unwrap();
        }
        for bad in ["shrink-512", "shrink", "never", "shrink--1"] {
            assert!(Setting::parse(bad).is_err(), "{bad}");
        }
        let options = META.options().join(" ");
        let want = "--thp always --shrink-underused on --max-ptes-none 409";
        assert!(options.ends_with(want), "{options}");
    }
}
