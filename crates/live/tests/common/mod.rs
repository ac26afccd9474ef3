//! Harness: every case runs in a process of its own, under an alarm, since it may hang or be
//! killed and since a platform stands for a whole process.

use crate::skipped::skipped;
use std::any::type_name;
use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use deckle_live::platform::SPACE;
use deckle_live::{Capability, LiveConfig, LiveMemory, LivePlatform, Place};
use deckle_mm::platform::{Content, Flush, PlatformError, Prot};
use deckle_mm::{FrameRun, PageRun, Pfn, Platform, Vpn};
use deckle_uffd::{Categories, Event, Msg, Pagemap, Uffd};

pub const PAGE: usize = 4096;
pub const BLOCK: usize = 512 * PAGE;

const CASE: &str = "DECKLE_LIVE_CASE";
const PASSED: i32 = 42;
const PATIENCE: u32 = 60;

/// The test's name, as the test program knows it, of a closure in its function.
fn name_of<F>() -> &'static str {
    let path = type_name::<F>().strip_suffix("::{{closure}}");
    let path = path.expect("closure in a test function");
    path.split_once("::").expect("a crate").1
}

/// Runs `body`, a closure written in the test function itself, in a process of its own.
pub fn case<F: FnOnce()>(body: F) {
    let name = name_of::<F>();
    if std::env::var(CASE).is_ok_and(|c| c == name) {
        // SAFETY: alarm has no preconditions; its signal ends the process.
        unsafe { libc::alarm(PATIENCE) };
        let ok = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)).is_ok();
        std::process::exit(if ok { PASSED } else { 101 });
    }
    // Either kind will do: what needs faults of the kernel served asks for that itself.
    if let (Err(why), Err(_)) = (Uffd::open_any(false), Uffd::open_any(true)) {
        return skipped(why);
    }
    let out = Command::new(std::env::current_exe().expect("own path"))
        .args([name, "--exact", "--nocapture", "--test-threads=1"])
        .env(CASE, name)
        .stdin(Stdio::null())
        .output()
        .expect("start the case");
    let text = String::from_utf8_lossy(&out.stderr);
    for line in text.lines().filter(|l| l.starts_with("SKIPPED")) {
        // To the descriptor itself: the test harness shows it even when the test passes.
        let _ = writeln!(std::io::stderr(), "{line}");
    }
    assert!(
        out.status.code() == Some(PASSED),
        "{name}: {}\n{}\n{text}",
        out.status,
        String::from_utf8_lossy(&out.stdout)
    );
}

/// Bytes of managed memory that a platform has here.
pub const MANAGED: usize = 256 << 20;

/// A platform with small ranges.
pub fn platform() -> LiveMemory {
    platform_of(LiveConfig {
        parking_bytes: Some(256 << 20),
        ..LiveConfig::default()
    })
}

/// A platform with one managed range.
pub fn platform_of(config: LiveConfig) -> LiveMemory {
    let p = LivePlatform::new(config)
        .expect("userfaultfd: run as root or with vm.unprivileged_userfaultfd=1");
    // SAFETY: the tests use frames and pages of their own, each for one thing at a time.
    let p = unsafe { LiveMemory::new(p) };
    // SAFETY: at no address in particular.
    unsafe { p.map_new(Place::aligned(BLOCK), MANAGED, false) }.expect("a managed range");
    p
}

/// Says loudly why a case cannot run here.
pub fn needs(p: &LiveMemory, test: &str, c: Capability) -> bool {
    let ok = p.capabilities().has(c);
    if !ok {
        skipped(format_args!("{test}: {}", c.without()));
    }
    ok
}

pub fn base(p: &LiveMemory) -> Vpn {
    Vpn::of_addr(p.managed().ranges()[0].0 as u64)
}

/// A run of the managed range: block `block`, pages from `page`.
pub fn run(p: &LiveMemory, block: u64, page: u32, pages: u32) -> PageRun {
    PageRun::new(SPACE, base(p).add(block * 512 + u64::from(page)), pages)
}

/// Opens a block of the managed range with rights.
pub fn open(p: &LiveMemory, block: u64, prot: Prot) {
    drop_flush(p.protect(SPACE, base(p).add(block * 512), 512, prot));
}

pub fn drop_flush(f: Result<Flush, PlatformError>) {
    drop(f.expect("platform operation"));
}

/// Frame `n` of the half of small folios.
pub fn small(p: &LiveMemory, n: u32) -> Pfn {
    p.zones().small.first.add(n)
}

/// First frame of block `n` of the half of huge folios.
pub fn huge(p: &LiveMemory, n: u32) -> Pfn {
    p.zones().huge.expect("two zones").first.add(n * 512)
}

pub fn addr(run: PageRun) -> usize {
    run.start.addr() as usize
}

/// The word that page `i` of a run holds under `seed`.
pub fn word(seed: u64, i: u32) -> u64 {
    (seed << 32 | u64::from(i)).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1
}

/// Pages full of their words.
pub fn bytes(seed: u64, pages: u32) -> Vec<u8> {
    (0..pages)
        .flat_map(|i| std::iter::repeat_n(word(seed, i).to_ne_bytes(), PAGE / 8))
        .flatten()
        .collect()
}

