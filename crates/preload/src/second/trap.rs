//! The handler: a call of the program, on its thread, with all signals blocked.

use super::{exec, heap, leave, masks};
use crate::fork::{self, Clone};
use crate::map::calls;
use crate::sys;
use deckle_door::entry::MARK;
use deckle_door::request::set_mask;
use libc::c_long;

/// The kernel's `siginfo` for SIGSYS, as far as it is looked at.
#[repr(C)]
struct Info {
    signal: i32,
    errno: i32,
    code: i32,
}

/// What the kernel saves on the stack (`struct ucontext`), and restores after.
#[repr(C)]
pub struct Frame {
    head: [u64; 5],
    registers: [u64; 32],
    /// Signals that are blocked.
    pub mask: u64,
}

const R10: usize = 2;
const R8: usize = 0;
const R9: usize = 1;
const RDI: usize = 8;
const RSI: usize = 9;
const RDX: usize = 12;
const RAX: usize = 13;
const RSP: usize = 15;

/// Address of the handler.
pub fn handler() -> usize {
    let handler: extern "C" fn(i32, *const Info, *mut Frame) = on_call;
    handler as usize
}

/// Address of where it returns to.
pub fn restorer() -> usize {
    restore as *const () as usize
}

/// Installs the handler; false: the system refuses.
pub fn install() -> bool {
    masks::take()
}

/// In our 4 GiB, whose calls pass.
#[unsafe(naked)]
unsafe extern "C" fn restore() {
    core::arch::naked_asm!("mov eax, 15", "syscall", "ud2")
}

extern "C" fn on_call(signal: i32, info: *const Info, frame: *mut Frame) {
    const SYS_SECCOMP: i32 = 1;
    // SAFETY: what the kernel gives a handler of three arguments.
    let (about, frame) = unsafe { (&*info, &mut *frame) };
    if about.code != SYS_SECCOMP || about.errno != i32::from(MARK) {
        return pass_on(signal, info, frame);
    }
    let at = |register: usize| frame.registers[register] as usize;
    let args = [at(RDI), at(RSI), at(RDX), at(R10), at(R8), at(R9)];
    let number = at(RAX) as c_long;
    let result = answer(number, args, frame);
    frame.registers[RAX] = result.unwrap_or_else(|errno| -(errno as isize) as usize) as u64;
}

fn answer(number: c_long, args: [usize; 6], frame: &mut Frame) -> Result<usize, i32> {
    match number {
        libc::SYS_rt_sigprocmask => masks::change(&mut frame.mask, args),
        libc::SYS_rt_sigaction => masks::action(args),
        libc::SYS_rt_sigsuspend
        | libc::SYS_ppoll
        | libc::SYS_pselect6
        | libc::SYS_epoll_pwait
        | libc::SYS_epoll_pwait2 => masks::wait(number, args),
        libc::SYS_brk => Ok(heap::brk(args[0])),
        libc::SYS_execve | libc::SYS_execveat => exec::execute(number, args, frame.mask),
        libc::SYS_set_tid_address => leave::keep_word(args[0]),
        libc::SYS_set_robust_list => leave::keep_list(args),
        libc::SYS_exit => leave::exit(args),
        libc::SYS_munmap if leave::is_stack(args, frame) => leave::unmap_stack(args),
        libc::SYS_fork | libc::SYS_clone | libc::SYS_clone3 => match Clone::of(number, args) {
            Some(call) => {
                let stack = call.stack();
                let result = fork::carry_out(call, ());
                if let (Ok(0), Some(stack)) = (result, stack) {
                    frame.registers[RSP] = stack as u64;
                }
                result
            }
            // A thread, which would begin on its own stack in the middle of this: who asks in
            // this new way has the old one to fall back on.
            None => Err(libc::ENOSYS),
        },
        _ => calls::answer(number, args).unwrap_or_else(|| calls::raw(number, args)),
    }
}

/// A SIGSYS that is none of ours: the program's own filter's, or sent.
fn pass_on(signal: i32, info: *const Info, frame: &mut Frame) {
    type Handler = extern "C" fn(i32, *const Info, *mut Frame);
    let action = masks::programs();
    match action.handler {
        libc::SIG_IGN => {}
        libc::SIG_DFL => {
            let default = masks::Action {
                handler: libc::SIG_DFL,
                flags: 0,
                restorer: 0,
                mask: 0,
            };
            let at = &raw const default as usize;
            let (me, thread) = (sys::getpid() as usize, sys::gettid() as usize);
            // SAFETY: the end of this process by the signal that it has got.
            unsafe {
                let args = [signal as usize, at, 0, 8, 0, 0];
                let _ = sys::call(libc::SYS_rt_sigaction, args);
                let args = [me, thread, signal as usize, 0, 0, 0];
                let _ = sys::call(libc::SYS_tgkill, args);
            }
            set_mask(0);
        }
        address => {
            let before = set_mask(frame.mask | action.mask & !(1 << (libc::SIGSYS - 1)));
            // SAFETY: the program's handler; one of a single argument ignores the others.
            unsafe { core::mem::transmute::<usize, Handler>(address)(signal, info, frame) };
            set_mask(before);
        }
    }
}
