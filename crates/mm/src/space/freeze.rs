//! Bringing every resident page back into the program, as a fork on live memory needs: what
//! the kernel is to copy must be where the kernel sees it.

use crate::charge::Charge;
use crate::env::Env;
use crate::mm::Mm;
use crate::platform::{Platform, PlatformError};
use crate::space::block::{BlockState, Table};
use crate::space::entry::Kind;
use crate::space::fault::{FaultError, FaultMode};
use crate::space::{MapError, Space};
use crate::stat::Item;
use crate::store::Store;
use crate::units::{BLOCK_PAGES, PAGE_SIZE, PageRun, SpaceId, Vpn};

/// What a page of a space that stands still is to the program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Frozen {
    /// Its page is there.
    Present,
    /// The zero page is mapped, protected against writes.
    ZeroPage,
    /// A hole that reads as zeros.
    Zeros,
    /// A hole whose bytes are in the store; they have been read.
    Stored,
}

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

    /// Makes a space ready for a fork after which the child manages its own copy: everything
    /// is in the program or never was, nothing is in the store, no zero page is mapped. The
    /// caller keeps faults, reclaim and mapping calls away. Errors: [`MapError::Limit`] if
    /// the limit does not allow it; some pages are back then.
    pub fn settle_for_fork(&self, id: SpaceId) -> Result<(), MapError> {
        let space = self.space(id)?;
        let swapped = self.stats().get(Item::NrSwapped);
        if self.charge().usage().saturating_add(swapped) > self.charge().max() {
            return Err(MapError::Limit);
        }
        for (block, first, n) in space.parts(self, space.base, space.pages) {
            for k in 0..n {
                let page = first.add(k as u64);
                let kind = block.lock(self).entry(page.index()).kind();
                if let Kind::Swapped(_) = kind {
                    self.fault(id, page, false, FaultMode::MayWait)
                        .map_err(|_| MapError::Limit)?;
                }
            }
        }
        self.activate_all(id)?;
        for (block, first, _) in space.parts(self, space.base, space.pages) {
            let mut state = block.lock(self);
            match &mut *state {
                BlockState::Table(table) => self.drop_zero_entries(id, first, table),
                BlockState::HugeSwapped(_) => return Err(MapError::Limit),
                _ => {}
            }
            let left = (0..BLOCK_PAGES).any(|i| matches!(state.entry(i).kind(), Kind::Swapped(_)));
            if left {
                return Err(MapError::Limit);
            }
        }
        Ok(())
    }

    /// What a page is while everything stands still after [`Mm::activate_all`]; the bytes of a
    /// stored one are read into `bytes`. Changes nothing and needs no memory.
    ///
    /// Errors: [`FaultError::Busy`] for a page that does not stand still (a defect of the
    /// caller), [`FaultError::Store`].
    pub fn peek_frozen(
        &self,
        id: SpaceId,
        page: Vpn,
        bytes: &mut [u8; PAGE_SIZE],
    ) -> Result<Frozen, FaultError> {
        let space = self.space(id).map_err(|_| FaultError::NoMapping)?;
        if !space.contains(page, 1) {
            return Err(FaultError::NoMapping);
        }
        let Some(block) = space.block_if_any(self, page.block()) else {
            return Ok(Frozen::Zeros);
        };
        let kind = block.lock(self).entry(page.index()).kind();
        match kind {
            Kind::None | Kind::Zero { mapped: false, .. } => Ok(Frozen::Zeros),
            Kind::Zero { mapped: true, .. } => Ok(Frozen::ZeroPage),
            Kind::Mapped(_) => Ok(Frozen::Present),
            Kind::Swapped(slot) => {
                self.store().get(slot, bytes).map_err(FaultError::Store)?;
                Ok(Frozen::Stored)
            }
            Kind::Inactive(_) | Kind::Busy => Err(FaultError::Busy),
        }
    }

    /// Books a page that somebody has filled while the space stood still, from what
    /// [`Mm::peek_frozen`] said: it is in the program now. Charged past the limit if it must
    /// be. A present page was written: its protection is lifted. Nothing for a page that
    /// belongs to no mapping.
    pub fn adopt_filled(&self, id: SpaceId, page: Vpn) -> Result<(), MapError> {
        let space = self.space(id)?;
        let (Some(vma), _) = space.vma(self, page) else {
            return Ok(());
        };
        let block = space.block(self, page.block());
        let mut state = block.lock(self);
        let kind = state.entry(page.index()).kind();
        match kind {
            Kind::None | Kind::Zero { .. } | Kind::Swapped(_) => {}
            Kind::Mapped(_) => {
                drop(state);
                self.adopt_lifted(&space, page);
                return Ok(());
            }
            Kind::Inactive(_) | Kind::Busy => return Ok(()),
        }
        let Some(table) = state.table() else {
            return Ok(());
        };
        self.adopt_written(&space, &vma, table, page)
            .map_err(MapError::Platform)?;
        drop(state);
        if let Kind::Swapped(slot) = kind {
            self.drop_swapped(slot, 1);
            self.settle_store();
            self.stats().sub(Item::NrSwapped, 1);
            self.stats().add(Item::Pswpin, 1);
        }
        Ok(())
    }

    fn drop_zero_entries(&self, id: SpaceId, first: Vpn, table: &mut Table) {
        for i in 0..BLOCK_PAGES {
            let e = table.get(i);
            if let Kind::Zero {
                mapped: true,
                dropped,
            } = e.kind()
            {
                let token = self
                    .platform()
                    .drop_zero(PageRun::new(id, first.add(u64::from(i)), 1));
                self.platform().flush(&mut core::iter::once(token));
                let mapped = false;
                table.set(i, e.with(Kind::Zero { mapped, dropped }));
            }
        }
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
