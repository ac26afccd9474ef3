//! What the look for pages of zeros costs reclaim where there are none, and what it saves where
//! most are: page-out with zero-drop on against off, on real memory and on the model, in one run:
//! `cargo bench -p deckle-live --bench zero_drop -- [MiB]`.
//!
//! The series found +8.8 % in its worst case: the last byte of each page is set, so that each is
//! read to its end. Here the last word is asked first, so a second case sets a byte before it.
//! Both settings take turns; the median of the turns counts. The model's times are those of a
//! simulation on this machine, of which only the ratio says something.

use std::sync::Arc;
use std::time::Instant;

use deckle_live::{Die, Limit, LiveConfig, Pager, Service};
use deckle_mm::{Env, Item, Mm, Prot, Tunables, Vpn};
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

fn tunables(zero_drop: bool) -> Tunables {
    Tunables {
        zero_drop,
        ..Tunables::default()
    }
}

/// Seconds of the page-out of so many blocks on real memory, one thread.
fn live(zero_drop: bool, blocks: usize, offset: usize, dirty: usize) -> f64 {
    let mut warm = vec![0u8; blocks * BLOCK];
    warm.chunks_mut(4096).for_each(|page| page[0] = 1);
    drop(std::hint::black_box(warm));
    let config = LiveConfig {
        dont_fork: true,
        ..LiveConfig::default()
    };
    let limit = Arc::new(Limit::new(u64::MAX, u64::MAX, u64::MAX));
    let store = Ram::new(Algorithm::Lz4);
    let pager = Pager::new(config, limit, store, tunables(zero_drop), Box::new(Die));
    let service = Service::start(pager.expect("a pager")).expect("threads");
    let mut region = service.map(blocks * BLOCK).expect("memory");
    for block in region.chunks_mut(BLOCK) {
        for page in block.chunks_mut(4096).take(dirty) {
            page[offset] = 0xff;
        }
    }
    let (mm, space) = (service.pager().mm(), service.pager().space());
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
    let machine = ModelMachine::single();
    let model = Model::new(((blocks + 32) * BLOCK) as u64, 1, 1);
    model.attach(&machine);
    let mm: Mm<ModelEnv> = Mm::new(
        model.clone(),
        machine,
        ModelCharge::unlimited(),
        Ram::new(Algorithm::Lz4),
        tunables(zero_drop),
    )
    .expect("a manager");
    let pages = blocks as u64 * 512;
    let space = mm.create_space(BASE, pages).expect("a space");
    mm.mmap(space, Some(BASE), pages, 1, Prot::RW)
        .expect("memory");
    for block in 0..blocks as u64 {
        for page in 0..dirty as u64 {
            let at = BASE.add(block * 512 + page);
            while let Err(f) = model.store(0, space, at.addr() + offset as u64, &[0xff]) {
                let mode = deckle_mm::FaultMode::MayWait;
                mm.fault(space, f.page, f.write, mode).expect("a page");
            }
        }
    }
    let begin = Instant::now();
    mm.page_out(space, BASE, pages).expect("page-out");
    let took = begin.elapsed().as_secs_f64();
    assert_eq!(mm.stats().get(Item::NrAnon), 0);
    took
}

/// Median seconds with zero-drop on and off.
fn compare(run: impl Fn(bool) -> f64) -> (f64, f64) {
    let (mut on, mut off) = (Vec::new(), Vec::new());
    for _ in 0..TURNS {
        on.push(run(true));
        off.push(run(false));
    }
    let median = |mut all: Vec<f64>| {
        all.sort_by(f64::total_cmp);
        all[TURNS / 2]
    };
    (median(on), median(off))
}

fn main() {
    let mib = std::env::args()
        .filter_map(|a| a.parse::<usize>().ok())
        .next()
        .unwrap_or(512);
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
