//! Bringing every resident page back into the program, as a fork on live memory needs: what
//! the kernel is to copy must be where the kernel sees it.

use crate::env::Env;
use crate::mm::Mm;
use crate::platform::{PlatformError, Stop};
use crate::space::block::BlockState;
use crate::space::entry::Kind;
use crate::space::{MapError, Space};
use crate::units::{BLOCK_PAGES, PageRun, SpaceId, Vpn};

impl<E: Env> Mm<E> {
    /// Maps every inactive page of a space. The caller keeps faults, reclaim and mapping
    /// calls away; nothing is busy. On an error some pages stay inactive.
    pub fn activate_all(&self, id: SpaceId) -> Result<(), MapError> {
        let space = self.space(id)?;
        for (block, first, _) in space.parts(self, space.base, space.pages) {
            let mut state = block.lock(self);
            self.activate_block(&space, first, &mut state)
                .map_err(MapError::Platform)?;
        }
        Ok(())
    }

    /// In a child of fork: write-protects again what the state says is write-protected. The
    /// protection did not come with the fork.
    ///
    /// # Errors
    /// [`MapError::Platform`]: the child must end, since writes would be seen by nobody.
    pub fn guard_all(&self, id: SpaceId) -> Result<(), MapError> {
        let space = self.space(id)?;
        for (block, first, _) in space.parts(self, space.base, space.pages) {
            let state = block.lock(self);
            let guarded = |k: u32| match &*state {
                BlockState::Huge(h) => h.mapped && h.guarded,
                BlockState::Table(table) => {
                    let e = table.get(k);
                    match e.kind() {
                        Kind::Mapped(_) => e.guarded(),
                        Kind::Zero { mapped, .. } => mapped,
                        _ => false,
                    }
                }
                _ => false,
            };
            let mut k = 0;
            while k < BLOCK_PAGES {
                let from = k;
                while k < BLOCK_PAGES && guarded(k) {
                    k += 1;
                }
                let start = first.block().start().add(u64::from(from));
                if k > from && !self.guard(PageRun::new(id, start, k - from)) {
                    return Err(MapError::Platform(PlatformError {
                        at: from,
                        why: Stop::Retry,
                    }));
                }
                k = k.max(from + 1);
            }
        }
        Ok(())
    }

    pub(crate) fn activate_block(
        &self,
        space: &Space,
        first: Vpn,
        state: &mut BlockState,
    ) -> Result<(), PlatformError> {
        match state {
            BlockState::Huge(h) if !h.mapped => {
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
