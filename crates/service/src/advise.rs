//! madvise: the core's, the kernel's, and what takes memory out of management.

use crate::serve::{Calls, pages, raw, vpn};
use crate::sys;
use core::ffi::c_int;
use deckle_mm::space::vma::OnFork;
use deckle_mm::{Advice, CollapseError};

/// `MADV_COLLAPSE`, which has no name on musl yet.
const COLLAPSE: c_int = 25;

/// Who follows an advice on managed memory.
enum By {
    /// The core.
    Core(Advice),
    /// The core, which makes huge pages now.
    Collapse,
    /// Nobody: managed memory is so already.
    Nobody,
    /// The service, when the program forks.
    Fork,
    /// The kernel, and the memory stays managed.
    Kernel,
    /// The kernel, who gets the memory.
    KernelAlone,
}

fn sort(advice: c_int) -> By {
    match advice {
        libc::MADV_NORMAL | libc::MADV_RANDOM | libc::MADV_SEQUENTIAL | libc::MADV_UNMERGEABLE => {
            By::Nobody
        }
        libc::MADV_DONTFORK | libc::MADV_DOFORK | libc::MADV_WIPEONFORK | libc::MADV_KEEPONFORK => {
            By::Fork
        }
        libc::MADV_DONTDUMP | libc::MADV_DODUMP => By::Kernel,
        libc::MADV_WILLNEED => By::Core(Advice::WillNeed),
        libc::MADV_DONTNEED | libc::MADV_DONTNEED_LOCKED => By::Core(Advice::DontNeed),
        libc::MADV_FREE => By::Core(Advice::Free),
        libc::MADV_COLD => By::Core(Advice::Cold),
        libc::MADV_PAGEOUT => By::Core(Advice::PageOut),
        COLLAPSE => By::Collapse,
        libc::MADV_HUGEPAGE => By::Core(Advice::HugePage),
        libc::MADV_NOHUGEPAGE => By::Core(Advice::NoHugePage),
        libc::MADV_POPULATE_READ => By::Core(Advice::PopulateRead),
        libc::MADV_POPULATE_WRITE => By::Core(Advice::PopulateWrite),
        // MERGEABLE, guard pages, and what comes after us.
        _ => By::KernelAlone,
    }
}

/// What a fork does with a range after such an advice. What is left and wiped is left.
fn on_fork(advice: c_int, before: OnFork) -> OnFork {
    match (advice, before) {
        (libc::MADV_DONTFORK, _) => OnFork::Leave,
        (libc::MADV_DOFORK, OnFork::Leave) | (libc::MADV_KEEPONFORK, OnFork::Wipe) => OnFork::Copy,
        (libc::MADV_WIPEONFORK, OnFork::Copy) => OnFork::Wipe,
        (_, before) => before,
    }
}

/// Why not every block is a huge page, as madvise(2) has it.
fn refusal(why: CollapseError) -> i32 {
    match why {
        CollapseError::NoMemory => libc::ENOMEM,
        CollapseError::Limit | CollapseError::ExceedNone(_) | CollapseError::ExceedSwap(_) => {
            libc::EBUSY
        }
        CollapseError::Page(_) | CollapseError::ExceedShared(_) => libc::EAGAIN,
        CollapseError::Vma
        | CollapseError::Huge
        | CollapseError::Cold
        | CollapseError::Protected(_) => libc::EINVAL,
    }
}

impl Calls {
    /// madvise: address, bytes, advice.
    pub fn advise(&mut self, args: [usize; 6]) -> Result<usize, i32> {
        let [addr, bytes, word, ..] = args;
        let advice = word as c_int;
        // Of no length: only whether the kernel knows it.
        raw(libc::SYS_madvise, [addr, 0, word])?;
        let by = match advice {
            // Holes in files: there is none here.
            libc::MADV_REMOVE => return Err(libc::EINVAL),
            advice => sort(advice),
        };
        self.refuse_locked(addr, bytes, advice)?;
        let kernel = |_: &crate::process::Manager, _, start: deckle_mm::Vpn, n: u64| {
            let bytes = n as usize * sys::PAGE;
            let _ = raw(libc::SYS_madvise, [start.addr() as usize, bytes, word]);
            Ok(())
        };
        match by {
            By::Core(core @ (Advice::DontNeed | Advice::Free)) => {
                self.on(libc::SYS_madvise, args, |mm, space, start, n| {
                    let parts = mm.mapped_parts(space, start, n);
                    let locked = || parts.iter().filter(|v| v.locked);
                    locked().try_for_each(|v| mm.munlock(space, v.start, v.pages))?;
                    let done = mm.madvise(space, start, n, core);
                    locked().try_for_each(|v| mm.lock_present(space, v.start, v.pages))?;
                    done
                })
            }
            By::Core(Advice::PageOut) => {
                let process = self.process;
                self.on(libc::SYS_madvise, args, |_, _, start, n| {
                    let done = process.pager.page_out(start, n);
                    // No fault has told that there is something new to be published.
                    process.publish();
                    done
                })
            }
            By::Core(core) => self.on(libc::SYS_madvise, args, |mm, space, start, n| {
                mm.madvise(space, start, n, core)
            }),
            By::Collapse => self.collapse(addr, bytes),
            By::Fork => self.on(libc::SYS_madvise, args, |mm, space, start, n| {
                let parts = mm.mapped_parts(space, start, n);
                parts.iter().try_for_each(|v| {
                    mm.advise_fork(space, v.start, v.pages, on_fork(advice, v.on_fork))
                })
            }),
            By::Nobody => self.on(libc::SYS_madvise, args, |_, _, _, _| Ok(())),
            By::Kernel => {
                self.undumped = true;
                self.on(libc::SYS_madvise, args, kernel)
            }
            By::KernelAlone => {
                self.surrender(addr, bytes)?;
                raw(libc::SYS_madvise, [addr, bytes, word])
            }
        }
    }

    /// MADV_COLLAPSE: huge pages of all whole blocks of the range.
    fn collapse(&mut self, addr: usize, bytes: usize) -> Result<usize, i32> {
        let process = self.process;
        let (mm, space) = process.memory();
        for (start, len, foreign) in self.parts(addr, bytes) {
            if foreign {
                let args = [start, len, COLLAPSE as usize];
                raw(libc::SYS_madvise, args)?;
            } else {
                let done = mm.collapse_range(space, vpn(start), pages(len));
                // No fault has told that there is something new to be published.
                process.publish();
                done.map_err(refusal)?;
            }
        }
        Ok(0)
    }

    /// EINVAL for advice that takes pages away, on a range of which a part is locked.
    fn refuse_locked(&self, addr: usize, bytes: usize, advice: c_int) -> Result<(), i32> {
        let takes = matches!(
            advice,
            libc::MADV_DONTNEED | libc::MADV_FREE | libc::MADV_COLD | libc::MADV_PAGEOUT
        );
        let parts = || self.process.mapped_parts(addr, bytes);
        match takes && parts().iter().any(|v| v.locked && !self.process.is_held(v)) {
            true => Err(libc::EINVAL),
            false => Ok(()),
        }
    }
}
