//! A look at the folio behind a page, for tests and tools.

use crate::engine::folio::order_of;
use crate::env::Env;
use crate::frame::Flags;
use crate::mm::Mm;
use crate::units::{Pfn, SpaceId, Vpn};

/// A folio as it was at the moment of the look.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FolioView {
    /// Its first frame.
    pub head: Pfn,
    /// The frame of the page that was asked for.
    pub frame: Pfn,
    /// Its order.
    pub order: u8,
    /// References: entries (a huge mapping: 1) and isolations.
    pub refs: u32,
    /// On the deferred split queue.
    pub queued: bool,
    /// Some of its pages were unmapped for good.
    pub partial: bool,
    /// Belongs on the active list.
    pub active: bool,
}

impl<E: Env> Mm<E> {
    /// The folio that holds a page now, mapped or inactive; `None` if none does.
    pub fn folio_at(&self, id: SpaceId, page: Vpn) -> Option<FolioView> {
        let space = self.space(id).ok()?;
        let block = space.block_if_any(self, page.block())?;
        // The lock keeps the page's reference, and with it the folio.
        let state = block.lock(self);
        let frame = state.entry(page.index()).frame()?;
        let head = self.head_of(frame);
        let meta = self.meta(head);
        Some(FolioView {
            head,
            frame,
            order: order_of(meta),
            refs: meta.refs(),
            queued: meta.has(Flags::QUEUED),
            partial: meta.has(Flags::PARTIAL),
            active: meta.has(Flags::ACTIVE),
        })
    }
}
