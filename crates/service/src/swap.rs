//! Where swapped pages go, and what they would take elsewhere.

use crate::account::forward;
use crate::heap::HUGE;
use crate::refused::{KEPT, Refused};
use crate::segments::Mapped;
use crate::swapfile::Files;
use deckle_group::{Group, Means, Sample, SwapKind};
use deckle_mm::{Slot, Store, StoreError, Written};
use deckle_store::{Algorithm, Config, Disabled, Encrypted, Ram, Trial};

/// The file behind the store.
pub type File = Encrypted<Files>;

/// About how many of the stored pages are tried with other algorithms.
const SAMPLE: usize = 64;

fn algorithm(kind: SwapKind) -> Option<Algorithm> {
    match kind {
        SwapKind::None => None,
        SwapKind::Lz4 => Some(Algorithm::Lz4),
        SwapKind::Zstd => Some(Algorithm::Zstd(3)),
    }
}

/// Both algorithms; without memory, as many as there is memory for.
struct Trials([Option<Trial>; 2]);

impl Trials {
    fn new() -> Trials {
        let of = |kind| algorithm(kind).and_then(Trial::new);
        Trials([SwapKind::Lz4, SwapKind::Zstd].map(of))
    }

    fn add(&mut self, page: &[u8]) {
        self.0.iter_mut().flatten().for_each(|t| t.add(page));
    }

    fn pages(&self) -> u64 {
        self.0.iter().flatten().map(Trial::pages).max().unwrap_or(0)
    }

    fn means(&self) -> Means {
        let mean = |t: &Option<Trial>| t.as_ref()?.mean_bytes();
        let [lz4, zstd] = self.0.each_ref().map(mean);
        Means { lz4, zstd }
    }
}

/// The store that the group asks for, and some of what it did not take.
pub struct Swap {
    to: To,
    refused: Refused,
}

enum To {
    /// Nowhere.
    Off(Disabled),
    /// Compressed RAM.
    Ram(Box<Ram<Mapped, File>>),
}

impl Swap {
    /// The store of this kind.
    pub fn new(group: &Group, files: File) -> Swap {
        let refused = Refused::default();
        let Some(algorithm) = algorithm(group.swap_kind()) else {
            let to = To::Off(Disabled);
            return Swap { to, refused };
        };
        let config = Config {
            // Of an idle process of which a page is stored, this is most of what that takes.
            segment_bytes: 16 << 10,
            large_segment_bytes: HUGE as u32,
            // As many as tasks reclaim at once.
            shards: 2,
            ram_percent: group.swap_file().map_or(100, |file| file.ram_percent),
            ..Config::new(algorithm)
        };
        let to = To::Ram(Box::new(Ram::with_file(config, Mapped, files)));
        Swap { to, refused }
    }

    fn inner(&self) -> &dyn Store {
        match &self.to {
            To::Off(store) => store,
            To::Ram(store) => &**store,
        }
    }

    /// What compressed RAM answers; nothing where there is none.
    pub fn ram<T: Default>(&self, ask: impl FnOnce(&Ram<Mapped, File>) -> T) -> T {
        match &self.to {
            To::Off(_) => T::default(),
            To::Ram(store) => ask(store),
        }
    }

    /// What the pages would take that are here, and those that went nowhere, if each were stored by
    /// either algorithm. `resident` shows about so many pages that are in memory; those that were
    /// refused count where it has not as many. Takes some milliseconds.
    pub fn sample(&self, resident: impl FnOnce(u32, &mut dyn FnMut(&[u8]))) -> Sample {
        let (mut stored, mut refused) = (Trials::new(), Trials::new());
        self.ram(|ram| ram.sample(SAMPLE, &mut |page| stored.add(page)));
        resident(KEPT as u32, &mut |page| refused.add(page));
        self.refused.each(|page| {
            if refused.pages() < KEPT as u64 {
                refused.add(page);
            }
        });
        Sample {
            pages: stored.pages() + refused.pages(),
            stored: stored.means(),
            refused: refused.means(),
        }
    }
}

impl Store for Swap {
    forward! {
        inner:
        accepts() -> bool;
        put(first: Slot, pages: &[u8]) -> Result<(), StoreError>;
        get(first: Slot, pages: &mut [u8]) -> Result<(), StoreError>;
        free(first: Slot, count: u32);
        ram_bytes() -> u64;
        charged_bytes() -> u64;
        is_shared(slot: Slot) -> bool;
        compact(budget: u64) -> u64;
        wants_writeback(resident: u64) -> bool;
        writeback() -> Option<Written>;
        stored_pages() -> u64;
    }

    fn refused(&self, page: &[u8]) {
        self.refused.note(page);
    }
}
