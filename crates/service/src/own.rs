//! What /proc says of the memory that the service shares, from files that are open since its
//! start: later it may open none.

use deckle_door::Lock;
use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::fd::AsRawFd;

use crate::sys;

/// The files.
pub struct Own {
    maps: Lock<File>,
    status: Lock<File>,
    /// What of it can be taken under management without having been seen to come is told by more
    /// files, which only who opens them here has.
    more: Option<More>,
}

struct More {
    smaps: Lock<File>,
    statm: Lock<File>,
}

/// A mapping, as /proc/PID/maps has it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mapping {
    pub start: usize,
    pub end: usize,
    pub kind: Kind,
}

/// What is mapped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Private anonymous memory that can be read and written, and executed if that is said.
    Data { exec: bool },
    /// The same with other rights; or right behind a mapping of a file, so data of a program or
    /// library and no allocation.
    Kept,
    /// All else.
    Other,
}

/// What is seen of the memory by a short look.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Size {
    /// Pages mapped.
    pub mapped: u64,
    /// Pages of anonymous memory that are there, roughly.
    pub resident: u64,
}

impl Own {
    /// Opens them.
    ///
    /// # Errors
    /// There is no /proc, or it is closed to us.
    pub fn open() -> io::Result<Own> {
        let open = |name: &str| File::open(format!("/proc/self/{name}"));
        let more = Some([open("smaps")?, open("statm")?]);
        Ok(Own::of([open("maps")?, open("status")?], more))
    }

    /// Files that `deckle run` has opened: maps and status; and smaps and statm.
    pub fn of([maps, status]: [File; 2], more: Option<[File; 2]>) -> Own {
        let (maps, status) = (Lock::new(maps), Lock::new(status));
        let more = more.map(|more| {
            let [smaps, statm] = more.map(Lock::new);
            More { smaps, statm }
        });
        Own { maps, status, more }
    }

    /// Whether unseen memory can be found: the files for that are open.
    pub fn finds(&self) -> bool {
        self.more.is_some()
    }

    /// A figure in bytes of the status; 0 if it is not there.
    pub fn figure(&self, name: &str) -> usize {
        let text = text(&self.status).unwrap_or_default();
        let line = text.lines().find_map(|l| l.strip_prefix(name));
        let kib = line.and_then(|l| l.split_whitespace().next()?.parse::<usize>().ok());
        kib.unwrap_or(0) << 10
    }

    /// How much there is; `None` if that cannot be read.
    pub fn size(&self) -> Option<Size> {
        let (mut text, mut file) = ([0; 128], self.more.as_ref()?.statm.lock());
        file.rewind().ok()?;
        let n = file.read(&mut text).ok()?;
        let text = core::str::from_utf8(&text[..n]).ok()?;
        let mut words = text.split(' ').map_while(|word| word.parse::<u64>().ok());
        let (mapped, resident, shared) = (words.next()?, words.next()?, words.next()?);
        let resident = resident.saturating_sub(shared);
        Some(Size { mapped, resident })
    }

    /// All mappings, by their addresses; `None`: they cannot be read.
    pub fn mappings(&self) -> Option<Vec<Mapping>> {
        let (mut all, mut file_end) = (Vec::new(), 0);
        for line in text(&self.maps)?.lines() {
            let (start, end, rights, is_file, name) = mapping(line)?;
            if is_file {
                file_end = end;
            }
            let exec = rights.contains('x');
            let kind = match rights.starts_with("rw") {
                _ if is_file || !rights.ends_with('p') || !is_plain(name) => Kind::Other,
                true if file_end != start => Kind::Data { exec },
                _ => Kind::Kept,
            };
            all.push(Mapping { start, end, kind });
        }
        Some(all)
    }

    /// The mapping at an address, or the next one; `None`: there is none. A kernel before Linux
    /// 6.11 tells only all at once.
    pub fn at(&self, address: usize) -> Option<Mapping> {
        let is_there = |one: &Mapping| one.end > address;
        let among_all = |_| self.mappings()?.into_iter().find(is_there);
        self.ask(address).unwrap_or_else(among_all)
    }

    /// The mappings that lie in ranges, at least in part; both by their addresses. `None`: they
    /// cannot be read.
    pub fn within(&self, ranges: &[(usize, usize)]) -> Option<Vec<Mapping>> {
        let mut all: Vec<Mapping> = Vec::new();
        for &(start, len) in ranges {
            let mut at = all.last().map_or(start, |last| last.end.max(start));
            while at < start + len {
                match self.ask(at) {
                    Ok(Some(one)) if one.start < start + len => {
                        at = one.end;
                        all.push(one);
                    }
                    Ok(_) => break,
                    Err(_) => return self.all_within(ranges),
                }
            }
        }
        Some(all)
    }

    fn all_within(&self, ranges: &[(usize, usize)]) -> Option<Vec<Mapping>> {
        let mut all = self.mappings()?;
        all.retain(|one| {
            let next = ranges.partition_point(|(start, len)| start + len <= one.start);
            ranges.get(next).is_some_and(|(start, _)| *start < one.end)
        });
        Some(all)
    }

