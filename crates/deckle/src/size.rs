//! Sizes as people write them: `256M`, `1.5G`, plain bytes. Units are binary.

use std::fmt;

/// Largest size that is taken seriously: 1 PiB.
const SIZE_MAX: u64 = 1 << 50;

/// Why a text is not a size.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SizeError {
    /// Not a number with an optional unit.
    Unparsable(String),
    /// Zero, or rounds to it.
    Zero,
    /// Beyond [`SIZE_MAX`].
    Absurd(String),
}

impl fmt::Display for SizeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SizeError::Unparsable(s) => {
                write!(
                    f,
                    "`{s}` is not a size: write bytes, or a number with K, M, G or T, \
                     such as 256M or 1.5G"
                )
            }
            SizeError::Zero => f.write_str("a size of zero: give a larger one"),
            SizeError::Absurd(s) => {
                write!(
                    f,
                    "`{s}` is more than any machine has (1024T): check the unit"
                )
            }
        }
    }
}

impl std::error::Error for SizeError {}

/// Bytes of a size such as `256M`. Fractions are rounded down to whole bytes.
pub fn parse(text: &str) -> Result<u64, SizeError> {
    let bad = || SizeError::Unparsable(text.to_owned());
    let trimmed = text.trim();
    let last = trimmed.chars().last().ok_or_else(bad)?;
    let (digits, shift) = match last.to_ascii_uppercase() {
        'K' => (&trimmed[..trimmed.len() - 1], 10),
        'M' => (&trimmed[..trimmed.len() - 1], 20),
        'G' => (&trimmed[..trimmed.len() - 1], 30),
        'T' => (&trimmed[..trimmed.len() - 1], 40),
        _ => (trimmed, 0),
    };
    let (whole, fraction) = match digits.split_once('.') {
        Some((w, f)) if shift > 0 && !f.is_empty() => (w, f),
        Some(_) => return Err(bad()),
        None => (digits, ""),
    };
    let is_number = |s: &str| s.bytes().all(|b| b.is_ascii_digit());
    if whole.is_empty() || !is_number(whole) || !is_number(fraction) {
        return Err(bad());
    }
    let absurd = || SizeError::Absurd(text.to_owned());
    let whole: u64 = whole.parse().map_err(|_| absurd())?;
    // Nine digits are enough for a byte of a gigabyte, and cannot overflow below.
    let fraction: String = fraction.chars().take(9).collect();
    let part: u128 = fraction.parse().unwrap_or(0);
    let part = (part << shift) / 10u128.pow(fraction.len() as u32);
    let bytes = (u128::from(whole) << shift) + part;
    if bytes > u128::from(SIZE_MAX) {
        return Err(absurd());
    }
    if bytes == 0 {
        Err(SizeError::Zero)
    } else {
        Ok(bytes as u64)
    }
}

/// Bytes for people: one decimal, binary unit.
pub fn show(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1023.95 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_binary_and_may_have_a_fraction() {
        for (text, bytes) in [
            ("4096", 4096),
            ("256M", 256 << 20),
            ("256m", 256 << 20),
            ("2G", 2 << 30),
            ("1.5G", 3 << 29),
            ("64K", 64 << 10),
            ("1T", 1 << 40),
            (" 8M ", 8 << 20),
            ("0.25K", 256),
            ("0.1234567890123G", 132_560_717),
        ] {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn what_is_not_a_size_says_why() {
        for text in [
            "", "M", "x", "12Q", "-1", "1e9", "1.5", "1.G", ".5G", "1..2G", "1,5G", "256MB",
            "\u{e9}",
        ] {
            assert!(
                matches!(parse(text), Err(SizeError::Unparsable(_))),
                "{text}"
            );
        }
        for text in ["0", "0G", "0.0000000001K"] {
            assert_eq!(parse(text), Err(SizeError::Zero), "{text}");
        }
        for text in ["1025T", "99999999999999999999", "18446744073709551615T"] {
            assert!(matches!(parse(text), Err(SizeError::Absurd(_))), "{text}");
        }
        assert_eq!(parse("1024T"), Ok(SIZE_MAX));
    }

    #[test]
    fn sizes_are_shown_with_one_decimal() {
        assert_eq!(show(12), "12 B");
        assert_eq!(show(4096), "4.0 KiB");
        assert_eq!(show(256 << 20), "256.0 MiB");
        assert_eq!(show((1 << 30) - 1), "1.0 GiB");
        assert_eq!(show(3 << 29), "1.5 GiB");
    }
}
