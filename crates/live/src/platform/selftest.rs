//! Proves in a few milliseconds, on memory of its own, what the design rests on.
//!
//! Nothing is believed because a version number or a feature bit says so: each fact is tried
//! and the bytes are compared. The range is never touched while a page of it is away, so that
//! the test cannot wait for a fault that nobody serves.

use std::fs::File;
use std::os::fd::AsRawFd;

use deckle_uffd::{
    Categories, CopyMode, Errno, Features, MoveMode, Pagemap, PagemapScan, ProtectMode, Region,
    RegisterMode, Uffd, WakeMode,
};

use super::caps::{Capabilities, Capability};
use super::kernel::{self, Advice, BLOCK, PAGE, Reservation};

/// Finds out what this system allows. On a system without userfaultfd the set is empty.
pub fn self_test() -> Capabilities {
    let mut caps = Capabilities::default();
    let user_only = match Uffd::open_any(false) {
        Ok(_) => {
            caps = caps.with(Capability::KernelFaults);
            false
        }
        Err(_) => true,
    };
    let Ok((probe, via)) = Uffd::open_any(user_only) else {
        return caps;
    };
    drop(probe);
    let Ok(offered) = Uffd::probe(via, user_only) else {
        return caps;
    };
    if offered.contains(Features::WP_ASYNC) {
        caps = caps.with(Capability::AsyncProtect);
    }
    let with = |features| {
        let uffd = Uffd::open(via, user_only)?;
        uffd.api(features).map(|_| uffd)
    };
    let wanted = (Features::PAGEFAULT_FLAG_WP | Features::MOVE) & offered;
    let (Ok(uffd), Ok(pagemap)) = (with(wanted), Pagemap::open_self()) else {
        return caps;
    };
    let Ok(ground) = Ground::new(&uffd, &pagemap) else {
        return caps;
    };
    for (capability, holds) in [
        (Capability::HugeByCollapse, ground.collapses()),
        (Capability::HugeByFault, ground.touches()),
        (Capability::ZeroRuns, ground.zero_runs()),
        (Capability::ProcMem, ground.reads_without_rights()),
        (Capability::Move, ground.moves_small()),
    ] {
        if holds {
            caps = caps.with(capability);
        }
    }
    if caps.huge() {
        let collapse = !caps.has(Capability::HugeByFault);
        match ground.moves_huge(collapse) {
            // A huge page that loses bytes on the way: no moves at all.
            None => caps = caps.without(Capability::Move),
            Some(true) => caps = caps.with(Capability::BlockRecipe),
            Some(false) => {}
        }
    }
    caps.with(Capability::Tested)
}

/// Three blocks: `source` is nobody's, `program` and `parking` are registered as the real ones
/// are.
struct Ground<'a> {
    range: Reservation,
    uffd: &'a Uffd,
    pagemap: &'a Pagemap,
}

const SMALL: usize = 16 * PAGE;

impl<'a> Ground<'a> {
    fn new(uffd: &'a Uffd, pagemap: &'a Pagemap) -> Result<Self, Errno> {
        let range = Reservation::new(3 * BLOCK, libc::PROT_READ | libc::PROT_WRITE)?;
        let ground = Ground {
            range,
            uffd,
            pagemap,
        };
        // SAFETY: no bytes dropped, own mapping. Refused by kernels without huge pages only.
        unsafe {
            let _ = kernel::madvise(ground.source(), BLOCK, Advice::Huge);
            let _ = kernel::madvise(ground.managed(), BLOCK, Advice::NoHuge);
            let _ = kernel::madvise(ground.parking(), BLOCK, Advice::Huge);
        }
        let both = RegisterMode::MISSING | RegisterMode::WP;
        uffd.register(ground.managed(), BLOCK, both)?;
        uffd.register(ground.parking(), BLOCK, RegisterMode::WP)?;
        Ok(ground)
    }

    fn source(&self) -> usize {
        self.range.base()
    }
    fn managed(&self) -> usize {
        self.range.base() + BLOCK
    }
    fn parking(&self) -> usize {
        self.range.base() + 2 * BLOCK
    }

    fn empty(&self, start: usize) {
        // SAFETY: a block of the test's own memory.
        let _ = unsafe { kernel::drop_pages(start, BLOCK) };
    }

    fn huge(&self, start: usize) -> bool {
        let all = Categories::PRESENT | Categories::HUGE;
        self.pagemap
            .count(start, start + BLOCK, all, Categories::empty())
            == Ok(BLOCK)
    }

    /// Writes a different word into each page.
    fn mark(&self, start: usize, len: usize) {
        for at in (0..len).step_by(PAGE) {
            // SAFETY: own memory, readable and writable, unregistered or present.
            unsafe { ((start + at) as *mut usize).write_volatile(!at) };
        }
    }

    /// Whether every page is present and holds its word.
    fn marked(&self, start: usize, len: usize) -> bool {
        let none = Categories::empty();
        self.pagemap
            .count(start, start + len, Categories::PRESENT, none)
            == Ok(len)
            && (0..len).step_by(PAGE).all(|at| {
                // SAFETY: own memory, present as just seen, so the read waits for nobody.
                unsafe { ((start + at) as *const usize).read_volatile() == !at }
            })
    }

