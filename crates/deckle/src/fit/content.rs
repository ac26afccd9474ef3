//! What a sample of pages says of all.

use deckle_group::remedy::{DEAD, SPARE};
use deckle_mm::PAGE_SIZE;
use deckle_store::{Algorithm, Trial};

use super::pages::Pages;
use crate::fail::Fail;

const PAGE: u64 = PAGE_SIZE as u64;
/// zstd's level, as `deckle run` has it.
const ZSTD: i32 = 3;

/// What a store makes of the pages that are not zero.
pub(super) struct Packed {
    /// As `--swap` calls it.
    pub name: &'static str,
    /// Bytes for a page in the mean, with what belongs to it.
    pub page_bytes: u64,
}

impl Packed {
    /// How many bytes become one.
    pub fn ratio(&self) -> f64 {
        PAGE as f64 / self.page_bytes.max(1) as f64
    }

    /// RAM for so many bytes.
    fn stored(&self, bytes: u64) -> u64 {
        let (most, live) = (u128::from(DEAD.0), u128::from(DEAD.1));
        let stored = u128::from(bytes) * u128::from(self.page_bytes) * most / live;
        u64::try_from(stored / u128::from(PAGE)).unwrap_or(u64::MAX)
    }
}

/// Pages, as a sample of them says.
pub(super) struct Content {
    /// All of them.
    pub pages: u64,
    /// Those that were looked at.
    pub tried: u64,
    /// Those of them that are zeros.
    zeros: u64,
    /// By lz4 and by zstd.
    pub packed: Vec<Packed>,
}

impl Content {
    /// Of a file or a process, from at most so many pages of it.
    ///
    /// # Errors
    /// There is nothing of this name, it cannot be read, or has no page.
    pub fn of(name: &str, most: u64) -> Result<Content, Fail> {
        let pages = Pages::open(name).map_err(|why| Fail::own(format!("{name}: {why}")))?;
        let none = || Fail::own("no memory to compress with");
        let ways = [("lz4", Algorithm::Lz4), ("zstd", Algorithm::Zstd(ZSTD))];
        let mut trials = Vec::new();
        for (name, algorithm) in ways {
            trials.push((name, Trial::new(algorithm).ok_or_else(none)?));
        }
        let (mut tried, mut zeros) = (0, 0);
        pages.sample(most, &mut |page| {
            tried += 1;
            if page.iter().all(|byte| *byte == 0) {
                zeros += 1;
            } else {
                trials.iter_mut().for_each(|(_, trial)| trial.add(page));
            }
        });
        if tried == 0 {
            return Err(Fail::own(format!("{name}: has no page that can be read")));
        }
        let packed = trials.iter().map(|(name, trial)| Packed {
            name,
            page_bytes: trial.mean_bytes().unwrap_or(0),
        });
        Ok(Content {
            pages: pages.count(),
            tried,
            zeros,
            packed: packed.collect(),
        })
    }

    /// All bytes.
    pub fn bytes(&self) -> u64 {
        self.pages * PAGE
    }

    /// Which part of it is zeros.
    pub fn zero_share(&self) -> f64 {
        self.zeros as f64 / self.tried as f64
    }

    /// Bytes that are not zero, as far as the sample says.
    pub fn filled(&self) -> u64 {
        let filled = u128::from(self.pages) * u128::from(self.tried - self.zeros);
        (filled / u128::from(self.tried)) as u64 * PAGE
    }

    /// The least limit in which so many bytes stay resident.
    pub fn least(&self, packed: &Packed, resident: u64) -> u64 {
        let rest = self.filled().saturating_sub(resident);
        SPARE + resident + packed.stored(rest).min(rest)
    }

    /// Bytes that stay resident in a limit; none if not even all of it fits when it is compressed.
    pub fn resident(&self, packed: &Packed, max: u64) -> Option<u64> {
        let (filled, room) = (self.filled(), max.checked_sub(SPARE)?);
        if room >= filled {
            return Some(filled);
        }
        let stored = packed.stored(filled);
        let left = room.checked_sub(stored)?;
        // Each resident byte takes the place of what it would be compressed to.
        let each = filled.checked_sub(stored).filter(|each| *each > 0)?;
        let resident = u128::from(left) * u128::from(filled) / u128::from(each);
        Some((resident as u64).min(filled) / PAGE * PAGE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn content(pages: u64, zeros: u64) -> Content {
        Content {
            pages,
            tried: 100,
            zeros,
            packed: Vec::new(),
        }
    }

    /// A third, with what a store leaves unfilled.
    const THIRD: Packed = Packed {
        name: "third",
        page_bytes: PAGE * 12 / 13 / 3,
    };

    #[test]
    fn what_is_resident_in_the_least_limit_is_what_it_was_asked_for() {
        let content = content(1 << 20, 25);
        let filled = content.filled();
        assert_eq!(filled, 3 << 30);
        for percent in 0..=100 {
            let wanted = filled / 100 * percent;
            let least = content.least(&THIRD, wanted);
            let got = content.resident(&THIRD, least).unwrap();
            assert!(
                got.abs_diff(wanted) <= 2 * PAGE,
                "{percent} %: {got} of {wanted}"
            );
            let less = content.resident(&THIRD, least - (64 << 10));
            assert!(
                less.is_none_or(|less| less < wanted),
                "{percent} %: {less:?}"
            );
        }
        // 3 GiB in 1 GiB and 4 MiB: nothing is resident; all is, in 4 MiB more than it.
        let near = |bytes: u64, want: u64| assert!(bytes.abs_diff(want) < 1 << 20, "{bytes}");
        near(content.least(&THIRD, 0), (1 << 30) + SPARE);
        assert_eq!(content.resident(&THIRD, filled + SPARE), Some(filled));
    }

    #[test]
    fn what_does_not_compress_has_to_be_resident() {
        let content = content(1000, 0);
        let whole = Packed {
            name: "whole",
            page_bytes: PAGE,
        };
        assert_eq!(content.least(&whole, 0), SPARE + 1000 * PAGE);
        assert_eq!(content.resident(&whole, SPARE + 999 * PAGE), None);
        assert_eq!(content.resident(&whole, SPARE - 1), None);
        // Of zeros nothing has to be.
        let zeros = super::Content {
            zeros: 100,
            ..content
        };
        assert_eq!(zeros.resident(&whole, SPARE), Some(0));
        assert_eq!(zeros.least(&whole, 0), SPARE);
    }
}
