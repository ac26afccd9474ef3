//! Who pays for what processes share since a fork.

mod common;
use common::*;
use deckle_group::{Group, GroupCharge, LineId};
use deckle_mm::Charge;

/// A process that joins, charges `pages` and waits to be killed.
fn member(g: Group, pages: u64) -> (u32, LineId) {
    let child = spawn(|| {
        let id = g.join(std::process::id(), 0).unwrap();
        GroupCharge::new(g, id).force_charge(pages);
        loop {
            sleep_ms(1000);
        }
    });
    loop {
        let found = g.processes().find(|p| p.pid == child);
        if let Some(p) = found.filter(|p| p.charged == pages) {
            return (child, p.line);
        }
        sleep_ms(1);
    }
}

fn end(g: Group, (child, line): (u32, LineId)) {
    kill(child, libc::SIGKILL);
    while !g.is_gone(line) {
        sleep_ms(1);
    }
    wait(child);
}

#[test]
fn p20_a_borrower_pays_for_itself_when_its_sponsor_is_gone() {
    let group = group(u64::MAX);
    let g = group.0;
    let sponsor = member(g, 500);
    let (one, two) = (member(g, 10), member(g, 20));
    assert!(g.borrow_from(one.1, sponsor.1, (100, 40)));
    assert!(g.borrow_from(two.1, sponsor.1, (300, 50)));
    assert_eq!(g.shared_with(sponsor.1), 90);
    assert!(g.has_borrowers(sponsor.1) && g.is_sponsored(one.1));
    assert_eq!(g.usage(), 530);
    // One goes on by itself: its own manager charges what it has still of the store.
    assert!(g.take_over(one.1, 15) && !g.is_settled(one.1));
    g.settle_shared(one.1);
    assert!(g.is_settled(one.1) && !g.take_over(one.1, 1));
    assert!(g.stop_borrowing(one.1));
    assert_eq!((g.usage(), g.shared_with(sponsor.1)), (530 + 25, 50));
    assert!(
        g.take_over(two.1, 20),
        "two has written 20, and charged them"
    );
    end(g, sponsor);
    assert_eq!(g.fold_stale(), 1);
    assert_eq!(
        g.usage(),
        30 + 25 + 300 + 30,
        "what the other borrowed is its own now"
    );
    assert!(!g.is_sponsored(two.1));
    assert!(!g.stop_borrowing(two.1), "charged already");
    assert!(!g.take_over(two.1, 5), "charged already");
    assert!(!g.borrow_from(one.1, sponsor.1, (100, 0)), "nobody to pay");
    assert!(!g.is_sponsored(one.1));
    end(g, one);
    end(g, two);
    assert_eq!((g.fold_stale(), g.usage()), (2, 0));
}

#[test]
fn p20_a_sponsor_hears_that_its_last_borrower_is_gone() {
    let group = group(u64::MAX);
    let g = group.0;
    let (sponsor, child) = (member(g, 50), member(g, 0));
    assert!(!g.has_borrowers(sponsor.1));
    assert!(g.borrow_from(child.1, sponsor.1, (40, 60)));
    assert!(g.has_borrowers(sponsor.1));
    end(g, child);
    assert_eq!(g.fold_stale(), 1);
    assert!(!g.has_borrowers(sponsor.1));
    assert_eq!((g.usage(), g.shared_with(sponsor.1)), (50, 0));
    end(g, sponsor);
    assert_eq!(g.fold_stale(), 1);
}
