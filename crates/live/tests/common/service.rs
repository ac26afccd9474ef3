//! A service with a limit of its own, and regions whose pages tell which they are.

#![allow(dead_code)] // Each test binary uses its own part of this module.

#[path = "trim.rs"]
mod trim;

use super::common::PAGE;
use deckle_live::{Die, Limit, LiveConfig, Pager, Region, Service};
use deckle_mm::{Charge, Tunables};
use std::sync::Arc;
pub use trim::Trim;

pub const MIB: usize = 1 << 20;

pub type Managed = Region<Limit, Trim>;
pub type Served = Service<Limit, Trim>;

/// `high` a little below `max`, which is so many MiB.
pub fn service_with(mib: u64, tunables: Tunables) -> (Served, Arc<Limit>) {
    let max = mib * 256;
    let limit = Arc::new(Limit::new(max, max - max / 32, u64::MAX));
    let config = LiveConfig {
        dont_fork: true,
        ..LiveConfig::default()
    };
    let pager = Pager::new(
        config,
        limit.clone(),
        Trim::default(),
        tunables,
        Box::new(Die),
    )
    .expect("pager");
    (Service::start(pager).expect("threads"), limit)
}

pub fn word(page: usize, round: u64) -> u64 {
    (page as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ round
}

pub fn fill(region: &mut Managed, round: u64) {
    for (i, page) in region.chunks_mut(PAGE).enumerate() {
        for k in 0..64 {
            page[k * 8..k * 8 + 8].copy_from_slice(&word(i, round + k as u64).to_ne_bytes());
        }
    }
}

pub fn check(region: &Managed, round: u64) {
    for (i, page) in region.chunks(PAGE).enumerate() {
        for k in 0..64 {
            let got = u64::from_ne_bytes(page[k * 8..k * 8 + 8].try_into().unwrap());
            assert_eq!(got, word(i, round + k as u64), "page {i} word {k}");
        }
        assert!(page[512..].iter().all(|b| *b == 0), "page {i}");
    }
}

pub fn sound(service: &Served) {
    // Quiescent: nobody faults, and the background has nothing to do.
    std::thread::sleep(std::time::Duration::from_millis(50));
    if let Err(broken) = service.pager().mm().verify(true) {
        panic!("{broken:?}");
    }
}

/// The peak may pass the limit by what the store grows by while it makes room.
pub fn within(limit: &Limit) {
    let (peak, max) = (limit.peak(), limit.max());
    assert!(peak <= max + 256, "{peak} of {max} pages");
}
