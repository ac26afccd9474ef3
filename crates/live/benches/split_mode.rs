//! What it costs to take a huge page apart: where it is, or by copying what is in use out and
//! giving the block back whole; on real memory and on the model, in one run:
//! `cargo bench -p deckle-live --bench split_mode -- [MiB]`.
//!
//! Of each huge page the first pages hold a byte, the others are zeros. First the time until it
//! is apart; then until the program has used all that it had in it, which a split where it is
//! leaves unmapped. Both ways take turns; the median of the turns counts. The model's times are
//! those of a simulation on this machine, of which only the ratio says something.

mod common;

use std::time::Instant;

use common::{BLOCK, Inside, OnModel, median, number, service, warm};
use deckle_mm::{SplitError, SplitMode, Tunables};

const TURNS: usize = 7;

fn tunables(split_mode: SplitMode) -> Tunables {
    Tunables {
        split_mode,
        ..Tunables::default()
    }
}

/// Seconds until so many blocks are apart, and until all is used again; one thread.
fn live(split_mode: SplitMode, blocks: usize, used: usize) -> [f64; 2] {
    warm(2 * blocks * BLOCK);
    let service = service(tunables(split_mode));
    let mut region = service.map(blocks * BLOCK).expect("memory");
    for block in region.chunks_mut(BLOCK) {
        block.chunks_mut(4096).take(used).for_each(|p| p[0] = 0xff);
    }
    let (mm, space) = (service.inside().mm(), service.inside().space());
    let begin = Instant::now();
    for block in 0..blocks as u64 {
        let page = region.start().add(block * 512);
        // The handler of the last fault may be about to finish.
        let taken = || mm.shatter_page(space, page);
        let taken = std::iter::repeat_with(taken).find(|done| *done != Err(SplitError::Busy));
        taken.expect("endless").expect("a huge page");
    }
    let apart = begin.elapsed().as_secs_f64();
    for block in region.chunks(BLOCK) {
        for page in block.chunks(4096).take(used) {
            assert_eq!(std::hint::black_box(page)[0], 0xff);
        }
    }
    [apart, begin.elapsed().as_secs_f64()]
}

/// The same on the model.
fn model(split_mode: SplitMode, blocks: usize, used: usize) -> [f64; 2] {
    let on = OnModel::new(blocks, 2 * blocks, tunables(split_mode));
    on.touch(used, 0);
    let begin = Instant::now();
    for block in 0..blocks as u64 {
        let page = OnModel::BASE.add(block * 512);
        on.mm.shatter_page(on.space, page).expect("a huge page");
    }
    let apart = begin.elapsed().as_secs_f64();
    on.touch(used, 0);
    [apart, begin.elapsed().as_secs_f64()]
}

/// Median seconds of both ways.
fn compare(run: impl Fn(SplitMode) -> [f64; 2]) -> [[f64; 2]; 2] {
    let modes = [SplitMode::Shatter, SplitMode::InPlace];
    let turns: Vec<_> = (0..TURNS).map(|_| modes.map(&run)).collect();
    let of = |mode: usize, what: usize| median(turns.iter().map(|t| t[mode][what]).collect());
    [0, 1].map(|mode| [0, 1].map(|what| of(mode, what)))
}

fn main() {
    let mib = number(256);
    println!("microseconds a huge page      shattered   split where it is");
    for on in ["live", "model"] {
        let blocks = if on == "live" { mib / 2 } else { mib / 8 };
        for used in [1, 16, 64, 256, 512] {
            let [shatter, split] = compare(|mode| match on {
                "live" => live(mode, blocks, used),
                _ => model(mode, blocks, used),
            });
            let each = |s: f64| s * 1e6 / blocks as f64;
            for (what, i) in [("apart", 0), ("and used", 1)] {
                println!(
                    "{on:5} {used:3} of 512 used, {what:8} {:9.1} {:9.1}",
                    each(shatter[i]),
                    each(split[i]),
                );
            }
        }
    }
}
