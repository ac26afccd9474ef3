//! `deckle reclaim`: has a tree give memory back, as memory.reclaim of a cgroup.

use std::time::Duration;

use deckle_group::{Answer, Asked, Group, LineId};
use deckle_mm::PAGE_SIZE;
use deckle_mm::knob::Kind;

use super::{find, table};
use crate::args::look::ReclaimArgs;
use crate::fail::Fail;
use crate::print;

const PAGE: u64 = PAGE_SIZE as u64;
/// How long one process may take.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often all are asked, as long as they have something.
const ROUNDS: u32 = 16;

/// Reclaims; the exit status of `deckle`.
pub fn reclaim(args: &ReclaimArgs) -> Result<i32, Fail> {
    let size = Kind::Limit.parse(&args.size);
    let bytes = size.map_err(Fail::own)?;
    if bytes == 0 {
        return Err(Fail::own("a size of zero: give a larger one, or max"));
    }
    let tree = find(&args.tree)?;
    let group = Group::attach_from_outside(tree.group().name());
    let group = group.map_err(|e| Fail::own(format!("{}: {e}", args.tree)))?;
    let wanted = bytes.div_ceil(PAGE);
    let freed = all(&group, wanted);
    group.count_reclaimed_on_request(freed);
    let [freed_bytes, wanted_bytes] =
        [freed, wanted].map(|pages| table::short(pages.saturating_mul(PAGE)));
    match freed < wanted && bytes != u64::MAX {
        true => Err(Fail {
            status: 1,
            text: format!(
                "{freed_bytes} of {wanted_bytes} were reclaimed, the rest is in use or has \
                 nowhere to go: see `deckle stat {}`",
                args.tree
            ),
        }),
        false => print(&format!("{freed_bytes} reclaimed")).map(|()| 0),
    }
}

/// Asks one process after the other, who has most cold pages first.
fn all(group: &Group, wanted: u64) -> u64 {
    let mut freed = 0;
    for _ in 0..ROUNDS {
        let (mut asked, before) = (Asked::default(), freed);
        while freed < wanted
            && let Some(donor) = group.choose_donor(LineId::NONE, &mut asked)
        {
            let ring = group.ask(donor.line, wanted - freed);
            if let Some(Answer::Freed(pages)) = ring.map(|ring| group.wait_answer(ring, PATIENCE)) {
                freed += pages;
            }
        }
        if freed >= wanted || freed == before {
            break;
        }
    }
    freed
}
