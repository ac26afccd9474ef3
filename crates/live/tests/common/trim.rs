//! A store for tests: keeps pages without their trailing zeros.

use deckle_mm::{Slot, Store, StoreError, StoreStop};
use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

#[derive(Default)]
pub struct Trim {
    pages: Mutex<HashMap<u32, Box<[u8]>>>,
    bytes: AtomicU64,
    pub puts: AtomicU64,
}

impl Store for Trim {
    fn accepts(&self) -> bool {
        true
    }
    fn put(&self, first: Slot, pages: &[u8]) -> Result<(), StoreError> {
        let mut map = self.pages.lock().unwrap();
        for (i, page) in pages.chunks(4096).enumerate() {
            let end = page.iter().rposition(|b| *b != 0).map_or(0, |p| p + 1);
            if end > 2048 {
                return Err(StoreError {
                    done: i as u32,
                    why: StoreStop::Incompressible,
                });
            }
            self.bytes.fetch_add(end as u64, Ordering::Relaxed);
            self.puts.fetch_add(1, Ordering::Relaxed);
            let old = map.insert(first.0 + i as u32, page[..end].into());
            assert!(old.is_none(), "slot was in use");
        }
        Ok(())
    }
    fn get(&self, first: Slot, pages: &mut [u8]) -> Result<(), StoreError> {
        let map = self.pages.lock().unwrap();
        for (i, page) in pages.chunks_mut(4096).enumerate() {
            let Some(kept) = map.get(&(first.0 + i as u32)) else {
                return Err(StoreError {
                    done: i as u32,
                    why: StoreStop::Corrupt,
                });
            };
            page[..kept.len()].copy_from_slice(kept);
            page[kept.len()..].fill(0);
        }
        Ok(())
    }
    fn free(&self, first: Slot, count: u32) {
        let mut map = self.pages.lock().unwrap();
        for slot in first.0..first.0 + count {
            if let Some(kept) = map.remove(&slot) {
                self.bytes.fetch_sub(kept.len() as u64, Ordering::Relaxed);
            }
        }
    }
    fn ram_bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
    fn stored_pages(&self) -> u64 {
        self.pages.lock().unwrap().len() as u64
    }
}
