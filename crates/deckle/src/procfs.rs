//! Files of /proc: those in which every line names a value or a mapping, and a process's name.

use std::path::Path;

/// What to do where it is missing.
pub const MISSING: &str = "there is no /proc here: as root, mount -t proc proc /proc";

/// Whether what it tells of a number is of the process that has it for system calls.
///
/// # Errors
/// What to do where it is not.
pub fn check() -> Result<(), String> {
    is_own(Path::new("/proc"), std::process::id())
}

fn is_own(proc: &Path, me: u32) -> Result<(), String> {
    let told = std::fs::read_link(proc.join("self"));
    let pid: Option<u32> = told.ok().and_then(|link| link.to_str()?.parse().ok());
    match pid {
        Some(pid) if me == pid => Ok(()),
        // Who is in no namespace that it tells of has no name there.
        None if !proc.join("1").exists() => Err(MISSING.to_owned()),
        _ => Err(
            "/proc is of another PID namespace: mount that of this one (unshare \
                  --mount-proc, or mount -t proc proc /proc)"
                .to_owned(),
        ),
    }
}

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
    fn a_proc_that_is_not_there_or_another_namespaces_is_refused() {
        let me = std::process::id();
        assert_eq!(is_own(Path::new("/proc"), me), Ok(()));
        let why = |dir: &str, pid| is_own(Path::new(dir), pid).unwrap_err();
        assert!(why("/proc", me + 1).contains("another PID namespace"));
        assert!(why("/dev", me).contains("no /proc here"));
    }

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
