//! Swap on a zram device, only if nobody uses either.

use std::ffi::CString;
use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use deckle_sys::file;

use super::journal::Undo;
use super::{Guard, lacks, read, refused, unexpected, write};
use crate::LabError;
use crate::size::PAGE;

const SYS: &str = "/sys/block/zram0";
const DEVICE: &str = "/dev/zram0";
const ALGORITHM: &str = "lz4";

/// What a zram device holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stored {
    /// Pages kept as compressed bytes.
    pub pages: u64,
    /// Pages kept as a mere fill value, without bytes.
    pub same_filled: u64,
    /// Compressed size of `pages`, in bytes.
    pub bytes: u64,
}

/// Makes zram0, with lz4, the only swap of the host, until the guard goes.
///
/// # Errors
/// Swap is active, zram0 is in use or absent, lz4 is not there, or the system refuses a step.
pub fn swap_on(guard: &mut Guard, bytes: usize) -> Result<(), LabError> {
    let sys = Path::new(SYS);
    let swaps = read(Path::new("/proc/swaps"))?;
    if swaps.lines().count() > 1 {
        let what = "the host already swaps, which would mix into the figures";
        return lacks(what, "use a host without swap");
    }
    if !sys.exists() {
        return lacks("there is no zram device", "run 'modprobe zram'");
    }
    if read(&sys.join("disksize"))?.trim() != "0" {
        let remedy = "free it with 'zramctl --reset /dev/zram0' if it is yours";
        return lacks("zram0 is in use", remedy);
    }
    guard
        .set(&sys.join("comp_algorithm"), ALGORITHM)
        .map_err(|e| LabError::Host {
            what: format!("zram0 does not take {ALGORITHM} ({e})"),
            remedy: "use a kernel with CONFIG_ZRAM_BACKEND_LZ4".into(),
        })?;
    guard.note(Undo::Write {
        path: sys.join("reset"),
        value: "1".into(),
    })?;
    write(&sys.join("disksize"), &bytes.to_string())?;
    write_header(bytes).map_err(|e| LabError::file("writing a swap header to", DEVICE, e))?;
    guard.note(Undo::SwapOff(DEVICE.into()))?;
    let device = CString::new(DEVICE).map_err(|e| LabError::io("device name", e.into()))?;
    file::swap_on(&device).map_err(|e| refused("swapon", Path::new(DEVICE), e.into()))
}

/// Memory that zram0 takes now, in bytes: what is compressed, with the holes between it.
///
/// # Errors
/// If its statistics cannot be read.
pub fn used() -> Result<u64, LabError> {
    Ok(statistics()?[2])
}

/// What zram0 holds now.
///
/// # Errors
/// If its statistics cannot be read.
pub fn stored() -> Result<Stored, LabError> {
    let [original, bytes, .., same_filled] = statistics()?;
    Ok(Stored {
        pages: (original / PAGE as u64).saturating_sub(same_filled),
        same_filled,
        bytes,
    })
}

/// Its orig_data_size, compr_data_size, mem_used_total, mem_limit, mem_used_max, and same_pages.
fn statistics() -> Result<[u64; 6], LabError> {
    let path = Path::new(SYS).join("mm_stat");
    let text = read(&path)?;
    let numbers = text.split_whitespace().map_while(|n| n.parse().ok());
    let numbers: Vec<u64> = numbers.take(6).collect();
    numbers.try_into().map_err(|_| unexpected(&path))
}

/// A swap header, version 1: what mkswap writes.
fn write_header(bytes: usize) -> io::Result<()> {
    let last_page = u32::try_from(bytes / PAGE - 1)
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "swap device too large"))?;
    let mut header = [0; PAGE];
    header[1024..1028].copy_from_slice(&1u32.to_ne_bytes());
    header[1028..1032].copy_from_slice(&last_page.to_ne_bytes());
    header[PAGE - 10..].copy_from_slice(b"SWAPSPACE2");
    let device = OpenOptions::new().write(true).open(DEVICE)?;
    device.write_all_at(&header, 0)?;
    device.sync_all()
}
