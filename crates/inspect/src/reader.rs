//! Reading pages of another process without a trace in it.
//!
//! Only pages that the page map says are there are read, and it is asked just before. Pages that
//! the process has for itself are read by `process_vm_readv`, which is fastest. Where that could do
//! more than read (a page that is shared since a fork would be copied; of memory that somebody
//! serves by a userfaultfd one that has just gone would be brought back, and waited for) they are
//! read as debuggers do, by `/proc/PID/mem`.

use std::ffi::CString;
use std::os::fd::OwnedFd;

use deckle_live::zero_scan::zero_pages;
use deckle_sys::{Errno, Fd, Page, process};
use deckle_uffd::{Categories, PageEntry, Pagemap, PagemapScan, Region};

use crate::PAGE;
use crate::error::InspectError;
use crate::gather::Huge;

/// Pages that are read at a time: what stays in a CPU's own cache.
const BATCH: usize = 64;

/// What it takes to read a process.
pub struct Reader {
    pid: u32,
    map: Pagemap,
    mem: Fd,
    pages: Box<[Page]>,
}

impl Reader {
    /// Opens what is needed.
    ///
    /// # Errors
    /// The process is gone, or its memory is not shown to us.
    pub fn open(pid: u32) -> Result<Reader, InspectError> {
        let fail = |why| InspectError::of(pid, why);
        let path =
            |name| CString::new(format!("/proc/{pid}/{name}")).map_err(|_| Errno(libc::EINVAL));
        let open = |name| Fd::open(path(name)?.as_c_str(), libc::O_RDONLY, 0);
        let map = open("pagemap").map_err(fail)?;
        Ok(Reader {
            pid,
            map: Pagemap::of(OwnedFd::from(map)),
            mem: open("mem").map_err(fail)?,
            pages: vec![[0; PAGE as usize / 8]; BATCH].into(),
        })
    }

    /// The page map.
    pub fn map(&self) -> &Pagemap {
        &self.map
    }

    /// What the page map says of one page.
    pub fn entry(&self, at: u64) -> PageEntry {
        let mut entry = [PageEntry::default()];
        match self.map.entries(at as usize, &mut entry) {
            Ok(()) => entry[0],
            Err(_) => PageEntry::default(),
        }
    }

    /// How many pages of a huge page are zeros; `None` if it is not there any more. `served`: its
    /// mapping is somebody's who may have to bring pages in.
    pub fn zeros(&mut self, huge: &Huge, served: bool) -> Option<u32> {
        let gently = served || !huge.is_own;
        let mut zeros = 0;
        for &(at, pages) in huge.pieces() {
            if !self.is_there(at, u64::from(pages), huge.is_whole()) {
                return None;
            }
            let (mut at, mut left) = (at, pages as usize);
            while left > 0 {
                let n = left.min(BATCH);
                zeros += self.zeros_in(at, n, gently)?;
                at += n as u64 * PAGE;
                left -= n;
            }
        }
        Some(zeros)
    }

    /// Whether all these pages are there now, as one huge page if it is to be `whole`.
    fn is_there(&self, at: u64, pages: u64, whole: bool) -> bool {
        let end = at + pages * PAGE;
        let mut query = PagemapScan::any(at as usize, end as usize, Categories::PRESENT);
        query.required = match whole {
            true => Categories::PRESENT | Categories::HUGE,
            false => Categories::PRESENT,
        };
        query.any_of = Categories::empty();
        let mut out = [Region::default(); 1];
        let found = self.map.scan(&query, &mut out);
        found.is_ok_and(|s| s.regions == 1)
            && (out[0].start() as u64, out[0].end() as u64) == (at, end)
    }

    fn zeros_in(&mut self, at: u64, pages: usize, gently: bool) -> Option<u32> {
        let to = &mut self.pages[..pages];
        let got = match gently {
            true => self.mem.read_pages(to, at),
            // What the process itself may not read a debugger may.
            false => match process::read_pages(self.pid, at, to) {
                Err(Errno(libc::EFAULT)) => self.mem.read_pages(to, at),
                other => other,
            },
        };
        let got = got.ok()?;
        (got == pages).then(|| zero_pages(&self.pages[..pages]).count())
    }
}
