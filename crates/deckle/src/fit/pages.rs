//! Pages of a file, or of a process.

use std::ffi::CString;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

use deckle_mm::PAGE_SIZE;
use deckle_uffd::{Categories, Pagemap, PagemapScan};

use crate::fail::plain;
use crate::look::{self, Tree};
use crate::procfs;

const PAGE: u64 = PAGE_SIZE as u64;

/// Where pages are, and what is read there.
pub(super) struct Pages {
    files: Vec<File>,
    /// Each in one of the files: which, its offset there and its length, in bytes.
    runs: Vec<(usize, u64, u64)>,
}

impl Pages {
    /// Those of the file of this name; where there is none, of the process of this number or of the
    /// tree that is called so.
    pub fn open(name: &str) -> Result<Pages, String> {
        if Path::new(name).exists() {
            return Pages::of_file(name);
        }
        if let Ok(pid) = name.parse::<u32>() {
            let mut pages = Pages::none();
            pages.add_process(pid)?;
            return Ok(pages);
        }
        match look::named(name).map_err(|fail| fail.text)? {
            Some(tree) => Pages::of_tree(&tree),
            None if name.contains('/') => Pages::of_file(name),
            None => Pages::of_file(name)
                .map_err(|why| format!("{why}, and no tree that runs is called so")),
        }
    }

    fn none() -> Pages {
        let (files, runs) = (Vec::new(), Vec::new());
        Pages { files, runs }
    }

    /// Those of all processes of a tree; one that ends meanwhile has none.
    fn of_tree(tree: &Tree) -> Result<Pages, String> {
        let pids = tree.pids().map_err(|fail| fail.text)?;
        let (mut pages, mut why) = (Pages::none(), None);
        for pid in pids {
            why = pages.add_process(pid).err().or(why);
        }
        match why {
            Some(why) if pages.runs.is_empty() => Err(why),
            _ => Ok(pages),
        }
    }

    fn of_file(name: &str) -> Result<Pages, String> {
        let file = File::open(name).map_err(|e| plain(&e))?;
        let of = file.metadata().map_err(|e| plain(&e))?;
        if !of.is_file() {
            return Err("no regular file: give one, or the number of a process".into());
        }
        let bytes = of.len() / PAGE * PAGE;
        Ok(Pages {
            files: vec![file],
            runs: vec![(0, 0, bytes)],
        })
    }

    /// Adds what is resident, private and no file's. Other pages would have to be brought in to be
    /// read.
    fn add_process(&mut self, pid: u32) -> Result<(), String> {
        procfs::check()?;
        let refuse = |errno: i32, text: String| match errno {
            libc::ENOENT => format!("there is no process {pid}"),
            libc::ESRCH => {
                format!("process {pid} has no memory: the kernel's own, or it has ended")
            }
            _ => format!("{text}: be root or its user"),
        };
        let refused = |e: std::io::Error| refuse(e.raw_os_error().unwrap_or(0), plain(&e));
        let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).map_err(refused)?;
        let file = File::open(format!("/proc/{pid}/mem")).map_err(refused)?;
        let path = CString::new(format!("/proc/{pid}/pagemap")).unwrap_or_default();
        let pagemap = Pagemap::open(&path).map_err(|e| refuse(e.0, e.to_string()))?;
        let nth = self.files.len();
        for range in maps.lines().filter_map(anonymous) {
            let (start, end) = (range.start as usize, range.end as usize);
            let query = PagemapScan {
                inverted: Categories::FILE | Categories::PFNZERO,
                required: Categories::PRESENT | Categories::FILE | Categories::PFNZERO,
                ..PagemapScan::any(start, end, Categories::PRESENT)
            };
            // What has been unmapped since is left out.
            let _ = pagemap.each(query, |run| {
                self.runs
                    .push((nth, run.start() as u64, run.bytes() as u64));
            });
        }
        self.files.push(file);
        Ok(())
    }

    /// How many there are.
    pub fn count(&self) -> u64 {
        self.runs.iter().map(|(_, _, bytes)| bytes / PAGE).sum()
    }

    /// Shows at most so many of them, one at random of each stretch of the same length.
    pub fn sample(&self, most: u64, look: &mut dyn FnMut(&[u8])) {
        let all = self.count();
        let stretches = all.min(most);
        let mut page = [0; PAGE_SIZE];
        let mut random = 0x9e37_79b9_7f4a_7c15_u64;
        let (mut run, mut before) = (0, 0);
        for n in 0..stretches {
            random = random.wrapping_mul(0xd134_2543_de82_ef95).wrapping_add(1);
            let from = u128::from(n) * u128::from(all) / u128::from(stretches);
            let to = u128::from(n + 1) * u128::from(all) / u128::from(stretches);
            let (from, to) = (from as u64, to as u64);
            let at = from + (random >> 16) % (to - from);
            while at >= before + self.runs[run].2 / PAGE {
                before += self.runs[run].2 / PAGE;
                run += 1;
            }
            let (file, start, _) = self.runs[run];
            let offset = start + (at - before) * PAGE;
            if self.files[file].read_exact_at(&mut page, offset).is_ok() {
                look(&page);
            }
        }
    }
}

/// The range of a line of `/proc/PID/maps`, if it is private memory that may be written and is no
/// file's.
fn anonymous(line: &str) -> Option<Range<u64>> {
    let mut words = line.split_whitespace().skip(1);
    let (rights, inode) = (words.next()?, words.nth(2)?);
    let anonymous = rights.starts_with("rw") && rights.ends_with('p') && inode == "0";
    let special = words.next().is_some_and(|name| name.starts_with("[stack"));
    procfs::range(line).filter(|_| anonymous && !special)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_is_a_files_or_a_stack_is_left_out() {
        let heap = "555500000000-555500003000 rw-p 00000000 00:00 0          [heap]";
        assert_eq!(anonymous(heap), Some(0x5555_0000_0000..0x5555_0000_3000));
        for other in [
            "7f00000000-7f00001000 r--p 00000000 00:00 0",
            "7f00000000-7f00001000 rw-s 00000000 00:00 0",
            "7f00000000-7f00001000 rw-p 00000000 08:01 77   /lib/x.so",
            "7ffd000000-7ffd021000 rw-p 00000000 00:00 0    [stack]",
            "",
        ] {
            assert_eq!(anonymous(other), None, "{other}");
        }
    }

    #[test]
    fn a_sample_has_each_stretch_once() {
        let path = std::env::temp_dir().join(format!("deckle-fit-{}", std::process::id()));
        let bytes: Vec<u8> = (0..1000_u32).flat_map(|n| [n as u8; PAGE_SIZE]).collect();
        std::fs::write(&path, bytes).unwrap();
        let pages = Pages::open(path.to_str().unwrap()).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(pages.count(), 1000);
        for most in [1, 7, 500, 1000, 5000] {
            let mut seen = Vec::new();
            pages.sample(most, &mut |page| seen.push(page[9]));
            assert_eq!(seen.len() as u64, most.min(1000));
            if most >= 1000 {
                let all: Vec<u8> = (0..1000_u32).map(|n| n as u8).collect();
                assert_eq!(seen, all);
            }
        }
    }
}
