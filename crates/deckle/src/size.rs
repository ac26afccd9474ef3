//! Sizes for people.

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
    fn sizes_are_shown_with_one_decimal() {
        assert_eq!(show(12), "12 B");
        assert_eq!(show(4096), "4.0 KiB");
        assert_eq!(show(256 << 20), "256.0 MiB");
        assert_eq!(show((1 << 30) - 1), "1.0 GiB");
        assert_eq!(show(3 << 29), "1.5 GiB");
    }
}
