//! What readahead and the swap cache are worth, and which way to know that a page is unchanged is
//! cheaper: `cargo bench -p deckle-live --bench swap_cache -- [MiB]`.
//!
//! First the parts, a page each: storing it; reading its copy and comparing; installing it with
//! and without write-protection; the write fault that ends the protection. Then programs on
//! twice their limit, sides alternating: passes over all of it, and random accesses, with a share
//! of writes: windows of 64 KiB and adapted ones, without the cache and with it.

mod common;

use std::hint::black_box;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::{Inside, config, median, number, start};
use deckle_live::Limit;
use deckle_mm::{Item, Slot, Store, ThpMode, Tunables};
use deckle_store::{Algorithm, Ram};
use deckle_sys::Memory;
use deckle_sys::mapping::Advice;
use deckle_sys::poll::is_ready;
use deckle_uffd::{CopyMode, Event, Features, Msg, ProtectMode, RegisterMode, Uffd};

const PAGE: usize = 4096;
/// Pages of the parts.
const PARTS: usize = 4096;
const ROUNDS: usize = 5;

fn next(seed: &mut u64) -> u64 {
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    *seed
}

/// A third random, spread over the page: lz4 makes about a third of it.
fn fill(page: &mut [u8], seed: u64) {
    let mut seed = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    for part in page.chunks_mut(PAGE / 8) {
        part.fill((seed % 251) as u8 + 1);
        part[..PAGE / 24].fill_with(|| next(&mut seed) as u8);
    }
}

fn us(pages: usize, f: impl FnOnce()) -> f64 {
    let begin = Instant::now();
    f();
    begin.elapsed().as_secs_f64() * 1e6 / pages as f64
}

fn reserve(bytes: usize) -> Memory {
    let mut memory = Memory::map(bytes).expect("memory");
    let _ = memory.advise(0..bytes, Advice::NoHugePage);
    memory
}

/// Sleeps until there is a message, as a handler does.
fn wait(uffd: &Uffd) {
    is_ready(uffd.as_raw_fd(), Duration::from_millis(100));
}

/// Installs pages by copies of 16 pages, protected or not; then writes to each.
fn install(mode: CopyMode, bytes: &[u8]) -> (f64, f64) {
    let (uffd, _) = Uffd::open_any(false).expect("userfaultfd");
    uffd.api(Features::PAGEFAULT_FLAG_WP).expect("handshake");
    let len = PARTS * PAGE;
    let mut memory = reserve(len);
    let at = memory.as_ptr().addr();
    uffd.register(at, len, RegisterMode::MISSING | RegisterMode::WP)
        .expect("register");
    let step = 16 * PAGE;
    let copy = us(PARTS, || {
        for k in (0..len).step_by(step) {
            // SAFETY: holes of our own, and bytes that nobody writes.
            unsafe { uffd.copy(at + k, bytes.as_ptr().add(k), step, mode) }.expect("copy");
        }
    });
    let write = std::thread::scope(|s| {
        if mode != CopyMode::empty() {
            s.spawn(|| {
                let mut served = 0;
                let mut msgs = [const { Msg::empty() }; 4];
                while served < PARTS {
                    let n = uffd.read_events(&mut msgs).unwrap_or(0);
                    if n == 0 {
                        wait(&uffd);
                    }
                    for msg in &mut msgs[..n] {
                        if let Some(Event::Pagefault { addr, .. }) = msg.take() {
                            let page = addr & !(PAGE - 1);
                            uffd.write_protect(page, PAGE, ProtectMode::empty())
                                .expect("lift");
                            served += 1;
                        }
                    }
                }
            });
        }
        us(PARTS, || {
            (0..PARTS).for_each(|k| memory.touch(k * PAGE, 1));
        })
    });
    (copy, write)
}

fn parts() {
    let mut bytes = vec![0u8; PARTS * PAGE];
    let mut back = bytes.clone();
    for (k, page) in bytes.chunks_mut(PAGE).enumerate() {
        fill(page, k as u64 + 1);
    }
    let mut times: [Vec<f64>; 6] = Default::default();
    for _ in 0..ROUNDS {
        let store = Ram::new(Algorithm::Lz4);
        times[0].push(us(PARTS, || store.put(Slot(0), &bytes).expect("put")));
        times[1].push(us(PARTS, || {
            for k in (0..PARTS).step_by(16) {
                let range = k * PAGE..(k + 16) * PAGE;
                let slot = Slot(k as u32);
                store.get(slot, &mut back[range.clone()]).expect("get");
                assert!(black_box(back[range.clone()] == bytes[range]));
            }
        }));
        let (copy, write) = install(CopyMode::empty(), &bytes);
        times[2].push(copy);
        times[3].push(write);
        let (copy, write) = install(CopyMode::WP, &bytes);
        times[4].push(copy);
        times[5].push(write);
    }
    let [put, compare, copy, write, copy_wp, fault] = times.map(median);
    println!(
        "a page, us: store {put:.2}, read and compare {compare:.2}, ratio {:.2}",
        compare / put
    );
    println!("            install {copy:.2}, install protected {copy_wp:.2}");
    println!("            first write {write:.2}, first write to a protected page {fault:.2}");
    println!(
        "write-protection is cheaper only while fewer than {:.1} % of the pages are written",
        100.0 * compare / (fault + compare)
    );
}

