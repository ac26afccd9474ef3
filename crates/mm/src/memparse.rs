//! Sizes as people write them: `256M`, `1.5G`, plain bytes. Units are binary.

use alloc::format;
use alloc::string::String;

/// Largest size that is taken seriously: 1 PiB.
const SIZE_MAX: u64 = 1 << 50;

/// Bytes of a size such as `256M`. Fractions are rounded down to whole bytes.
///
/// # Errors
/// What is no size, or more than any machine has, with what to write.
pub fn memparse(text: &str) -> Result<u64, String> {
    let bad = || {
        format!(
            "`{text}` is not a size: write bytes, or a number with K, M, G or T, such as 256M or \
             1.5G"
        )
    };
    let absurd = || format!("`{text}` is more than any machine has (1024T): check the unit");
    let trimmed = text.trim_ascii();
    let last = trimmed.chars().last().ok_or_else(bad)?;
    let (digits, shift) = match last.to_ascii_uppercase() {
        'K' => (&trimmed[..trimmed.len() - 1], 10),
        'M' => (&trimmed[..trimmed.len() - 1], 20),
        'G' => (&trimmed[..trimmed.len() - 1], 30),
        'T' => (&trimmed[..trimmed.len() - 1], 40),
        _ => (trimmed, 0),
    };
    let (whole, fraction) = match digits.split_once('.') {
        Some((w, f)) if shift > 0 => (w, f),
        Some(_) => return Err(bad()),
        None => (digits, "0"),
    };
    let is_number = |s: &str| s.chars().last().is_some() && s.chars().all(|c| c.is_ascii_digit());
    if !is_number(whole) || !is_number(fraction) {
        return Err(bad());
    }
    let whole: u64 = whole.parse().map_err(|_| absurd())?;
    // Nine digits are enough for a byte of a gigabyte, and cannot overflow below.
    let fraction: String = fraction.chars().take(9).collect();
    let part: u128 = fraction.parse().unwrap_or(0);
    let part = (part << shift) / 10u128.pow(fraction.len() as u32);
    let bytes = (u128::from(whole) << shift) + part;
    match bytes > u128::from(SIZE_MAX) {
        true => Err(absurd()),
        false => Ok(bytes as u64),
    }
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
            ("0.0000000001K", 0),
            ("0G", 0),
            ("1024T", SIZE_MAX),
        ] {
            assert_eq!(memparse(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn what_is_not_a_size_says_why() {
        for text in [
            "", "M", "x", "12Q", "-1", "1e9", "1.5", "1.G", ".5G", "1..2G", "1,5G", "256MB",
            "\u{e9}",
        ] {
            assert!(memparse(text).unwrap_err().contains("is not a size"));
        }
        for text in ["1025T", "99999999999999999999", "18446744073709551615T"] {
            assert!(memparse(text).unwrap_err().contains("check the unit"));
        }
    }
}
