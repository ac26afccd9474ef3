//! Sets of bits with names.

/// Defines a newtype over the kernel's bits. Unknown bits are kept, since a newer kernel may
/// well say more than this crate knows.
macro_rules! flags {
    ($(#[$outer:meta])* $name:ident { $($(#[$inner:meta])* $flag:ident = $bit:expr;)+ }) => {
        $(#[$outer])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
        #[repr(transparent)]
        pub struct $name(u64);

        impl $name {
            $($(#[$inner])* pub const $flag: Self = Self(1 << $bit);)+

            /// No bit.
            pub const fn empty() -> Self {
                Self(0)
            }

            /// Every bit this crate knows.
            pub const fn all() -> Self {
                Self($(1u64 << $bit)|+)
            }

            /// The kernel's representation.
            pub const fn bits(self) -> u64 {
                self.0
            }

            /// From the kernel's representation; unknown bits are kept.
            pub const fn from_bits(bits: u64) -> Self {
                Self(bits)
            }

            /// Whether every bit of `other` is set.
            pub const fn contains(self, other: Self) -> bool {
                self.0 & other.0 == other.0
            }

            /// Whether any bit of `other` is set.
            pub const fn intersects(self, other: Self) -> bool {
                self.0 & other.0 != 0
            }

            /// Both sets together.
            pub const fn union(self, other: Self) -> Self {
                Self(self.0 | other.0)
            }

            /// The bits of `self` that are not in `other`.
            pub const fn without(self, other: Self) -> Self {
                Self(self.0 & !other.0)
            }

            /// Whether no bit is set.
            pub const fn is_empty(self) -> bool {
                self.0 == 0
            }
        }

        impl core::ops::BitOr for $name {
            type Output = Self;
            fn bitor(self, other: Self) -> Self {
                self.union(other)
            }
        }

        impl core::ops::BitAnd for $name {
            type Output = Self;
            fn bitand(self, other: Self) -> Self {
                Self(self.0 & other.0)
            }
        }

        /// The kernel's names, joined by `|`; bits without a name as one hexadecimal number.
        impl core::fmt::Display for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                let mut sep = "";
                $(if self.contains(Self::$flag) {
                    write!(f, "{sep}{}", stringify!($flag))?;
                    sep = "|";
                })+
                let rest = self.without(Self::all());
                if !rest.is_empty() || self.is_empty() {
                    write!(f, "{sep}{:#x}", rest.0)?;
                }
                Ok(())
            }
        }

        impl core::fmt::Debug for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self)
            }
        }
    };
}

flags! {
    /// `UFFD_FEATURE_*`: what a kernel offers and what a descriptor asks for.
    Features {
        /// Write-protect faults are reported as such.
        PAGEFAULT_FLAG_WP = 0;
        /// A fork hands over a descriptor of the child. Needs CAP_SYS_PTRACE, else `EPERM`.
        EVENT_FORK = 1;
        /// mremap keeps the registration and is reported.
        EVENT_REMAP = 2;
        /// madvise(DONTNEED, REMOVE, FREE) is reported; the caller waits until it is read.
        EVENT_REMOVE = 3;
        /// Missing faults on hugetlbfs.
        MISSING_HUGETLBFS = 4;
        /// Missing faults on shared memory.
        MISSING_SHMEM = 5;
        /// munmap is reported.
        EVENT_UNMAP = 6;
        /// A fault raises SIGBUS in the faulting thread, no message is sent.
        SIGBUS = 7;
        /// Fault messages carry the thread's id.
        THREAD_ID = 8;
        /// Minor faults on hugetlbfs.
        MINOR_HUGETLBFS = 9;
        /// Minor faults on shared memory.
        MINOR_SHMEM = 10;
        /// Fault addresses are not rounded down to the page.
        EXACT_ADDRESS = 11;
        /// Write-protection of hugetlbfs and shared memory.
        WP_HUGETLBFS_SHMEM = 12;
        /// Write-protection of pages that are not there yet.
        WP_UNPOPULATED = 13;
        /// `UFFDIO_POISON`.
        POISON = 14;
        /// Write faults resolve themselves; `PAGEMAP_SCAN` tells what was written.
        WP_ASYNC = 15;
        /// `UFFDIO_MOVE`.
        MOVE = 16;
    }
}

