//! Files of /proc: those in which every line names a value, and a process's name.

/// What follows `name` (with its colon): the first word.
pub fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()
}

/// An amount in kB; 0 if there is none.
pub fn kib(text: &str, name: &str) -> u64 {
    field(text, name).and_then(|n| n.parse().ok()).unwrap_or(0)
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
    fn a_field_is_the_first_word_after_its_name() {
        let text = "Name:\tVmRSS: 7\nVmRSS:\t  12 kB\nEmpty:\n";
        assert_eq!(field(text, "VmRSS:"), Some("12"));
        assert_eq!(kib(text, "VmRSS:"), 12);
        assert_eq!(field(text, "Empty:"), None);
        assert_eq!(kib(text, "Name:"), 0);
    }
}