    fn touches(&self) -> bool {
        self.empty(self.source());
        self.mark(self.source(), PAGE);
        self.huge(self.source())
    }

    fn collapses(&self) -> bool {
        self.empty(self.source());
        // SAFETY: as above; collapsing changes no byte.
        unsafe { kernel::madvise(self.source(), BLOCK, Advice::NoHuge).ok() };
        self.mark(self.source(), PAGE);
        // SAFETY: as above.
        let collapsed = unsafe {
            let _ = kernel::madvise(self.source(), BLOCK, Advice::Huge);
            kernel::madvise(self.source(), BLOCK, Advice::Collapse)
        };
        collapsed.is_ok() && self.huge(self.source())
    }

    fn zero_runs(&self) -> bool {
        let (start, len) = (self.managed(), SMALL);
        self.empty(start);
        // SAFETY: own memory, empty.
        let filled = unsafe { self.uffd.zeropage(start, len, WakeMode::DONTWAKE) };
        let protected = self.uffd.write_protect(start, len, ProtectMode::WP);
        let mut query = PagemapScan::any(start, start + len, Categories::PFNZERO);
        query.inverted = Categories::WRITTEN;
        query.required = Categories::PRESENT | Categories::PFNZERO | Categories::WRITTEN;
        query.any_of = Categories::empty();
        let mut out = [Region::default(); 2];
        let seen = self.pagemap.scan(&query, &mut out);
        self.empty(start);
        filled.is_ok()
            && protected.is_ok()
            && seen.is_ok_and(|s| s.regions == 1)
            && out[0].bytes() == len
    }

    fn reads_without_rights(&self) -> bool {
        let Ok(mem) = File::open("/proc/self/mem") else {
            return false;
        };
        let mut word = 0usize;
        self.empty(self.source());
        self.mark(self.source(), PAGE);
        // SAFETY: own memory; the rights come back before anything else touches it, and pread
        // fills one word.
        unsafe {
            let closed = kernel::mprotect(self.source(), PAGE, libc::PROT_NONE);
            let to = (&raw mut word).cast();
            let got = libc::pread64(mem.as_raw_fd(), to, 8, self.source() as i64);
            let open = libc::PROT_READ | libc::PROT_WRITE;
            let opened = kernel::mprotect(self.source(), PAGE, open);
            closed.is_ok() && opened.is_ok() && got == 8 && word == !0
        }
    }

    fn moves_small(&self) -> bool {
        self.empty(self.source());
        self.empty(self.managed());
        self.empty(self.parking());
        // SAFETY: own memory; advice that drops nothing.
        unsafe { kernel::madvise(self.source(), BLOCK, Advice::NoHuge).ok() };
        self.mark(self.source(), SMALL);
        let ok = self.shift(self.managed(), self.source(), SMALL)
            && self.shift(self.parking(), self.managed(), SMALL)
            && self.shift(self.managed(), self.parking(), SMALL);
        // SAFETY: as above.
        unsafe { kernel::madvise(self.source(), BLOCK, Advice::Huge).ok() };
        ok
    }

    /// Moves and compares.
    fn shift(&self, dst: usize, src: usize, len: usize) -> bool {
        // SAFETY: own memory, dst empty, nobody else knows src.
        let moved = unsafe { self.uffd.move_pages(dst, src, len, MoveMode::empty()) };
        moved.is_ok() && self.marked(dst, len)
    }

    /// Moves a huge page into a block that has a page table, by the recipe, and out again.
    /// `None`: failed or lost bytes. Some: whether it stayed huge all the way.
    fn moves_huge(&self, collapse: bool) -> Option<bool> {
        for start in [self.source(), self.managed(), self.parking()] {
            self.empty(start);
        }
        self.mark(self.source(), PAGE);
        if collapse {
            // SAFETY: collapsing changes no byte.
            unsafe { kernel::madvise(self.source(), BLOCK, Advice::Collapse).ok() };
        }
        if !self.huge(self.source()) {
            // No huge page right now: nothing was disproved, nothing proved.
            return Some(false);
        }
        self.mark(self.source(), BLOCK);
        // What a fault leaves behind: a page table without pages.
        let page = self.parking() as *const u8;
        // SAFETY: own memory; the copied page is given back at once, the parking block's too.
        unsafe {
            let left = self
                .uffd
                .copy(self.managed(), page, PAGE, CopyMode::empty());
            left.ok()?;
            kernel::drop_pages(self.managed(), PAGE).ok()?;
        }
        self.empty(self.parking());
        self.empty(self.managed());
        let mut kept = true;
        for (dst, src) in [
            (self.managed(), self.source()),
            (self.parking(), self.managed()),
            (self.managed(), self.parking()),
        ] {
            if !self.shift(dst, src, BLOCK) {
                return None;
            }
            kept &= self.huge(dst);
        }
        Some(kept)
    }
}
