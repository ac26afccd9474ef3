//! The store of `--swap none`.

use deckle_mm::{Slot, Store, StoreError, StoreStop};

/// A store that takes no pages.
#[derive(Clone, Copy, Debug, Default)]
pub struct Disabled;

impl Store for Disabled {
    fn accepts(&self) -> bool {
        false
    }
    fn put(&self, _first: Slot, _pages: &[u8]) -> Result<(), StoreError> {
        Err(StoreError {
            done: 0,
            why: StoreStop::Disabled,
        })
    }
    fn get(&self, _first: Slot, _pages: &mut [u8]) -> Result<(), StoreError> {
        Err(StoreError {
            done: 0,
            why: StoreStop::Disabled,
        })
    }
    fn free(&self, _first: Slot, _count: u32) {}
    fn ram_bytes(&self) -> u64 {
        0
    }
    fn stored_pages(&self) -> u64 {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disabled_takes_and_holds_nothing() {
        let stop = Err(StoreError {
            done: 0,
            why: StoreStop::Disabled,
        });
        assert!(!Disabled.accepts());
        assert_eq!(Disabled.put(Slot(0), &[0; 4096]), stop);
        assert_eq!(Disabled.get(Slot(0), &mut [0; 4096]), stop);
        Disabled.free(Slot(0), 1);
        assert_eq!((Disabled.ram_bytes(), Disabled.stored_pages()), (0, 0));
    }
}
