//! Estimates of what no counter says.

use super::*;

#[test]
fn the_oldest_inactive_page_ages_with_the_rounds_that_leave_it() {
    let mut history = History::default();
    assert_eq!(history.age(0, 0, 0), 0);
    assert_eq!(history.age(1, 100, 100), 1);
    assert_eq!(history.age(5, 100, 100), 5);
    // Half of the first hundred is gone, then all of it.
    assert_eq!(history.age(6, 300, 250), 6);
    assert_eq!(history.age(7, 300, 200), 2);
    assert_eq!(history.age(8, 300, 0), 0);
}

#[test]
fn the_oldest_inactive_page_is_at_least_as_old_as_what_is_remembered() {
    let mut history = History::default();
    for round in 0..1000 {
        assert!(history.age(round, 10, 10) <= round);
    }
    assert_eq!(history.age(1000, 10, 10), LOOKS as u64 - 1);
}

#[test]
fn untested_huge_pages_are_taken_to_be_like_the_tested_ones() {
    assert_eq!(droppable(0, 100, 512), 0);
    assert_eq!(droppable(10, 0, 0), 0);
    assert_eq!(droppable(10, 256, 512), 2560);
    assert_eq!(droppable(10, 5000, 512), 5120);
    assert_eq!(droppable(u64::MAX, 512, 512), u64::MAX);
}
