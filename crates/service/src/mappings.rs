//! How many mappings the kernel allows a process, and how many are left.
//!
//! At that limit not only calls of the program fail: the service cannot map memory for its own
//! tables any more, and dies. So the program is refused a little earlier, with the same ENOMEM.

use crate::process::Process;
use crate::serve::{Calls, pages, vpn};
use crate::sys::PAGE;

/// What is kept for the service: of the limit, one part in so many.
const RESERVE: usize = 64;
/// After so many calls the count is taken for old: other mappings come and go unseen, and how
/// many there are costs milliseconds to find out.
const OLD: u32 = 4096;
/// The same when there was no room.
const OLD_FULL: u32 = 64;

/// A count of the process's mappings.
pub struct Mappings {
    /// The limit (`vm.max_map_count`), without the reserve.
    most: usize,
    counted: usize,
    /// Mappings in the core's tree when they were counted.
    tree: usize,
    age: u32,
}

/// Reads the limit; the default one if that is impossible.
pub fn most() -> usize {
    let read = || std::fs::read_to_string("/proc/sys/vm/max_map_count").ok();
    let text = crate::door().may(libc::SYS_open).then(read).flatten();
    let limit = text.and_then(|text| text.trim().parse().ok());
    limit.unwrap_or(65530)
}

impl Mappings {
    /// With that limit.
    pub fn new(limit: usize) -> Mappings {
        Mappings {
            most: limit - limit / RESERVE,
            counted: 0,
            tree: 0,
            age: OLD,
        }
    }

    /// Whether the kernel has hardly a mapping left.
    pub fn is_full(&mut self, process: &Process) -> bool {
        let (mm, space) = process.memory();
        let tree = mm.mappings(space);
        // Between two of the core's mappings there may be one without access.
        if 2 * tree < self.most / 2 {
            return false;
        }
        let fits = |m: &Mappings| m.counted + 2 * tree.saturating_sub(m.tree) + 2 < m.most;
        self.age += 1;
        match fits(self) {
            true if self.age < OLD => return false,
            false if self.age < OLD_FULL && tree == self.tree => return true,
            _ => {}
        }
        (self.counted, self.tree, self.age) = (process.own.count_mappings(), tree, 0);
        !fits(self)
    }
}

impl Calls {
    /// ENOMEM if a change of this range would cut mappings and the kernel has hardly one left.
    pub fn may_cut(&mut self, addr: usize, bytes: usize) -> Result<(), i32> {
        if !self.mappings.is_full(self.process) {
            return Ok(());
        }
        let (mm, space) = self.process.memory();
        let end = addr.saturating_add(bytes);
        // One mapping on both sides of an edge is cut there.
        let cut = |at: usize| {
            let around = self.process.mapped_parts(at.saturating_sub(PAGE), 2 * PAGE);
            around.len() == 1 && around[0].pages == 2
        };
        match cut(addr) || cut(end) || !mm.is_mapped(space, vpn(addr), pages(bytes)) {
            true => Err(libc::ENOMEM),
            false => Ok(()),
        }
    }
}
