//! The settings file: TOML with the kernel's names.

use std::path::Path;

use serde::Deserialize;
use serde::de::{Deserializer, Error, Visitor};

use crate::fail::Fail;

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

/// The file.
#[derive(Deserialize, Debug, Default)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// As `--profile`.
    pub profile: Option<String>,
    /// As `--swap`.
    pub swap: Option<String>,
    /// As `--strict`.
    pub strict: Option<bool>,
    /// `memory.*`.
    #[serde(default)]
    pub memory: Memory,
    /// `transparent_hugepage.*`.
    #[serde(default)]
    pub transparent_hugepage: Thp,
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

/// `transparent_hugepage.*`.
#[derive(Deserialize, Debug, Default)]
#[serde(deny_unknown_fields)]
pub struct Thp {
    /// As `--thp`.
    pub enabled: Option<String>,
    /// As `--shrink-underused`.
    pub shrink_underused: Option<bool>,
    /// `transparent_hugepage.khugepaged.*`.
    #[serde(default)]
    pub khugepaged: Khugepaged,
}

/// `transparent_hugepage.khugepaged.*`.
#[derive(Deserialize, Debug, Default)]
#[serde(deny_unknown_fields)]
pub struct Khugepaged {
    /// As `--max-ptes-none`.
    pub max_ptes_none: Option<i64>,
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
