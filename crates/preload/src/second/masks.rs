//! Signals as the program believes to have set them: SIGSYS is never blocked, and its handler
//! is ours.

use super::{host, trap};
use crate::sys;
use core::cell::UnsafeCell;
use libc::c_long;

/// The bit of SIGSYS.
const OURS: u64 = 1 << (libc::SIGSYS - 1);

/// The kernel's `struct sigaction`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Action {
    pub handler: usize,
    pub flags: u64,
    pub restorer: usize,
    pub mask: u64,
}

struct Kept(UnsafeCell<Action>);
// SAFETY: a record of plain words: two threads that set it at once leave one or the other or a
// mixture, as with any program that does so.
unsafe impl Sync for Kept {}

/// What the program has set for SIGSYS.
static PROGRAMS: Kept = Kept(UnsafeCell::new(Action {
    handler: libc::SIG_DFL,
    flags: 0,
    restorer: 0,
    mask: 0,
}));

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
            if let Some(wanted) = wanted.filter(|_| host::is_owner()) {
                PROGRAMS.0.get().write(wanted);
            }
            return Ok(0);
        }
        if let Some(wanted) = &mut wanted {
            wanted.mask &= !OURS;
        }
        let at = wanted
            .as_ref()
            .map_or(0, |a| core::ptr::from_ref(a) as usize);
        sys::call(libc::SYS_rt_sigaction, [signal, at, old, size, 0, 0])
    }
}

/// rt_sigprocmask of a thread in the handler: on the mask that it gets back when that returns.
pub fn change(mask: &mut u64, args: [usize; 6]) -> Result<usize, i32> {
    let [how, set, old, size, ..] = args;
    if size != size_of::<u64>() {
        return Err(libc::EINVAL);
    }
    let before = *mask;
    if set != 0 {
        // SAFETY: the caller's promise to the kernel: a mask.
        let set = unsafe { (set as *const u64).read_unaligned() };
        *mask = !OURS
            & match how as i32 {
                libc::SIG_BLOCK => before | set,
                libc::SIG_UNBLOCK => before & !set,
                libc::SIG_SETMASK => set,
                _ => return Err(libc::EINVAL),
            };
    }
    if old != 0 {
        // SAFETY: as above.
        unsafe { (old as *mut u64).write_unaligned(before) };
    }
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
        let mask = (place as *const u64).read_unaligned() & !OURS;
        pair[0] = &raw const mask as usize;
        args[at] = match number {
            libc::SYS_pselect6 => pair.as_ptr() as usize,
            _ => pair[0],
        };
        sys::call(number, args)
    }
}

/// Makes SIGSYS ours.
pub fn take() -> bool {
    const RESTORER: u64 = 0x0400_0000;
    let ours = Action {
        handler: trap::handler(),
        flags: (libc::SA_SIGINFO | libc::SA_ONSTACK) as u64 | RESTORER,
        restorer: trap::restorer(),
        mask: u64::MAX,
    };
    let at = &raw const ours as usize;
    // SAFETY: a handler and a restorer of our own.
    unsafe {
        sys::call(
            libc::SYS_rt_sigaction,
            [libc::SIGSYS as usize, at, 0, 8, 0, 0],
        )
    }
    .is_ok()
}
