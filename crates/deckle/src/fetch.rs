//! `deckle fetch`: brings evicted memory of a process back, for who cannot wait for it.
//!
//! Debuggers read by ptrace or `/proc/PID/mem`, which get `EIO` for what is away.
//! `process_vm_readv` waits for it like any other reader, and the process's service, which nobody
//! traces, answers also while the program stands still.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::process::exit;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread::sleep;
use std::time::Duration;

use deckle_mm::memparse;
use deckle_sys::Errno;
use deckle_sys::process::peek;

use crate::args::FetchArgs;
use crate::fail::{Fail, plain};
use crate::{look, print, procfs, say};

const PAGE: u64 = 4096;
/// How long a few pages are waited for.
const PATIENCE: Duration = Duration::from_secs(5);
/// Pages of one call: the kernel's limit on its vectors.
const BATCH: u64 = 1024;
/// Of an entry of `/proc/PID/pagemap`: the page is there.
const PRESENT: u64 = 1 << 63;

/// Pages of a process.
struct Range {
    pid: u32,
    /// Address of the first, and beyond the last.
    start: u64,
    end: u64,
}

/// Fetches; the exit status of `deckle`.
pub fn fetch(args: &FetchArgs) -> Result<i32, Fail> {
    procfs::check().map_err(Fail::own)?;
    let range = Range::of(look::process(&args.process)?, args).map_err(Fail::own)?;
    range.is_mapped().map_err(Fail::own)?;
    let mut at = range.start;
    let reached = watch(range.pid);
    while at < range.end {
        at += range.touch(at).map_err(Fail::own)?;
        reached.store(at, Relaxed);
    }
    let (bytes, pid) = (range.end - range.start, range.pid);
    match range.missing() {
        Some(away @ 1..) => Err(Fail::own(format!(
            "{} of {bytes} bytes were evicted again at once: fetch less at a time",
            away * PAGE
        ))),
        _ => {
            let text = format!("{bytes} bytes at {:#x} of process {pid}", range.start);
            print(&format!("{text} are in memory"))?;
            Ok(0)
        }
    }
}

/// Ends this process, with one line, when what it stores in the word does not change any more: who
/// is stopped within a fork has nobody who brings its memory in.
fn watch(pid: u32) -> &'static AtomicU64 {
    static REACHED: AtomicU64 = AtomicU64::new(0);
    std::thread::spawn(move || {
        let mut last = 0;
        loop {
            sleep(PATIENCE);
            let now = REACHED.load(Relaxed);
            if now == last {
                say(format_args!(
                    "process {pid} is stopped within a fork, or its whole tree is: have it go on \
                     for a moment (in gdb: stepi, or a breakpoint elsewhere), and try again"
                ));
                exit(125);
            }
            last = now;
        }
    });
    &REACHED
}

/// A number as C writes it.
fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    }
}

impl Range {
    fn of(pid: u32, args: &FetchArgs) -> Result<Range, String> {
        let address = number(&args.address);
        let start = address.ok_or_else(|| {
            format!(
                "`{}` is not an address: write it as 0x7f0012345000",
                args.address
            )
        })?;
        let bytes = match number(&args.length) {
            Some(bytes) => bytes,
            None => memparse(&args.length)?,
        };
        if bytes == 0 {
            return Err("a length of zero: give a larger one".to_owned());
        }
        let end = start.checked_add(bytes);
        let end = end.and_then(|end| end.checked_next_multiple_of(PAGE));
        let end = end.ok_or_else(|| format!("{start:#x}: no address is so large"))?;
        let start = start / PAGE * PAGE;
        Ok(Range { pid, start, end })
    }

    /// Whether all of it is memory of a process that is there.
    fn is_mapped(&self) -> Result<(), String> {
        let pid = self.pid;
        let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).map_err(|e| {
            match e.raw_os_error() {
                Some(libc::ENOENT | libc::ESRCH) => format!("there is no process {pid}"),
                _ => format!("process {pid}: {}: {}", plain(&e), Range::REMEDY),
            }
        })?;
        let mut at = self.start;
        for range in maps.lines().filter_map(procfs::range) {
            if range.contains(&at) {
                at = range.end;
            }
        }
        match at < self.end {
            true => Err(format!("process {pid} has nothing mapped at {at:#x}")),
            false => Ok(()),
        }
    }

    const REMEDY: &'static str = "be root or its user, and see kernel.yama.ptrace_scope";

    /// Reads a byte of each page from `at` on; the bytes of the pages that were reached.
    fn touch(&self, at: u64) -> Result<u64, String> {
        let pages = ((self.end - at) / PAGE).min(BATCH);
        let mut read = [0_u8; BATCH as usize];
        let from: Vec<u64> = (0..pages).map(|page| at + page * PAGE).collect();
        let pid = self.pid;
        let got = peek(pid, &from, &mut read).map(|pages| pages as u64 * PAGE);
        got.map_err(|errno| match errno {
            Errno(libc::EFAULT) => format!("{at:#x}: the process itself may not read it"),
            Errno(libc::ESRCH) => format!("there is no process {pid} any more"),
            errno => format!("process {pid}: {errno}: {}", Range::REMEDY),
        })
    }

    /// How many pages are not there, if that can be told.
    fn missing(&self) -> Option<u64> {
        let map = File::open(format!("/proc/{}/pagemap", self.pid)).ok()?;
        let mut away = 0;
        for page in self.start / PAGE..self.end / PAGE {
            let mut entry = [0; 8];
            map.read_exact_at(&mut entry, page * 8).ok()?;
            away += u64::from(u64::from_ne_bytes(entry) & PRESENT == 0);
        }
        Some(away)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(address: &str, length: &str) -> Result<(u64, u64), String> {
        let [address, length] = [address, length].map(str::to_owned);
        let args = FetchArgs {
            process: "1".to_owned(),
            address,
            length,
        };
        Range::of(1, &args).map(|r| (r.start, r.end))
    }

    #[test]
    fn a_range_is_whole_pages_around_what_is_asked_for() {
        assert_eq!(range("0x1ffe", "4"), Ok((0x1000, 0x3000)));
        assert_eq!(range("8192", "0x1000"), Ok((0x2000, 0x3000)));
        assert_eq!(range("0x2000", "8K"), Ok((0x2000, 0x4000)));
        for (address, length) in [("x", "1"), ("0x1000", "0"), ("0xfffffffffffff000", "4096")] {
            assert!(range(address, length).is_err(), "{address} {length}");
        }
    }
}
