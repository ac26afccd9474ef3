//! Making tasks.

use crate::area::Area;
use crate::futex::{self, Scope, Wait};
use crate::loader::Loader;
use crate::{SpawnError, locks, sys};
use core::arch::asm;
use core::ffi::{CStr, c_void};
use core::sync::atomic::{AtomicU32, Ordering};
use core::time::Duration;

/// What a task runs. It must not return: end the task with [`exit`]. A panic that reaches it
/// aborts the task, not the program.
pub type Entry = extern "C" fn(*mut c_void) -> !;

/// Most descriptors that a task can keep.
const KEEP_MAX: usize = 16;

/// Settings of a service task.
#[derive(Debug, Clone, Copy)]
pub struct Options<'a> {
    /// Its name in `ps` and `top`; the kernel keeps 15 bytes.
    pub name: &'a CStr,
    /// Descriptors of the caller that the task keeps, by the same numbers, at most 16. All others
    /// are closed in its table before its entry runs.
    pub keep: &'a [i32],
}

/// A task that was made. Dropping it changes nothing.
#[derive(Debug, Clone, Copy)]
pub struct Task<'a> {
    tid: i32,
    area: &'a Area,
}

impl<'a> Task<'a> {
    /// Its thread id; for a task made by [`spawn`] also its process id.
    pub fn id(&self) -> i32 {
        self.tid
    }

    /// The word that holds the task's id while it lives. When the task has left the memory, killed
    /// or not, the kernel stores 0 and wakes one waiter of a *shared* (not private) futex wait.
    /// For waits on several words: FUTEX_WAITV without FUTEX2_PRIVATE for this one.
    pub fn word(&self) -> &'a AtomicU32 {
        self.area.tid_word()
    }

    /// Whether the task still runs: one load.
    pub fn is_alive(&self) -> bool {
        self.word().load(Ordering::Acquire) == self.tid as u32
    }

    /// Waits until the task has ended, at most `timeout`. Returns whether it has.
    pub fn wait_end(&self, timeout: Duration) -> bool {
        if self.is_alive() {
            futex::wait_in(Scope::Shared, self.word(), self.tid as u32, Some(timeout));
        }
        !self.is_alive()
    }

    /// Takes the dead task's entry out of the process table, which nobody else does while its
    /// program lives. Returns whether it was there. Only for tasks of [`spawn`].
    pub fn reap(&self) -> bool {
        let how = (libc::__WALL | libc::WNOHANG) as usize;
        // SAFETY: asks for no status.
        let done = unsafe { sys::call(libc::SYS_wait4, [self.tid as usize, 0, how, 0, 0, 0]) };
        done == Ok(self.tid as usize)
    }
}

/// Ends the calling task (only it, not the threads of its service).
pub fn exit(status: i32) -> ! {
    loop {
        // SAFETY: the end of this task. Its stack is not touched afterwards.
        let _ = unsafe { sys::call(libc::SYS_exit, [status as usize, 0, 0, 0, 0, 0]) };
    }
}

const STEPS: [&str; 2] = ["close_range", "chdir"];

/// What the new task needs to set itself up. Lives on the spawner's stack for the service task,
/// which is waited for.
struct Start<'a> {
    area: &'a Area,
    loader: Loader,
    name: &'a CStr,
    keep: [i32; KEEP_MAX],
    kept: usize,
    entry: Entry,
    argument: *mut c_void,
}

