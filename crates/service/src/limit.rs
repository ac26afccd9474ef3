//! The program's limit on its address space: what the service reserves does not count, and calls
//! that the kernel does not see are refused here.
//!
//! The program's side keeps the kernel's limit higher than the program's by what is reserved; see
//! `limits` there. Nothing of this costs anything while no limit is set.

use crate::locks::bytes_of;
use crate::process::Process;
use crate::serve::Calls;
use crate::{door, heap, threads};
use core::ffi::c_int;
use core::sync::atomic::Ordering::{Acquire, Relaxed};
use deckle_door::Op;

/// The program's limit, if it has one.
fn limit() -> Option<usize> {
    Some(door().limit.load(Acquire)).filter(|limit| *limit != usize::MAX)
}

impl Process {
    /// Bytes of address space that the kernel counts and that are none of the program's.
    pub fn reserved(&self) -> usize {
        let platform = self.pager.platform();
        let ranges = platform.parking().range().1 + platform.nursery().range().1;
        let image = door().image.load(Relaxed);
        let group = deckle_group::layout::BYTES;
        ranges + image + heap::mapped_bytes() + threads::stacks() + group
    }
}

impl Calls {
    /// ENOMEM if a call would take the program over its limit.
    pub fn may_grow(&self, op: Op, args: [usize; 6]) -> Result<(), i32> {
        let Some(limit) = limit() else {
            return Ok(());
        };
        let [addr, bytes, new, flags, ..] = args;
        let more = match op {
            Op::Map => bytes,
            Op::MapFixed => {
                let there = bytes_of(&self.process.mapped_parts(addr, bytes));
                bytes.saturating_sub(there)
            }
            Op::Remap if flags as c_int & libc::MREMAP_DONTUNMAP != 0 => new,
            Op::Remap => new.saturating_sub(bytes),
            _ => 0,
        };
        if more == 0 {
            return Ok(());
        }
        let size = self.process.own.figure("VmSize:");
        let own = size.saturating_sub(self.process.reserved());
        match own.saturating_add(more) > limit {
            true => Err(libc::ENOMEM),
            false => Ok(()),
        }
    }

    /// After a call that may have changed what is reserved: the program's side shall know.
    pub fn note_reserved(&self, op: Op) {
        let changes = matches!(
            op,
            Op::Map | Op::MapFixed | Op::Unmap | Op::Remap | Op::Leave | Op::Surrender
        );
        if changes && limit().is_some() {
            door().reserved.store(self.process.reserved(), Relaxed);
        }
    }
}
