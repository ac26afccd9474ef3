//! Who pays for what processes share since a fork.

use crate::common::*;
use deckle_group::{Group, GroupCharge, LineId};
use deckle_mm::Charge;
use std::collections::BTreeSet;

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

#[test]
fn p20_what_several_share_stays_charged_once_when_their_sponsor_is_gone() {
    let group = group(u64::MAX);
    let g = group.0;
    let sponsor = member(g, 500);
    let three = [member(g, 1), member(g, 2), member(g, 3)];
    g.note_lent(sponsor.1, 120);
    for (n, child) in three.iter().enumerate() {
        assert!(g.borrow_from(child.1, (sponsor.1, n as u64), (30, 80)));
    }
    end(g, sponsor);
    assert_eq!(g.fold_stale(), 1);
    // Not 380 of its own, nor 330 that the three share if all were different.
    assert_eq!(g.usage(), 120 + 6);
    assert!(!g.is_current(sponsor.1) && g.is_sponsored(three[0].1));
    assert_eq!((g.shared_beside(three[0].1), g.fold_stale()), (240, 0));
    // Nobody borrows from it anew.
    let late = member(g, 4);
    assert!(!g.borrow_from(late.1, (sponsor.1, 9), (30, 80)));
    end(g, late);
    assert_eq!((g.fold_stale(), g.usage()), (1, 126));
    // They write, and give back of the store: less than 120 is left.
    for child in &three[..2] {
        GroupCharge::new(g, child.1).force_charge(70);
        assert!(g.take_over(child.1, 70) && g.give_back(child.1, 20));
    }
    end(g, three[0]);
    assert_eq!(g.fold_stale(), 1);
    assert_eq!(g.usage(), 120 + 5 + 70, "20 and 110 at most");
    assert!(g.take_over(three[2].1, 60) && g.give_back(three[2].1, 30));
    GroupCharge::new(g, three[2].1).force_charge(60);
    assert_eq!(g.fold_stale(), 1);
    assert_eq!(g.usage(), 40 + 5 + 130);
    // One is left: it pays for what it has, exactly.
    end(g, three[1]);
    assert_eq!(g.fold_stale(), 2);
    assert_eq!(g.usage(), 3 + 60 + 20);
    assert!(g.is_settled(three[2].1) && !g.is_sponsored(three[2].1));
    assert!(!g.stop_borrowing(three[2].1), "charged already");
    end(g, three[2]);
    assert_eq!((g.fold_stale(), g.usage()), (1, 0));
}

/// A process of a family, with what it has: numbers of pages, from a fork or its own.
struct Member {
    line: LineId,
    shared: BTreeSet<u64>,
    own: u64,
}

/// The account is never less than what there is, nor more than what each process would pay alone.
#[test]
fn p20_whoever_of_a_family_ends_first_the_account_holds_what_there_is() {
    const PAGES: u64 = 60;
    let group = group(u64::MAX);
    let g = group.0;
    let children: Vec<u32> = (0..6)
        .map(|_| {
            spawn(|| {
                loop {
                    sleep_ms(1000)
                }
            })
        })
        .collect();
    let mut estates = 0;
    for seed in 0..300u64 {
        let mut dice = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut roll = |n: usize| {
            dice ^= dice << 13;
            dice ^= dice >> 7;
            dice ^= dice << 17;
            (dice >> 20) as usize % n
        };
        let mut family: Vec<Member> = Vec::new();
        for pid in &children {
            let line = g.join(*pid, 0).unwrap();
            let shared = (0..PAGES).collect();
            let own = 0;
            match family.first() {
                None => {
                    GroupCharge::new(g, line).force_charge(PAGES);
                    g.note_lent(line, PAGES);
                }
                Some(first) => {
                    let stored = roll(2) as u64 * 10;
                    let words = (stored, PAGES - stored);
                    assert!(g.borrow_from(line, (first.line, 1), words));
                }
            }
            family.push(Member { line, shared, own });
        }
        let sponsor = family[0].line;
        let mut gone = false;
        while !family.is_empty() {
            let k = roll(family.len());
            match roll(4) {
                0 => {
                    g.leave(family[k].line);
                    gone |= family[k].line == sponsor;
                    family.remove(k);
                }
                // A write by a borrower: of what is resident, so not of the first pages.
                1 | 2 if family[k].line != sponsor => {
                    let m = &mut family[k];
                    let charge = GroupCharge::new(g, m.line);
                    let page = m.shared.last().copied().filter(|p| *p >= 10);
                    if let Some(page) = page {
                        m.shared.remove(&page);
                        charge.force_charge(1);
                        if !g.take_over(m.line, 1) {
                            charge.uncharge(1);
                        }
                        m.own += 1;
                    }
                }
                _ => _ = g.fold_stale(),
            }
            let all: BTreeSet<u64> = family.iter().flat_map(|m| m.shared.clone()).collect();
            let least = all.len() as u64 + family.iter().map(|m| m.own).sum::<u64>();
            assert!(g.usage() >= least, "seed {seed}: {} of {least}", g.usage());
            g.fold_stale();
            let most = PAGES + family.iter().map(|m| m.own).sum::<u64>();
            assert!(g.usage() >= least && g.usage() <= most, "seed {seed}");
            if gone && family.len() == 1 {
                assert_eq!(g.usage(), least, "seed {seed}: of one alone it is exact");
            }
            estates += u64::from(gone && family.len() > 1);
        }
        assert_eq!((g.fold_stale(), g.usage()), (0, 0), "seed {seed}");
    }
    assert!(estates > 300, "met too seldom: {estates}");
    for child in children {
        kill(child, libc::SIGKILL);
        wait(child);
    }
}
