//! The settings file: TOML with the kernel's names.

use std::path::Path;

use deckle_mm::{FaultOrder, PAGE_SIZE, Profile, SIZE_ORDERS, SizeMode, ThpMode};
use serde::Deserialize;
use serde::de::{Deserializer, Error, Visitor};

use crate::fail::Fail;
use crate::swap::Swap;
use crate::words::Word;

/// A size in the file: a string such as `256M`, or bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SizeText(pub String);

impl<'de> Deserialize<'de> for SizeText {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<SizeText, D::Error> {
        struct Sizes;
        impl Visitor<'_> for Sizes {
            type Value = SizeText;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a size such as \"256M\", or bytes")
            }
            fn visit_str<E: Error>(self, s: &str) -> Result<SizeText, E> {
                if !matches!(s, "auto" | "max") {
                    crate::size::parse(s).map_err(E::custom)?;
                }
                Ok(SizeText(s.to_owned()))
            }
            fn visit_i64<E: Error>(self, n: i64) -> Result<SizeText, E> {
                self.visit_str(&n.to_string())
            }
        }
        d.deserialize_any(Sizes)
    }
}

/// One word of a few. The error comes with the line where it stands.
fn word<'de, D: Deserializer<'de>, T: Word>(d: D) -> Result<T, D::Error> {
    T::parse(&String::deserialize(d)?).map_err(D::Error::custom)
}

fn some_word<'de, D: Deserializer<'de>, T: Word>(d: D) -> Result<Option<T>, D::Error> {
    word(d).map(Some)
}

/// A number up to `MAX`.
fn up_to<'de, const MAX: u16, D: Deserializer<'de>>(d: D) -> Result<Option<u16>, D::Error> {
    match i64::deserialize(d)? {
        n if (0..=i64::from(MAX)).contains(&n) => Ok(Some(n as u16)),
        n => Err(D::Error::custom(format!("{n} is not in 0 to {MAX}"))),
    }
}

/// The file.
#[derive(Deserialize, Debug, Default)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// As `--profile`.
    #[serde(default, deserialize_with = "some_word")]
    pub profile: Option<Profile>,
    /// As `--swap`.
    pub swap: Option<Swap>,
    /// As `--strict`.
    pub strict: Option<bool>,
    /// `memory.*`.
    #[serde(default)]
    pub memory: Memory,
    /// `transparent_hugepage.*`.
    #[serde(default)]
    pub transparent_hugepage: Thp,
    /// `vm.*`.
    #[serde(default)]
    pub vm: Vm,
    /// `zswap.*`.
    #[serde(default)]
    pub zswap: Zswap,
}

/// `memory.*`.
#[derive(Deserialize, Debug, Default)]
#[serde(deny_unknown_fields)]
pub struct Memory {
    /// As `--memory-max`.
    pub max: Option<SizeText>,
    /// As `--memory-high`.
    pub high: Option<SizeText>,
    /// `memory.swap.*`.
    #[serde(default)]
    pub swap: MemorySwap,
}

/// `memory.swap.*`.
#[derive(Deserialize, Debug, Default)]
#[serde(deny_unknown_fields)]
pub struct MemorySwap {
    /// As `--swap-max`.
    pub max: Option<SizeText>,
}

/// `zswap.*`.
#[derive(Deserialize, Debug, Default)]
#[serde(deny_unknown_fields)]
pub struct Zswap {
    /// With a file behind it: percent of a process's memory that what is compressed may take
    /// before the oldest of it goes on to the file. Default: 50.
    #[serde(default, deserialize_with = "up_to::<100, _>")]
    pub max_pool_percent: Option<u16>,
}

/// `vm.*`.
#[derive(Deserialize, Debug, Default)]
#[serde(deny_unknown_fields)]
pub struct Vm {
    /// Order of the largest window that is read back at once. Default: 6, with profile `linux` 3.
    #[serde(rename = "page-cluster", default, deserialize_with = "up_to::<8, _>")]
    pub page_cluster: Option<u16>,
    /// Whether what was read back is kept compressed, too, so that it need not be compressed
    /// again if it does not change. Default: false, with profile `linux` true.
    pub swap_cache: Option<bool>,
}

