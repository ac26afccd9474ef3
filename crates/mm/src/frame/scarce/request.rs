//! What an allocation asks for, in the kernel's manner.

use super::mobility::Mobility;
use super::watermark::Mark;
use core::ops::BitOr;

/// A set of memory nodes: bit n is node n.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NodeMask(pub u64);

impl NodeMask {
    /// All nodes.
    pub const ALL: NodeMask = NodeMask(u64::MAX);
    /// Whether node `node` is in the set; false beyond 63.
    pub const fn has(self, node: u8) -> bool {
        node < 64 && self.0 >> node & 1 == 1
    }
}

/// Where the allocating task may have memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cpuset {
    /// Nodes of its own set.
    pub mems: NodeMask,
    /// Nodes of the nearest enclosing set that is a hard wall: a request without
    /// [`AllocFlags::HARDWALL`] may go there.
    pub hardwall: NodeMask,
}

impl Cpuset {
    /// No limit.
    pub const ALL: Cpuset = Cpuset {
        mems: NodeMask::ALL,
        hardwall: NodeMask::ALL,
    };
}

/// How an allocation may go about it.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct AllocFlags(u16);

impl AllocFlags {
    /// Tests the min mark first.
    pub const WMARK_MIN: AllocFlags = AllocFlags(1);
    /// Tests the low mark first. With neither of the two: the high mark.
    pub const WMARK_LOW: AllocFlags = AllocFlags(2);
    /// Ignores watermarks: the memory is needed to free more.
    pub const NO_WATERMARKS: AllocFlags = AllocFlags(4);
    /// May reclaim and wait for it.
    pub const DIRECT_RECLAIM: AllocFlags = AllocFlags(8);
    /// Wakes background reclaim when the free lists fail.
    pub const KSWAPD: AllocFlags = AllocFlags(16);
    /// Reclaims once at most.
    pub const NORETRY: AllocFlags = AllocFlags(32);
    /// Does not look for the reason of a failure.
    pub const NOWARN: AllocFlags = AllocFlags(64);
    /// Honours the cpuset.
    pub const CPUSET: AllocFlags = AllocFlags(128);
    /// Honours it strictly: its own nodes only.
    pub const HARDWALL: AllocFlags = AllocFlags(256);
    /// Tries again also above the costly order as long as reclaim gets somewhere.
    pub const RETRY_MAYFAIL: AllocFlags = AllocFlags(512);

    /// For the pages of programs.
    pub const USER: AllocFlags = AllocFlags(2 | 8 | 16 | 128 | 256);
    /// For huge pages: as [`AllocFlags::USER`], and failing is normal.
    pub const HUGE: AllocFlags = AllocFlags(Self::USER.0 | 64);
    /// For who must not wait.
    pub const ATOMIC: AllocFlags = AllocFlags(1 | 16);

    /// Whether all of `f` are set.
    pub const fn has(self, f: AllocFlags) -> bool {
        self.0 & f.0 == f.0
    }
    /// Without `f`.
    pub const fn without(self, f: AllocFlags) -> AllocFlags {
        AllocFlags(self.0 & !f.0)
    }
}

impl BitOr for AllocFlags {
    type Output = AllocFlags;
    fn bitor(self, other: AllocFlags) -> AllocFlags {
        AllocFlags(self.0 | other.0)
    }
}

/// One allocation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// Order of the block.
    pub order: u8,
    /// How to go about it.
    pub flags: AllocFlags,
    /// What can be done with the block later.
    pub mobility: Mobility,
    /// Nodes it may come from.
    pub nodes: NodeMask,
    /// The task's cpuset.
    pub cpuset: Cpuset,
    /// Pages that one pass of direct reclaim frees of a zone before it gives up; 0: the larger
    /// of a cluster and twice the block.
    pub reclaim_pages: u64,
}

impl Request {
    /// A request for pages of a program, from any node.
    pub const fn new(order: u8) -> Request {
        Request {
            order,
            flags: AllocFlags::USER,
            mobility: Mobility::Movable,
            nodes: NodeMask::ALL,
            cpuset: Cpuset::ALL,
            reclaim_pages: 0,
        }
    }
    /// With these flags.
    pub const fn with_flags(self, flags: AllocFlags) -> Request {
        Request { flags, ..self }
    }

    /// The mark to test; `None`: none (R5).
    pub const fn mark(&self) -> Option<Mark> {
        if self.flags.has(AllocFlags::NO_WATERMARKS) {
            None
        } else if self.flags.has(AllocFlags::WMARK_MIN) {
            Some(Mark::Min)
        } else if self.flags.has(AllocFlags::WMARK_LOW) {
            Some(Mark::Low)
        } else {
            Some(Mark::High)
        }
    }

    /// Whether a zone of `node` may serve it: the node mask always, the cpuset when the
    /// request honours it, its soft wall unless the request wants the hard one (R4).
    pub const fn permits(&self, node: u8) -> bool {
        if !self.nodes.has(node) {
            return false;
        }
        if !self.flags.has(AllocFlags::CPUSET) || self.cpuset.mems.has(node) {
            return true;
        }
        !self.flags.has(AllocFlags::HARDWALL) && self.cpuset.hardwall.has(node)
    }
}
