//! What needs a kernel below: forks whose pages are guarded by write protection, and discards that
//! the manager does not see.

use super::suites::memory::{races, seeds};

#[test]
fn r148_p20_what_forks_share_is_charged_at_the_first_write_and_no_byte_is_lost() {
    seeds(1001, 60, 200, true, false);
}

#[test]
fn what_is_discarded_unseen_never_comes_back() {
    seeds(2001, 60, 200, true, true);
}

#[test]
fn what_is_discarded_unseen_while_reclaim_races_never_comes_back() {
    races(2001, true, true);
}

#[test]
fn r53_r98_r131_r148_p20_programs_whose_children_share_race_and_lose_nothing() {
    races(1, true, false);
}
