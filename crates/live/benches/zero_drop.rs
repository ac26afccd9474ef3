//! What the look for pages of zeros costs reclaim where there are none, and what it saves where
//! most are: page-out with zero-drop on against off, on real memory and on the model, in one run:
//! `cargo bench -p deckle-live --bench zero_drop -- [MiB]`.
//!
//! The series found +8.8 % in its worst case: the last byte of each page is set, so that each is
//! read to its end. Here the last word is asked first, so a second case sets a byte before it.
//! Both settings take turns; the median of the turns counts. The model's times are those of a
//! simulation on this machine, of which only the ratio says something.

mod common;

use std::time::Instant;

use common::{BLOCK, Inside, OnModel, median, number, service, warm};
use deckle_mm::{Item, Tunables};

const TURNS: usize = 7;

fn tunables(zero_drop: bool) -> Tunables {
    Tunables {
        zero_drop,
        ..Tunables::default()
    }
}

/// Seconds of the page-out of so many blocks on real memory, one thread.
fn live(zero_drop: bool, blocks: usize, offset: usize, dirty: usize) -> f64 {
    warm(blocks * BLOCK);
    let service = service(tunables(zero_drop));
    let mut region = service.map(blocks * BLOCK).expect("memory");
    for block in region.chunks_mut(BLOCK) {
        for page in block.chunks_mut(4096).take(dirty) {
            page[offset] = 0xff;
        }
    }
    let (mm, space) = (service.inside().mm(), service.inside().space());
    let begin = Instant::now();
    mm.page_out(space, region.start(), region.pages())
        .expect("page-out");
    let took = begin.elapsed().as_secs_f64();
    let zero = mm.stats().get(Item::SwpoutZero) > 0;
    assert_eq!(zero, zero_drop && dirty < 512);
    for block in region.chunks(BLOCK).step_by(8) {
        for page in block.chunks(4096).take(dirty).step_by(64) {
            assert_eq!(page[offset], 0xff);
        }
    }
    took
}

/// The same on the model.
fn model(zero_drop: bool, blocks: usize, offset: usize, dirty: usize) -> f64 {
    let on = OnModel::new(blocks, blocks, tunables(zero_drop));
    on.touch(dirty, offset);
    let begin = Instant::now();
    let done = on.mm.page_out(on.space, OnModel::BASE, on.pages);
    done.expect("page-out");
    let took = begin.elapsed().as_secs_f64();
    assert_eq!(on.mm.stats().get(Item::NrAnon), 0);
    took
}

/// Median seconds with zero-drop on and off.
fn compare(run: impl Fn(bool) -> f64) -> (f64, f64) {
    let (mut on, mut off) = (Vec::new(), Vec::new());
    for _ in 0..TURNS {
        on.push(run(true));
        off.push(run(false));
    }
    (median(on), median(off))
}

fn main() {
    let mib = number(512);
    for (case, offset, dirty) in [("worst", 4095, 512), ("read", 4080, 512), ("best", 0, 1)] {
        for on in ["live", "model"] {
            let blocks = if on == "live" { mib / 2 } else { mib / 8 };
            let (with, without) = compare(|zero_drop| match on {
                "live" => live(zero_drop, blocks, offset, dirty),
                _ => model(zero_drop, blocks, offset, dirty),
            });
            let each = |s: f64| s * 1e6 / blocks as f64;
            println!(
                "{case:5} on {on:5}: {:7.1} us a block with zero-drop, {:7.1} without: {:+.1} %",
                each(with),
                each(without),
                (with / without - 1.0) * 100.0,
            );
        }
    }
    println!("published, worst case: +8.8 %");
}
