//! Cost of one page, beside raw lz4 on the same pages in the same run. Sides alternate; the
//! median of nine rounds counts.

#[path = "../tests/common/mod.rs"]
mod common;

use common::Page;
use deckle_mm::{PAGE_SIZE, Slot, Store};
use deckle_store::{Algorithm, Ram};
use lz4_flex::block::{CompressTable, compress_into_with_table, decompress_into};
use std::hint::black_box;
use std::time::Instant;

const PAGES: u32 = 4096;
const ROUNDS: usize = 9;

/// Microseconds a page of one call.
fn us(f: impl FnOnce()) -> f64 {
    let start = Instant::now();
    f();
    start.elapsed().as_secs_f64() * 1e6 / f64::from(PAGES)
}

fn median(mut v: Vec<f64>) -> f64 {
    v.sort_by(f64::total_cmp);
    v[v.len() / 2]
}

fn row(name: &str, algorithm: Algorithm, kind: u32) {
    let pages: Vec<Page> = (0..PAGES)
        .map(|i| common::page(kind, u64::from(i)))
        .collect();
    let bytes = pages.as_flattened();
    let mut table = CompressTable::small();
    let mut packed = vec![[0u8; 4600]; PAGES as usize];
    let mut lens = vec![0; PAGES as usize];
    let mut back = vec![0; bytes.len()];
    let store = Ram::new(algorithm);
    let mut times: [Vec<f64>; 5] = Default::default();
    let mut ratio = 0.0;
    for _ in 0..ROUNDS {
        times[0].push(us(|| {
            for (i, page) in pages.iter().enumerate() {
                let out = &mut packed[i][..];
                lens[i] = compress_into_with_table(page, out, &mut table).unwrap_or(0);
            }
        }));
        times[1].push(us(|| {
            for (i, page) in back.chunks_exact_mut(PAGE_SIZE).enumerate() {
                let _ = black_box(decompress_into(&packed[i][..lens[i]], page));
            }
        }));
        times[2].push(us(|| store.put(Slot(0), bytes).expect("put")));
        ratio = f64::from(PAGES) * PAGE_SIZE as f64 / store.ram_bytes() as f64;
        times[3].push(us(|| store.get(Slot(0), &mut back).expect("get")));
        assert!(back == bytes, "wrong bytes");
        times[4].push(us(|| store.free(Slot(0), PAGES)));
    }
    let [lz4, unlz4, put, get, free] = times.map(median);
    println!(
        "{name:<14} {algorithm:<7} put {put:6.2} us ({:5.2} x lz4 {lz4:5.2})  get {get:6.2} us \
         ({:5.2} x lz4 {unlz4:5.2})  free {free:5.2} us  pages/RAM {ratio:6.1}",
        put / lz4,
        get / unlz4,
        algorithm = algorithm.to_string(),
    );
}

fn main() {
    println!("per page, {PAGES} pages, one thread");
    row("zero", Algorithm::Lz4, 0);
    row("same-filled", Algorithm::Lz4, 1);
    row("sparse", Algorithm::Lz4, 2);
    row("mixed 3:1", Algorithm::Lz4, 3);
    row("mixed 1.5:1", Algorithm::Lz4, 4);
    row("text-like", Algorithm::Lz4, 5);
    #[cfg(feature = "zstd")]
    row("mixed 3:1", Algorithm::Zstd(1), 3);
    #[cfg(feature = "zstd")]
    row("text-like", Algorithm::Zstd(1), 5);
}
