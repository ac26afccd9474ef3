//! Files of /proc: those in which every line names a value or a mapping, and a process's name.

/// What follows `name` (with its colon): the first word.
pub fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()
}

/// An amount in kB; 0 if there is none.
pub fn kib(text: &str, name: &str) -> u64 {
    field(text, name).and_then(|n| n.parse().ok()).unwrap_or(0)
}

/// The addresses of a line of `maps` or `smaps` that begins a mapping.
pub fn range(line: &str) -> Option<std::ops::Range<u64>> {
    let (start, end) = line.split(' ').next()?.split_once('-')?;
    let hex = |text| u64::from_str_radix(text, 16).ok();
    Some(hex(start)?..hex(end)?)
}

/// What a process calls itself, which may hold anything; empty if it has ended.
pub fn comm(pid: u32) -> String {
    let comm = std::fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    String::from_utf8_lossy(&comm).trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_maps_begins_with_its_addresses() {
        let line = "7f12a000-7f12b000 rw-p 00000000 00:00 0    [heap]";
        assert_eq!(range(line), Some(0x7f12_a000..0x7f12_b000));
        for other in ["", "AnonHugePages:  0 kB", "Read-only: x", "12-xy rw-p"] {
            assert_eq!(range(other), None, "{other}");
        }
    }

    #[test]
    fn a_field_is_the_first_word_after_its_name() {
        let text = "Name:\tVmRSS: 7\nVmRSS:\t  12 kB\nEmpty:\n";
        assert_eq!(field(text, "VmRSS:"), Some("12"));
        assert_eq!(kib(text, "VmRSS:"), 12);
        assert_eq!(field(text, "Empty:"), None);
        assert_eq!(kib(text, "Name:"), 0);
    }
}