flags! {
    /// `_UFFDIO_*`: operations that the kernel declares available, by their numbers.
    Ioctls {
        /// `UFFDIO_REGISTER`.
        REGISTER = 0x00;
        /// `UFFDIO_UNREGISTER`.
        UNREGISTER = 0x01;
        /// `UFFDIO_WAKE`.
        WAKE = 0x02;
        /// `UFFDIO_COPY`.
        COPY = 0x03;
        /// `UFFDIO_ZEROPAGE`.
        ZEROPAGE = 0x04;
        /// `UFFDIO_MOVE`.
        MOVE = 0x05;
        /// `UFFDIO_WRITEPROTECT`.
        WRITEPROTECT = 0x06;
        /// `UFFDIO_CONTINUE`.
        CONTINUE = 0x07;
        /// `UFFDIO_POISON`.
        POISON = 0x08;
        /// `UFFDIO_API`.
        API = 0x3f;
    }
}

flags! {
    /// `UFFDIO_REGISTER_MODE_*`: which accesses to a range are reported.
    RegisterMode {
        /// Access to a page that is not there.
        MISSING = 0;
        /// Write to a page that was write-protected through userfaultfd.
        WP = 1;
        /// Access to a page that is in the page cache but not mapped.
        MINOR = 2;
    }
}

flags! {
    /// `UFFDIO_COPY_MODE_*`.
    CopyMode {
        /// Leave waiting threads asleep; a later [`Uffd::wake`](crate::Uffd::wake) is due.
        DONTWAKE = 0;
        /// Install the pages write-protected.
        WP = 1;
    }
}

flags! {
    /// The mode of operations that know nothing but "do not wake": zeropage, continue, poison.
    WakeMode {
        /// Leave waiting threads asleep; a later [`Uffd::wake`](crate::Uffd::wake) is due.
        DONTWAKE = 0;
    }
}

flags! {
    /// `UFFDIO_MOVE_MODE_*`.
    MoveMode {
        /// Leave waiting threads asleep; a later [`Uffd::wake`](crate::Uffd::wake) is due.
        DONTWAKE = 0;
        /// Holes in the source are skipped and count as moved, instead of `ENOENT`.
        ALLOW_SRC_HOLES = 1;
    }
}

flags! {
    /// `UFFDIO_WRITEPROTECT_MODE_*`. Protecting wakes nobody, so the kernel refuses both bits
    /// together with `EINVAL`.
    ProtectMode {
        /// Write-protect; without this bit: lift the protection.
        WP = 0;
        /// After lifting, leave waiting threads asleep.
        DONTWAKE = 1;
    }
}

flags! {
    /// `PAGE_IS_*`: what `PAGEMAP_SCAN` says about a page.
    Categories {
        /// Lies in a range registered for asynchronous write-protection.
        WPALLOWED = 0;
        /// Written since it was last write-protected (a page without protection counts).
        WRITTEN = 1;
        /// File-backed or shared memory.
        FILE = 2;
        /// Mapped.
        PRESENT = 3;
        /// In the kernel's swap (or a migration or marker entry).
        SWAPPED = 4;
        /// Maps the shared zero page.
        PFNZERO = 5;
        /// Part of a mapping of the PMD size.
        HUGE = 6;
        /// Soft-dirty; needs a kernel built with it.
        SOFT_DIRTY = 7;
        /// A guard region (Linux 6.15 on).
        GUARD = 8;
    }
}

const _: () = assert!(Features::all().bits() == 0x1ffff);
