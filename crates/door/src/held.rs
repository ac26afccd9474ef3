//! Pages that the kernel touches where it cannot wait for a fault, whether they are managed or not:
//! whoever takes memory under management later keeps these resident.

use core::sync::atomic::Ordering::{Acquire, SeqCst};
use core::sync::atomic::{AtomicBool, AtomicUsize, fence};

/// Places for pages: as many threads as there are at once, or one after the other in stacks of
/// other sizes. Looked through in a microsecond or two where there are that many.
const PLACES: usize = 4096;

/// A set of pages, by their addresses; none leaves it.
#[repr(C)]
pub struct Held {
    pages: [AtomicUsize; PLACES],
    is_full: AtomicBool,
}

impl Held {
    /// No page.
    pub const fn new() -> Held {
        Held {
            pages: [const { AtomicUsize::new(0) }; PLACES],
            is_full: AtomicBool::new(false),
        }
    }

    /// Takes a page in; false: it was there. Whoever looks at the set after what comes next sees
    /// it.
    pub fn note(&self, page: usize) -> bool {
        for place in &self.pages {
            let there = match place.load(Acquire) {
                0 => place.compare_exchange(0, page, SeqCst, SeqCst),
                there => Err(there),
            };
            match there {
                Ok(_) => return self.noted(),
                Err(there) if there == page => return false,
                Err(_) => {}
            }
        }
        self.is_full.store(true, SeqCst);
        self.noted()
    }

    fn noted(&self) -> bool {
        fence(SeqCst);
        true
    }

    /// Whether a page found no place: not all are known.
    pub fn is_full(&self) -> bool {
        self.is_full.load(Acquire)
    }

    /// Those in a range of addresses.
    pub fn within(&self, start: usize, bytes: usize) -> impl Iterator<Item = usize> {
        fence(SeqCst);
        let pages = self.pages.iter().map(|place| place.load(Acquire));
        pages.filter(move |page| *page != 0 && page.wrapping_sub(start) < bytes)
    }
}

#[cfg(test)]
#[path = "../tests/unit/held.rs"]
mod tests;
