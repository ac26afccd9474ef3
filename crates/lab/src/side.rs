//! The three sides an experiment can run on.

use std::fmt;

use serde::Serialize;

use crate::LabError;

/// Where a row of a report comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Side {
    /// The workload under `deckle run`.
    Live,
    /// The workload on the host kernel alone.
    Kernel,
    /// The workload on the software machine.
    Model,
}

impl Side {
    /// The name in options and reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Live => "live",
            Self::Kernel => "kernel",
            Self::Model => "model",
        }
    }

    /// Parses a list such as `live,kernel`; each side at most once.
    ///
    /// # Errors
    /// [`LabError::Option`] for an unknown, repeated or missing side.
    pub fn parse_list(list: &str) -> Result<Vec<Self>, LabError> {
        let mut sides = Vec::new();
        for word in list.split(',') {
            let side = match word {
                "live" => Self::Live,
                "kernel" => Self::Kernel,
                "model" => Self::Model,
                _ => {
                    return Err(LabError::Option(format!(
                        "unknown side '{word}' in '{list}' (known: live, kernel, model)"
                    )));
                }
            };
            if sides.contains(&side) {
                return Err(LabError::Option(format!(
                    "side '{word}' is named twice in '{list}'"
                )));
            }
            sides.push(side);
        }
        Ok(sides)
    }
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r150_sides_are_a_checked_list() {
        assert_eq!(
            Side::parse_list("kernel,live").unwrap(),
            [Side::Kernel, Side::Live]
        );
        for bad in ["", "live,", "live,live", "Live", "all"] {
            assert!(Side::parse_list(bad).is_err(), "{bad:?} was accepted");
        }
    }
}
