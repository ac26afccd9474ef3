//! `PAGEMAP_SCAN`: what is mapped in a range, as runs of pages of the same categories.
//!
//! Linux 6.7 on. Whether a block is huge, which pages of a zero run have been written, what was
//! written since the last look: facts to be read here, never inferred.

use core::ffi::CStr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use crate::error::Errno;
use crate::flags::Categories;
use crate::sys::{self, PmScanArg};

/// Regions that [`Pagemap::each`] has room for at one time.
const REGIONS: usize = 32;

/// An open `pagemap` file of a process.
#[derive(Debug)]
pub struct Pagemap {
    fd: OwnedFd,
}

/// A run of pages with the same categories (of those asked for).
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Region {
    start: u64,
    end: u64,
    categories: Categories,
}

const _: () = assert!(size_of::<Region>() == 24);

impl Region {
    /// First byte.
    pub const fn start(&self) -> usize {
        self.start as usize
    }

    /// One past the last byte.
    pub const fn end(&self) -> usize {
        self.end as usize
    }

    /// Length in bytes.
    pub const fn bytes(&self) -> usize {
        self.end.saturating_sub(self.start) as usize
    }

    /// Its categories, of those in [`PagemapScan::returned`].
    pub const fn categories(&self) -> Categories {
        self.categories
    }
}

/// What `pagemap` says of a page.
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PageEntry(u64);

impl PageEntry {
    /// Whether a page is there.
    pub const fn is_present(self) -> bool {
        self.0 >> 63 == 1
    }

    /// Whether the page is of a file, or shared memory.
    pub const fn is_file(self) -> bool {
        self.0 >> 61 & 1 == 1
    }

    /// Whether the page is mapped here and nowhere else.
    pub const fn is_exclusive(self) -> bool {
        self.0 >> 56 & 1 == 1
    }

    /// The number of the page's frame; `None` where nothing is there, or the system does not tell
    /// (that needs `CAP_SYS_ADMIN`).
    pub const fn frame(self) -> Option<u64> {
        let frame = self.0 & ((1 << 55) - 1);
        match self.is_present() && frame != 0 {
            true => Some(frame),
            false => None,
        }
    }

    /// Whether it is write-protected by userfaultfd; of a page that is not there: whether there is
    /// a marker in its place, or the system has swapped it out while it was protected. These two
    /// cannot be told apart: they are entries of the same kind.
    pub const fn is_protected(self) -> bool {
        self.0 >> 57 & 1 == 1
    }

    /// Whether nothing is there: no page, no page that the system has swapped out, no marker.
    pub const fn is_hole(self) -> bool {
        // Neither present nor, one bit below, swapped.
        self.0 >> 62 == 0 && !self.is_protected()
    }
}

/// A question to [`Pagemap::scan`].
///
/// A page matches if, after the bits of `inverted` have been flipped, it has all of `required`
/// and (unless that is empty) any of `any_of`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PagemapScan {
    /// First byte, page-aligned.
    pub start: usize,
    /// One past the last byte, page-aligned.
    pub end: usize,
    /// Categories whose absence counts as presence.
    pub inverted: Categories,
    /// Must all be there.
    pub required: Categories,
    /// One of them must be there; empty: no such condition.
    pub any_of: Categories,
    /// Categories to report and to tell runs apart by. Must not be empty unless only the
    /// protection is wanted.
    pub returned: Categories,
    /// Stop after this many matching pages; 0: no limit.
    pub max_pages: u64,
    /// Write-protect the matching pages in the same step, so that no write is missed in between.
    pub protect: bool,
    /// Fail with `EPERM` if a part of the range is not registered for asynchronous
    /// write-protection, instead of skipping that part.
    pub check_async: bool,
}

impl PagemapScan {
    /// All pages of the range that have one of `returned`, reported with those categories.
    pub const fn any(start: usize, end: usize, returned: Categories) -> Self {
        Self {
            start,
            end,
            inverted: Categories::empty(),
            required: Categories::empty(),
            any_of: returned,
            returned,
            max_pages: 0,
            protect: false,
            check_async: false,
        }
    }

    /// Pages written since the last harvest, protected again in the same step. The range is
    /// registered for write-protection with [`Features::WP_ASYNC`](crate::Features).
    pub const fn harvest(start: usize, end: usize) -> Self {
        Self {
            start,
            end,
            inverted: Categories::empty(),
            required: Categories::WRITTEN,
            any_of: Categories::empty(),
            returned: Categories::WRITTEN,
            max_pages: 0,
            protect: true,
            check_async: true,
        }
    }
}

/// How far a scan came.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Scanned {
    /// Regions filled in.
    pub regions: usize,
    /// Where it stopped. Less than the end asked for if the room or `max_pages` ran out: go on
    /// from here.
    pub walk_end: usize,
}

