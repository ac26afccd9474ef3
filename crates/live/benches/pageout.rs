//! Where the time of the page-out experiment goes, phase by phase, on the live pager:
//! `cargo bench -p deckle-live --bench pageout -- [MiB]`.
//!
//! Each case touches every block, pages all of it out with as many threads as CPUs, and reads
//! it back. Before each case as much memory as it will use is touched and freed, because a
//! virtual machine may give freed memory back to its host.

mod common;

use std::time::Instant;

use common::{BLOCK, Inside, number, service, warm};
use deckle_mm::{Item, Tunables, Vpn};

fn case(name: &str, blocks: usize, offset: usize, dirty: usize) {
    warm(blocks * BLOCK);
    let service = service(Tunables::default());
    let mut region = service.map(blocks * BLOCK).expect("memory");
    let begin = Instant::now();
    for block in region.chunks_mut(BLOCK) {
        for page in block.chunks_mut(4096).take(dirty) {
            page[offset] = 0xff;
        }
    }
    let filled = begin.elapsed();
    let begin = Instant::now();
    let (start, mm, space) = (
        region.start(),
        service.inside().mm(),
        service.inside().space(),
    );
    let half = blocks as u64 / 2 * 512;
    std::thread::scope(|s| {
        s.spawn(|| mm.page_out(space, start, half));
        mm.page_out(space, Vpn(start.0 + half), region.pages() - half)
            .expect("page-out");
    });
    let out = begin.elapsed();
    let left = mm.stats().get(Item::NrAnon) + mm.stats().get(Item::NrInactive);
    let begin = Instant::now();
    for block in region.chunks(BLOCK) {
        for page in block.chunks(4096).take(dirty) {
            assert_eq!(page[offset], 0xff);
        }
    }
    let back = begin.elapsed();
    let each = |t: std::time::Duration| t.as_secs_f64() * 1e6 / blocks as f64;
    println!(
        "{name:6} {blocks} blocks: touch {:7.1} us, page-out {:7.1} us, back {:8.1} us a block; \
         left {left} pages, zero {}, stored {}",
        each(filled),
        each(out),
        each(back),
        mm.stats().get(Item::SwpoutZero),
        mm.stats().get(Item::Pswpout),
    );
}

fn main() {
    let mib = number(1024);
    for _ in 0..2 {
        case("best", mib / 2, 0, 1);
        case("worst", mib / 2, 4095, 512);
    }
}
