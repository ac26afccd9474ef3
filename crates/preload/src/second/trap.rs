//! The handler: a call of the program, on its thread, with all signals blocked.

use super::{exec, leave, masks};
use crate::DOOR;
use crate::caught::{self, Action, Frame, Handler, SIGSYS_BIT};
use crate::fork::{self, Clone};
use crate::map::calls;
use deckle_door::entry::MARK;
use deckle_door::request::set_mask;
use libc::{c_long, siginfo_t};

/// Installs the handler; false: the system refuses.
pub fn install() -> bool {
    let handler: Handler = on_call;
    Action::ours(handler as usize).set().is_ok()
}

extern "C" fn on_call(signal: i32, info: *const siginfo_t, frame: *mut Frame) {
    const SYS_SECCOMP: i32 = 1;
    // SAFETY: what the kernel gives a handler of three arguments.
    let (about, frame) = unsafe { (&*info, &mut *frame) };
    if about.si_code != SYS_SECCOMP || about.si_errno != i32::from(MARK) {
        return pass_on(signal, info, frame);
    }
    let (number, args) = frame.call();
    let result = answer(number, args, frame);
    frame.answer(result);
    if !DOOR.may(libc::SYS_rt_sigreturn) {
        set_mask(frame.mask);
        // SAFETY: the frame that the kernel has made for this handler, which ends here.
        unsafe { go_back(&frame.registers) }
    }
}

/// Goes on where the call was made, as the kernel would if a filter did not refuse that to the end
/// of a handler: with all registers but rcx and r11, which no call keeps, and what is kept of
/// larger ones (an area of XSAVE, told by a magic number, or of FXSAVE).
#[unsafe(naked)]
unsafe extern "C" fn go_back(_registers: &[u64; 32]) -> ! {
    core::arch::naked_asm!(
        "mov rcx, [rdi + 23 * 8]",
        "test rcx, rcx",
        "jz 3f",
        "cmp dword ptr [rcx + 464], 0x46505853",
        "jne 2f",
        "mov eax, [rcx + 472]",
        "mov edx, [rcx + 476]",
        "xrstor64 [rcx]",
        "jmp 3f",
        "2: fxrstor64 [rcx]",
        "3: mov r8, [rdi]",
        "mov r9, [rdi + 8]",
        "mov r10, [rdi + 2 * 8]",
        "mov r12, [rdi + 4 * 8]",
        "mov r13, [rdi + 5 * 8]",
        "mov r14, [rdi + 6 * 8]",
        "mov r15, [rdi + 7 * 8]",
        "mov rsi, [rdi + 9 * 8]",
        "mov rbp, [rdi + 10 * 8]",
        "mov rbx, [rdi + 11 * 8]",
        "mov rdx, [rdi + 12 * 8]",
        "mov rax, [rdi + 13 * 8]",
        "mov rcx, [rdi + 16 * 8]",
        "push qword ptr [rdi + 17 * 8]",
        "popfq",
        // A signal that comes from here on may overwrite what is below the stack of the call.
        "mov r11, [rdi + 15 * 8]",
        "mov rdi, [rdi + 8 * 8]",
        "mov rsp, r11",
        "jmp rcx",
    )
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
                    frame.set_stack(stack);
                }
                result
            }
            // A thread, which would begin on its own stack in the middle of this: who asks in
            // this new way has the old one to fall back on.
            None => Err(libc::ENOSYS),
        },
        _ => calls::answer(number, args),
    }
}

/// A SIGSYS that is none of ours: the program's own filter's, or sent.
fn pass_on(signal: i32, info: *const siginfo_t, frame: &mut Frame) {
    let action = masks::programs();
    match action.handler {
        libc::SIG_IGN => {}
        libc::SIG_DFL => caught::die(),
        address => {
            let before = set_mask(frame.mask | action.mask & !SIGSYS_BIT);
            // SAFETY: the program's handler.
            unsafe { core::mem::transmute::<usize, Handler>(address)(signal, info, frame) };
            set_mask(before);
        }
    }
}
