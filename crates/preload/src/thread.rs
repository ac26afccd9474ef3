//! Tasks that are made within a fork's window and share the memory: threads, and children of vfork.
//!
//! The window's handler makes the calls of its thread. A new task must not go on in that handler,
//! whose frames are not on its stack: it begins where the call was made, with the registers that it
//! was made with.

use crate::caught::Frame;
use crate::fork::STACK;
use libc::{REG_R10, REG_R12, REG_R13, REG_R14, REG_R15, REG_RBP, REG_RBX};
use libc::{REG_RDI, REG_RDX, REG_RIP, REG_RSI, c_long};

/// Such a call, in a form that says where the new task's stack pointer shall be; and that.
pub struct Start {
    number: c_long,
    args: [usize; 6],
    stack: usize,
}

impl Start {
    /// The call, made by one whose stack pointer is `stack`, if it is one of these.
    pub fn of(number: c_long, args: [usize; 6], stack: usize) -> Option<Start> {
        let shares = |flags: usize| flags & libc::CLONE_VM as usize != 0;
        let start = |number, args, stack| {
            Some(Start {
                number,
                args,
                stack,
            })
        };
        let [first, second, c, d, e, f] = args;
        match number {
            libc::SYS_vfork => {
                let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
                start(libc::SYS_clone, [flags as usize, stack, 0, 0, e, f], stack)
            }
            libc::SYS_clone if shares(first) => {
                let stack = if second == 0 { stack } else { second };
                start(number, [first, stack, c, d, e, f], stack)
            }
            libc::SYS_clone3 if second >= 64 => {
                // SAFETY: the caller's promise to the kernel: a structure of so many bytes.
                let words = unsafe { (first as *const [u64; 8]).read_unaligned() };
                let top = words[STACK[0]] + words[STACK[1]];
                match shares(words[0] as usize) {
                    // There is no such call: the caller tries clone.
                    true if top == 0 => start(-1, args, stack),
                    true => start(number, args, top as usize),
                    false => None,
                }
            }
            _ => None,
        }
    }

    /// Makes the task: it goes on at the place that `frame` tells, with this mask.
    ///
    /// # Errors
    /// The errno of the call.
    pub fn make(self, mask: u64, frame: &Frame) -> Result<usize, i32> {
        let at = |register| frame.at(register);
        let [ip, first, second, third, fourth] =
            [REG_RIP, REG_RDI, REG_RSI, REG_RDX, REG_R10].map(at);
        let way = [ip, mask as usize, first, second, third, fourth];
        // SAFETY: what lies 128 bytes below a stack pointer is nobody's; it is the new task's, or
        // that of the caller, who waits for it.
        unsafe { ((self.stack - LEFT_OUT) as *mut [usize; 6]).write(way) };
        let kept = [REG_RBX, REG_RBP, REG_R12, REG_R13, REG_R14, REG_R15];
        let mut all = [0; 13];
        all[0] = self.number as usize;
        all[1..7].copy_from_slice(&self.args);
        all[7..].copy_from_slice(&kept.map(at));
        // SAFETY: the call that the thread has made, with all its registers; the stack is prepared.
        match unsafe { clone_with(&all) } {
            errno @ -4095..0 => Err(-errno as i32),
            tid => Ok(tid as usize),
        }
    }
}

/// Bytes below the top of a new task's stack where it finds its way: more than the 128 that who
/// stands there may use.
const LEFT_OUT: usize = 192;

/// Makes the call that these registers hold: its number, its arguments, and what a function keeps.
/// On the new task's stack lie the address where it goes on, its mask, and four registers.
#[unsafe(naked)]
unsafe extern "C" fn clone_with(_registers: &[usize; 13]) -> isize {
    core::arch::naked_asm!(
        "push rbx",
        "push rbp",
        "push r12",
        "push r13",
        "push r14",
        "push r15",
        "mov rax, [rdi]",
        "mov rsi, [rdi + 16]",
        "mov rdx, [rdi + 24]",
        "mov r10, [rdi + 32]",
        "mov r8, [rdi + 40]",
        "mov r9, [rdi + 48]",
        "mov rbx, [rdi + 56]",
        "mov rbp, [rdi + 64]",
        "mov r12, [rdi + 72]",
        "mov r13, [rdi + 80]",
        "mov r14, [rdi + 88]",
        "mov r15, [rdi + 96]",
        "mov rdi, [rdi + 8]",
        "syscall",
        "test rax, rax",
        "jz 2f",
        "pop r15",
        "pop r14",
        "pop r13",
        "pop r12",
        "pop rbp",
        "pop rbx",
        "ret",
        "2:",
        "sub rsp, {left_out}",
        "mov edi, {set}",
        "lea rsi, [rsp + 8]",
        "xor edx, edx",
        "mov r10d, 8",
        "mov eax, {mask}",
        "syscall",
        "mov rdi, [rsp + 16]",
        "mov rsi, [rsp + 24]",
        "mov rdx, [rsp + 32]",
        "mov r10, [rsp + 40]",
        "xor eax, eax",
        "ret {left_out} - 8",
        left_out = const LEFT_OUT,
        set = const libc::SIG_SETMASK,
        mask = const libc::SYS_rt_sigprocmask,
    )
}
