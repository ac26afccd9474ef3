//! What it costs to take a huge page apart: where it is, or by copying what is in use out and
//! giving the block back whole; on real memory and on the model, in one run:
//! `cargo bench -p deckle-live --bench split_mode -- [MiB]`.
//!
//! Of each huge page the first pages hold a byte, the others are zeros. First the time until it
//! is apart; then until the program has used all that it had in it, which a split where it is
//! leaves unmapped. Both ways take turns; the median of the turns counts. The model's times are
//! those of a simulation on this machine, of which only the ratio says something.

use std::sync::Arc;
use std::time::Instant;

use deckle_live::{Die, Limit, LiveConfig, Pager, Service};
use deckle_mm::{Env, FaultMode, Mm, Prot, SplitMode, Tunables, Vpn};
use deckle_model::{Model, ModelCharge, ModelMachine};
use deckle_store::{Algorithm, Ram};

const BLOCK: usize = 2 << 20;
const TURNS: usize = 7;
/// First page of the model's space.
const BASE: Vpn = Vpn(512 * 16);

struct ModelEnv;
impl Env for ModelEnv {
    type P = Model;
    type M = ModelMachine;
    type C = ModelCharge;
    type S = Ram;
}

fn tunables(split_mode: SplitMode) -> Tunables {
    Tunables {
        split_mode,
        ..Tunables::default()
    }
}

/// Seconds until so many blocks are apart, and until all is used again; one thread.
fn live(split_mode: SplitMode, blocks: usize, used: usize) -> [f64; 2] {
    let mut warm = vec![0u8; 2 * blocks * BLOCK];
    warm.chunks_mut(4096).for_each(|page| page[0] = 1);
    drop(std::hint::black_box(warm));
    let config = LiveConfig {
        dont_fork: true,
        ..LiveConfig::default()
    };
    let limit = Arc::new(Limit::new(u64::MAX, u64::MAX, u64::MAX));
    let store = Ram::new(Algorithm::Lz4);
    let pager = Pager::new(config, limit, store, tunables(split_mode), Box::new(Die));
    let service = Service::start(pager.expect("a pager")).expect("threads");
    let mut region = service.map(blocks * BLOCK).expect("memory");
    for block in region.chunks_mut(BLOCK) {
        block.chunks_mut(4096).take(used).for_each(|p| p[0] = 0xff);
    }
    let (mm, space) = (service.pager().mm(), service.pager().space());
    let begin = Instant::now();
    for block in 0..blocks as u64 {
        let page = region.start().add(block * 512);
        mm.shatter_page(space, page).expect("a huge page");
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
    let machine = ModelMachine::single();
    let model = Model::new((2 * (blocks + 32) * BLOCK) as u64, 1, 1);
    model.attach(&machine);
    let mm: Mm<ModelEnv> = Mm::new(
        model.clone(),
        machine,
        ModelCharge::unlimited(),
        Ram::new(Algorithm::Lz4),
        tunables(split_mode),
    )
    .expect("a manager");
    let pages = blocks as u64 * 512;
    let space = mm.create_space(BASE, pages).expect("a space");
    mm.mmap(space, Some(BASE), pages, 1, Prot::RW)
        .expect("memory");
    let touch = || {
        for block in 0..blocks as u64 {
            for page in 0..used as u64 {
                let at = BASE.add(block * 512 + page);
                while let Err(f) = model.store(0, space, at.addr(), &[0xff]) {
                    mm.fault(space, f.page, f.write, FaultMode::MayWait)
                        .expect("a page");
                }
            }
        }
    };
    touch();
    let begin = Instant::now();
    for block in 0..blocks as u64 {
        mm.shatter_page(space, BASE.add(block * 512))
            .expect("a huge page");
    }
    let apart = begin.elapsed().as_secs_f64();
    touch();
    [apart, begin.elapsed().as_secs_f64()]
}

/// Median seconds of both ways.
fn compare(run: impl Fn(SplitMode) -> [f64; 2]) -> [[f64; 2]; 2] {
    let modes = [SplitMode::Shatter, SplitMode::InPlace];
    let turns: Vec<_> = (0..TURNS).map(|_| modes.map(&run)).collect();
    let median = |mode: usize, what: usize| {
        let mut all: Vec<f64> = turns.iter().map(|turn| turn[mode][what]).collect();
        all.sort_by(f64::total_cmp);
        all[TURNS / 2]
    };
    [0, 1].map(|mode| [0, 1].map(|what| median(mode, what)))
}

fn main() {
    let mib = std::env::args()
        .filter_map(|a| a.parse::<usize>().ok())
        .next()
        .unwrap_or(256);
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
