//! Policy: where an allocation goes when the lists of its own type are empty.
//!
//! A whole free pageblock first, then (the caller's part) frames that were never used, and a
//! part of somebody else's pageblock last. Of a part, what cannot be moved takes the
//! pageblock with the largest free block, and with it all that is free there: its next
//! allocations find room in the same place. What can be moved takes the smallest block that
//! is large enough and leaves the pageblock to its owner, unless most of it may be free.

use super::mobility::{Mobility, TYPES};
use crate::units::BLOCK_ORDER;

/// For each type whose lists have a free block: bit n is order n.
pub(in crate::frame) type Orders = [u16; TYPES];

/// What to take from another type.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::frame) struct Steal {
    /// Whose list.
    pub from: Mobility,
    /// Of which order.
    pub order: u8,
    /// Whether the pageblock changes its type, with all that is free in it.
    pub claim: bool,
}

/// Order of a free block from which on a movable allocation claims the pageblock: half of it.
const MOSTLY_FREE: u8 = BLOCK_ORDER - 1;

/// Whom to take from, the best first.
const fn victims(mobility: Mobility) -> [Mobility; TYPES - 1] {
    match mobility {
        Mobility::Movable => [Mobility::Reclaimable, Mobility::Unmovable],
        Mobility::Unmovable => [Mobility::Reclaimable, Mobility::Movable],
        Mobility::Reclaimable => [Mobility::Unmovable, Mobility::Movable],
    }
}

/// A whole pageblock, or two, for a block of `order`; these are on the movable lists. The
/// smallest that will do, so that the largest blocks stay whole.
pub(in crate::frame) fn whole(free: &Orders, order: u8, mobility: Mobility) -> Option<Steal> {
    let fit = free[Mobility::Movable as usize] & !below(order.max(BLOCK_ORDER));
    (mobility != Mobility::Movable && fit != 0).then(|| Steal {
        from: Mobility::Movable,
        order: fit.trailing_zeros() as u8,
        claim: true,
    })
}

/// A part of a pageblock for a block of `order`.
pub(in crate::frame) fn part(free: &Orders, order: u8, mobility: Mobility) -> Option<Steal> {
    let fit = |v: Mobility| free[v as usize] & !below(order) & below(BLOCK_ORDER);
    if mobility == Mobility::Movable {
        let (from, fit) = victims(mobility)
            .map(|v| (v, fit(v)))
            .into_iter()
            .find(|(_, fit)| *fit != 0)?;
        let order = fit.trailing_zeros() as u8;
        let claim = order >= MOSTLY_FREE;
        return Some(Steal { from, order, claim });
    }
    // The largest block of all; at equal size the better victim's.
    let (from, fit) = victims(mobility)
        .map(|v| (v, fit(v)))
        .into_iter()
        .rev()
        .max_by_key(|(_, fit)| fit.checked_ilog2())?;
    Some(Steal {
        from,
        order: fit.checked_ilog2()? as u8,
        claim: true,
    })
}

/// Orders below `order`.
const fn below(order: u8) -> u16 {
    (1 << order) - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_move_takes_whole_pageblocks_and_then_the_largest_part() {
        use Mobility::*;
        let free = [1 << 9 | 1 << 3, 0, 1 << 5];
        let steal = |from, order, claim| Some(Steal { from, order, claim });
        assert_eq!(whole(&free, 0, Unmovable), steal(Movable, 9, true));
        assert_eq!(whole(&free, 10, Unmovable), None);
        assert_eq!(whole(&free, 0, Movable), None);
        assert_eq!(part(&free, 0, Unmovable), steal(Reclaimable, 5, true));
        assert_eq!(
            part(&[1 << 5, 0, 1 << 5], 0, Unmovable),
            steal(Reclaimable, 5, true)
        );
        assert_eq!(
            part(&[1 << 6, 0, 1 << 5], 0, Unmovable),
            steal(Movable, 6, true)
        );
        assert_eq!(part(&[0, 0, 1 << 5], 6, Unmovable), None);
        assert_eq!(part(&[0, 1 << 8, 0], 0, Movable), steal(Unmovable, 8, true));
        assert_eq!(
            part(&[0, 1 << 8 | 1 << 2, 1 << 4], 1, Movable),
            steal(Reclaimable, 4, false)
        );
        assert_eq!(part(&[0, 0, 0], 0, Movable), None);
    }
}
