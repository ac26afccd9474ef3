//! What a collapse costs, and what it gains: `cargo bench -p deckle-live --bench collapse --
//! [MiB]`.
//!
//! A region of 4 KiB pages is read at random, each address from the word read before; then its
//! blocks are collapsed, timed one by one, and the same walk is made again. Beside it the same
//! walk over the kernel's own memory, small and huge, in the same run.

mod common;

use std::time::Instant;

use common::{BLOCK, Inside, number, service};
use deckle_mm::{Advice, SizeMode, Sizes, ThpMode, Tunables};
use deckle_sys::Memory;
use deckle_sys::mapping;

const STEPS: usize = 4 << 20;

/// A walk that comes by every cache line's word once: each word holds where to go next.
fn lay(memory: &mut [u8]) {
    let lines = memory.len() / 64;
    let mut order: Vec<u32> = (0..lines as u32).collect();
    let mut x = 88_172_645_463_325_252u64;
    for i in (1..lines).rev() {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        order.swap(i, x as usize % (i + 1));
    }
    for (i, from) in order.iter().enumerate() {
        let to = order[(i + 1) % lines] as usize * 64;
        let at = *from as usize * 64;
        memory[at..at + 8].copy_from_slice(&to.to_ne_bytes());
    }
}

/// Nanoseconds for each step of the walk.
fn walk(memory: &[u8]) -> f64 {
    let mut at = 0usize;
    let begin = Instant::now();
    for _ in 0..STEPS {
        at = usize::from_ne_bytes(memory[at..at + 8].try_into().expect("eight bytes"));
    }
    let time = begin.elapsed();
    std::hint::black_box(at);
    time.as_secs_f64() * 1e9 / STEPS as f64
}

fn kernel(bytes: usize, advice: mapping::Advice) -> f64 {
    let mut memory = Memory::map_aligned(bytes, BLOCK).expect("memory");
    let _ = memory.advise(0..bytes, advice);
    lay(&mut memory);
    walk(&memory);
    walk(&memory)
}

fn main() {
    let mib = number(256);
    let bytes = mib << 20;
    let small = kernel(bytes, mapping::Advice::NoHugePage);
    let huge = kernel(bytes, mapping::Advice::HugePage);
    println!("kernel: {small:.1} ns a step on small pages, {huge:.1} ns on huge ones");
    let tunables = Tunables {
        thp: ThpMode::Madvise,
        sizes: Sizes::NEVER.with(9, SizeMode::Inherit),
        khugepaged_pages_to_scan: 0,
        ..Tunables::default()
    };
    let service = service(tunables);
    let mut region = service.map(bytes).expect("memory");
    lay(&mut region);
    walk(&region);
    let before = walk(&region);
    let advised = region.advise(Advice::HugePage);
    advised.expect("advice");
    let (mm, space) = (service.inside().mm(), service.inside().space());
    let mut costs: Vec<f64> = (0..bytes / BLOCK)
        .map(|b| {
            let begin = Instant::now();
            mm.collapse(space, region.start().add(b as u64 * 512))
                .expect("collapse");
            begin.elapsed().as_secs_f64() * 1e6
        })
        .collect();
    costs.sort_by(f64::total_cmp);
    walk(&region);
    let after = walk(&region);
    println!("deckle: {before:.1} ns a step before, {after:.1} ns after the collapse");
    let at = |share: usize| costs[(costs.len() - 1) * share / 100];
    println!(
        "{} collapses: median {:.0} us, 10 % under {:.0} us, 90 % under {:.0} us",
        costs.len(),
        at(50),
        at(10),
        at(90)
    );
}
