//! A system call that the kernel has handed to a handler of SIGSYS: what that finds, and how the
//! signal is set.

use crate::sys;
use libc::{REG_R8, REG_R9, REG_R10, REG_RAX, REG_RDI, REG_RDX, REG_RSI, REG_RSP};
use libc::{c_int, c_long, siginfo_t};

/// The bit of SIGSYS in a mask.
pub const SIGSYS_BIT: u64 = 1 << (libc::SIGSYS - 1);

/// The kernel's `struct sigaction`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Action {
    pub handler: usize,
    pub flags: u64,
    pub restorer: usize,
    pub mask: u64,
}

impl Action {
    /// What a program has that has set none.
    pub const DEFAULT: Action = Action {
        handler: libc::SIG_DFL,
        flags: 0,
        restorer: 0,
        mask: 0,
    };

    /// A handler of ours, on the alternate stack and with all signals blocked.
    pub fn ours(handler: usize) -> Action {
        const RESTORER: u64 = 0x0400_0000;
        Action {
            handler,
            flags: (libc::SA_SIGINFO | libc::SA_ONSTACK) as u64 | RESTORER,
            restorer: restore as *const () as usize,
            mask: u64::MAX,
        }
    }

    /// Sets the action for SIGSYS; what it was.
    ///
    /// # Errors
    /// The errno: a filter refuses the call.
    pub fn set(&self) -> Result<Action, i32> {
        let mut old = Action::DEFAULT;
        let (new, to) = (core::ptr::from_ref(self) as usize, &raw mut old as usize);
        let args = [libc::SIGSYS as usize, new, to, size_of::<u64>()];
        // SAFETY: reads and writes one structure each; the handler is ours or the program's own.
        unsafe { sys::call(libc::SYS_rt_sigaction, args) }.map(|_| old)
    }
}

/// Where a handler of ours returns to: in our code, whose calls are not caught.
#[unsafe(naked)]
unsafe extern "C" fn restore() {
    core::arch::naked_asm!("mov eax, 15", "syscall", "ud2")
}

/// Ends the process by the signal once the handler returns: what the kernel would have done.
pub fn die() {
    let _ = Action::DEFAULT.set();
    let args = [sys::getpid(), sys::gettid(), libc::SIGSYS as u32].map(|n| n as usize);
    // SAFETY: a signal to this thread, which is blocked until then.
    let _ = unsafe { sys::call(libc::SYS_tgkill, [args[0], args[1], args[2]]) };
}

/// A program's own handler; one of a single argument ignores the others.
pub type Handler = extern "C" fn(i32, *const siginfo_t, *mut Frame);

/// What the kernel saves on the stack (`struct ucontext`) and restores after.
#[repr(C)]
pub struct Frame {
    head: [u64; 2],
    /// The alternate stack.
    pub alternate: libc::stack_t,
    /// As the kernel's `struct sigcontext` has them.
    pub registers: [u64; 32],
    /// Signals that are blocked.
    pub mask: u64,
}

impl Frame {
    /// What a register held, by libc's number of it (`REG_RAX`, ...).
    pub fn at(&self, register: c_int) -> usize {
        self.registers[register as usize] as usize
    }

    /// The call: its number and its arguments.
    pub fn call(&self) -> (c_long, [usize; 6]) {
        let args = [REG_RDI, REG_RSI, REG_RDX, REG_R10, REG_R8, REG_R9];
        let args = args.map(|register| self.at(register));
        (self.at(REG_RAX) as c_long, args)
    }

    /// What it returns.
    pub fn answer(&mut self, result: Result<usize, i32>) {
        let word = result.unwrap_or_else(|errno| -(errno as isize) as usize);
        self.registers[REG_RAX as usize] = word as u64;
    }

    /// Where the stack is then.
    pub fn set_stack(&mut self, stack: usize) {
        self.registers[REG_RSP as usize] = stack as u64;
    }
}

/// rt_sigprocmask of who is in the handler, on the mask that it had: the new one.
///
/// # Errors
/// The errno of the call.
pub fn changed_mask(before: u64, args: [usize; 6]) -> Result<u64, i32> {
    let [how, set, old, size, ..] = args;
    if size != size_of::<u64>() {
        return Err(libc::EINVAL);
    }
    let new = match set {
        0 => before,
        at => {
            // SAFETY: the caller's promise to the kernel: a mask.
            let set = unsafe { (at as *const u64).read_unaligned() };
            match how as i32 {
                libc::SIG_BLOCK => before | set,
                libc::SIG_UNBLOCK => before & !set,
                libc::SIG_SETMASK => set,
                _ => return Err(libc::EINVAL),
            }
        }
    };
    if old != 0 {
        // SAFETY: as above.
        unsafe { (old as *mut u64).write_unaligned(before) };
    }
    Ok(new)
}

const _: () = assert!(size_of::<Action>() == 32 && core::mem::offset_of!(Frame, mask) == 296);
