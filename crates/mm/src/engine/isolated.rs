//! Folios that one caller has taken off the lists: what reclaim and migration work on.

use crate::engine::Engine;
use crate::engine::folio::order_of;
use crate::engine::space::MapError;
use crate::engine::split::{Split, SplitError, SplitFlags};
use crate::env::Env;
use crate::units::{Pfn, SpaceId, Vpn, order_pages};
use alloc::vec::Vec;

/// A folio that its holder alone has isolated: on no list of the manager, with a reference for
/// that. It ends by [`Engine::putback`], [`Engine::end_isolation`] or in an [`Isolated`] list.
#[derive(Debug)]
#[must_use = "an isolated folio must be put back"]
pub(crate) struct IsolatedFolio(Pfn);

impl IsolatedFolio {
    /// Says that the caller has isolated it: the reference is there, and it is on no list.
    pub(super) fn new(pfn: Pfn) -> IsolatedFolio {
        IsolatedFolio(pfn)
    }
    /// Its first frame.
    pub fn pfn(&self) -> Pfn {
        self.0
    }
}

/// Folios that one caller has isolated. They go back by [`Engine::putback_list`].
#[derive(Debug, Default)]
#[must_use = "isolated folios must be put back"]
pub struct Isolated(pub(crate) Vec<IsolatedFolio>);

impl Isolated {
    /// The folios by their first frames, in order.
    pub fn folios(&self) -> Vec<Pfn> {
        self.0.iter().map(IsolatedFolio::pfn).collect()
    }
}

impl<E: Env> Engine<E> {
    /// Isolates the folio that holds a page, as migration does before it moves or splits one.
    /// `None`: there is none, or somebody else has.
    pub fn isolate_page(&self, id: SpaceId, page: Vpn) -> Option<Isolated> {
        let space = self.space(id).ok()?;
        let block = space.block_if_any(self, page.block())?;
        let state = self.lock_settled(&block, page.index(), 1);
        let head = self.head_of(state.entry(page.index()).frame()?);
        Some(Isolated(Vec::from([self.isolate(head)?])))
    }

    /// Splits the first folio of a list; its parts are behind it on the list then.
    ///
    /// # Errors
    /// [`SplitError`]; nothing has changed then.
    pub fn split_isolated(
        &self,
        list: &mut Isolated,
        to: u8,
        flags: SplitFlags,
    ) -> Result<Split, SplitError> {
        let head = list.0.first().ok_or(SplitError::NoFolio)?.pfn();
        let (id, page) = self.meta(head).owner().ok_or(SplitError::NoFolio)?;
        let space = self.space(id).map_err(|_: MapError| SplitError::NoFolio)?;
        let block = space.block(self, page.block());
        // Never waited for: who has it may be waiting for the reference that we hold.
        let mut state = block.try_lock(self).ok_or(SplitError::Busy)?;
        if state.entry(page.index()).is_busy() {
            return Err(SplitError::Busy);
        }
        let flags = flags | SplitFlags::ISOLATED;
        self.split_in_block(&space, &mut state, head, to, flags, Some(list))
    }

    /// Ends the isolation of all folios of a list: back to the lists that their flags name,
    /// under one lock.
    pub fn putback_list(&self, list: Isolated) {
        if list.0.is_empty() {
            return;
        }
        let mut lru = self.folios.lru.lock(self.machine());
        let mut pages = 0;
        for folio in &list.0 {
            pages += order_pages(order_of(self.meta(folio.pfn())));
            lru.put_in(self, folio.pfn(), None);
        }
        drop(lru);
        self.isolation_ended(pages);
        list.0.iter().for_each(|f| self.put_folio(f.pfn(), 1));
    }
}