/// `transparent_hugepage.*`.
#[derive(Deserialize, Debug, Default)]
#[serde(deny_unknown_fields)]
pub struct Thp {
    /// As `--thp`.
    #[serde(default, deserialize_with = "some_word")]
    pub enabled: Option<ThpMode>,
    /// As `--shrink-underused`.
    pub shrink_underused: Option<bool>,
    /// Most memory that zeros in huge pages may take before underused ones are split, also
    /// while memory is not short; `max`: no limit, the default. `nr_thp_waste` in the statistics
    /// says how much it is, in pages, also below a limit that is too large to be met.
    pub thp_waste_max: Option<SizeText>,
    /// `fixed`: the largest folio that is allowed; `auto`: what the faults have shown to pay.
    /// Default: `auto`, with profile `linux` `fixed`.
    #[serde(default, deserialize_with = "some_word")]
    pub fault_order: Option<FaultOrder>,
    /// Percent of `memory.high` below which a fault that gets no large folio leaves the holes
    /// around it to the kernel, while `fault_order` is `auto`. They count as used until memory is
    /// wanted. Default: 50, with profile `linux` 0: never.
    #[serde(default, deserialize_with = "up_to::<100, _>")]
    pub fault_open_ratio: Option<u16>,
    /// Whether every mapping of 2 MiB and more begins at a multiple of that. Default: false.
    pub align_mappings: Option<bool>,
    /// `hugepages-16kB/*`.
    #[serde(rename = "hugepages-16kB")]
    pub hugepages_16kb: Option<HugepageSize>,
    /// `hugepages-32kB/*`.
    #[serde(rename = "hugepages-32kB")]
    pub hugepages_32kb: Option<HugepageSize>,
    /// `hugepages-64kB/*`.
    #[serde(rename = "hugepages-64kB")]
    pub hugepages_64kb: Option<HugepageSize>,
    /// `hugepages-128kB/*`.
    #[serde(rename = "hugepages-128kB")]
    pub hugepages_128kb: Option<HugepageSize>,
    /// `hugepages-256kB/*`.
    #[serde(rename = "hugepages-256kB")]
    pub hugepages_256kb: Option<HugepageSize>,
    /// `hugepages-512kB/*`.
    #[serde(rename = "hugepages-512kB")]
    pub hugepages_512kb: Option<HugepageSize>,
    /// `hugepages-1024kB/*`.
    #[serde(rename = "hugepages-1024kB")]
    pub hugepages_1024kb: Option<HugepageSize>,
    /// `hugepages-2048kB/*`.
    #[serde(rename = "hugepages-2048kB")]
    pub hugepages_2048kb: Option<HugepageSize>,
    /// `transparent_hugepage.khugepaged.*`.
    #[serde(default)]
    pub khugepaged: Khugepaged,
}

impl Thp {
    /// What the file says of each size: its order, its `enabled`.
    pub fn sizes(&self) -> impl Iterator<Item = (u8, SizeMode)> {
        let all = [
            &self.hugepages_16kb,
            &self.hugepages_32kb,
            &self.hugepages_64kb,
            &self.hugepages_128kb,
            &self.hugepages_256kb,
            &self.hugepages_512kb,
            &self.hugepages_1024kb,
            &self.hugepages_2048kb,
        ];
        let sizes = SIZE_ORDERS.zip(all);
        sizes.filter_map(|(order, size)| Some((order, size.as_ref()?.enabled)))
    }
}

/// The kernel's name of what belongs to folios of `order`.
pub fn size_name(order: u8) -> String {
    format!("hugepages-{}kB", (PAGE_SIZE >> 10) << order)
}

/// `hugepages-<size>/*`.
#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields, expecting = "a key `enabled` below it")]
pub struct HugepageSize {
    /// `always`, `madvise`, `inherit` or `never`.
    #[serde(deserialize_with = "word")]
    pub enabled: SizeMode,
}

/// `transparent_hugepage.khugepaged.*`.
#[derive(Deserialize, Debug, Default)]
#[serde(deny_unknown_fields)]
pub struct Khugepaged {
    /// As `--max-ptes-none`. For khugepaged at most 64 while `fault_order` is `auto`.
    #[serde(default, deserialize_with = "up_to::<511, _>")]
    pub max_ptes_none: Option<u16>,
    /// Most pages of a block that are read back to make it huge. Default: 64.
    #[serde(default, deserialize_with = "up_to::<511, _>")]
    pub max_ptes_swap: Option<u16>,
    /// Most pages of a block that are shared since a fork and are copied to make it huge. Default:
    /// 256. Here the kernel copies what a fork shares, and a block with such a page is left alone.
    #[serde(default, deserialize_with = "up_to::<511, _>")]
    pub max_ptes_shared: Option<u16>,
    /// Pages to look at between two rests. Default: 4096. 0: never makes huge pages of small.
    pub pages_to_scan: Option<u32>,
    /// How long to rest. Default: 10000.
    pub scan_sleep_millisecs: Option<u32>,
    /// How long to rest when there was no huge page. Default: 60000.
    pub alloc_sleep_millisecs: Option<u32>,
    /// Whether to reclaim for a huge page. Default: false, with profile `linux` true.
    pub defrag: Option<bool>,
}

/// Reads `path`. The error names the line.
pub fn read(path: &Path) -> Result<Config, Fail> {
    let shown = path.display();
    let text = std::fs::read_to_string(path).map_err(|e| {
        Fail::own(format!(
            "{shown}: cannot be read: {}",
            crate::fail::plain(&e)
        ))
    })?;
    toml::from_str(&text).map_err(|e| {
        let line = e.span().map_or(1, |s| {
            1 + text[..s.start.min(text.len())].matches('\n').count()
        });
        let message = e.message().lines().collect::<Vec<_>>().join(" ");
        Fail::own(format!("{shown}: line {line}: {message}"))
    })
}
