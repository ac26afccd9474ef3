//! What the program does to its memory by calls that the core does not see.

use crate::model::Model;
use crate::profile::Profile;
use crate::state::State;
use crate::table::Target;
use deckle_mm::{BLOCK_PAGES, PAGE_SIZE, PageRun, Pfn, Prot, SpaceId, Vpn};

/// Pages that the program has moved.
#[derive(Clone, Copy)]
pub(crate) struct Moving {
    space: SpaceId,
    from: Vpn,
    to: Vpn,
    pages: u64,
}

impl State {
    /// Where page `i` of a run of the core's is: the program may have moved it.
    pub fn place(&self, run: PageRun, i: u32) -> Vpn {
        let page = run.start.add(u64::from(i));
        let is_moved =
            |m: &Moving| m.space == run.space && (m.from.0..m.from.0 + m.pages).contains(&page.0);
        let moved = self.moving.filter(is_moved);
        moved.map_or(page, |m| m.to.add(page.0 - m.from.0))
    }

    /// Whether the program has unmapped a page, of which the core has not been told.
    pub fn is_gone(&self, space: SpaceId, vpn: Vpn) -> bool {
        self.gone.contains(&(space, vpn))
    }

    /// A page that the program has given back is taken out: zeros rest in its frame.
    pub fn rest_empty(&mut self, pfn: Pfn) {
        self.frames.page_mut(pfn).fill(0);
        self.frames.get(pfn).resting = true;
        self.counters.passed_over += 1;
    }

    fn unmap_unseen(&mut self, space: SpaceId, start: Vpn, pages: u64) {
        for vpn in (0..pages).map(|i| start.add(i)) {
            self.remembered.remove(&(space, vpn));
            self.gone.insert((space, vpn));
            let Some((pte, _)) = self.lookup(space, vpn) else {
                continue;
            };
            self.set("unmap_unseen", space, vpn, None);
            if let Target::Frame(pfn) = pte.target
                && self.frames.get(pfn).maps == 0
            {
                self.frames.empty(pfn);
            }
        }
        self.flush_run(space, start, pages);
    }

    fn move_unseen(
        &mut self,
        Moving {
            space,
            from,
            to,
            pages,
        }: Moving,
    ) {
        let op = "move_unseen";
        let mut i = 0;
        while i < pages {
            let (old, new) = (from.add(i), to.add(i));
            let whole = old.index() == 0 && new.index() == 0 && pages - i >= BLOCK_PAGES.into();
            let huge = (self.spaces.get(&space)).and_then(|s| s.huge(old.block()));
            if let Some(pte) = huge.filter(|_| whole) {
                self.set_huge(op, space, old.block(), None);
                self.set_huge(op, space, new.block(), Some(pte));
                i += u64::from(BLOCK_PAGES);
                continue;
            }
            if let Some((pte, _)) = self.lookup(space, old) {
                self.set(op, space, old, None);
                self.set(op, space, new, Some(pte));
            }
            if self.remembered.remove(&(space, old)) {
                self.remembered.insert((space, new));
            }
            i += 1;
        }
        self.flush_run(space, from, pages);
    }
}

impl<P: Profile> Model<P> {
    /// The program discards pages: those that are away are forgotten, those that are there become
    /// zeros. What is pinned or shared is left alone.
    pub fn discard_unseen(&self, run: PageRun) {
        self.turn("discard_unseen");
        let mut state = self.lock();
        for i in 0..run.pages {
            let vpn = run.start.add(u64::from(i));
            state.remembered.remove(&(run.space, vpn));
            let target = state.lookup(run.space, vpn).map(|(pte, _)| pte.target);
            if let Some(Target::Frame(pfn)) = target
                && state.frames.get(pfn).maps == 1
                && !state.pins.contains(&(run.space, vpn))
            {
                state.frames.page_mut(pfn).fill(0);
            }
        }
    }

    /// The program has mapped a page, readable and writable, where nothing was, and has written a
    /// byte to it: it is in a frame of the system's own. False: there is no such frame.
    pub fn map_unseen(&self, space: SpaceId, vpn: Vpn, (at, byte): (usize, u8)) -> bool {
        self.turn("map_unseen");
        let mut state = self.lock();
        let made = state.make(space, vpn, Prot::RW, false);
        let Some(Target::Frame(pfn)) = made.map(|pte| pte.target) else {
            return false;
        };
        state.frames.page_mut(pfn)[at % PAGE_SIZE] = byte;
        true
    }

    /// The program unmaps a range, of which the core is told later.
    pub fn unmap_unseen(&self, space: SpaceId, start: Vpn, pages: u64) {
        self.turn("unmap_unseen");
        self.lock().unmap_unseen(space, start, pages);
    }

    /// The core has been told of that.
    pub fn end_unmap(&self, space: SpaceId, start: Vpn, pages: u64) {
        let mut state = self.lock();
        for vpn in (0..pages).map(|i| start.add(i)) {
            state.gone.remove(&(space, vpn));
        }
    }

    /// The program moves a range to another place, where nothing is: what is there, and what the
    /// system remembers of what is away. What the core does at the old place is done at the new one
    /// until it has been told.
    pub fn move_unseen(&self, space: SpaceId, (from, to): (Vpn, Vpn), pages: u64) {
        self.turn("move_unseen");
        let mut state = self.lock();
        let moving = Moving {
            space,
            from,
            to,
            pages,
        };
        state.move_unseen(moving);
        state.moving = Some(moving);
    }

    /// The core has been told of that.
    pub fn end_move(&self) {
        self.lock().moving = None;
    }
}
