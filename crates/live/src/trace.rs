//! Tracepoints: when a task begins and ends a stage of a fault or of an eviction.
//!
//! Nobody listens but an experiment, in its own process: until a probe is attached a tracepoint
//! costs a load and a branch. What the core does by itself has no tracepoints; it is what is left
//! of the stage around it.

use std::marker::PhantomData;
use std::sync::OnceLock;

use deckle_mm::Vpn;

/// What a task does. A stage lies in another or in none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stage {
    /// A handler asks for a message and waits until there is one.
    Message,
    /// A handler serves a fault on this page. What is in no stage within it is the core's.
    Fault(Vpn),
    /// A worker does, which may reclaim and wait.
    Late(Vpn),
    /// Waits until nobody unmaps pages.
    Aside,
    /// Looks whether pages that are away were discarded meanwhile.
    Look,
    /// Brings pages into the program, which wakes who waits for them.
    Install,
    /// The background reclaims. What is in no stage within it is the core's.
    Reclaim,
    /// Takes pages out of the program.
    Unmap,
    /// Looks for pages of zeros.
    Scan,
    /// Gives pages back to the system.
    Free,
}

/// Called with a stage by the task that begins it, with `None` by who ends the last one that it has
/// begun.
pub type Probe = fn(Option<Stage>);

static PROBE: OnceLock<Probe> = OnceLock::new();

/// Has `probe` called at each tracepoint from now on, for good; false: there is one.
///
/// It is called on the path of a fault, with any lock held: it must touch no managed memory, and
/// call nothing of this crate.
pub fn attach(probe: Probe) -> bool {
    PROBE.set(probe).is_ok()
}

/// A stage that lasts as long as this.
pub(crate) struct Inside {
    probe: Option<Probe>,
    // Who has begun a stage ends it.
    not_send: PhantomData<*const ()>,
}

/// Begins a stage.
pub(crate) fn stage(stage: Stage) -> Inside {
    let probe = PROBE.get().copied();
    if let Some(probe) = probe {
        probe(Some(stage));
    }
    Inside {
        probe,
        not_send: PhantomData,
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        if let Some(probe) = self.probe {
            probe(None);
        }
    }
}