/// Makes a service task of the calling process and waits until it has set itself up: all signals
/// blocked, a session of its own, the inherited descriptors closed (they are never open in it
/// once this returns), working directory `/`.
///
/// Also makes libc take its locks for real; see [`real_locks`](crate::real_locks).
///
/// # Errors
///
/// [`SpawnError::Busy`] if a task still runs in `area`, [`SpawnError::Keep`] for bad settings,
/// [`SpawnError::Refused`] and [`SpawnError::Died`] as they say. No task is left behind.
///
/// # Safety
///
/// `entry` with `argument` is sound to run concurrently with the program, and calls only what the
/// crate's documentation allows. Nobody else makes a task in `area` at the same time. The area
/// stays mapped while the task runs.
pub unsafe fn spawn<'a>(
    area: &'a Area,
    options: &Options<'_>,
    entry: Entry,
    argument: *mut c_void,
) -> Result<Task<'a>, SpawnError> {
    if options.keep.len() > KEEP_MAX || options.keep.iter().any(|fd| *fd < 0) {
        return Err(SpawnError::Keep { limit: KEEP_MAX });
    }
    let mut keep = [0; KEEP_MAX];
    let kept = options.keep.len();
    keep[..kept].copy_from_slice(options.keep);
    keep[..kept].sort_unstable();
    locks::real_locks();
    let start = Start {
        area,
        loader: area.loader,
        name: options.name,
        keep,
        kept,
        entry,
        argument,
    };
    let flags = libc::CLONE_VM
        | libc::CLONE_SETTLS
        | libc::CLONE_PARENT_SETTID
        | libc::CLONE_CHILD_CLEARTID
        | libc::CLONE_UNTRACED;
    // SAFETY: the area is ours alone, says the caller; `start` outlives the wait below.
    let task = unsafe {
        make(
            area,
            flags,
            service_start,
            (&raw const start).cast_mut().cast(),
        )
    }?;
    let control = area.control();
    while control.ready.load(Ordering::Acquire) == 0 {
        if futex::wait(&control.ready, 0, Some(Duration::from_millis(20))) == Wait::TimedOut
            && !task.is_alive()
            && control.ready.load(Ordering::Acquire) == 0
        {
            task.reap();
            return Err(SpawnError::Died);
        }
    }
    if control.ready.load(Ordering::Acquire) == 1 {
        return Ok(task);
    }
    while !task.wait_end(Duration::from_secs(1)) {}
    task.reap();
    let call = STEPS
        .get(control.failed.load(Ordering::Relaxed) as usize)
        .copied();
    let errno = control.errno.load(Ordering::Relaxed) as i32;
    Err(SpawnError::Refused {
        call: call.unwrap_or("set-up"),
        errno,
    })
}

/// Makes another thread of the calling service: it shares the caller's descriptors, directory and
/// identity. Make the [`Area`] before, in the program: inside the service the loader must not be
/// called. Does not wait for the thread.
///
/// # Errors
///
/// [`SpawnError::Busy`], [`SpawnError::Refused`].
///
/// # Safety
///
/// As [`spawn`]. The caller is a service task; called on a program's thread this would make a
/// thread of the program that libc does not know.
pub unsafe fn spawn_thread<'a>(
    area: &'a Area,
    entry: Entry,
    argument: *mut c_void,
) -> Result<Task<'a>, SpawnError> {
    let flags = libc::CLONE_VM
        | libc::CLONE_FS
        | libc::CLONE_FILES
        | libc::CLONE_SIGHAND
        | libc::CLONE_THREAD
        | libc::CLONE_SYSVSEM
        | libc::CLONE_SETTLS
        | libc::CLONE_PARENT_SETTID
        | libc::CLONE_CHILD_CLEARTID
        | libc::CLONE_UNTRACED;
    // SAFETY: the area is ours alone, says the caller. Handing the entry itself to the new task
    // keeps nothing on this stack.
    unsafe { make(area, flags, entry, argument) }
}

/// The clone itself, with all signals blocked, so that no handler ever runs in the new task.
///
/// # Safety
///
/// Nobody else makes a task in `area`; `entry` with `argument` can run.
unsafe fn make<'a>(
    area: &'a Area,
    flags: libc::c_int,
    entry: Entry,
    argument: *mut c_void,
) -> Result<Task<'a>, SpawnError> {
    let word = area.tid_word();
    match word.load(Ordering::Acquire) {
        0 => {}
        tid => return Err(SpawnError::Busy { tid: tid as i32 }),
    }
    // SAFETY: no task runs in the area: the kernel has cleared its word, or none was made.
    unsafe { area.renew() };
    let control = area.control();
    control.ready.store(0, Ordering::Relaxed);
    let (all, mut before) = (u64::MAX, 0_u64);
    // SAFETY: reads and writes 8 bytes each, of variables on this stack; the mask is restored
    // below. In the new task `clone_into` does not return.
    let made = unsafe {
        let mask = [
            libc::SIG_SETMASK as usize,
            &raw const all as usize,
            &raw mut before as usize,
            8,
            0,
            0,
        ];
        sys::call(libc::SYS_rt_sigprocmask, mask).map_err(|errno| SpawnError::Refused {
            call: "rt_sigprocmask",
            errno,
        })?;
        let made = clone_into(flags as usize, area, entry, argument);
        let mask = [
            libc::SIG_SETMASK as usize,
            &raw const before as usize,
            0,
            8,
            0,
            0,
        ];
        let _ = sys::call(libc::SYS_rt_sigprocmask, mask);
        made
    };
    match made {
        Ok(tid) => Ok(Task { tid, area }),
        Err(errno) => {
            word.store(0, Ordering::Release);
            Err(SpawnError::Refused {
                call: "clone",
                errno,
            })
        }
    }
}