fn cpu() -> Duration {
    // SAFETY: plain data, filled by the call.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &mut usage);
        usage
    };
    let of = |t: libc::timeval| Duration::new(t.tv_sec as u64, t.tv_usec as u32 * 1000);
    of(usage.ru_utime) + of(usage.ru_stime)
}

#[derive(Clone, Copy)]
enum Order {
    Passes,
    Random,
}

/// Seconds and CPU seconds of touching as many pages as there are, three times.
fn program(mib: usize, order: Order, writes: u64, knobs: Tunables) -> (f64, f64, String) {
    let max = (mib * 256 / 2) as u64;
    let limit = Arc::new(Limit::new(max, max - max / 32, u64::MAX));
    let config = config();
    let tunables = Tunables {
        thp: ThpMode::Never,
        ..knobs
    };
    let service = start(config, limit, Ram::new(Algorithm::Lz4), tunables);
    let mut region = service.map(mib << 20).expect("memory");
    let pages = mib * 256;
    for (k, page) in region.chunks_mut(PAGE).enumerate() {
        fill(page, k as u64 + 1);
    }
    let mut seed = 99;
    let mut pass = || {
        for k in 0..pages {
            let at = match order {
                Order::Passes => k,
                Order::Random => (next(&mut seed) % pages as u64) as usize,
            };
            let byte = &mut region[at * PAGE + 600];
            if next(&mut seed) % 100 < writes {
                *byte = byte.wrapping_add(1);
            } else {
                black_box(*byte);
            }
        }
    };
    pass();
    let (begin, used) = (Instant::now(), cpu());
    (0..3).for_each(|_| pass());
    let (time, used) = (begin.elapsed(), cpu() - used);
    let stats = service.inside().mm().stats();
    let said = [
        Item::Pgmajfault,
        Item::Pswpin,
        Item::Pswpout,
        Item::SwpoutUnchanged,
        Item::SwpoutStale,
    ]
    .map(|i| format!("{} {}", i.name(), stats.get(i)))
    .join(", ");
    (time.as_secs_f64(), used.as_secs_f64(), said)
}

fn main() {
    let mib = number(64);
    parts();
    let fixed = Tunables {
        vma_ra_enabled: false,
        page_cluster: 4,
        swap_cache: false,
        ..Tunables::default()
    };
    let adapted = Tunables {
        swap_cache: false,
        ..Tunables::default()
    };
    let cached = Tunables::default();
    for (name, order, writes) in [
        ("passes, reads only", Order::Passes, 0),
        ("passes, 10 % written", Order::Passes, 10),
        ("random, reads only", Order::Random, 0),
        ("random, 10 % written", Order::Random, 10),
        ("random, half written", Order::Random, 50),
    ] {
        compare(
            mib,
            (name, order, writes),
            &["64 KiB", "adapted"],
            [fixed, adapted],
        );
        compare(
            mib,
            (name, order, writes),
            &["no cache", "cache"],
            [adapted, cached],
        );
    }
}

/// Two sides, alternating.
fn compare(mib: usize, case: (&str, Order, u64), names: &[&str], knobs: [Tunables; 2]) {
    let (name, order, writes) = case;
    let mut sides: [Vec<(f64, f64, String)>; 2] = Default::default();
    for _ in 0..3 {
        for (side, knobs) in knobs.into_iter().enumerate() {
            sides[side].push(program(mib, order, writes, knobs));
        }
    }
    let of = |side: usize, f: fn(&(f64, f64, String)) -> f64| {
        median(sides[side].iter().map(f).collect())
    };
    println!(
        "{name}: {} / {}: time {:.2}, CPU {:.2} ({:.2} s of {:.2} s)",
        names[1],
        names[0],
        of(1, |r| r.0) / of(0, |r| r.0),
        of(1, |r| r.1) / of(0, |r| r.1),
        of(1, |r| r.0),
        of(0, |r| r.0),
    );
    for (side, what) in names.iter().enumerate() {
        println!("    {what:9} {}", sides[side][1].2);
    }
}
