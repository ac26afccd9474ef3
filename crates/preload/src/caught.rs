//! A system call that the kernel has handed to a handler of SIGSYS: what that finds, and how the
//! signal is set.

use crate::sys;
use libc::c_long;

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

/// The kernel's `siginfo` for SIGSYS, as far as it is looked at.
#[repr(C)]
pub struct Info {
    pub signal: i32,
    pub errno: i32,
    pub code: i32,
}

/// A program's own handler; one of a single argument ignores the others.
pub type Handler = extern "C" fn(i32, *const Info, *mut Frame);

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

/// The place of a register in a [`Frame`].
#[cfg_attr(
    target_env = "musl",
    expect(dead_code, reason = "for the first door's tasks")
)]
#[derive(Clone, Copy)]
pub enum Register {
    R8 = 0,
    R9 = 1,
    R10 = 2,
    R12 = 4,
    R13 = 5,
    R14 = 6,
    R15 = 7,
    Rdi = 8,
    Rsi = 9,
    Rbp = 10,
    Rbx = 11,
    Rdx = 12,
    Rax = 13,
    Rsp = 15,
    Rip = 16,
}

impl Frame {
    /// What a register held.
    pub fn at(&self, register: Register) -> usize {
        self.registers[register as usize] as usize
    }

    /// The call: its number and its arguments.
    pub fn call(&self) -> (c_long, [usize; 6]) {
        use Register::{R8, R9, R10, Rax, Rdi, Rdx, Rsi};
        let args = [Rdi, Rsi, Rdx, R10, R8, R9].map(|register| self.at(register));
        (self.at(Rax) as c_long, args)
    }

    /// What it returns.
    pub fn answer(&mut self, result: Result<usize, i32>) {
        let word = result.unwrap_or_else(|errno| -(errno as isize) as usize);
        self.registers[Register::Rax as usize] = word as u64;
    }

    /// Where the stack is then.
    pub fn set_stack(&mut self, stack: usize) {
        self.registers[Register::Rsp as usize] = stack as u64;
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
