//! What wakes a service that has nothing to do: news of the group.
//!
//! A service that is idle looks at nothing. So who changes what it may have to know says so:
//! settings, the end of who pays for what it shares or of who shares at its charge, and the end of
//! its own tenancy by somebody else's hand.

use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::SeqCst;

use deckle_sys::futex::{Scope, wake_in};

use crate::attach::Group;
use crate::layout::Line;
use crate::line::LineId;

impl Group {
    /// The word of a process that is another one after news: a futex for all processes. Read it
    /// before what there is news of.
    pub fn news(&self, id: LineId) -> Option<&AtomicU32> {
        Some(&self.line(id)?.news)
    }

    /// There is news for all.
    pub(crate) fn tell_all(&self) {
        self.lines().iter().for_each(tell);
    }

    /// There is news for one.
    pub(crate) fn tell(&self, id: Option<LineId>) {
        if let Some(line) = id.and_then(|id| self.line(id)) {
            tell(line);
        }
    }
}

/// There is news for whose line it is.
pub(crate) fn tell(line: &Line) {
    line.news.fetch_add(1, SeqCst);
    wake_in(Scope::Shared, &line.news, u32::MAX);
}
