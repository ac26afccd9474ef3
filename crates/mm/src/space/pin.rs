//! Pins, and frames that have failed.
//!
//! A pin is what direct memory access takes: its page is exclusive, stays the page behind this
//! address for writes of the program, and keeps its bytes, whatever is unmapped, until the pin
//! ends. A fork copies it for the child at once (R79).

use crate::engine::sharing::Sharing;
use crate::engine::step::{Access, FaultMode};
use crate::env::Env;
use crate::fault::FaultError;
use crate::frame::Flags;
use crate::mm::Mm;
use crate::table::entry::Kind;
use crate::units::{Pfn, SpaceId, Vpn, order_pages};

/// Times that a page which is taken away again at once is faulted in for a pin.
const RETRIES: u32 = 1000;

/// A pinned page; ends with [`Mm::unpin`].
#[derive(PartialEq, Eq, Debug)]
#[must_use = "a page that is never unpinned is never freed"]
pub struct Pin {
    pfn: Pfn,
}

impl Pin {
    /// The frame that is held.
    pub fn frame(&self) -> Pfn {
        self.pfn
    }
}

impl<E: Env> Mm<E> {
    /// Pins the page at `page`, for writing or for reading. Faults it in and unshares it first;
    /// for reading it is not made writable. Waits and reclaims as a fault that may. Only where
    /// copy on write is the core's: elsewhere the kernel keeps its own pins.
    ///
    /// # Errors
    /// As [`Mm::fault`]; `Platform` where copy on write is the kernel's.
    pub fn pin(&self, id: SpaceId, page: Vpn, write: bool) -> Result<Pin, FaultError> {
        E::Sharing::may_fork().map_err(FaultError::Platform)?;
        let access = match write {
            true => Access::Write,
            false => Access::Unshare,
        };
        let space = self.space(id).map_err(|_| FaultError::NoMapping)?;
        for _ in 0..RETRIES {
            // Also checks the rights.
            self.fault_as(id, page, access, FaultMode::MayWait)?;
            let block = space.block(self, page.block());
            let state = block.lock(self);
            let e = state.entry(page.index());
            let Kind::Mapped(pfn) = e.kind() else {
                continue;
            };
            if e.shared() || write && e.guarded() {
                continue;
            }
            let meta = self.meta(self.head_of(pfn));
            let mut rmap = self.folios.rmap.lock(self.machine());
            meta.add_refs(1);
            meta.set(Flags::PINNED);
            *rmap.pins.entry(pfn.0).or_insert(0) += 1;
            return Ok(Pin { pfn });
        }
        Err(FaultError::Busy)
    }

    /// Ends a pin.
    pub fn unpin(&self, pin: Pin) {
        let head = self.head_of(pin.pfn);
        let meta = self.meta(head);
        let pages = order_pages(meta.folio_order().unwrap_or(0));
        let mut rmap = self.folios.rmap.lock(self.machine());
        match rmap.pins.get_mut(&pin.pfn.0) {
            Some(n) if *n > 1 => *n -= 1,
            _ => drop(rmap.pins.remove(&pin.pfn.0)),
        }
        if !rmap.has_pin(head, pages) {
            meta.clear(Flags::PINNED);
        }
        drop(rmap);
        self.put_folio(head, 1);
    }
}
