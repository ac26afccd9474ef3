//! How long the first touch of a huge page takes: the kernel's own fault, and ours, with a
//! nursery that is filled and with none, served on the CPU of the program and on another one:
//! `cargo bench -p deckle-live --bench first_touch -- [TOUCHES]`.
//!
//! The cases take turns in one run. Before each turn as much memory as it will use is touched
//! and freed, because a virtual machine may give freed memory back to its host. Each touch
//! begins when the nursery is filled again.

mod common;

use std::time::{Duration, Instant};

use common::{BLOCK, Inside, config, number, start, unlimited, warm};
use deckle_live::LiveConfig;
use deckle_mm::{Item, Tunables};
use deckle_store::Disabled;
use deckle_sys::Memory;
use deckle_sys::mapping::Advice;

/// Rounds, in each of which every case has its turn.
const ROUNDS: usize = 4;
/// Touches before the first that counts: the nursery learns from them that it is needed.
const LEARN: usize = 8;

#[derive(Clone, Copy, PartialEq)]
enum Case {
    Kernel,
    Filled { served_on: usize },
    Empty { served_on: usize },
}

const CASES: [(&str, Case); 5] = [
    ("kernel's huge page fault", Case::Kernel),
    (
        "nursery filled, served on the same CPU",
        Case::Filled { served_on: 0 },
    ),
    (
        "nursery filled, served on another CPU",
        Case::Filled { served_on: 1 },
    ),
    (
        "nursery empty, served on the same CPU",
        Case::Empty { served_on: 0 },
    ),
    (
        "nursery empty, served on another CPU",
        Case::Empty { served_on: 1 },
    ),
];

/// Binds the calling thread, and those that it starts, to a CPU.
fn pin(cpu: usize) {
    // SAFETY: an all-zero set is a valid one, and the call reads it.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, size_of_val(&set), &raw const set);
    }
}

fn touch(at: *mut u8) -> f64 {
    let begin = Instant::now();
    // SAFETY: a byte of a mapping that the caller holds.
    unsafe { at.write_volatile(1) };
    begin.elapsed().as_secs_f64() * 1e6
}

fn kernel(touches: usize) -> Vec<f64> {
    let bytes = touches * BLOCK;
    let mut memory = Memory::map_aligned(bytes, BLOCK).expect("memory");
    let _ = memory.advise(0..bytes, Advice::HugePage);
    memory
        .chunks_mut(BLOCK)
        .map(|b| touch(b.as_mut_ptr()))
        .collect()
}

fn ours(touches: usize, served_on: usize, nursery: bool) -> Vec<f64> {
    pin(served_on);
    let config = LiveConfig {
        // So small a limit that no huge page is made ahead.
        limit_pages: (!nursery).then_some(1),
        ..config()
    };
    let service = start(config, unlimited(), Disabled, Tunables::default());
    pin(0);
    let mut region = service.map((touches + LEARN) * BLOCK).expect("memory");
    let stats = service.inside().mm().stats();
    let nursery_of = service.inside().platform().nursery();
    let mut times = Vec::new();
    for (n, block) in region.chunks_mut(BLOCK).enumerate() {
        if nursery && n > LEARN {
            let begin = Instant::now();
            while nursery_of.ready_pages() == 0 && begin.elapsed() < Duration::from_millis(20) {
                std::thread::yield_now();
            }
        }
        let huge = stats.get(Item::ThpFaultAlloc);
        let (hits, _) = nursery_of.hits_and_misses();
        let us = touch(block.as_mut_ptr());
        let was_huge = stats.get(Item::ThpFaultAlloc) == huge + 1;
        let was_hit = nursery_of.hits_and_misses().0 == hits + 1;
        if n >= LEARN && was_huge && was_hit == nursery {
            times.push(us);
        }
    }
    times
}

fn main() {
    let touches = number(48);
    let cpus = std::thread::available_parallelism().map_or(1, |n| n.get());
    let mut all: Vec<Vec<f64>> = vec![Vec::new(); CASES.len()];
    for _ in 0..ROUNDS {
        for ((_, case), times) in CASES.iter().zip(&mut all) {
            pin(0);
            warm((touches + LEARN + 16) * BLOCK);
            times.extend(match *case {
                Case::Kernel => kernel(touches),
                Case::Filled { served_on } | Case::Empty { served_on } if served_on >= cpus => {
                    Vec::new()
                }
                Case::Filled { served_on } => ours(touches, served_on, true),
                Case::Empty { served_on } => ours(touches, served_on, false),
            });
        }
    }
    let median = |times: &mut Vec<f64>, part: usize| {
        times.sort_by(f64::total_cmp);
        times
            .get(times.len() * part / 100)
            .copied()
            .unwrap_or(f64::NAN)
    };
    let of = median(&mut all[0], 50);
    for ((name, _), times) in CASES.iter().zip(&mut all) {
        let (count, p10, p50, p90) = (
            times.len(),
            median(times, 10),
            median(times, 50),
            median(times, 90),
        );
        println!(
            "{name:<42} {p50:7.1} us ({p10:.1} to {p90:.1} of {count}), {:.2} of the kernel's",
            p50 / of
        );
    }
}
