//! Copies of some pages that could go nowhere: what the report of a kill looks at, since what is
//! resident may not be read there.

use deckle_door::lock::Lock;
use deckle_mm::PAGE_SIZE;

/// Pages that are kept.
const KEPT: usize = 32;
/// Of so many more one takes the place of an older one.
const EACH: u64 = 64;

#[derive(Default)]
struct Ring {
    told: u64,
    pages: Vec<Box<[u8; PAGE_SIZE]>>,
}

/// Some of the pages that were refused.
pub struct Refused(Lock<Ring>);

impl Default for Refused {
    fn default() -> Refused {
        Refused(Lock::new(Ring::default()))
    }
}

impl Refused {
    /// Keeps a copy of a page, or does not.
    pub fn note(&self, page: &[u8]) {
        let Ok(page) = <&[u8; PAGE_SIZE]>::try_from(page) else {
            return;
        };
        let mut ring = self.0.lock();
        let told = ring.told;
        ring.told += 1;
        if ring.pages.len() < KEPT {
            ring.pages.push(Box::new(*page));
        } else if told.is_multiple_of(EACH) {
            let at = (told / EACH) as usize % KEPT;
            *ring.pages[at] = *page;
        }
    }

    /// Shows what is kept.
    pub fn each(&self, mut look: impl FnMut(&[u8])) {
        self.0.lock().pages.iter().for_each(|page| look(&**page));
    }
}
