//! Swap on a zram device, only if nobody uses either.

use std::ffi::CString;
use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::journal::Undo;
use super::{Guard, read, refused, write};
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

impl Stored {
    /// What came in addition to `before`.
    pub fn since(self, before: Self) -> Self {
        Self {
            pages: self.pages.saturating_sub(before.pages),
            same_filled: self.same_filled.saturating_sub(before.same_filled),
            bytes: self.bytes.saturating_sub(before.bytes),
        }
    }
}

/// Makes zram0, with lz4, the only swap of the host, until the guard goes.
///
/// # Errors
/// Swap is active, zram0 is in use or absent, lz4 is not there, or the system refuses a step.
pub fn swap_on(guard: &mut Guard, bytes: usize) -> Result<(), LabError> {
    let sys = Path::new(SYS);
    let swaps = read(Path::new("/proc/swaps"))?;
    if swaps.lines().count() > 1 {
        return Err(LabError::Host {
            what: "the host already swaps, which would mix into the figures".into(),
            remedy: "use a host without swap, or leave the kernel side out with --on".into(),
        });
    }
    if !sys.exists() {
        return Err(LabError::Host {
            what: "there is no zram device".into(),
            remedy: "run 'modprobe zram', or leave the kernel side out with --on".into(),
        });
    }
    if read(&sys.join("disksize"))?.trim() != "0" {
        return Err(LabError::Host {
            what: "zram0 is in use".into(),
            remedy: "free it with 'zramctl --reset /dev/zram0' if it is yours, or leave the \
                     kernel side out with --on"
                .into(),
        });
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
    // SAFETY: device is a terminated string that lives through the call.
    match unsafe { libc::swapon(device.as_ptr(), 0) } {
        0 => Ok(()),
        _ => Err(refused(
            "swapon",
            Path::new(DEVICE),
            io::Error::last_os_error(),
        )),
    }
}

/// Memory that zram0 takes now, in bytes: what is compressed, with the holes between it.
///
/// # Errors
/// If its statistics cannot be read.
pub fn used() -> Result<u64, LabError> {
    let path = Path::new(SYS).join("mm_stat");
    // orig_data_size compr_data_size mem_used_total ...
    let used = read(&path)?.split_whitespace().nth(2).map(str::parse);
    used.and_then(Result::ok).ok_or_else(|| {
        let e = io::Error::new(io::ErrorKind::InvalidData, "no third number");
        LabError::file("reading", path, e)
    })
}

/// What zram0 holds now.
///
/// # Errors
/// If its statistics cannot be read.
pub fn stored() -> Result<Stored, LabError> {
    let path = Path::new(SYS).join("mm_stat");
    let text = read(&path)?;
    // orig_data_size compr_data_size mem_used_total mem_limit mem_used_max same_pages ...
    let fields: Vec<u64> = text
        .split_whitespace()
        .filter_map(|f| f.parse().ok())
        .collect();
    let (Some(original), Some(bytes), Some(same_filled)) =
        (fields.first(), fields.get(1), fields.get(5))
    else {
        let e = io::Error::new(io::ErrorKind::InvalidData, "fewer than six numbers");
        return Err(LabError::file("reading", path, e));
    };
    let all = original / PAGE as u64;
    Ok(Stored {
        pages: all.saturating_sub(*same_filled),
        same_filled: *same_filled,
        bytes: *bytes,
    })
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
