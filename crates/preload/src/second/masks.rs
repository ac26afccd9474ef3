//! Signals as the program believes to have set them: SIGSYS is never blocked, and its handler
//! is ours.

use crate::caught::{self, Action, SIGSYS_BIT};
use crate::sys;
use core::cell::UnsafeCell;
use libc::c_long;

struct Kept(UnsafeCell<Action>);
// SAFETY: a record of plain words: two threads that set it at once leave one or the other or a
// mixture, as with any program that does so.
unsafe impl Sync for Kept {}

/// What the program has set for SIGSYS.
static PROGRAMS: Kept = Kept(UnsafeCell::new(Action::DEFAULT));

/// What the program has set for SIGSYS.
pub fn programs() -> Action {
    // SAFETY: plain words, see above.
    unsafe { PROGRAMS.0.get().read() }
}

/// rt_sigaction.
pub fn action(args: [usize; 6]) -> Result<usize, i32> {
    let [signal, new, old, size, ..] = args;
    if size != size_of::<u64>() {
        return Err(libc::EINVAL);
    }
    // SAFETY: the caller's promise to the kernel: null or an action each.
    unsafe {
        let mut wanted = (new as *const Action).as_ref().copied();
        if signal as i32 == libc::SIGSYS {
            if let Some(to) = (old as *mut Action).as_mut() {
                *to = programs();
            }
            if let Some(wanted) = wanted.filter(|_| sys::is_owner()) {
                PROGRAMS.0.get().write(wanted);
            }
            return Ok(0);
        }
        if let Some(wanted) = &mut wanted {
            wanted.mask &= !SIGSYS_BIT;
        }
        let at = wanted
            .as_ref()
            .map_or(0, |a| core::ptr::from_ref(a) as usize);
        sys::call(libc::SYS_rt_sigaction, [signal, at, old, size])
    }
}

/// rt_sigprocmask of a thread in the handler: on the mask that it gets back when that returns.
pub fn change(mask: &mut u64, args: [usize; 6]) -> Result<usize, i32> {
    *mask = caught::changed_mask(*mask, args)? & !SIGSYS_BIT;
    Ok(0)
}

/// A call that waits with another mask, which is this argument.
pub fn wait(number: c_long, mut args: [usize; 6]) -> Result<usize, i32> {
    let at = match number {
        libc::SYS_rt_sigsuspend => 0,
        libc::SYS_ppoll => 3,
        libc::SYS_pselect6 => 5,
        _ => 4,
    };
    // SAFETY: the caller's promise to the kernel: a mask, behind a pointer to it for pselect6.
    unsafe {
        let mut pair = [0_usize; 2];
        let mut place = args[at];
        if number == libc::SYS_pselect6 {
            pair = (place as *const [usize; 2]).read_unaligned();
            place = pair[0];
        }
        if place == 0 {
            return sys::call(number, args);
        }
        let mask = (place as *const u64).read_unaligned() & !SIGSYS_BIT;
        pair[0] = &raw const mask as usize;
        args[at] = match number {
            libc::SYS_pselect6 => pair.as_ptr() as usize,
            _ => pair[0],
        };
        sys::call(number, args)
    }
}
