//! What is tracked of a page; `space/tracking.rs` says how.

/// What is tracked of a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Marks {
    /// Not written since the soft-dirty bits were cleared.
    pub clean: bool,
    /// The program wants to be told before it is written.
    pub uffd_wp: bool,
}

impl Marks {
    /// Whether a write must not go unheard.
    pub fn any(self) -> bool {
        self.clean || self.uffd_wp
    }
    /// After a write, or as if there had been one.
    pub fn dirtied(self) -> Marks {
        Marks {
            clean: false,
            ..self
        }
    }
}