    /// A mapping and those right below and above it, if it is the one that it was.
    pub fn around(&self, one: &Mapping) -> Option<Vec<Mapping>> {
        let below = one.start.checked_sub(1)?;
        let all = self.within(&[(below, one.end + 1 - below)])?;
        all.contains(one).then_some(all)
    }

    /// What `PROCMAP_QUERY` answers. Without a mapping the errno is ENOENT.
    fn ask(&self, address: usize) -> Result<Option<Mapping>, i32> {
        let file = self.maps.lock();
        let mut query = Query {
            size: size_of::<Query>() as u64,
            flags: COVERING_OR_NEXT,
            address: address as u64,
            ..Query::default()
        };
        let words = [
            file.as_raw_fd() as usize,
            PROCMAP_QUERY,
            &raw mut query as usize,
        ];
        // SAFETY: reads and writes one structure.
        match unsafe { sys::call(libc::SYS_ioctl, words) } {
            Err(libc::ENOENT) => return Ok(None),
            asked => asked?,
        };
        let rights = query.rights;
        let exec = rights & EXEC != 0;
        let kind = match rights & (READ | WRITE | SHARED) {
            _ if query.inode != 0 => Kind::Other,
            READ_WRITE => Kind::Data { exec },
            rights if rights & SHARED != 0 => Kind::Other,
            _ => Kind::Kept,
        };
        Ok(Some(Mapping {
            start: query.start as usize,
            end: query.end as usize,
            kind,
        }))
    }

    /// Starts and ends of the mappings without a property that only the kernel can keep.
    pub fn plain(&self) -> Vec<(usize, usize)> {
        /// What memory may be besides: may have other rights, is charged by the kernel, holds huge
        /// pages or none, was written.
        const GOOD: [&str; 11] = [
            "rd", "wr", "ex", "mr", "mw", "me", "ac", "nr", "sd", "hg", "nh",
        ];
        let (mut plain, mut last) = (Vec::new(), None);
        let smaps = self.more.as_ref().and_then(|more| text(&more.smaps));
        for line in smaps.iter().flat_map(|text| text.lines()) {
            if let Some(flags) = line.strip_prefix("VmFlags: ") {
                let is_plain = flags.split_whitespace().all(|flag| GOOD.contains(&flag));
                plain.extend(last.filter(|_| is_plain));
            } else if let Some((start, end, ..)) = mapping(line) {
                last = Some((start, end));
            }
        }
        plain
    }

    /// How many mappings there are; 0 if that cannot be read.
    pub fn count_mappings(&self) -> usize {
        let mut lines = 0;
        read(&self.maps, |part| {
            lines += part.iter().filter(|b| **b == b'\n').count();
        });
        lines
    }
}

/// What the kernel's `PROCMAP_QUERY` reads and writes (its `struct procmap_query`).
#[repr(C)]
#[derive(Default)]
struct Query {
    size: u64,
    flags: u64,
    address: u64,
    start: u64,
    end: u64,
    rights: u64,
    page_bytes: u64,
    offset: u64,
    inode: u64,
    device: [u32; 2],
    name_bytes: u32,
    build_id_bytes: u32,
    name: u64,
    build_id: u64,
}

const PROCMAP_QUERY: usize = 0xc068_6611;
const COVERING_OR_NEXT: u64 = 0x10;
const READ: u64 = 1;
const WRITE: u64 = 2;
const EXEC: u64 = 4;
const SHARED: u64 = 8;
const READ_WRITE: u64 = READ | WRITE;

/// Start and end, rights, whether it is of a file, and the name, of the line of a mapping.
fn mapping(line: &str) -> Option<(usize, usize, &str, bool, &str)> {
    let mut words = line.split_ascii_whitespace();
    let (from, to) = words.next()?.split_once('-')?;
    let number = |text| usize::from_str_radix(text, 16).ok();
    let rights = words.next()?;
    let (_offset, _device, inode) = (words.next()?, words.next()?, words.next()?);
    let name = words.next().unwrap_or("");
    Some((number(from)?, number(to)?, rights, inode != "0", name))
}

/// Whether memory of that name is the program's to allocate from.
fn is_plain(name: &str) -> bool {
    name.is_empty() || name == "[heap]" || name.starts_with("[anon:")
}

/// Reads a file from its beginning, by no other call than that; whether to its end.
fn read(file: &Lock<File>, mut work: impl FnMut(&[u8])) -> bool {
    let mut file = file.lock();
    let mut part = vec![0; 64 << 10];
    if file.rewind().is_err() {
        return false;
    }
    loop {
        match file.read(&mut part) {
            Ok(0) => return true,
            Ok(n) => work(&part[..n]),
            Err(_) => return false,
        }
    }
}

/// What a file says, if it can be read to its end. Names of files may be any bytes.
fn text(file: &Lock<File>) -> Option<String> {
    let mut text = Vec::new();
    let is_whole = read(file, |part| text.extend_from_slice(part));
    is_whole.then(|| String::from_utf8_lossy(&text).into_owned())
}
