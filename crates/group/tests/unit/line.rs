//! Tenancies of a line.

use super::*;
use crate::{Limits, Name, SwapKind};

/// The old service of a process that executes another program ends while the new one joins.
#[test]
fn p22_who_looked_at_a_tenancy_does_not_end_the_next_one_of_the_same_process() {
    let name = Name::new(format!("test-line-{}", std::process::id()).as_bytes()).unwrap();
    let limits = Limits {
        max: 100,
        high: 100,
        swap_max: 100,
    };
    let tunables = deckle_mm::Tunables::default();
    let group = Group::create(name, limits, &tunables, SwapKind::Lz4).unwrap();
    Group::unlink(group.name());
    let old = group.join(std::process::id(), 0).unwrap();
    let line = group.line(old).unwrap();
    let seen = line.state.load(Acquire);
    let new = group.join(std::process::id(), 0).unwrap();
    assert_eq!(old.index, new.index, "the same line again");
    assert!(!group.fold(line, seen));
    group.leave(old);
    assert!(group.is_current(new) && !group.is_current(old));
    group.leave(new);
    assert!(!group.is_current(new));
}
