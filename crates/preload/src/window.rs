//! Catching the one system call by which a thread forks.
//!
//! A fork must be made while the service stands still, and nobody may wait for anybody then. But
//! between the last handler that a library can register and the fork itself libc takes locks
//! (of its streams, of name look-ups), and whoever holds one of them may be waiting for a fault
//! of managed memory. So the calling thread opens a *window*: with Syscall User Dispatch the
//! kernel hands each of its own system calls that libc makes to our SIGSYS handler, which carries
//! it out, and when the call is the fork, libc has all its locks. No other thread, and no other
//! time, is touched.
//!
//! While the window is open all signals but SIGSYS are blocked for the thread; the mask that the
//! program believes in is kept in the window. So is what it has set as its alternate stack: the
//! handler gets a stack of the window's, since the thread's own may be small. A thread that forks
//! in a handler may have 8 KiB, of which a frame of the kernel's takes three or more.

use crate::caught::{self, Action, Frame, Handler, SIGSYS_BIT};
use crate::fork::{self, Clone};
use crate::{filter, sys, thread};
use core::arch::asm;
use core::cell::UnsafeCell;
use core::ffi::{c_int, c_void};
use core::mem::MaybeUninit;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicU32, AtomicU64};
use deckle_door::Lock;
use deckle_door::request::set_mask;
use libc::siginfo_t;

/// Most threads that fork at one time; more wait.
const WINDOWS: usize = 16;
const LEFT: u32 = 1 << 31;
/// Bytes of the stack for the handler.
const STACK: usize = 32 << 10;

/// A thread that is about to fork.
pub struct Window {
    /// Whose it is; 0: nobody's; with [`LEFT`]: closed, by a handler that may still be on its
    /// stack. Whoever finds its own so is not.
    tid: AtomicU32,
    /// The signals that the program believes to be blocked.
    mask: AtomicU64,
    /// The alternate stack that the program believes to be set, as the kernel tells of it.
    alternate: UnsafeCell<MaybeUninit<libc::stack_t>>,
    /// The one that is.
    stack: Stack,
}

#[repr(align(4096))]
struct Stack(UnsafeCell<[u8; STACK]>);

// SAFETY: the stack and what is kept are used by the thread that has taken the window.
unsafe impl Sync for Window {}

static ALL: [Window; WINDOWS] = [const {
    Window {
        tid: AtomicU32::new(0),
        mask: AtomicU64::new(0),
        alternate: UnsafeCell::new(MaybeUninit::zeroed()),
        stack: Stack(UnsafeCell::new([0; STACK])),
    }
}; WINDOWS];

impl Window {
    /// Makes the window's stack the thread's alternate one. Called by its thread, all of whose
    /// signals but SIGSYS are blocked.
    fn set_stack(&self) {
        let base = self.stack.0.get() as usize;
        let new = libc::stack_t {
            ss_sp: base as *mut c_void,
            ss_flags: 0,
            ss_size: STACK,
        };
        // The kernel refuses a change to who is on the alternate stack, which it tells by the
        // stack pointer: ours is elsewhere meanwhile.
        // SAFETY: reads the one and writes the other structure, which is the window's; the stack
        // pointer comes back from a register, and a signal that comes meanwhile finds it at the
        // end of a stack that is unused.
        unsafe {
            asm!(
                "mov r12, rsp",
                "mov rsp, {top}",
                "syscall",
                "mov rsp, r12",
                top = in(reg) base + STACK,
                inlateout("rax") libc::SYS_sigaltstack => _,
                in("rdi") &raw const new,
                in("rsi") self.alternate.get(),
                out("rcx") _,
                out("r11") _,
                out("r12") _,
            );
        }
    }

    /// What the program has set.
    fn alternate(&self) -> libc::stack_t {
        // SAFETY: written when the window was opened, by this thread; zeros are a value, too.
        let mut stack = unsafe { (*self.alternate.get()).assume_init() };
        // Where the thread was is no part of it.
        stack.ss_flags &= !libc::SS_ONSTACK;
        stack
    }

    /// Gives the thread back what the program has set. It is not in the handler.
    fn restore_stack(&self) {
        let stack = self.alternate();
        // SAFETY: reads one structure, which the kernel has written.
        let _ = unsafe { sys::call(libc::SYS_sigaltstack, [&raw const stack as usize, 0]) };
    }
}

/// The program's action for SIGSYS, and how many windows are open.
struct Before {
    users: u32,
    action: Action,
}

static BEFORE: Lock<Before> = Lock::new(Before {
    users: 0,
    action: Action::DEFAULT,
});

/// Returns from the signal frame at `stack`, as the restorer of that handler would have.
#[unsafe(naked)]
unsafe extern "C" fn return_from(_stack: usize) -> ! {
    core::arch::naked_asm!("mov rsp, rdi", "mov eax, 15", "syscall", "ud2")
}

unsafe extern "C" {
    static __ehdr_start: u8;
    static _etext: u8;
}

/// Turns the catching on or off for the calling thread; false: the system refuses.
fn dispatch(on: bool) -> bool {
    const PR_SET_SYSCALL_USER_DISPATCH: usize = 59;
    let (start, end) = (&raw const __ehdr_start as usize, &raw const _etext as usize);
    let args = match on {
        true => [PR_SET_SYSCALL_USER_DISPATCH, 1, start, end - start],
        false => [PR_SET_SYSCALL_USER_DISPATCH, 0, 0, 0],
    };
    // SAFETY: concerns system calls of this thread alone, outside this library.
    unsafe { sys::call(libc::SYS_prctl, args) }.is_ok()
}