/// # Safety
///
/// As [`make`].
unsafe fn clone_into(
    flags: usize,
    area: &Area,
    entry: Entry,
    argument: *mut c_void,
) -> Result<i32, i32> {
    let word = area.tid_word().as_ptr() as usize;
    let ret: isize;
    // SAFETY: the new task starts behind the call with the same registers, but on its own stack
    // and thread-local storage; it calls the entry, which does not return, and so never uses
    // this frame. The stack's end is aligned as a call needs it.
    unsafe {
        asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "xor ebp, ebp",
            "mov rdi, r13",
            "call r12",
            "ud2",
            "2:",
            inlateout("rax") libc::SYS_clone as isize => ret,
            in("rdi") flags,
            in("rsi") area.stack_top(),
            in("rdx") word,
            in("r10") word,
            in("r8") area.thread_pointer(),
            in("r12") entry,
            in("r13") argument,
            lateout("rcx") _,
            lateout("r11") _,
        );
    }
    if ret < 0 {
        Err(-ret as i32)
    } else {
        Ok(ret as i32)
    }
}

/// The first code of a service task.
extern "C" fn service_start(start: *mut c_void) -> ! {
    // SAFETY: the spawner waits, with this on its stack, until `ready` is set.
    let start = unsafe { &*start.cast::<Start<'_>>() };
    let control = start.area.control();
    let (entry, argument) = (start.entry, start.argument);
    start.loader.init_ctype();
    let name = [
        libc::PR_SET_NAME as usize,
        start.name.as_ptr() as usize,
        0,
        0,
        0,
        0,
    ];
    // SAFETY: a string that ends in NUL; a name is no reason to fail.
    let _ = unsafe { sys::call(libc::SYS_prctl, name) };
    // Out of the program's process group: job control and kill(0) mean the program. Cannot fail,
    // as no group has the id of a new task.
    // SAFETY: changes the caller's session only.
    let _ = unsafe { sys::call(libc::SYS_setsid, [0; 6]) };
    let done = close_others(&start.keep[..start.kept])
        .map_err(|errno| (0, errno))
        .and_then(|()| {
            // SAFETY: a string that ends in NUL; the directory is this task's own.
            unsafe { sys::call(libc::SYS_chdir, [c"/".as_ptr() as usize, 0, 0, 0, 0, 0]) }
                .map(|_| ())
                .map_err(|errno| (1, errno))
        });
    if let Err((step, errno)) = done {
        control.failed.store(step, Ordering::Relaxed);
        control.errno.store(errno as u32, Ordering::Relaxed);
    }
    // From here on `start` may be gone; the area and its control page are not.
    control
        .ready
        .store(if done.is_ok() { 1 } else { 2 }, Ordering::Release);
    futex::wake(&control.ready, 1);
    if done.is_err() {
        exit(1);
    }
    entry(argument)
}

/// Closes every descriptor of the calling task but `keep` (sorted). The table is a copy, so the
/// program's record locks, which belong to its table, stay.
fn close_others(keep: &[i32]) -> Result<(), i32> {
    let mut from = 0_usize;
    let close = |from: usize, to: usize| {
        if from > to {
            return Ok(());
        }
        // SAFETY: descriptors of this task alone, none of which anybody uses.
        unsafe { sys::call(libc::SYS_close_range, [from, to, 0, 0, 0, 0]) }.map(|_| ())
    };
    for fd in keep {
        let fd = *fd as usize;
        if fd > from {
            close(from, fd - 1)?;
        }
        from = from.max(fd + 1);
    }
    close(from, u32::MAX as usize)
}
