//! The zero scan beside what libc's `memcmp` with a page of zeros takes on the same memory, in one
//! run: `cargo bench -p deckle-live --bench zero_scan -- [MiB]`.
//!
//! Wanted: at least 80 % of its bandwidth where every byte has to be read. The memory is more
//! than caches hold, in huge pages where the system gives them; the ways take turns, and the
//! median of the turns counts.

mod common;

use std::hint::black_box;
use std::time::Instant;

use common::{median, number};
use deckle_live::zero_scan::{zero_pages, zero_pages_scalar};
use deckle_mm::{BLOCK_PAGES, PageMask};

const WORDS: usize = 512;
const TURNS: usize = 15;
/// Of the bandwidth of memcmp.
const WANTED: f64 = 0.8;

type Page = [u64; WORDS];
/// A name and what counts the zero pages of a block.
type Way = (&'static str, fn(&[Page]) -> u32);

fn memcmp(pages: &[Page]) -> u32 {
    static ZEROS: Page = [0; WORDS];
    let zero = |page: &&Page| {
        // SAFETY: both are pages.
        0 == unsafe {
            libc::memcmp(
                page.as_ptr().cast(),
                black_box(&ZEROS).as_ptr().cast(),
                size_of::<Page>(),
            )
        }
    };
    pages.iter().filter(zero).count() as u32
}

fn block(pages: &[Page]) -> u32 {
    zero_pages(pages).count()
}

/// As the shrinker looks: page by page, until the outcome is certain.
fn page_by_page(pages: &[Page]) -> u32 {
    pages.chunks(1).map(|one| zero_pages(one).count()).sum()
}

fn scalar(pages: &[Page]) -> u32 {
    zero_pages_scalar(pages).count()
}

const WAYS: [Way; 4] = [
    ("memcmp with zeros (libc)", memcmp),
    ("zero scan, block at a time", block),
    ("zero scan, page at a time", page_by_page),
    ("zero scan without vectors", scalar),
];

fn pages(mib: usize) -> &'static mut [Page] {
    let bytes = mib << 20;
    // SAFETY: a new private mapping, which lives as long as the process; zeros are valid words, and
    // a page is aligned for them.
    unsafe {
        let (rw, private) = (
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
        );
        let at = libc::mmap(std::ptr::null_mut(), bytes, rw, private, -1, 0);
        assert!(at != libc::MAP_FAILED, "no {mib} MiB here");
        libc::madvise(at, bytes, libc::MADV_HUGEPAGE);
        // Pages of its own, not the shared zero page.
        libc::memset(at, 1, bytes);
        libc::memset(at, 0, bytes);
        std::slice::from_raw_parts_mut(at.cast(), bytes / size_of::<Page>())
    }
}

/// GiB/s of each way, the median of the turns.
fn measure(memory: &[Page], want: u32) -> [f64; WAYS.len()] {
    let mut turns = [const { Vec::new() }; WAYS.len()];
    for turn in 0..=TURNS {
        for ((_, way), seconds) in WAYS.iter().zip(&mut turns) {
            let begin = Instant::now();
            let found: u32 = memory
                .chunks(BLOCK_PAGES as usize)
                .map(|block| way(black_box(block)))
                .sum();
            let took = begin.elapsed().as_secs_f64();
            assert_eq!(found, want);
            // The first turn warms.
            if turn > 0 {
                seconds.push(took);
            }
        }
    }
    turns.map(|seconds| size_of_val(memory) as f64 / median(seconds) / f64::from(1 << 30))
}

fn main() {
    let mib = number(256);
    let memory = pages(mib);
    let all = memory.len() as u32;
    assert_eq!(zero_pages(&memory[..512]), PageMask::FULL);
    let mut enough = true;
    for (case, offset) in [
        ("all zeros", None),
        // The last word itself is the first that is asked.
        ("last word but one of each page set", Some(WORDS - 2)),
        ("last word of each page set", Some(WORDS - 1)),
        ("first word of each page set", Some(0)),
    ] {
        for page in memory.iter_mut() {
            page.fill(0);
            if let Some(offset) = offset {
                page[offset] = 1;
            }
        }
        let found = measure(memory, if offset.is_none() { all } else { 0 });
        println!("{case}, {mib} MiB");
        for ((name, _), gib) in WAYS.iter().zip(found) {
            let share = gib / found[0];
            println!("  {name:<28} {gib:8.1} GiB/s  {share:5.2} of memcmp");
        }
        if offset.is_none_or(|word| word == WORDS - 2) {
            enough &= found[1] >= WANTED * found[0] && found[2] >= WANTED * found[0];
        }
    }
    println!(
        "wanted: at least {WANTED} of memcmp where all is read: {}",
        if enough { "yes" } else { "NO" }
    );
}