/// Reads the program's memory; every page must be present.
pub fn read(run: PageRun) -> Vec<u8> {
    assert_eq!(present(run), run.pages, "a read would wait for ever");
    let len = run.pages as usize * PAGE;
    let mut out = vec![0u8; len];
    // SAFETY: present and readable, as just seen; the test has the block to itself.
    unsafe { std::ptr::copy_nonoverlapping(addr(run) as *const u8, out.as_mut_ptr(), len) };
    out
}

/// Writes into the program's memory; every page must be present and unprotected.
pub fn write(run: PageRun, data: &[u8]) {
    assert_eq!(present(run), run.pages, "a write would wait for ever");
    // SAFETY: as in read, and writable.
    unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), addr(run) as *mut u8, data.len()) };
}

pub fn count(start: usize, len: usize, all: Categories, none: Categories) -> u32 {
    let map = Pagemap::open_self().expect("pagemap");
    (map.count(start, start + len, all, none).expect("scan") / PAGE) as u32
}

/// Pages of a run that are present in the program.
pub fn present(run: PageRun) -> u32 {
    let len = run.pages as usize * PAGE;
    count(addr(run), len, Categories::PRESENT, Categories::empty())
}

/// Pages of frames that have bytes at rest.
pub fn resting(p: &LiveMemory, start: Pfn, pages: u32) -> u32 {
    let (at, len) = p.parking().place(start, pages).expect("frames");
    count(at, len, Categories::PRESENT, Categories::PFNZERO)
}

/// Pss_Anon of this process, KiB.
pub fn pss_anon() -> u64 {
    let text = std::fs::read_to_string("/proc/self/smaps_rollup").unwrap();
    let line = text.lines().find(|l| l.starts_with("Pss_Anon:")).unwrap();
    let kib = line.split_whitespace().nth(1).unwrap();
    kib.parse().unwrap()
}

/// Page frame number that the kernel has at an address (needs root).
pub fn kernel_frame(at: usize) -> u64 {
    use std::os::unix::fs::FileExt;
    let mut entry = [0u8; 8];
    std::fs::File::open("/proc/self/pagemap")
        .expect("pagemap")
        .read_exact_at(&mut entry, (at / PAGE * 8) as u64)
        .expect("entry");
    u64::from_ne_bytes(entry) & ((1 << 55) - 1)
}

pub fn rest(p: &LiveMemory, start: Pfn, pages: u32) -> Vec<u8> {
    let mut out = Vec::new();
    p.with_bytes(FrameRun::new(start, pages), &mut |b| out = b.to_vec());
    out
}

/// Bytes come back only to pages that are remembered to be away.
pub fn map(p: &LiveMemory, at: PageRun, f: Pfn, c: Content<'_>) -> Result<u32, PlatformError> {
    if let Content::Bytes(_) = c {
        p.hold(at);
    }
    p.map(at, f, c, Prot::RW).map(|d| d.pages)
}

pub fn unmap(p: &LiveMemory, at: PageRun, f: Pfn) -> Result<u32, PlatformError> {
    p.unmap(at, f, Prot::RW).map(|(d, _)| d.pages)
}

/// A handler for tests in which threads touch what is away: page `i` of a block rests in frame
/// `first + i` or is in the program; a fault brings it back.
pub struct Book {
    pub first: Pfn,
    pub at: PageRun,
    pub inside: Mutex<Vec<bool>>,
    pub stop: AtomicBool,
    pub faults: std::sync::atomic::AtomicU64,
}

impl Book {
    pub fn new(first: Pfn, at: PageRun) -> Book {
        Book {
            first,
            at,
            inside: Mutex::new(vec![true; at.pages as usize]),
            stop: AtomicBool::new(false),
            faults: Default::default(),
        }
    }

    /// Serves faults until told to stop.
    pub fn serve(&self, p: &LiveMemory) {
        let mut msgs = [const { Msg::empty() }; 16];
        while !self.stop.load(Ordering::Relaxed) {
            if !p.program_uffd().wait(20).unwrap_or(false) {
                continue;
            }
            let n = p.program_uffd().read_events(&mut msgs).expect("read");
            for msg in &mut msgs[..n] {
                let Some(Event::Pagefault { addr, .. }) = msg.take() else {
                    panic!("not a fault");
                };
                self.faults.fetch_add(1, Ordering::Relaxed);
                let vpn = Vpn::of_addr(addr as u64);
                let i = (vpn.0 - self.at.start.0) as u32;
                let mut inside = self.inside.lock().unwrap();
                if inside[i as usize] {
                    p.wake(vpn, 1);
                    continue;
                }
                let one = PageRun::new(SPACE, vpn, 1);
                loop {
                    match p.map(one, self.first.add(i), Content::Parked, Prot::RW) {
                        Ok(_) => break,
                        Err(e) if e.why == deckle_mm::Stop::Retry => {}
                        Err(e) => panic!("fault on page {i}: {e}"),
                    }
                }
                inside[i as usize] = true;
            }
        }
    }
}

/// A value that lives until the end of the process.
pub fn forever<T>(value: T) -> &'static T {
    Box::leak(Box::new(value))
}
