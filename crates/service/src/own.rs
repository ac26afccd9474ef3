//! What /proc says of the memory that the service shares, from files that are open since its
//! start: later it may open none.

use deckle_door::Lock;
use std::fs::File;
use std::io::{self, Read, Seek};

/// The files.
pub struct Own {
    maps: Lock<File>,
    status: Lock<File>,
}

impl Own {
    /// Opens them.
    ///
    /// # Errors
    /// There is no /proc, or it is closed to us.
    pub fn open() -> io::Result<Own> {
        let (maps, status) = ("/proc/self/maps", "/proc/self/status");
        Ok(Own::of(File::open(maps)?, File::open(status)?))
    }

    /// Files that somebody else has opened.
    pub fn of(maps: File, status: File) -> Own {
        let (maps, status) = (Lock::new(maps), Lock::new(status));
        Own { maps, status }
    }

    /// A figure in bytes of the status; 0 if it is not there.
    pub fn figure(&self, name: &str) -> usize {
        let text = text(&self.status);
        let line = text.lines().find_map(|l| l.strip_prefix(name));
        let kib = line.and_then(|l| l.split_whitespace().next()?.parse::<usize>().ok());
        kib.unwrap_or(0) << 10
    }

    /// All mappings: start and end.
    pub fn mappings(&self) -> Vec<(usize, usize)> {
        let range = |line: &str| {
            let (from, to) = line.split(' ').next()?.split_once('-')?;
            let number = |text| usize::from_str_radix(text, 16).ok();
            Some((number(from)?, number(to)?))
        };
        text(&self.maps).lines().filter_map(range).collect()
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

/// Reads a file from its beginning, by no other call than that.
fn read(file: &Lock<File>, mut work: impl FnMut(&[u8])) {
    let mut file = file.lock();
    let mut part = vec![0; 64 << 10];
    if file.rewind().is_ok() {
        while let Ok(n @ 1..) = file.read(&mut part) {
            work(&part[..n]);
        }
    }
}

fn text(file: &Lock<File>) -> String {
    let mut text = Vec::new();
    read(file, |part| text.extend_from_slice(part));
    String::from_utf8(text).unwrap_or_default()
}
