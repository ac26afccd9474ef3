//! One entry of a block's table: what a page of the program is at this moment.
//!
//! | state | the program sees | the frame | charged |
//! |---|---|---|---|
//! | none | a hole | - | no |
//! | mapped | its page | in use, nothing at rest | yes |
//! | inactive | a hole (a fault takes it back) | holds the bytes at rest | yes |
//! | zero | zeros, or a hole until the first read | - | no |
//! | swapped | a hole | - (a slot) | the store's share |
//! | open | its page, which the system makes at the first touch | the system's | yes |
//! | busy | whatever its owner left | its owner's | its owner's |
//!
//! What is tracked of a page ([`Marks`]) stays through all of these but none.

use crate::platform::Prot;
use crate::table::marks::Marks;
use crate::units::{Pfn, Slot};

/// What a page is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Never touched, or discarded.
    None,
    /// Present in the program.
    Mapped(Pfn),
    /// Resident, unmapped.
    Inactive(Pfn),
    /// Reads as zeros; needs no frame.
    Zero {
        /// The zero page is mapped, so that it must be dropped before anything else is.
        mapped: bool,
        /// Left by reclaim or by a split (else by a read fault).
        dropped: bool,
    },
    /// In the store.
    Swapped(Slot),
    /// Left to the system, who makes the page when it is touched (`engine/open.rs`).
    Open,
    /// Owned by one CPU, which is moving it (the migration entry of Linux). Others wait.
    Busy,
}

impl Kind {
    /// A page of zeros that reclaim or a split has just dropped.
    pub const DROPPED: Kind = Kind::Zero {
        mapped: false,
        dropped: true,
    };
}

/// A packed entry: bits 0..3 kind, 3..6 rights, 6 locked, 7 and 8 the flags of zero,
/// 9 lazily freed, 10 shared, 11 guarded, 12 clean, 13 write-protected by the program,
/// 32.. frame or slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry(u64);

const LOCKED: u64 = 1 << 6;
const ZERO_MAPPED: u64 = 1 << 7;
const ZERO_DROPPED: u64 = 1 << 8;
const LAZY: u64 = 1 << 9;
const SHARED: u64 = 1 << 10;
const GUARDED: u64 = 1 << 11;
const CLEAN: u64 = 1 << 12;
const UFFD_WP: u64 = 1 << 13;
const ATTRS: u64 = 0b1111 << 3 | CLEAN | UFFD_WP;

impl Entry {
    /// The empty entry.
    pub const NONE: Entry = Entry(0);

    /// An entry with the rights and the lock of its VMA.
    pub fn new(kind: Kind, prot: Prot, locked: bool) -> Entry {
        let attrs = (prot.read as u64) << 3
            | (prot.write as u64) << 4
            | (prot.exec as u64) << 5
            | if locked { LOCKED } else { 0 };
        Entry(attrs).with(kind)
    }

    /// The same rights and [`Marks`] with another kind; lazy, shared and guarded go. What
    /// becomes mapped must be guarded if it has marks: see [`Entry::shown`].
    pub fn with(self, kind: Kind) -> Entry {
        let attrs = self.0 & ATTRS;
        Entry(match kind {
            Kind::None => 0,
            Kind::Mapped(p) => attrs | 1 | (p.0 as u64) << 32,
            Kind::Inactive(p) => attrs | 2 | (p.0 as u64) << 32,
            Kind::Zero { mapped, dropped } => {
                attrs
                    | 3
                    | if mapped { ZERO_MAPPED } else { 0 }
                    | if dropped { ZERO_DROPPED } else { 0 }
            }
            Kind::Swapped(s) => attrs | 4 | (s.0 as u64) << 32,
            Kind::Busy => attrs | 5,
            Kind::Open => attrs | 6,
        })
    }

    /// The same page, mark for mark, of another frame or slot.
    pub fn with_frame(self, pfn: Pfn) -> Entry {
        Entry(self.0 & u64::from(u32::MAX) | u64::from(pfn.0) << 32)
    }

    /// What the page is.
    pub fn kind(self) -> Kind {
        let value = (self.0 >> 32) as u32;
        match self.0 & 7 {
            1 => Kind::Mapped(Pfn(value)),
            2 => Kind::Inactive(Pfn(value)),
            3 => Kind::Zero {
                mapped: self.0 & ZERO_MAPPED != 0,
                dropped: self.0 & ZERO_DROPPED != 0,
            },
            4 => Kind::Swapped(Slot(value)),
            5 => Kind::Busy,
            6 => Kind::Open,
            _ => Kind::None,
        }
    }

    /// The frame of a resident page.
    pub fn frame(self) -> Option<Pfn> {
        match self.kind() {
            Kind::Mapped(p) | Kind::Inactive(p) => Some(p),
            _ => None,
        }
    }

