//! Bringing every resident page back into the program, as a fork on live memory needs: what
//! the kernel is to copy must be where the kernel sees it.

use crate::env::Env;
use crate::mm::Mm;
use crate::platform::{Content, PlatformError};
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

    fn activate_block(
        &self,
        space: &Space,
        first: Vpn,
        state: &mut BlockState,
    ) -> Result<(), PlatformError> {
        match state {
            BlockState::Huge(h) if !h.mapped => {
                let run = PageRun::new(space.id, first, BLOCK_PAGES);
                self.map_all(run, h.pfn, Content::Parked, h.prot)?;
                h.mapped = true;
                h.lazy = false;
                self.moved_in(BLOCK_PAGES);
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
                    let run = PageRun::new(space.id, first.add(i as u64), n);
                    self.map_all(run, p, Content::Parked, e.prot())?;
                    for k in 0..n {
                        table.set(i + k, table.get(i + k).with(Kind::Mapped(p.add(k))));
                    }
                    self.moved_in(n);
                    i += n;
                }
            }
            _ => {}
        }
        Ok(())
    }
}
