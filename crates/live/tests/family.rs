//! What is stored before a fork is there once for all that share it.

use crate::common::{PAGE, case};
use crate::service::{Inside, MIB, Trim, check, fill, reconciled, service_with};
use deckle_live::{Limit, Service};
use deckle_mm::{Item, Store, ThpMode, Tunables};

fn service_of(mib: u64, thp: ThpMode) -> Service<Limit, Trim> {
    let tunables = Tunables {
        thp,
        ..Tunables::default()
    };
    service_with(mib, tunables).0
}

#[test]
fn p20_pages_that_are_stored_before_a_fork_are_not_stored_again_when_they_are_given_up() {
    case(|| {
        for thp in [ThpMode::Never, ThpMode::Always] {
            let service = service_of(128, thp);
            let mut region = service.map(16 * MIB).expect("map");
            fill(&mut region, 3);
            let all = region.len() as u64 / PAGE as u64;
            let pager = service.inside();
            let mm = pager.mm();
            let fork = || {
                pager.freeze(true).expect("freeze");
                pager.thaw();
            };
            fork();
            let kept = || mm.stats().get(Item::NrSwapcached);
            assert_eq!((kept(), mm.stats().get(Item::NrShared)), (all, all));
            assert_eq!(mm.stats().get(Item::NrSwapped), 0, "all is where it was");
            check(&region, 3);
            let given = mm.reclaim_shared(512);
            assert!(given.kept >= 512 && given.stored == 0, "{given:?}");
            check(&region, 3);
            // What is written is stored before the next fork again, and nothing else is.
            let puts = mm.store().stored_pages();
            for page in (0..all as usize).step_by(8) {
                region[page * PAGE + 9] ^= 0x5a;
            }
            fork();
            reconciled(&service, false);
            let stored = mm.store().stored_pages();
            assert!(stored <= puts.max(all), "{stored} of {puts}");
            let given = mm.reclaim_shared(all);
            assert_eq!((given.stored, given.pages()), (0, all), "{given:?}");
            for page in (0..all as usize).step_by(8) {
                region[page * PAGE + 9] ^= 0x5a;
            }
            check(&region, 3);
            mm.unshare_all();
            reconciled(&service, false);
        }
    });
}

/// A copy of what was written since would be wrong bytes: it is compared, whoever forgot it.
#[test]
fn p20_a_page_that_was_written_after_the_fork_is_stored_as_it_is() {
    case(|| {
        let service = service_of(128, ThpMode::Never);
        let mut region = service.map(MIB).expect("map");
        fill(&mut region, 5);
        let pager = service.inside();
        let mm = pager.mm();
        pager.freeze(true).expect("freeze");
        pager.thaw();
        for byte in region.iter_mut().step_by(PAGE) {
            *byte ^= 0xff;
        }
        // Marked as shared anew, without a look at what was written.
        pager.freeze(false).expect("freeze");
        pager.thaw();
        let given = mm.reclaim_shared(256);
        assert_eq!((given.kept, given.stored), (0, 256));
        for byte in region.iter_mut().step_by(PAGE) {
            *byte ^= 0xff;
        }
        check(&region, 5);
        reconciled(&service, false);
    });
}

#[test]
fn p20_what_a_family_kept_goes_with_it_or_when_memory_is_short() {
    case(|| {
        for swap_cache in [false, true] {
            let tunables = Tunables {
                thp: ThpMode::Never,
                swap_cache,
                ..Tunables::default()
            };
            let service = service_with(12, tunables).0;
            let mut region = service.map(6 * MIB).expect("map");
            fill(&mut region, 7);
            let pager = service.inside();
            let mm = pager.mm();
            pager.freeze(true).expect("freeze");
            pager.thaw();
            let kept = || mm.stats().get(Item::NrSwapcached);
            assert!(kept() > 0);
            mm.unshare_all();
            assert_eq!(
                kept() > 0,
                swap_cache,
                "who keeps no copies alone has none left"
            );
            assert_eq!(mm.store().stored_pages(), kept());
            let there = mm.store().charged_bytes().div_ceil(PAGE as u64);
            assert_eq!(mm.store_charged(), there, "charged at once");
            let mut more = service.map(9 * MIB).expect("map");
            fill(&mut more, 8);
            assert!(kept() < 6 * MIB as u64 / PAGE as u64, "{}", kept());
            check(&region, 7);
            check(&more, 8);
            reconciled(&service, false);
        }
    });
}