    /// Whether the entry is empty.
    pub fn is_none(self) -> bool {
        self.0 & 7 == 0
    }
    /// Whether the page is the system's to make.
    pub fn is_open(self) -> bool {
        self.0 & 7 == 6
    }
    /// Whether somebody owns the page.
    pub fn is_busy(self) -> bool {
        self.0 & 7 == 5
    }
    /// Rights of the page.
    pub fn prot(self) -> Prot {
        Prot {
            read: self.0 & 8 != 0,
            write: self.0 & 16 != 0,
            exec: self.0 & 32 != 0,
        }
    }
    /// Whether the page must stay resident (mlock).
    pub fn locked(self) -> bool {
        self.0 & LOCKED != 0
    }
    /// Whether the program gave the contents up (MADV_FREE) and has not touched it since.
    pub fn lazy(self) -> bool {
        self.0 & LAZY != 0
    }
    /// Marks an inactive page as lazily freed.
    pub fn as_lazy(self) -> Entry {
        Entry(self.0 | LAZY)
    }
    /// Whether another manager may hold this very page since a fork (mapped pages only): the
    /// first write to it takes memory. Guarded, too.
    pub fn shared(self) -> bool {
        self.0 & SHARED != 0
    }
    /// Whether the page is write-protected, so that the next write is delivered as a fault.
    pub fn guarded(self) -> bool {
        self.0 & GUARDED != 0
    }
    /// The same page, write-protected, and shared or not.
    pub fn guard(self, shared: bool) -> Entry {
        let marks = GUARDED | if shared { SHARED } else { 0 };
        Entry(self.unguarded().0 | marks)
    }
    /// The same page, neither shared nor guarded.
    pub fn unguarded(self) -> Entry {
        Entry(self.0 & !(SHARED | GUARDED))
    }
    /// The same page, mapped with this frame, and exclusive.
    pub fn shown(self, pfn: Pfn, guarded: bool) -> Entry {
        let e = self.with(Kind::Mapped(pfn));
        if guarded { e.guard(false) } else { e }
    }
    /// What is tracked of the page.
    pub fn marks(self) -> Marks {
        Marks {
            clean: self.0 & CLEAN != 0,
            uffd_wp: self.0 & UFFD_WP != 0,
        }
    }
    /// The same page with other marks; a hole has none.
    pub fn marked(self, marks: Marks) -> Entry {
        if self.is_none() {
            return self;
        }
        let bits = if marks.clean { CLEAN } else { 0 } | if marks.uffd_wp { UFFD_WP } else { 0 };
        Entry(self.0 & !(CLEAN | UFFD_WP) | bits)
    }
    /// The same page after a write.
    pub fn dirtied(self) -> Entry {
        self.marked(self.marks().dirtied())
    }
    /// The same page with other rights.
    pub fn with_attrs(self, prot: Prot, locked: bool) -> Entry {
        if self.is_none() {
            return self;
        }
        let marks = self.0 & (LAZY | SHARED | GUARDED | CLEAN | UFFD_WP);
        let new = Entry::new(self.kind(), prot, locked);
        Entry(new.0 | marks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_stays_shared_until_it_is_another() {
        let e = Entry::new(Kind::Mapped(Pfn(9)), Prot::RW, false).guard(true);
        assert!(e.shared() && e.guarded() && e.kind() == Kind::Mapped(Pfn(9)));
        let other = e.with_attrs(Prot::R, true);
        assert!(other.shared() && other.guarded() && other.locked());
        assert!(!e.guard(false).shared() && e.guard(false).guarded());
        let gone = e.with(Kind::Inactive(Pfn(9)));
        assert!(!gone.shared() && !gone.guarded());
    }

    #[test]
    fn marks_stay_until_the_page_is_gone() {
        let marks = Marks {
            clean: true,
            uffd_wp: true,
        };
        let e = Entry::new(Kind::Swapped(Slot(3)), Prot::RW, false).marked(marks);
        let zero = Kind::Zero {
            mapped: false,
            dropped: true,
        };
        for kind in [zero, Kind::Busy, Kind::Inactive(Pfn(2))] {
            assert_eq!((e.with(kind).kind(), e.with(kind).marks()), (kind, marks));
        }
        let shown = e.shown(Pfn(4), true).with_attrs(Prot::R, true);
        assert!(shown.guarded() && shown.marks() == marks);
        assert_eq!(shown.unguarded().with_frame(Pfn(5)).marks(), marks);
        assert!(!shown.dirtied().marks().clean && shown.dirtied().marks().uffd_wp);
        assert_eq!(e.with(Kind::None), Entry::NONE);
        assert_eq!(Entry::NONE.marked(marks), Entry::NONE);
    }

    #[test]
    fn entries_keep_what_is_put_in() {
        for kind in [
            Kind::None,
            Kind::Mapped(Pfn(u32::MAX)),
            Kind::Inactive(Pfn(0)),
            Kind::Zero {
                mapped: true,
                dropped: false,
            },
            Kind::Zero {
                mapped: false,
                dropped: true,
            },
            Kind::Swapped(Slot(7)),
            Kind::Busy,
            Kind::Open,
        ] {
            for prot in [Prot::RW, Prot::R, Prot::NONE] {
                let e = Entry::new(kind, prot, true);
                assert_eq!(e.kind(), kind);
                if kind != Kind::None {
                    assert_eq!((e.prot(), e.locked()), (prot, true));
                    assert_eq!(e.with_attrs(Prot::R, false).prot(), Prot::R);
                }
            }
        }
    }
}
