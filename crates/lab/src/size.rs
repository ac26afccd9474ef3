//! Byte sizes in arguments and reports, in binary units.

use deckle_mm::memparse;

use crate::LabError;
use crate::experiment::bad;

/// Bytes of a page.
pub const PAGE: usize = 4096;
/// Bytes of a block, the range one huge page covers.
pub const BLOCK: usize = 2 << 20;

/// Parses `4096`, `50K`, `1.5M`, `4G` or `1T` (binary units, an optional `iB` ignored) as bytes,
/// rounded down.
///
/// # Errors
/// [`LabError::Option`] for anything else, for zero, and for what does not fit in memory
/// addresses.
pub fn parse(text: &str) -> Result<usize, LabError> {
    let why = |why: &str| bad(format!("size '{text}': {why}"));
    match memparse(text.strip_suffix("iB").unwrap_or(text)) {
        Ok(0) => why("is zero"),
        Ok(n) if n < 1 << 46 => Ok(n as usize),
        Ok(_) => why("is larger than an address space"),
        Err(e) => bad(e),
    }
}

/// A size for people: the largest binary unit that divides it well, one decimal otherwise.
pub fn human(bytes: u64) -> String {
    for (unit, shift) in [("GiB", 30), ("MiB", 20), ("KiB", 10)] {
        let one = 1u64 << shift;
        if bytes >= one {
            return if bytes.is_multiple_of(one) {
                format!("{} {unit}", bytes >> shift)
            } else {
                format!("{:.1} {unit}", bytes as f64 / one as f64)
            };
        }
    }
    format!("{bytes} B")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r150_sizes_are_parsed_or_refused() {
        assert_eq!(parse("50K").unwrap(), 51200);
        assert_eq!(parse("4G").unwrap(), 4 << 30);
        assert_eq!(parse("20MiB").unwrap(), 20 << 20);
        assert_eq!(parse("1.5G").unwrap(), 3 << 29);
        for bad in [
            "",
            "0",
            "0G",
            "-1",
            "1.5",
            "1.G",
            "K",
            "12X",
            "99999999999T",
            "1 G",
        ] {
            assert!(parse(bad).is_err(), "{bad:?} was accepted");
        }
        assert_eq!(human(4 << 30), "4 GiB");
        assert_eq!(human(1536), "1.5 KiB");
    }
}