impl Pagemap {
    /// Opens the calling process's own.
    ///
    /// # Errors
    /// The kernel's refusal; `ENOENT` without /proc.
    pub fn open_self() -> Result<Self, Errno> {
        Self::open(c"/proc/self/pagemap")
    }

    /// Opens a `pagemap` file by path.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn open(path: &CStr) -> Result<Self, Errno> {
        // SAFETY: path is a valid C string.
        let fd = unsafe { libc::open(path.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC) };
        if fd < 0 {
            return Err(Errno::last());
        }
        // SAFETY: just opened, without another owner.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Self { fd })
    }

    /// What somebody else has opened: a `pagemap` file.
    pub fn of(fd: OwnedFd) -> Self {
        Self { fd }
    }

    /// Scans a range; fills `out` from its start.
    ///
    /// Safe: protection, if asked for, changes no byte.
    ///
    /// # Errors
    /// `ENOTTY`: the kernel does not know the operation. `EINVAL`: unaligned range or unknown
    /// category. `EPERM`: see [`PagemapScan::check_async`]. `EFAULT`, `EINTR`, `ENOMEM`.
    pub fn scan(&self, query: &PagemapScan, out: &mut [Region]) -> Result<Scanned, Errno> {
        let mut flags = 0;
        if query.protect {
            flags |= sys::PM_SCAN_WP_MATCHING;
        }
        if query.check_async {
            flags |= sys::PM_SCAN_CHECK_WPASYNC;
        }
        let mut arg = PmScanArg {
            size: size_of::<PmScanArg>() as u64,
            flags,
            start: query.start as u64,
            end: query.end as u64,
            walk_end: 0,
            // An empty slice's pointer is no address; the kernel wants 0 for "no output".
            vec: if out.is_empty() {
                0
            } else {
                out.as_mut_ptr().expose_provenance() as u64
            },
            vec_len: out.len() as u64,
            max_pages: query.max_pages,
            category_inverted: query.inverted.bits(),
            category_mask: query.required.bits(),
            category_anyof_mask: query.any_of.bits(),
            return_mask: query.returned.bits(),
        };
        // SAFETY: arg is the structure of this request. The kernel writes at most vec_len
        // regions to vec, which is out; any bits make a valid Region.
        let got = unsafe { libc::ioctl(self.fd.as_raw_fd(), sys::PAGEMAP_SCAN as _, &raw mut arg) };
        match usize::try_from(got) {
            Ok(regions) => Ok(Scanned {
                regions: regions.min(out.len()),
                walk_end: arg.walk_end as usize,
            }),
            Err(_) => Err(Errno::last()),
        }
    }

    /// Scans a range to its end, however many regions there are.
    ///
    /// # Errors
    /// As [`scan`](Self::scan); `EIO` if the kernel does not come forward.
    pub fn each(&self, mut query: PagemapScan, mut work: impl FnMut(&Region)) -> Result<(), Errno> {
        let mut out = [Region::default(); REGIONS];
        while query.start < query.end {
            let scanned = self.scan(&query, &mut out)?;
            out[..scanned.regions].iter().for_each(&mut work);
            if scanned.walk_end <= query.start {
                return Err(Errno(libc::EIO));
            }
            query.start = scanned.walk_end;
        }
        Ok(())
    }

    /// Reads one entry for each page from `start` on.
    ///
    /// # Errors
    /// The kernel's refusal; `EFAULT` if not all of it is user memory.
    pub fn entries(&self, start: usize, out: &mut [PageEntry]) -> Result<(), Errno> {
        let at = (start / 4096 * size_of::<PageEntry>()) as i64;
        let len = size_of_val(out);
        // SAFETY: the kernel writes at most len bytes to out, and any bits make a PageEntry.
        let got = unsafe { libc::pread64(self.fd.as_raw_fd(), out.as_mut_ptr().cast(), len, at) };
        match got {
            n if n == len as isize => Ok(()),
            -1 => Err(Errno::last()),
            _ => Err(Errno(libc::EFAULT)),
        }
    }

    /// Bytes of a range in pages that have all of `all` and none of `none`.
    ///
    /// # Errors
    /// As [`scan`](Self::scan).
    pub fn count(
        &self,
        start: usize,
        end: usize,
        all: Categories,
        none: Categories,
    ) -> Result<usize, Errno> {
        let mut query = PagemapScan::any(start, end, all | none);
        query.inverted = none;
        query.required = all | none;
        query.any_of = Categories::empty();
        let mut bytes = 0;
        self.each(query, |region| bytes += region.bytes())?;
        Ok(bytes)
    }
}