fn own() -> Option<&'static Window> {
    let tid = sys::gettid();
    ALL.iter().find(|w| w.tid.load(Relaxed) == tid)
}

/// Opens a window for the calling thread. False: there is one already, or the system has none.
pub fn open() -> bool {
    if !filter::lets_forks_be_seen() {
        return false;
    }
    // Before anything is taken: a handler that forked now would find it half done.
    let mask = set_mask(!SIGSYS_BIT);
    if own().is_some() {
        set_mask(mask);
        return false;
    }
    let tid = sys::gettid();
    let take = |from| {
        let free = |w: &&Window| w.tid.compare_exchange(from, tid, AcqRel, Relaxed).is_ok();
        ALL.iter().find(free)
    };
    let window = loop {
        match take(LEFT | tid).or_else(|| take(0)) {
            Some(window) => break window,
            None => {
                // SAFETY: takes nothing.
                let _ = unsafe { sys::call(libc::SYS_sched_yield, [0; 6]) };
            }
        }
    };
    window.mask.store(mask, Relaxed);
    window.set_stack();
    if take_handler() {
        if dispatch(true) {
            return true;
        }
        give_handler_back();
    }
    window.restore_stack();
    window.tid.store(0, Release);
    set_mask(mask);
    false
}

/// Closes the calling thread's window, if there is one.
pub fn close() {
    if let Some(window) = own() {
        dispatch(false);
        let mask = window.mask.load(Relaxed);
        window.restore_stack();
        shut(window, 0);
        set_mask(mask);
    } else {
        let left = LEFT | sys::gettid();
        if let Some(window) = ALL.iter().find(|w| w.tid.load(Relaxed) == left) {
            window.tid.store(0, Release);
        }
    }
}

/// Makes SIGSYS ours, for one more window; false: the system refuses.
fn take_handler() -> bool {
    let mut before = BEFORE.lock();
    if before.users == 0 {
        let handler: Handler = on_call;
        match Action::ours(handler as usize).set() {
            Ok(action) => before.action = action,
            Err(_) => return false,
        }
    }
    before.users += 1;
    true
}

/// After the last window the program has its own action again.
fn give_handler_back() {
    let mut before = BEFORE.lock();
    before.users -= 1;
    if before.users == 0 {
        // It was accepted once.
        let _ = before.action.set();
    }
}

/// Ends a window, whose thread's calls are not caught any more; whose it is then.
fn shut(window: &Window, tid: u32) {
    give_handler_back();
    window.tid.store(tid, Release);
}

/// Before a fork: the child will find what it needs to close its window.
pub fn hold() {
    BEFORE.acquire();
}

/// After it: in the parent; and in the child, where there is one window, `mine`.
pub fn let_go(mine: Option<&Window>) {
    BEFORE.release();
    if let Some(mine) = mine {
        BEFORE.lock().users = 1;
        for window in ALL.iter().filter(|w| !core::ptr::eq(*w, mine)) {
            window.tid.store(0, Relaxed);
        }
        // The kernel's new number for this thread.
        mine.tid.store(sys::gettid(), Relaxed);
    }
}

/// A caught system call, or somebody else's SIGSYS.
extern "C" fn on_call(signal: c_int, info: *const siginfo_t, frame: *mut Frame) {
    const SYS_USER_DISPATCH: c_int = 2;
    // SAFETY: what the kernel gives a handler of three arguments.
    let (about, frame) = unsafe { (&*info, &mut *frame) };
    match own() {
        Some(window) if about.si_code == SYS_USER_DISPATCH => carry_out(window, frame),
        _ => pass_on(signal, info, frame),
    }
}

/// The program's own handler, if it has one; else what the kernel would do: end it.
fn pass_on(signal: c_int, info: *const siginfo_t, frame: &mut Frame) {
    let action = BEFORE.lock().action;
    match action.handler {
        libc::SIG_DFL | libc::SIG_IGN => caught::die(),
        // SAFETY: the program's handler.
        address => unsafe { core::mem::transmute::<usize, Handler>(address)(signal, info, frame) },
    }
}

fn carry_out(window: &'static Window, frame: &mut Frame) {
    let (number, args) = frame.call();
    let result = match number {
        libc::SYS_rt_sigprocmask => {
            // The one that the program believes in.
            let changed = caught::changed_mask(window.mask.load(Acquire), args);
            changed.map(|mask| {
                window.mask.store(mask, Release);
                0
            })
        }
        libc::SYS_rt_sigreturn => {
            // SAFETY: the stack pointer is where the restorer of that frame has it.
            unsafe { return_from(frame.at(libc::REG_RSP)) }
        }
        _ => match Clone::of(number, args) {
            Some(call) => {
                dispatch(false);
                let (mask, alternate) = (window.mask.load(Relaxed), window.alternate());
                let stack = call.stack();
                let result = fork::carry_out(call, window);
                if result == Ok(0)
                    && let Some(stack) = stack
                {
                    frame.set_stack(stack);
                }
                // Nobody else is in a child. Elsewhere another thread could take the window while
                // the kernel returns from the frame that is on its stack.
                match result {
                    Ok(0) => shut(window, 0),
                    _ => shut(window, LEFT | sys::gettid()),
                }
                // The kernel sets both as this handler returns.
                frame.mask = mask;
                frame.alternate = alternate;
                result
            }
            None => match thread::Start::of(number, args, frame.at(libc::REG_RSP)) {
                Some(start) => start.make(window.mask.load(Relaxed), frame),
                // SAFETY: the call that this thread has made.
                None => unsafe { sys::call(number, args) },
            },
        },
    };
    frame.answer(result);
}
