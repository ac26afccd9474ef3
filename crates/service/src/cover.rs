//! Memory of blocks that the program's own allocator hands out, and of ranges that the program
//! locks, is adopted before the program goes on.

use crate::adopt::Part;
use crate::own::{Kind, Mapping};
use crate::serve::{Calls, pages};
use crate::sys::PAGE;
use deckle_door::REGION;

/// What is [covered](Calls::cover).
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Covered {
    /// A block, and the heap that it is in, up to the end of that.
    Heap,
    /// A block that is a mapping by itself.
    Block,
    /// A range, but for the stacks of threads.
    Range,
    /// A mapping that is about to be made, and left to the kernel if it may be.
    New,
}

impl Covered {
    /// From the argument of [`Op::Cover`].
    pub fn of(word: usize) -> Covered {
        match word {
            0 => Covered::Heap,
            1 => Covered::Block,
            2 => Covered::Range,
            _ => Covered::New,
        }
    }
}

impl Calls {
    /// While memory is far from short a block is charged, and left to the kernel. Else this takes
    /// what is mapped from `start` on, where a block of so many bytes of the program's own
    /// allocator lies, or a range that the program locks. To where what is taken ends. Where
    /// mappings touch they may be one, of which another part may be a stack of ours.
    pub fn cover(&mut self, start: usize, bytes: usize, what: Covered) -> Result<usize, i32> {
        let block_end = start + bytes.next_multiple_of(PAGE);
        let may_be_left = what != Covered::Range && self.lock_future.is_none();
        let is_left = may_be_left && self.process.grant(pages(block_end - start));
        if what == Covered::New {
            return Ok(usize::from(is_left));
        }
        if is_left {
            return Ok(block_end);
        }
        let most = match what {
            Covered::Block | Covered::Range | Covered::New => block_end,
            Covered::Heap => (start + bytes).next_multiple_of(REGION),
        };
        let mut at = start;
        while at < block_end {
            let mapping = self.process.own.at(at).ok_or(libc::ENOSYS)?;
            let part = (mapping.start.max(at), mapping.end.min(most));
            if part.0 >= block_end {
                break;
            }
            at = part.1;
            let is_stack = || what == Covered::Range && self.is_stack(&mapping);
            if matches!(mapping.kind, Kind::Data { .. }) && !is_stack() {
                self.cover_part(part, mapping.kind, what != Covered::Heap);
            }
        }
        if what == Covered::Heap {
            at = self.cover_reserve(at, most);
        }
        Ok(at)
    }

    /// Takes what a heap of the GNU C library's has in reserve behind `start`, where nothing may be
    /// touched before the heap grows, up to `end`, as all such heaps do; to where what is covered
    /// is. Else each growth, of a page or two, would be a mapping by itself: it holds a word before
    /// it could be taken, and does not become one with its neighbour then.
    fn cover_reserve(&mut self, start: usize, end: usize) -> usize {
        let behind = self.process.own.at(start);
        let is_reserve = |m: &Mapping| m.start == start && m.end >= end && m.kind == Kind::Kept;
        if start == end || !behind.is_some_and(|m| is_reserve(&m)) {
            return start;
        }
        self.cover_part((start, end), Kind::Data { exec: false }, true);
        end
    }

    fn cover_part(&mut self, (from, to): (usize, usize), kind: Kind, one: bool) {
        let pager = &self.process.pager;
        for (start, len, foreign) in self.parts(from, to - from) {
            let part = Mapping {
                start,
                end: start + len,
                kind,
            };
            let forget = || pager.forget(|| (), |()| vec![(start, len)]).is_some();
            let is_new = foreign || self.process.is_lost((start, start + len)) && forget();
            if is_new && !self.may_be_ours(&part) && (one || !self.is_stack(&part)) {
                let _ = self.adopt(&part, Part::Some);
            }
        }
    }
}
