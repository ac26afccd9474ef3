//! Managed memory as a slice.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use deckle_mm::units::bytes_to_pages;
use deckle_mm::{Advice, BLOCK_PAGES, Charge, MapError, PAGE_SIZE, Prot, Store, Vpn};

use super::service::Threads;
use crate::platform::Place;

/// A mapping of managed memory; unmapped when dropped.
pub struct Region<C: Charge + 'static, S: Store + 'static> {
    threads: Arc<Threads<C, S>>,
    start: Vpn,
    pages: u64,
    bytes: usize,
}

impl<C: Charge + 'static, S: Store + 'static> Region<C, S> {
    pub(super) fn new(threads: Arc<Threads<C, S>>, bytes: usize) -> Result<Self, MapError> {
        let pages = bytes_to_pages(bytes as u64);
        let align = match pages >= u64::from(BLOCK_PAGES) {
            true => BLOCK_PAGES as usize * PAGE_SIZE,
            false => PAGE_SIZE,
        };
        let place = Place::aligned(align);
        // SAFETY: at no address in particular.
        let start = unsafe { threads.pager.map(place, pages, Prot::RW) }?;
        Ok(Region {
            threads,
            start,
            pages,
            bytes,
        })
    }

    /// First page.
    pub fn start(&self) -> Vpn {
        self.start
    }

    /// Pages.
    pub fn pages(&self) -> u64 {
        self.pages
    }

    /// Gives advice on the whole region. Advice that drops bytes (`DontNeed`, `Free`) needs
    /// the region exclusively, hence `&mut`.
    ///
    /// # Errors
    /// The manager's refusal.
    pub fn advise(&mut self, advice: Advice) -> Result<(), MapError> {
        let pager = &self.threads.pager;
        match advice {
            Advice::PageOut => pager.page_out(self.start, self.pages),
            _ => pager
                .mm()
                .madvise(pager.space(), self.start, self.pages, advice),
        }
    }
}

impl<C: Charge + 'static, S: Store + 'static> Deref for Region<C, S> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: mapped readable for as long as self lives; threads that serve it live as
        // long; the manager changes where bytes are, never what they are.
        unsafe { core::slice::from_raw_parts(self.start.addr() as *const u8, self.bytes) }
    }
}

impl<C: Charge + 'static, S: Store + 'static> DerefMut for Region<C, S> {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in deref; writable, and borrowed exclusively.
        unsafe { core::slice::from_raw_parts_mut(self.start.addr() as *mut u8, self.bytes) }
    }
}

impl<C: Charge + 'static, S: Store + 'static> Drop for Region<C, S> {
    fn drop(&mut self) {
        let pager = &self.threads.pager;
        // SAFETY: whoever drops it has the only handle.
        let gone = unsafe { pager.unmap(self.start, self.pages) };
        debug_assert!(gone.is_ok(), "{gone:?}");
    }
}
