//! What would have helped who is killed at the limit: for the report of a kill.
//!
//! All of it is reckoned from what there is at that moment: with what it names the program would
//! have come as far as it has, and nobody knows how far it was going.

use core::fmt;

use crate::attach::Group;
use crate::file::SwapFile;
use crate::knobs::SwapKind;

const PAGE: u64 = 4096;
const MIB: u64 = 1 << 20;

/// Bytes that have to be resident for a program to run at all: what `memory.high` is below
/// `memory.max` at least, so that reclaim is ahead of it.
pub const SPARE: u64 = 4 * MIB;
/// A store's RAM is at most so many twelfths of its encodings: a thirteenth of it is dead.
pub const DEAD: (u64, u64) = (13, 12);

/// Bytes of RAM that a page takes in the mean, by algorithm; 4096 for one that is not stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Means {
    /// By lz4.
    pub lz4: Option<u64>,
    /// By zstd.
    pub zstd: Option<u64>,
}

/// Pages that were encoded anew, and what came of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Sample {
    /// How many.
    pub pages: u64,
    /// Of pages that are in the store.
    pub stored: Means,
    /// Of pages that could go nowhere.
    pub refused: Means,
}

/// A group out of memory. Bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Seen {
    /// `memory.max`.
    pub max: u64,
    /// What is charged.
    pub usage: u64,
    /// Of this, pages that are resident.
    pub resident: u64,
    /// Of this, the store's RAM.
    pub store: u64,
    /// What the pages hold that are in the store, files included.
    pub swapped: u64,
    /// The same of those in files.
    pub filed: u64,
    /// What may be swapped.
    pub swap_max: u64,
    /// Where it goes.
    pub swap: SwapKind,
    /// Files behind it, and what is used of them.
    pub file: Option<(SwapFile, u64)>,
}

impl Group {
    /// The group now, as far as its processes have published it.
    pub fn seen(&self) -> Seen {
        let (limits, now) = (self.limits(), self.gauges());
        let bytes = |pages: u64| pages.saturating_mul(PAGE);
        Seen {
            max: bytes(limits.max),
            usage: bytes(self.usage()),
            resident: bytes(now.resident.saturating_add(now.inactive)),
            store: bytes(now.stored_pages),
            swapped: bytes(now.swapped),
            filed: bytes(now.filed),
            swap_max: bytes(limits.swap_max),
            swap: self.swap_kind(),
            file: self.swap_file().map(|file| (file, self.file_bytes())),
        }
    }
}

impl Seen {
    /// What neither a store nor a file takes away: tables, and what is the pager's own.
    fn fixed(&self) -> u64 {
        let moving = self.resident.saturating_add(self.store);
        self.usage.saturating_sub(moving).saturating_add(SPARE)
    }

    /// The least limit at which nothing is swapped.
    fn least_resident(&self) -> u64 {
        let all = self.resident.saturating_add(self.swapped);
        self.fixed().saturating_add(all)
    }

    /// RAM of a store that has all pages, by what those take in the mean that are `stored` and
    /// those that are not.
    fn stored(&self, stored: Option<u64>, refused: Option<u64>) -> Option<u64> {
        let of = |bytes: u64, mean: Option<u64>| match bytes {
            0 => Some(0),
            _ => Some(u128::from(bytes) * u128::from(mean?) / u128::from(PAGE)),
        };
        let encoded = of(self.swapped, stored)? + of(self.resident, refused.or(Some(PAGE)))?;
        let (most, live) = (u128::from(DEAD.0), u128::from(DEAD.1));
        u64::try_from(encoded * most / live).ok()
    }
}

/// The lines of a report that say what would have helped.
pub struct Remedies {
    /// What there was.
    pub seen: Seen,
    /// What some of its pages would have taken.
    pub sample: Sample,
}

/// Bytes as an option of `deckle run` takes them, rounded up.
struct Mib(u64);

impl fmt::Display for Mib {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}M", self.0.div_ceil(MIB))
    }
}

impl Remedies {
    /// RAM of a store of another algorithm. What is in files stays there.
    fn stored(&self, by: fn(&Means) -> Option<u64>) -> Option<u64> {
        let Sample {
            stored, refused, ..
        } = &self.sample;
        let filed = self.seen.file.map_or(0, |(_, used)| used);
        let all = self.seen.stored(by(stored), by(refused))?;
        Some(all.saturating_sub(filed))
    }

    /// Bytes that one page of the sample stands for: what is reckoned from it may be wrong by that.
    fn one(&self) -> u64 {
        let all = self.seen.resident.saturating_add(self.seen.swapped);
        all.checked_div(self.sample.pages).unwrap_or(all)
    }

    /// One way, with the least limit that suffices, also if one page more of the sample were one
    /// that no store takes.
    fn way(
        &self,
        f: &mut fmt::Formatter<'_>,
        what: &dyn fmt::Display,
        store: Option<u64>,
    ) -> fmt::Result {
        let Some(store) = store else { return Ok(()) };
        let doubt = if store == 0 { 0 } else { self.one() };
        let least = self.seen.fixed().saturating_add(store);
        let least = least.saturating_add(doubt);
        let fits = match least <= self.seen.max {
            true => "fits",
            false => "too little",
        };
        let (least, max) = (Mib(least), Mib(self.seen.max));
        writeln!(f, "  {what}: {fits}, {least} or more of {max}")
    }

    fn limits(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let s = &self.seen;
        // A folio of the largest size that is swapped whole may not fit any more.
        if s.swap != SwapKind::None && s.swapped.saturating_add(2 * MIB) >= s.swap_max {
            let what = "--swap-max, larger";
            writeln!(f, "  {what}: all of {} is used", Mib(s.swap_max))?;
        }
        if let Some((file, used)) = s.file
            && used.saturating_add(used / 16) >= file.bytes
        {
            let what = "file:DIR:SIZE, larger";
            writeln!(f, "  {what}: all of {} is used", Mib(file.bytes))?;
        }
        Ok(())
    }
}

impl fmt::Display for Remedies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let s = &self.seen;
        let in_ram = s.swapped.saturating_sub(s.filed);
        if s.store > 0 && in_ram > MIB {
            let ratio = in_ram as f64 / s.store as f64;
            writeln!(
                f,
                "ratio: {} in {} ({ratio:.1}:1)",
                Mib(in_ram),
                Mib(s.store)
            )?;
        }
        writeln!(
            f,
            "what would have helped, as far as the program had come ({} pages tried):",
            self.sample.pages
        )?;
        let least = Mib(s.least_resident());
        writeln!(f, "  --memory-max {least}: nothing is swapped then")?;
        self.limits(f)?;
        if s.swap == SwapKind::None {
            self.way(f, &"--swap zram:lz4", self.stored(|m| m.lz4))?;
        }
        if s.swap != SwapKind::Zstd {
            self.way(f, &"--swap zram:zstd", self.stored(|m| m.zstd))?;
        }
        if s.file.is_none() {
            let (what, disk) = match s.swap {
                SwapKind::Zstd => ("--swap zram:zstd,file:DIR", self.stored(|m| m.zstd)),
                _ => ("--swap zram:lz4,file:DIR", self.stored(|m| m.lz4)),
            };
            if let Some(disk) = disk {
                let disk = Mib(disk);
                self.way(f, &format_args!("{what} with {disk} of a disk"), Some(0))?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "../tests/unit/remedy.rs"]
mod tests;
