//! Mappings of a process, and what `/proc/PID/smaps` says of each.

use std::fs::File;
use std::io::{BufRead, BufReader};

use crate::error::InspectError;

/// A mapping.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Vma {
    /// First byte.
    pub start: u64,
    /// One past the last byte.
    pub end: u64,
    /// What is mapped, or what the process calls it; empty if neither.
    pub name: String,
    /// Whether the process may read it.
    pub readable: bool,
    /// Resident bytes.
    pub rss: u64,
    /// Bytes in pages that are not a file's.
    pub anonymous: u64,
    /// Of these, in huge pages that are mapped as a whole.
    pub huge: u64,
    /// Resident bytes in pages that others map, too.
    pub shared: u64,
    /// Locked into memory (mlock).
    pub locked: bool,
    /// Of hugetlbfs, which has no waste that a setting gives back.
    pub hugetlb: bool,
    /// Registered with a userfaultfd: somebody else may serve its faults.
    pub served: bool,
    /// Advised: `MADV_HUGEPAGE` or `MADV_NOHUGEPAGE`.
    pub advice: Option<bool>,
}

impl Vma {
    /// Whether it may hold huge pages of which the kernel can drop a part.
    pub fn may_waste(&self) -> bool {
        self.anonymous > 0 && !self.hugetlb
    }
}

/// All mappings of a process, in order.
///
/// # Errors
/// It is gone, or its memory is not shown to us.
pub fn vmas(pid: u32) -> Result<Vec<Vma>, InspectError> {
    let file = File::open(format!("/proc/{pid}/smaps"));
    let file = file.map_err(|e| InspectError::of_io(pid, &e))?;
    parse(BufReader::new(file)).map_err(|e| InspectError::of_io(pid, &e))
}

fn parse(text: impl BufRead) -> std::io::Result<Vec<Vma>> {
    let mut all: Vec<Vma> = Vec::new();
    for line in text.split(b'\n') {
        let line = line?;
        let line = String::from_utf8_lossy(&line);
        if let Some(vma) = head(&line) {
            all.push(vma);
        } else if let (Some(vma), Some((key, value))) = (all.last_mut(), line.split_once(':')) {
            field(vma, key, value);
        }
    }
    Ok(all)
}

/// `start-end perms offset device inode name`.
fn head(line: &str) -> Option<Vma> {
    let (range, rest) = line.split_once(' ')?;
    let (start, end) = range.split_once('-')?;
    let hex = |text| u64::from_str_radix(text, 16).ok();
    let (start, end) = (hex(start)?, hex(end)?);
    let mut fields = rest.splitn(5, ' ');
    let perms = fields.next()?;
    let name = fields.nth(3).unwrap_or("").trim();
    Some(Vma {
        start,
        end,
        readable: perms.starts_with('r'),
        name: name.to_owned(),
        ..Vma::default()
    })
}

fn field(vma: &mut Vma, key: &str, value: &str) {
    let kib = || {
        value
            .trim()
            .trim_end_matches(" kB")
            .parse::<u64>()
            .unwrap_or(0)
            << 10
    };
    match key {
        "Rss" => vma.rss = kib(),
        "Anonymous" => vma.anonymous = kib(),
        "AnonHugePages" => vma.huge = kib(),
        "Shared_Clean" | "Shared_Dirty" => vma.shared += kib(),
        "VmFlags" => {
            let has = |flag| value.split_whitespace().any(|word| word == flag);
            vma.locked = has("lo");
            vma.hugetlb = has("ht");
            vma.served = has("um") || has("uw") || has("ui");
            vma.advice = match (has("hg"), has("nh")) {
                (true, _) => Some(true),
                (_, true) => Some(false),
                _ => None,
            };
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn smaps_is_read() {
        let text = "7f0000000000-7f0000400000 rw-p 00000000 00:00 0            [heap: a b]\n\
            Size:               4096 kB\nRss:                2048 kB\nAnonymous:    2048 kB\n\
            Shared_Clean: 4 kB\nShared_Dirty: 8 kB\n\
            AnonHugePages:    2048 kB\nVmFlags: rd wr mr lo ac hg um sd\n\
            7f0000400000-7f0000401000 ---p 00000000 00:00 0\nRss: 0 kB\nVmFlags: mr nh\n";
        let all = parse(text.as_bytes()).unwrap();
        assert_eq!(all.len(), 2);
        let heap = &all[0];
        assert_eq!((heap.start, heap.end), (0x7f00_0000_0000, 0x7f00_0040_0000));
        assert_eq!(heap.name, "[heap: a b]");
        assert_eq!(
            (heap.rss, heap.anonymous, heap.huge),
            (2 << 20, 2 << 20, 2 << 20)
        );
        assert_eq!(heap.shared, 12 << 10);
        assert!(heap.locked && heap.served && heap.readable && heap.may_waste());
        assert_eq!(heap.advice, Some(true));
        assert!(!all[1].readable && !all[1].may_waste());
        assert_eq!((all[1].advice, all[1].name.as_str()), (Some(false), ""));
    }
}
