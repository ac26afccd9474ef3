//! Evicted folios whose frames go back together.
//!
//! To give memory back interrupts every CPU that runs the program. Folios of a page or two are the
//! rule where a working set does not fit, and what each is given back alone costs more than its
//! compression. So reclaim collects some of them.

use crate::engine::Engine;
use crate::engine::isolated::IsolatedFolio;
use crate::env::Env;
use crate::platform::Platform;
use crate::units::FrameRun;
use alloc::vec::Vec;

/// Pages from which on nothing is gained by collecting more. They stay charged for so long, beside
/// what the store has grown by, which is booked when they go.
const MOST: u32 = 64;

/// Isolated folios of which nothing is mapped any more, with their frames still full. They end by
/// [`Engine::let_go`].
#[derive(Debug, Default)]
#[must_use = "frames that are not let go of stay charged"]
pub(crate) struct Leaving {
    runs: Vec<FrameRun>,
    /// Of these runs.
    pages: u32,
    /// With the references that their entries had.
    folios: Vec<(IsolatedFolio, u32)>,
}

impl Leaving {
    /// Collects a folio, with its runs of frames that are full.
    pub(crate) fn push(
        &mut self,
        folio: IsolatedFolio,
        refs: u32,
        runs: impl Iterator<Item = FrameRun>,
    ) {
        self.runs
            .extend(runs.inspect(|run| self.pages += run.pages));
        self.folios.push((folio, refs));
    }

    /// Whether nothing is gained by waiting for more.
    pub(crate) fn is_due(&self) -> bool {
        self.folios.is_empty() || self.pages >= MOST
    }
}

impl<E: Env> Engine<E> {
    /// Gives the frames of all that was collected back, with their charge, and ends the folios'
    /// isolation.
    pub(crate) fn let_go(&self, leaving: &mut Leaving) {
        self.memory().release_all(&leaving.runs);
        leaving.runs.clear();
        leaving.pages = 0;
        for (folio, refs) in leaving.folios.drain(..) {
            self.put_folio(folio.pfn(), refs);
            self.putback(folio);
        }
    }
}
