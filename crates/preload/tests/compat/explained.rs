//! Why a case differs under deckle.

use super::Row;
use super::view::Difference::{self, Bytes, Flags, Huge, Less, Locked, More, Result};

/// One reason.
pub struct Explanation {
    /// Names of calls: a star is any text.
    calls: &'static [&'static str],
    /// States; none means all.
    states: &'static [&'static str],
    /// In which respects.
    what: &'static [Difference],
    /// As it stands in COMPAT.md.
    pub text: &'static str,
}

fn is_like(name: &str, pattern: &str) -> bool {
    let Some((start, rest)) = pattern.split_once('*') else {
        return name == pattern;
    };
    let Some(name) = name.strip_prefix(start) else {
        return false;
    };
    // What stands after a star is looked for from every place on.
    (0..=name.len()).any(|at| name.is_char_boundary(at) && is_like(&name[at..], rest))
}

impl Explanation {
    /// Whether it says why this case differs in this respect.
    pub fn fits(&self, row: &Row, difference: Difference) -> bool {
        self.what.contains(&difference)
            && (self.states.is_empty() || self.states.contains(&row.state.as_str()))
            && self.calls.iter().any(|p| is_like(&row.call, p))
    }
}

const AWAY: &[&str] = &["evicted", "zeros"];
/// Where the call does something else, all that follows from it.
const ALL: &[Difference] = &[Result, Bytes, Less, More, Huge, Flags];

/// All of them. The first that fits explains.
pub const EXPLANATIONS: &[Explanation] = &[
    Explanation {
        calls: &["/proc/self/mem*"],
        states: &["fresh", "evicted", "zeros", "forked"],
        what: ALL,
        text: "DEFECT, of the kernel's making: `/proc/PID/mem` (and ptrace, which debuggers \
               use) touches a page in a way that cannot wait for a userfaultfd, so that what \
               is not there, and for a write what is protected since a fork, is EIO. No \
               wrong byte is read or written. `process_vm_readv` and `process_vm_writev` \
               wait, and work.",
    },
    Explanation {
        calls: &["mremap MREMAP_DONTUNMAP to a hint"],
        states: &[],
        what: &[Result],
        text: "The address of MREMAP_DONTUNMAP without MREMAP_FIXED is a hint, which deckle \
               does not follow.",
    },
    Explanation {
        calls: &["mmap of a tebibyte"],
        states: &[],
        what: &[Result],
        text: "Natively a question of the RAM there is (`vm.overcommit_memory`). deckle \
               refuses only more than a tebibyte of writable memory without MAP_NORESERVE.",
    },
    Explanation {
        calls: &["mmap MAP_HUGETLB*"],
        states: &[],
        what: &[Bytes, Less, More, Huge, Flags],
        text: "Where the pool has no page the kernel has unmapped what was there before it \
               refuses. deckle tries elsewhere first, so that what is refused changes \
               nothing.",
    },
    Explanation {
        calls: &["madvise MADV_COLLAPSE*", "process_madvise MADV_COLLAPSE"],
        states: &["huge"],
        what: &[Result],
        text: "A range without a whole block that does not begin at one: EINVAL from the \
               kernel, 0 (there was nothing to do) from deckle, as the kernel says where it \
               begins at one.",
    },
    Explanation {
        calls: &["msync MS_INVALIDATE"],
        states: &["locked"],
        what: &[Result],
        text: "The kernel does not know of the lock, which is deckle's own, and has nothing \
               against it.",
    },
    Explanation {
        calls: &["mincore*", "move_pages*"],
        states: AWAY,
        what: &[Result],
        text: "The kernel's answer: what has been evicted is not there, as if it were in \
               swap.",
    },
    Explanation {
        calls: &["*PROT_WRITE", "*PROT_EXEC"],
        states: &[],
        what: &[Flags],
        text: "deckle gives whoever may write or execute the right to read, too, which the \
               hardware cannot withhold (x86 without protection keys). The bytes can be read \
               natively as well.",
    },
    Explanation {
        calls: &["madvise MADV_WIPEONFORK*"],
        states: &[],
        what: &[Flags],
        text: "What a child gets is decided by deckle at the fork, so smaps has no `wf`; the \
               other side has zeros as natively.",
    },
    Explanation {
        calls: &["*MADV_GUARD_INSTALL*"],
        states: &[],
        what: &[Flags],
        text: "The range leaves management and becomes a mapping of its own; natively `gu` \
               is said of the whole mapping around it.",
    },
    Explanation {
        calls: &["mremap*"],
        states: &["written", "huge", "forked", "locked"],
        what: &[Less, Huge],
        text: "Pages that are moved rest aside until they are touched, or show again at once \
               where they are locked; what a locked mapping has grown by is not populated.",
    },
    Explanation {
        calls: &[
            "*MADV_PAGEOUT*",
            "process_madvise by the number*",
            "process_madvise not aligned",
        ],
        states: &["written", "huge"],
        what: &[Less, Huge],
        text: "MADV_PAGEOUT evicts; natively without swap it does nothing.",
    },
    Explanation {
        calls: &["*MADV_COLD*", "*MADV_FREE*"],
        states: &["written", "huge"],
        what: &[Less, Huge],
        text: "What is cold, or free until it is written again, is unmapped and rests aside, \
               so that the next touch tells; natively it stays mapped. A part of a huge page \
               stays a part of it.",
    },
    Explanation {
        calls: &["madvise*of a part", "pkey_mprotect*", "munlock of a part"],
        states: &["huge"],
        what: &[Huge],
        text: "A call on a part of a huge page: the kernel cuts the mapping and takes the \
               page apart where the flags of the mapping change, deckle where the rights \
               change or the memory leaves management.",
    },
    Explanation {
        calls: &["madvise MADV_DONTNEED*, and fork"],
        states: &["huge"],
        what: &[More],
        text: "A write to a hole maps what the fault order has found worth while, not one \
               page.",
    },
    Explanation {
        calls: &["*"],
        states: AWAY,
        what: &[Less],
        text: "What has been evicted lies in the store, or was found to be zeros and \
               dropped: mincore, smaps and pagemap say that it is not resident.",
    },
    Explanation {
        calls: &["*"],
        states: &[],
        what: &[Locked],
        text: "A lock is deckle's own: the pages stay and are charged, but smaps has no `lo` \
               and no amount that is locked, and VmLck does not count them.",
    },
];
