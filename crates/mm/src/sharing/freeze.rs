//! Bringing every resident page back into the program, as a fork on live memory needs: what
//! the kernel is to copy must be where the kernel sees it.

use crate::engine::Engine;
use crate::engine::space::{MapError, Space};
use crate::env::Env;
use crate::platform::{PlatformError, Stop};
use crate::table::block::{BlockState, Table};
use crate::table::entry::Kind;
use crate::units::{BLOCK_PAGES, PageMask, PageRun, SpaceId, Vpn};

impl<E: Env> Engine<E> {
    /// Closes what is open, maps every inactive page of a space, and forgets what the program has
    /// discarded of the stored ones by calls that nobody saw: a child could not tell. The caller
    /// keeps faults, reclaim and mapping calls away; nothing is busy. On an error some pages stay
    /// open or inactive.
    pub fn activate_all(&self, id: SpaceId) -> Result<(), MapError> {
        let space = self.space(id)?;
        self.close_range(&space, space.base, space.pages)?;
        for (block, first, _) in space.parts(self, space.base, space.pages) {
            let mut state = block.lock(self);
            self.activate_block(&space, first, &mut state)
                .map_err(MapError::Platform)?;
            self.drop_forgotten(id, first, &mut state);
        }
        self.settle_store();
        Ok(())
    }

    /// Makes holes of stored pages that are forgotten. Block locked.
    fn drop_forgotten(&self, id: SpaceId, first: Vpn, state: &mut BlockState) {
        if !matches!(state, BlockState::Table(_) | BlockState::HugeSwapped(_)) {
            return;
        }
        let stored = |k: &u32| matches!(state.entry(*k).kind(), Kind::Swapped(_));
        if !(0..BLOCK_PAGES).any(|k| stored(&k)) {
            return;
        }
        let start = first.block().start();
        let forgotten = self.forgotten(id, first.block());
        let lost: PageMask = (0..BLOCK_PAGES)
            .filter(|&k| forgotten.get(k) && stored(&k))
            .collect();
        if lost != PageMask::EMPTY
            && let Some(table) = state.table()
        {
            for (k, n) in lost.runs(BLOCK_PAGES) {
                self.drop_entries(PageRun::new(id, start.add(u64::from(k)), n), table);
            }
            state.tidy();
        }
    }

    /// In a child of fork: write-protects again what the state says is write-protected, and has
    /// the platform remember what is away. Neither came with the fork.
    ///
    /// # Errors
    /// [`MapError::Platform`]: the child must end, since writes would be seen by nobody.
    pub fn guard_all(&self, id: SpaceId) -> Result<(), MapError> {
        let space = self.space(id)?;
        for (block, first, _) in space.parts(self, space.base, space.pages) {
            let state = block.lock(self);
            if matches!(&*state, BlockState::Empty) {
                // Most of those that there are: they come by the thousand.
                continue;
            }
            let mut kept = PageMask::EMPTY;
            for k in 0..BLOCK_PAGES {
                let e = state.entry(k);
                match e.kind() {
                    Kind::Mapped(_) if e.guarded() => kept.set(k),
                    Kind::Zero { mapped: true, .. } => kept.set(k),
                    Kind::Swapped(_) | Kind::Inactive(_) => kept.set(k),
                    _ => {}
                }
            }
            for (k, n) in kept.runs(BLOCK_PAGES) {
                let run = PageRun::new(id, first.block().start().add(u64::from(k)), n);
                if !self.guard_held(run) {
                    return Err(MapError::Platform(PlatformError {
                        at: k,
                        why: Stop::Retry,
                    }));
                }
            }
        }
        Ok(())
    }

    /// After a fault for which nothing was to be done, though the page was missing: if it is
    /// still, somebody has given it back by a call that the manager has not seen, and it reads as
    /// zeros from now on. It stays charged. False if it is there.
    ///
    /// # Errors
    /// The system refuses.
    pub fn refill_hole(&self, id: SpaceId, page: Vpn) -> Result<bool, PlatformError> {
        let Ok(space) = self.space(id) else {
            return Ok(false);
        };
        let Some(block) = space.block_if_any(self, page.block()) else {
            return Ok(false);
        };
        let i = page.index();
        let state = block.lock(self);
        let (frame, prot, guarded) = match &*state {
            BlockState::Huge(h) if h.mapped() => (h.pfn.add(i), h.prot, h.guarded()),
            BlockState::Table(table) => match table.get(i).kind() {
                Kind::Mapped(p) => (p, table.get(i).prot(), table.get(i).guarded()),
                // The system's to make: it is told so again.
                Kind::Open => {
                    let page = PageRun::new(id, page, 1);
                    return self.open_again(page).and(Ok(false));
                }
                _ => return Ok(false),
            },
            _ => return Ok(false),
        };
        self.refill(PageRun::new(id, page, 1), frame, prot, guarded)
    }

    /// Takes the zero pages of a part of a block out of the program; nothing else that is there.
    /// Block locked.
    pub(crate) fn hide_zeros(&self, id: SpaceId, table: &mut Table, first: Vpn, n: u32) {
        let mut shown = PageMask::EMPTY;
        for k in first.index()..first.index() + n {
            let e = table.get(k);
            if let Kind::Zero { mapped, dropped } = e.kind() {
                if mapped {
                    shown.set(k);
                }
                let mapped = false;
                table.set(k, e.with(Kind::Zero { mapped, dropped }));
            }
        }
        self.drop_zero_pages(id, first.block(), &shown);
    }

    pub(crate) fn activate_block(
        &self,
        space: &Space,
        first: Vpn,
        state: &mut BlockState,
    ) -> Result<(), PlatformError> {
        match state {
            BlockState::Huge(h) if !h.mapped() => {
                self.show_huge(space, first.block(), h)?;
            }
            BlockState::Table(table) => {
                let mut i = 0;
                while i < BLOCK_PAGES {
                    let e = table.get(i);
                    let Kind::Inactive(p) = e.kind() else {
                        i += 1;
                        continue;
                    };
                    let mut n = 1;
                    while i + n < BLOCK_PAGES
                        && table.get(i + n).kind() == Kind::Inactive(p.add(n))
                        && table.get(i + n).prot() == e.prot()
                    {
                        n += 1;
                    }
                    self.show_entries(space, first.block(), table, (i, n), p)?;
                    i += n;
                }
            }
            _ => {}
        }
        Ok(())
    }
}
