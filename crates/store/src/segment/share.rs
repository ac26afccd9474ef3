//! Segments that a fork has copied: who is charged for them.

use super::{Segment, SegmentSet, Segments, State};

/// With whom a segment is shared since a fork. Only what is not written any more is: what is
/// open at a fork is charged to both.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Share {
    /// With nobody.
    Own,
    /// With a child, who is not charged for it: its charge stays when it is unmapped.
    Lent,
    /// With a parent, who is charged for it.
    Borrowed,
}

impl SegmentSet {
    fn share(&mut self, to: Share, which: impl Fn(&Segment) -> bool) {
        self.segments
            .iter_mut()
            .filter(|s| which(s))
            .for_each(|s| s.share = to);
    }

    /// Before a fork, by the parent: what is sealed is shared from now on, at its charge.
    pub(crate) fn lend(&mut self) {
        self.own();
        self.share(Share::Lent, |s| {
            matches!(s.state, State::Sealed | State::Damaged)
        });
    }

    /// No child shares anything any more.
    pub(crate) fn unlend(&mut self) {
        self.share(Share::Own, |s| s.share == Share::Lent);
        self.ghost = 0;
    }

    /// After a fork, by the child: what its parent lent is borrowed. The open segment, which
    /// the parent goes on writing, is sealed here and stays the child's own.
    pub(crate) fn borrow_lent(&mut self, hooks: &dyn Segments) {
        self.ghost = 0;
        self.share(Share::Borrowed, |s| s.share == Share::Lent);
        let lent = |s: &&Segment| s.share == Share::Borrowed && s.state != State::Free;
        let bytes = |s: &Segment| u64::from(s.size);
        self.borrowed = self.segments.iter().filter(lent).map(bytes).sum();
        if let Some(open) = self.open.take() {
            self.seal(hooks, open);
        }
    }

    /// What is borrowed is charged here from now on.
    pub(crate) fn own(&mut self) {
        self.share(Share::Own, |s| s.share == Share::Borrowed);
        self.borrowed = 0;
    }

    /// Bytes of borrowed segments.
    pub(crate) fn borrowed(&self) -> u64 {
        self.borrowed
    }

    /// Bytes of lent segments that are unmapped here but not by those who borrow them.
    pub(crate) fn ghost(&self) -> u64 {
        self.ghost
    }
}
