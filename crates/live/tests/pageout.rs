//! Real memory that is paged out, by advice and in the background, seen by two gauges: the group's
//! account, and what the kernel says that the process has.

use crate::common::{BLOCK, PAGE, case, pss_anon};
use crate::inside::Inside;
use crate::skipped::skipped;
use crate::trim::Trim;
use deckle_live::{Capability, Die, Limit, LiveConfig, Pager, Region, Service};
use deckle_mm::{Advice, Charge, Item, OverLimit, Store, ThpMode, Tunables};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Huge pages: in a half of them one page of 512 holds a byte, in the others each does.
const BLOCKS: usize = 32;
const SIZE: usize = BLOCKS * BLOCK;

/// An account whose `memory.high` changes.
struct Account(Limit, AtomicU64);

impl Charge for Account {
    fn try_charge(&self, pages: u64) -> Result<(), OverLimit> {
        self.0.try_charge(pages)
    }
    fn force_charge(&self, pages: u64) {
        self.0.force_charge(pages);
    }
    fn uncharge(&self, pages: u64) {
        self.0.uncharge(pages);
    }
    fn try_charge_swap(&self, pages: u64) -> Result<(), OverLimit> {
        self.0.try_charge_swap(pages)
    }
    fn uncharge_swap(&self, pages: u64) {
        self.0.uncharge_swap(pages);
    }
    fn usage(&self) -> u64 {
        self.0.usage()
    }
    fn max(&self) -> u64 {
        self.0.max()
    }
    fn high(&self) -> u64 {
        self.1.load(Relaxed)
    }
}

/// The byte that a page holds, or none, and where it is: never where a scan looks first.
fn byte_of(page: usize) -> Option<(usize, u8)> {
    let (block, i) = (page / 512, page % 512);
    let used = i == 0 || block.is_multiple_of(2);
    used.then_some((1000 + page % 700, 1 + (page % 250) as u8))
}

/// Who pages out.
#[derive(Clone, Copy, PartialEq, Debug)]
enum By {
    Advice,
    Background,
}

fn fill(region: &mut Region<Account, Trim>) {
    for (page, bytes) in region.chunks_mut(PAGE).enumerate() {
        if let Some((at, byte)) = byte_of(page) {
            bytes[at] = byte;
        }
    }
}

fn check(region: &Region<Account, Trim>) {
    for (page, bytes) in region.chunks(PAGE).enumerate() {
        let holds =
            |(at, b): (usize, &u8)| *b == byte_of(page).map_or(0, |(k, v)| v * (k == at) as u8);
        assert!(bytes.iter().enumerate().all(holds), "page {page}");
    }
}

/// A service whose huge pages go by reclaim alone, as by advice, and its account. `None`, said
/// loudly: no huge page is to be had here.
fn service(test: &str) -> Option<(Service<Account, Trim>, Arc<Account>)> {
    let limit = Limit::new(1 << 17, u64::MAX, u64::MAX);
    let account = Arc::new(Account(limit, AtomicU64::new(u64::MAX)));
    let config = LiveConfig {
        dont_fork: true,
        ..LiveConfig::default()
    };
    let knobs = Tunables {
        thp: ThpMode::Always,
        shrink_underused: false,
        khugepaged_scan_sleep_millisecs: u32::MAX,
        ..Tunables::default()
    };
    let store = Trim::default();
    let pager = Pager::new(config, account.clone(), store, knobs, Box::new(Die)).expect("pager");
    let caps = pager.platform().capabilities();
    if !caps.has(Capability::Move) || !caps.huge() {
        skipped(format_args!("{test}: the system moves no huge page"));
        return None;
    }
    Some((Service::start(pager).expect("threads"), account))
}

/// What became of the pages.
fn paged_out(
    service: &Service<Account, Trim>,
    account: &Account,
    by: By,
) -> [(&'static str, u64); 6] {
    let (pager, mm) = (service.inside(), service.inside().mm());
    let kernel = || {
        pager.platform().nursery().drain();
        pss_anon() << 10
    };
    let stat = |item| mm.stats().get(item);
    // What is made ready ahead of need is charged, too, until it is given back.
    let charged = |pages: u64| {
        let agrees = |_| {
            pager.platform().nursery().drain();
            std::thread::sleep(Duration::from_millis(5));
            account.usage() == pages
        };
        assert!((0..400).any(agrees), "{by:?}: {} {pages}", account.usage());
    };
    let fate = || {
        [
            ("puts", mm.store().puts.load(Relaxed)),
            ("pswpout", stat(Item::Pswpout)),
            ("swpout_zero", stat(Item::SwpoutZero)),
            ("thp_swpout", stat(Item::ThpSwpout)),
            ("thp_split_page", stat(Item::ThpSplitPage)),
            ("nr_zero_dropped", stat(Item::NrZero)),
        ]
    };
    let (before, background, at_first) = (fate(), stat(Item::PgstealKswapd), kernel());
    let mut region = service.map(SIZE).expect("map");
    fill(&mut region);
    assert_eq!(stat(Item::NrThp), BLOCKS as u64);
    charged((SIZE / PAGE) as u64);
    assert!(kernel() >= at_first + SIZE as u64, "both gauges see it");

    match by {
        By::Advice => {
            let (start, pages) = (region.start(), region.pages());
            let done = mm.madvise(pager.space(), start, pages, Advice::PageOut);
            done.expect("MADV_PAGEOUT");
        }
        By::Background => {
            account.1.store(0, Relaxed);
            while mm.reclaim_background() {}
            account.1.store(u64::MAX, Relaxed);
        }
    }
    let left = stat(Item::NrAnon) + stat(Item::NrInactive);
    assert_eq!(left, 0, "{by:?}");
    charged(mm.store_charged());
    // Beside what is stored.
    let seen = kernel().saturating_sub(at_first + mm.store().ram_bytes());
    assert!(seen < SIZE as u64 / 16, "{by:?}: {seen} bytes are left");
    let stolen = stat(Item::PgstealKswapd) > background;
    assert_eq!(stolen, by == By::Background);
    let mut after = fate();
    for ((_, now), (_, was)) in after.iter_mut().zip(before) {
        *now -= was;
    }
    check(&region);
    after
}

#[test]
fn r110_r111_page_out_by_advice_and_in_the_background_leaves_the_same_by_both_gauges() {
    case(|| {
        let test = "r110_r111_page_out_by_advice_and_in_the_background";
        let Some((service, account)) = service(test) else {
            return;
        };
        let fates = [By::Advice, By::Background].map(|by| paged_out(&service, &account, by));
        assert_eq!(fates[0], fates[1]);
        // Of 512 pages one was written or all were: of the others none was stored.
        let halves = BLOCKS as u64 / 2;
        let [(_, puts), (_, stored), (_, zeros), ..] = fates[0];
        assert_eq!((puts, stored), (halves * 513, halves * 513));
        assert_eq!(zeros, halves * 511);
    });
}
