//! A service with a limit of its own, and regions whose pages tell which they are.

use crate::common::PAGE;
pub use crate::inside::Inside;
pub use crate::trim::Trim;
use deckle_live::{Die, Limit, LiveConfig, Pager, Region, Service};
use deckle_mm::{Charge, FaultOrder, Item, ThpMode, Tunables};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

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
    // Quiescent: nobody faults, and the background has nothing to do, however long that takes on a
    // busy machine. What is broken stays so.
    let look = || {
        std::thread::sleep(std::time::Duration::from_millis(50));
        service.inside().mm().verify(true)
    };
    let last = (0..100).map(|_| look()).find(Result::is_ok);
    if last.is_none() {
        panic!("{:?}", look());
    }
}

/// Reconciles the books, of a program that has just stopped: who waits for a page goes on before it
/// is booked.
pub fn reconciled(service: &Served, alone: bool) {
    let begin = Instant::now();
    while let Err(broken) = service.inside().mm().verify(alone) {
        assert!(begin.elapsed() < Duration::from_secs(1), "{broken:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The peak may pass the limit by what the store grows by while it makes room.
pub fn within(limit: &Limit) {
    let (peak, max) = (limit.peak(), limit.max());
    assert!(peak <= max + 256, "{peak} of {max} pages");
}

/// What opens holes, up to `ratio` percent of `memory.high`.
pub fn opens(thp: ThpMode, ratio: u8) -> Tunables {
    Tunables {
        thp,
        fault_order: FaultOrder::Auto,
        fault_open_ratio: ratio,
        ..Tunables::default()
    }
}

pub fn stat(service: &Served, item: Item) -> u64 {
    service.inside().mm().stats().get(item)
}

pub fn close_all(service: &Served, region: &Managed) {
    let (mm, space) = (service.inside().mm(), service.inside().space());
    let done = mm.page_out(space, region.start(), region.pages());
    done.expect("page_out");
}

/// All numbers below `n`, a power of two, once each and in no order that a stream could be seen in.
pub fn scattered(n: usize) -> impl Iterator<Item = usize> {
    assert!(n.is_power_of_two());
    let mut x = 1_usize;
    (0..n).map(move |_| {
        // Of full period: the multiplier is 1 modulo 4, the summand odd.
        x = x.wrapping_mul(0x2545_f491_4f6c_dd1d).wrapping_add(0x3619);
        x & (n - 1)
    })
}

/// A word of each page that is only used as an atomic, so that threads may share it.
pub fn cell(base: usize, page: usize) -> &'static AtomicU64 {
    // SAFETY: tests keep their regions longer than what they take from them, and use these bytes
    // as atomics only, while they use them by this.
    unsafe { &*((base + page * PAGE + 64) as *const AtomicU64) }
}
