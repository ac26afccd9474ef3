//! Who pays for what processes share since a fork.

use crate::common::*;
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
    assert!(g.borrow_from(one.1, (sponsor.1, 7), (100, 40)));
    assert!(g.borrow_from(two.1, (sponsor.1, 8), (300, 50)));
    assert_eq!(g.shared_with(sponsor.1), 90);
    assert_eq!(g.oldest_borrower(sponsor.1), Some(7));
    assert!(g.is_sponsored(one.1));
    assert_eq!(g.usage(), 530);
    // One goes on by itself: its own manager charges what it has still of the store.
    assert!(g.take_over(one.1, 15) && !g.is_settled(one.1));
    g.settle_shared(one.1);
    assert!(g.is_settled(one.1) && !g.take_over(one.1, 1));
    assert!(g.stop_borrowing(one.1));
    assert_eq!(g.oldest_borrower(sponsor.1), Some(8));
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
    assert!(
        !g.borrow_from(one.1, (sponsor.1, 3), (100, 0)),
        "nobody to pay"
    );
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
    assert_eq!(g.oldest_borrower(sponsor.1), None);
    assert!(g.borrow_from(child.1, (sponsor.1, 4), (40, 60)));
    assert_eq!(g.oldest_borrower(sponsor.1), Some(4));
    end(g, child);
    assert_eq!(g.fold_stale(), 1);
    assert_eq!(g.oldest_borrower(sponsor.1), None);
    assert_eq!((g.usage(), g.shared_with(sponsor.1)), (50, 0));
    end(g, sponsor);
    assert_eq!(g.fold_stale(), 1);
}

#[test]
fn p20_what_the_limit_holds_of_a_process_is_told_whoever_pays_for_it() {
    let group = group(u64::MAX);
    let g = group.0;
    let (sponsor, child) = (member(g, 500), member(g, 10));
    let of = |who: (u32, LineId)| g.processes().find(|p| p.line == who.1).unwrap();
    let held = |who| of(who).held();
    assert!(!of(child).settled);
    assert!(g.borrow_from(child.1, (sponsor.1, 5), (100, 40)));
    g.note_settled(child.1);
    assert!(of(child).settled && !of(sponsor).settled);
    assert_eq!((held(sponsor), held(child)), (500, 150));
    // The sponsor writes 30 of what they share: the child's are still at its charge.
    GroupCharge::new(g, sponsor.1).force_charge(30);
    g.note_unbacked(sponsor.1, 30);
    assert_eq!((of(sponsor).charged, held(sponsor)), (530, 500));
    // The child writes 15.
    GroupCharge::new(g, child.1).force_charge(15);
    assert!(g.take_over(child.1, 15));
    assert_eq!((of(child).charged, held(child)), (25, 150));
    g.note_unbacked(sponsor.1, -30);
    assert_eq!(held(sponsor), 530);
    end(g, sponsor);
    assert_eq!(g.fold_stale(), 1);
    assert_eq!((of(child).charged, held(child)), (150, 150));
    // Nobody to pay: it borrows nothing.
    assert!(!g.borrow_from(child.1, (sponsor.1, 6), (70, 80)));
    assert_eq!(held(child), 150);
    end(g, child);
    assert_eq!((g.fold_stale(), g.usage()), (1, 0));
}
