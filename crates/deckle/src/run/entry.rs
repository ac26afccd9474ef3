//! The second door's code, as it is written into programs: laid out for one place in a tree.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use deckle_door::entry::{Entry, WINDOW};
use deckle_group::Name;
use deckle_sys::PAGE;
use deckle_sys::random;

use super::inject::Held;

/// The first of the places from which one is chosen, and how many there are: from 24 TiB on,
/// where neither the kernel nor an allocator that is known puts anything by itself.
pub const WINDOWS: [usize; 2] = [24 << 8, 2048];
/// Where in its 4 GiB the code begins.
const CODE: usize = 1 << 20;

/// The code and data of the second door.
pub struct Code {
    /// The pages, the last of which is for the [`Entry`].
    bytes: Vec<u8>,
    /// Where they go.
    pub base: usize,
    /// Where the program is to begin.
    pub enter: usize,
    /// What of it is writable: address and bytes.
    writable: [usize; 2],
    group: Name,
    image: CString,
}

impl Code {
    /// Reads the file at `path`, beside the service image `image`.
    ///
    /// # Errors
    /// What is wrong with it, for people.
    pub fn read(path: &Path, image: &Path, group: Name) -> Result<Code, String> {
        let file = std::fs::read(path).map_err(|e| format!("{}: {e}", path.display()))?;
        let random = random::<2>().map_err(|e| e.to_string())?;
        let number = WINDOWS[0] + usize::from(u16::from_le_bytes(random)) % WINDOWS[1];
        let image = CString::new(image.as_os_str().as_bytes()).map_err(|e| e.to_string())?;
        lay_out(&file, number * WINDOW + CODE)
            .map(|(bytes, enter, writable)| Code {
                base: number * WINDOW + CODE,
                bytes,
                enter,
                writable,
                group,
                image,
            })
            .ok_or_else(|| format!("{}: is no such file", path.display()))
    }

    /// Bytes of the mapping.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Address of the [`Entry`].
    pub fn entry(&self) -> usize {
        self.base + self.len() - PAGE
    }

    /// The pages that are not zero, with their addresses, for a program that begins at these
    /// instruction and stack addresses.
    pub fn pages(&self, program: [usize; 2], held: Held) -> Vec<(usize, Vec<u8>)> {
        let mut entry = Entry {
            program,
            writable: self.writable,
            is_filtered: usize::from(held.filtered),
            told: held.told,
            group: [0; 64],
            fault: [0; 64],
            image: [0; 2048],
        };
        copy(&mut entry.group, self.group.as_str().as_bytes());
        let fault = std::env::var_os("DECKLE_FAULT").unwrap_or_default();
        copy(&mut entry.fault, fault.as_bytes());
        copy(&mut entry.image, self.image.as_bytes());
        let used = |page: &&[u8]| page.iter().any(|b| *b != 0);
        let pages = self.bytes.chunks(PAGE).enumerate();
        pages
            .filter(|(_, page)| used(page))
            .map(|(i, page)| (self.base + i * PAGE, page.to_vec()))
            .chain([(self.entry(), entry.bytes().to_vec())])
            .collect()
    }
}

/// As much as there is room for, with a NUL behind it.
fn copy(to: &mut [u8], from: &[u8]) {
    let n = from.len().min(to.len() - 1);
    to[..n].copy_from_slice(&from[..n]);
}

/// Puts the segments of an ELF file in their places for `base`: bytes, start, what is writable.
/// `None`: it is no position-independent program without libraries.
fn lay_out(file: &[u8], base: usize) -> Option<(Vec<u8>, usize, [usize; 2])> {
    const LOAD: u32 = 1;
    const DYNAMIC: u32 = 2;
    const WRITABLE: u32 = 2;
    let word =
        |at: usize| Some(u64::from_le_bytes(file.get(at..at + 8)?.try_into().ok()?) as usize);
    let half = |at: usize| Some(u32::from_le_bytes(file.get(at..at + 4)?.try_into().ok()?));
    if !file.starts_with(b"\x7fELF\x02\x01\x01") {
        return None;
    }
    let (table, count) = (word(32)?, word(56)? & 0xffff);
    let mut bytes = Vec::new();
    let (mut writable, mut dynamic) = ([0; 2], None);
    for header in (0..count).map(|i| table + i * 56) {
        let (offset, at, in_file, in_memory) = (
            word(header + 8)?,
            word(header + 16)?,
            word(header + 32)?,
            word(header + 40)?,
        );
        match half(header)? {
            LOAD => {
                let end = at.checked_add(in_memory)?.next_multiple_of(PAGE);
                if end > 1 << 24 {
                    return None;
                }
                bytes.resize(bytes.len().max(end), 0);
                let from = file.get(offset..offset.checked_add(in_file)?)?;
                bytes.get_mut(at..at + in_file)?.copy_from_slice(from);
                if half(header + 4)? & WRITABLE != 0 {
                    let start = at & !(PAGE - 1);
                    writable = [base + start, end - start];
                }
            }
            DYNAMIC => dynamic = Some(at),
            _ => {}
        }
    }
    relocate(&mut bytes, dynamic?, base)?;
    bytes.extend([0; PAGE]);
    (writable[1] > 0).then_some((bytes, base + word(24)?, writable))
}

/// Adds `base` wherever the file's dynamic section, at `dynamic`, asks for it.
fn relocate(bytes: &mut [u8], dynamic: usize, base: usize) -> Option<()> {
    const TABLE: usize = 7;
    const BYTES: usize = 8;
    const RELATIVE: usize = 8;
    fn word(bytes: &[u8], at: usize) -> Option<usize> {
        Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?) as usize)
    }
    let (mut table, mut end) = (0, 0);
    for at in (dynamic..).step_by(16) {
        match (word(bytes, at)?, word(bytes, at + 8)?) {
            (0, _) => break,
            (TABLE, value) => table = value,
            (BYTES, value) => end = value,
            _ => {}
        }
    }
    for at in (table..table + end).step_by(24) {
        let (place, kind, value) = (
            word(bytes, at)?,
            word(bytes, at + 8)?,
            word(bytes, at + 16)?,
        );
        if kind != RELATIVE {
            return None;
        }
        let to = bytes.get_mut(place..place.checked_add(8)?)?;
        to.copy_from_slice(&((base + value) as u64).to_le_bytes());
    }
    Some(())
}

// No gaps: see `pages`.
const _: () =
    assert!(size_of::<Entry>() == 40 + 112 + 64 + 64 + 2048 && size_of::<Entry>() <= PAGE);
