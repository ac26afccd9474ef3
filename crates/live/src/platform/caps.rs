//! What this system allows, found out by the self-test and passed on as one number.

use core::fmt;

/// One ability of the system.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Capability {
    /// The self-test ran to its end.
    Tested = 0,
    /// A descriptor that also serves faults which the kernel takes for system calls.
    KernelFaults = 1,
    /// `UFFDIO_MOVE` moves small pages both ways without losing a byte.
    Move = 2,
    /// Clearing a block's page table before the move keeps a huge page huge.
    BlockRecipe = 3,
    /// Write-protected runs of the zero page work.
    ZeroRuns = 4,
    /// A touch of advised memory gives a huge page.
    HugeByFault = 5,
    /// `MADV_COLLAPSE` makes a huge page.
    HugeByCollapse = 6,
    /// Asynchronous write-protection is offered.
    AsyncProtect = 7,
    /// `/proc/self/mem` reads memory without access rights.
    ProcMem = 8,
}

impl Capability {
    /// All of them.
    pub const ALL: [Capability; 9] = [
        Capability::Tested,
        Capability::KernelFaults,
        Capability::Move,
        Capability::BlockRecipe,
        Capability::ZeroRuns,
        Capability::HugeByFault,
        Capability::HugeByCollapse,
        Capability::AsyncProtect,
        Capability::ProcMem,
    ];

    /// What its absence means for a program, in one line.
    pub const fn without(self) -> &'static str {
        match self {
            Capability::Tested => {
                "the self-test did not finish: no userfaultfd, no pagemap or no memory"
            }
            Capability::KernelFaults => {
                "userfaultfd serves user-mode faults only: a system call that is given evicted \
                 memory fails with EFAULT; grant CAP_SYS_PTRACE, set \
                 vm.unprivileged_userfaultfd=1, or give access to /dev/userfaultfd"
            }
            Capability::Move => {
                "UFFDIO_MOVE is missing or failed its test (Linux 6.8 has it): pages are copied, \
                 and no huge page survives in the program"
            }
            Capability::BlockRecipe => {
                "MADV_DONTNEED does not free page tables (CONFIG_PT_RECLAIM, Linux 6.14): managed \
                 ranges are advised huge instead, and the first write to a block costs one \
                 discarded huge page"
            }
            Capability::ZeroRuns => {
                "zero pages cannot be write-protected: reads of untouched memory are charged like \
                 writes"
            }
            Capability::HugeByFault => {
                "a touch gives no huge page (transparent_hugepage/enabled is never, or memory is \
                 fragmented): huge pages are collapsed ahead of need if that works"
            }
            Capability::HugeByCollapse => {
                "MADV_COLLAPSE makes no huge page (Linux 6.1 has it): huge pages come by touch \
                 only"
            }
            Capability::AsyncProtect => {
                "no asynchronous write-protection (Linux 6.7 has it): dirty pages cannot be told"
            }
            Capability::ProcMem => {
                "/proc/self/mem cannot be read: memory without access rights is not evicted"
            }
        }
    }
}

/// A set of [`Capability`].
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Capabilities(u64);

impl Capabilities {
    /// From the number that [`bits`](Self::bits) gave, in whatever process.
    pub const fn from_bits(bits: u64) -> Capabilities {
        Capabilities(bits)
    }
    /// The set as a number.
    pub const fn bits(self) -> u64 {
        self.0
    }
    /// Whether the system has it.
    pub const fn has(self, c: Capability) -> bool {
        self.0 >> c as u8 & 1 == 1
    }
    /// The set with `c` added.
    pub const fn with(self, c: Capability) -> Capabilities {
        Capabilities(self.0 | 1 << c as u8)
    }
    /// The set without `c`.
    pub const fn without(self, c: Capability) -> Capabilities {
        Capabilities(self.0 & !(1 << c as u8))
    }
    /// Whether huge pages can reach the program.
    pub const fn huge(self) -> bool {
        self.has(Capability::Move)
            && (self.has(Capability::HugeByFault) || self.has(Capability::HugeByCollapse))
    }
    /// What is missing, each with its meaning.
    pub fn missing(self) -> impl Iterator<Item = (Capability, &'static str)> {
        Capability::ALL
            .into_iter()
            .filter(move |c| !self.has(*c))
            .map(|c| (c, c.without()))
    }
}

impl fmt::Debug for Capabilities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set()
            .entries(Capability::ALL.iter().filter(|c| self.has(**c)))
            .finish()
    }
}
