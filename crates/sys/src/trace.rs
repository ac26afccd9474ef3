//! Other processes, stopped and changed by ptrace.

use crate::Errno;
use crate::call::call;
use core::mem::MaybeUninit;

const GET_MASK: usize = 0x420a;
const SET_MASK: usize = 0x420b;

/// # Safety
/// What `data` points to, if the request takes an address there, is as long as that says.
unsafe fn ptrace(request: usize, pid: i32, at: usize, data: usize) -> Result<(), Errno> {
    // SAFETY: concerns the other process, and here what the caller answers for.
    let done = unsafe { call(libc::SYS_ptrace, [request, pid as usize, at, data]) };
    done.map(drop).map_err(Errno)
}

/// Has the calling process stop at its next exec, for its parent; false: that is refused.
pub fn trace_me() -> bool {
    // SAFETY: a request without addresses.
    unsafe { ptrace(libc::PTRACE_TRACEME as usize, 0, 0, 0) }.is_ok()
}

/// Whether a child may have itself traced by this process, which must have one thread.
pub fn may_trace_children() -> bool {
    // SAFETY: a request without addresses makes no thread.
    unsafe { crate::process::in_child(trace_me) == Ok(0) }
}

/// What a request without addresses does to a process that is traced, or will be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
pub enum Request {
    /// Traces it from now on, with options.
    Seize = libc::PTRACE_SEIZE as usize,
    /// It goes on, with a signal.
    Continue = libc::PTRACE_CONT as usize,
    /// It stays stopped, as it was told to, and is waited for.
    Listen = libc::PTRACE_LISTEN as usize,
    /// It is traced no more, and goes on, with a signal.
    Detach = libc::PTRACE_DETACH as usize,
}

/// Does that, with a word: options, or a signal.
/// Errors: ESRCH: it is not traced here, or not stopped. EPERM: it may not be traced.
pub fn request(what: Request, pid: i32, word: i32) -> Result<(), Errno> {
    // SAFETY: a request without addresses.
    unsafe { ptrace(what as usize, pid, 0, word as usize) }
}

/// Has the kernel write a value about the other process.
///
/// # Safety
/// The request writes a `T`, or less, for which zeros are a value.
unsafe fn get<T>(request: usize, pid: i32, at: usize) -> Result<T, Errno> {
    let mut value = MaybeUninit::<T>::zeroed();
    // SAFETY: the caller's word.
    unsafe {
        ptrace(request, pid, at, value.as_mut_ptr() as usize)?;
        Ok(value.assume_init())
    }
}

/// The registers of a process that is stopped.
/// Errors: ESRCH: it is not.
pub fn registers(pid: i32) -> Result<libc::user_regs_struct, Errno> {
    // SAFETY: it writes such a structure, of words.
    unsafe { get(libc::PTRACE_GETREGS as usize, pid, 0) }
}

/// Sets them.
/// Errors: ESRCH: it is not stopped.
pub fn set_registers(pid: i32, to: &libc::user_regs_struct) -> Result<(), Errno> {
    let at = core::ptr::from_ref(to) as usize;
    // SAFETY: reads such a structure.
    unsafe { ptrace(libc::PTRACE_SETREGS as usize, pid, 0, at) }
}

/// The signals that are blocked for a process that is stopped, a bit each.
/// Errors: ESRCH: it is not.
pub fn mask(pid: i32) -> Result<u64, Errno> {
    // SAFETY: writes a word of the length that it is told.
    unsafe { get(GET_MASK, pid, size_of::<u64>()) }
}

/// Sets them.
/// Errors: ESRCH: it is not stopped.
pub fn set_mask(pid: i32, to: u64) -> Result<(), Errno> {
    let at = &raw const to as usize;
    // SAFETY: reads a word of the length that it is told.
    unsafe { ptrace(SET_MASK, pid, size_of::<u64>(), at) }
}

/// What the event says by which it has stopped.
/// Errors: ESRCH: it is not stopped.
pub fn event_message(pid: i32) -> Result<usize, Errno> {
    // SAFETY: writes a word.
    unsafe { get(libc::PTRACE_GETEVENTMSG as usize, pid, 0) }
}

/// Why a signal came to it (`SI_USER`).
/// Errors: ESRCH: it is not stopped. EINVAL: not by a signal.
pub fn signal_code(pid: i32) -> Result<i32, Errno> {
    // SAFETY: it writes such a structure, of numbers.
    let info: libc::siginfo_t = unsafe { get(libc::PTRACE_GETSIGINFO as usize, pid, 0) }?;
    Ok(info.si_code)
}

/// The raw status of its next stop; `None` if it ends before, which is left to be waited for.
pub fn next_stop(pid: i32) -> Option<i32> {
    let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
    let how = libc::WEXITED | libc::WSTOPPED | libc::WNOWAIT | libc::__WALL;
    // SAFETY: writes one structure.
    while unsafe { libc::waitid(libc::P_PID, pid as u32, info.as_mut_ptr(), how) } < 0 {
        if Errno::last().0 != libc::EINTR {
            return None;
        }
    }
    // SAFETY: plain data, of which zeros are a value.
    let code = unsafe { info.assume_init() }.si_code;
    if [libc::CLD_EXITED, libc::CLD_KILLED, libc::CLD_DUMPED].contains(&code) {
        return None;
    }
    let got = crate::process::wait(pid, libc::__WALL | libc::WNOHANG);
    let (_, raw) = got.ok()??;
    libc::WIFSTOPPED(raw).then_some(raw)
}
