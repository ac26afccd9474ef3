//! madvise: the core's, the kernel's, and what takes memory out of management.

use crate::serve::{Calls, pages, raw, vpn};
use crate::sys;
use core::ffi::c_int;
use deckle_mm::table::vma::OnFork;
use deckle_mm::{Advice, CollapseError};
use libc::{MADV_DOFORK, MADV_DONTFORK, MADV_KEEPONFORK, MADV_NORMAL, MADV_RANDOM};
use libc::{MADV_SEQUENTIAL, MADV_UNMERGEABLE, MADV_WIPEONFORK};

/// `MADV_COLLAPSE`, which has no name on musl yet.
const COLLAPSE: c_int = 25;

/// An advice that the core follows.
fn of_core(advice: c_int) -> Option<Advice> {
    Some(match advice {
        libc::MADV_WILLNEED => Advice::WillNeed,
        libc::MADV_DONTNEED | libc::MADV_DONTNEED_LOCKED => Advice::DontNeed,
        libc::MADV_FREE => Advice::Free,
        libc::MADV_COLD => Advice::Cold,
        libc::MADV_PAGEOUT => Advice::PageOut,
        libc::MADV_HUGEPAGE => Advice::HugePage,
        libc::MADV_NOHUGEPAGE => Advice::NoHugePage,
        libc::MADV_POPULATE_READ => Advice::PopulateRead,
        libc::MADV_POPULATE_WRITE => Advice::PopulateWrite,
        _ => return None,
    })
}

/// Whether the kernel keeps an advice with the mapping, so that who adopts the mapping must know.
pub fn is_kept(word: usize) -> bool {
    let kept = [MADV_DONTFORK, MADV_DOFORK, MADV_WIPEONFORK, MADV_KEEPONFORK];
    kept.contains(&(word as c_int))
}

/// What a fork does with a range after such an advice. What is left and wiped is left.
fn on_fork(advice: c_int, before: OnFork) -> OnFork {
    match (advice, before) {
        (MADV_DONTFORK, _) => OnFork::Leave,
        (MADV_DOFORK, OnFork::Leave) | (MADV_KEEPONFORK, OnFork::Wipe) => OnFork::Copy,
        (MADV_WIPEONFORK, OnFork::Copy) => OnFork::Wipe,
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
        self.refuse_locked(addr, bytes, advice)?;
        if let Some(core) = of_core(advice) {
            return self.advise_core(args, core);
        }
        match advice {
            // Holes in files: there is none here.
            libc::MADV_REMOVE => Err(libc::EINVAL),
            COLLAPSE => self.collapse(addr, bytes),
            // Nobody follows it: managed memory is so already.
            MADV_NORMAL | MADV_RANDOM | MADV_SEQUENTIAL | MADV_UNMERGEABLE => {
                self.on(libc::SYS_madvise, args, |_, _, _, _| Ok(()))
            }
            // The service, when the program forks.
            MADV_DONTFORK | MADV_DOFORK | MADV_WIPEONFORK | MADV_KEEPONFORK => {
                self.on(libc::SYS_madvise, args, |mm, space, start, n| {
                    let parts = mm.mapped_parts(space, start, n);
                    parts.iter().try_for_each(|v| {
                        mm.advise_fork(space, v.start, v.pages, on_fork(advice, v.on_fork))
                    })
                })
            }
            // The kernel, and the memory stays managed.
            libc::MADV_DONTDUMP | libc::MADV_DODUMP => {
                self.undumped = true;
                self.on(libc::SYS_madvise, args, |_, _, start, n| {
                    let bytes = n as usize * sys::PAGE;
                    let _ = raw(libc::SYS_madvise, [start.addr() as usize, bytes, word]);
                    Ok(())
                })
            }
            // The kernel, who gets the memory: MERGEABLE, guard pages, and what comes after us.
            _ => {
                self.surrender(addr, bytes)?;
                raw(libc::SYS_madvise, [addr, bytes, word])
            }
        }
    }

    /// Advice that the core follows.
    fn advise_core(&self, args: [usize; 6], advice: Advice) -> Result<usize, i32> {
        let process = self.process;
        self.on(
            libc::SYS_madvise,
            args,
            |mm, space, start, n| match advice {
                Advice::DontNeed | Advice::Free => {
                    let parts = mm.mapped_parts(space, start, n);
                    let locked = || parts.iter().filter(|v| v.locked);
                    locked().try_for_each(|v| mm.munlock(space, v.start, v.pages))?;
                    let done = mm.madvise(space, start, n, advice);
                    locked().try_for_each(|v| mm.lock_present(space, v.start, v.pages))?;
                    done
                }
                Advice::PageOut => {
                    let done = process.pager.page_out(start, n);
                    // No fault has told that there is something new to be published.
                    process.publish();
                    done
                }
                _ => mm.madvise(space, start, n, advice),
            },
        )
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
