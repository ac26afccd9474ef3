//! The service image: mapped into the program, and started there.
//!
//! The image is a static, position-independent program. Its file is mapped when the program
//! starts, so that nothing the program does later (chroot, another mount namespace) keeps it
//! away; its segments are moved to their places when the program needs a service, and it begins
//! at its own entry point, in a task that shares the program's memory and nothing else, with a
//! stack that looks to it like the one that the kernel gives a program.
//!
//! In a child of fork it begins anew: its writable segments are given back, which brings the
//! file's bytes again, and it finds what its parent knew by the [`Door`](deckle_door::Door).

use crate::sys::{self, PAGE};
use crate::{DOOR, config, fork, host};
use core::arch::asm;
use core::sync::atomic::AtomicUsize;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::time::Duration;
use deckle_door::futex::{self, Wait};
use deckle_door::request::set_mask;
use deckle_door::{Mode, State};

/// Bytes of the first task's stack.
const STACK: usize = 256 << 10;
/// No access below it.
const GUARD: usize = 64 << 10;

/// The mapped file: address (0: none) and bytes.
static FILE: [AtomicUsize; 2] = [AtomicUsize::new(0), AtomicUsize::new(0)];
/// Where the image is, once it is placed.
static BASE: AtomicUsize = AtomicUsize::new(0);
/// End of the first task's stack.
static STACK_TOP: AtomicUsize = AtomicUsize::new(0);

/// Maps the image's file. Nothing is said if it is not there: that is told when it is needed.
pub fn map_file() {
    if !DOOR.may(libc::SYS_openat) {
        return;
    }
    let Some(Ok(fd)) = config::with_image_path(|path| {
        let how = (libc::O_RDONLY | libc::O_CLOEXEC) as usize;
        let here = libc::AT_FDCWD as usize;
        let args = [here, path.as_ptr() as usize, how, 0, 0, 0];
        // SAFETY: a path that ends in NUL.
        unsafe { sys::call(libc::SYS_openat, args) }
    }) else {
        return;
    };
    // SAFETY: asks for the length; a new read-only mapping; closes what was opened here.
    unsafe {
        let end = libc::SEEK_END as usize;
        if let Ok(bytes) = sys::call(libc::SYS_lseek, [fd, 0, end, 0, 0, 0]) {
            let (prot, flags) = (libc::PROT_READ as usize, libc::MAP_PRIVATE as usize);
            if let Ok(at) = sys::call(libc::SYS_mmap, [0, bytes, prot, flags, fd, 0]) {
                FILE[1].store(bytes, Relaxed);
                FILE[0].store(at, Release);
            }
        }
        let _ = sys::call(libc::SYS_close, [fd, 0, 0, 0, 0, 0]);
    }
}

/// Kind of a header: what is mapped.
pub const PT_LOAD: u32 = 1;
const PF_X: u32 = 1;
/// Flag of a header: it is writable.
pub const PF_W: u32 = 2;

/// A program header of a 64-bit ELF file.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Header {
    pub kind: u32,
    pub flags: u32,
    offset: usize,
    pub addr: usize,
    _physical: usize,
    pub file_bytes: usize,
    pub memory_bytes: usize,
    align: usize,
}

/// What of an ELF file's head is needed.
#[derive(Clone, Copy)]
struct Elf {
    entry: usize,
    table: usize,
    count: usize,
}

fn down(at: usize) -> usize {
    at & !(PAGE - 1)
}

fn up(at: usize) -> usize {
    at.next_multiple_of(PAGE)
}

/// Reads the head of the image at `at`.
///
/// # Safety
/// A page of an ELF file is mapped there.
unsafe fn elf(at: usize) -> Result<Elf, &'static str> {
    // SAFETY: within the first page.
    let word = |offset: usize| unsafe { ((at + offset) as *const u64).read() as usize };
    let magic = u64::from_le_bytes(*b"\x7fELF\x02\x01\x01\0") as usize;
    let elf = Elf {
        entry: word(24),
        table: word(32),
        count: word(56) & 0xffff,
    };
    let size = word(48) >> 48;
    match word(0) == magic && size == size_of::<Header>() && elf.table + elf.count * size <= PAGE {
        true => Ok(elf),
        false => Err("its service image is no such image"),
    }
}

/// The loadable segments of the image at `at`.
///
/// # Safety
/// As [`elf`], which has accepted it.
unsafe fn segments(at: usize, elf: Elf) -> impl Iterator<Item = Header> {
    let table = (at + elf.table) as *const Header;
    (0..elf.count)
        // SAFETY: within the first page; the table is aligned to a word.
        .map(move |i| unsafe { table.add(i).read() })
        .filter(|h| h.kind == PT_LOAD)
}

const REFUSED: &str = "the system refuses memory for its service";

/// Puts the segments in their places.
fn place() -> Result<usize, &'static str> {
    if FILE[0].load(Acquire) == 0 {
        // An allocator of the program's own asks for memory before we were initialised.
        map_file();
    }
    let (file, bytes) = (FILE[0].load(Acquire), FILE[1].load(Relaxed));
    if file == 0 {
        return Err("its service image, libdeckle.image beside libdeckle.so, cannot be read");
    }
    // SAFETY: the file is mapped there, a page at least or the access fails like any other.
    let elf = unsafe { elf(file) }?;
    // SAFETY: as above.
    let all = || unsafe { segments(file, elf) };
    let span = all()
        .map(|h| up(h.addr + h.memory_bytes))
        .max()
        .unwrap_or(0);
    let base = host::reserve_image(span).map_err(|_| REFUSED)?;
    for h in all() {
        let from = down(h.offset);
        let to = base + down(h.addr);
        let len = up(h.offset + h.file_bytes) - from;
        if from + len > up(bytes) {
            return Err("its service image is cut off");
        }
        let how = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | MREMAP_DONTUNMAP;
        let args = [file + from, len, len, how as usize, to, 0];
        let mut prot = libc::PROT_READ;
        for (flag, right) in [(PF_W, libc::PROT_WRITE), (PF_X, libc::PROT_EXEC)] {
            prot |= if h.flags & flag != 0 { right } else { 0 };
        }
        // SAFETY: a part of our file's mapping, moved over our reservation; the rights of it.
        unsafe {
            sys::call(libc::SYS_mremap, args).map_err(|_| REFUSED)?;
            let rights = [to, len, prot as usize, 0, 0, 0];
            sys::call(libc::SYS_mprotect, rights).map_err(|_| REFUSED)?;
        }
        let end = base + up(h.addr + h.memory_bytes);
        if h.flags & PF_W != 0 && end > to + len {
            let rights = [to + len, end - to - len, prot as usize, 0, 0, 0];
            // SAFETY: the end of our reservation, which nobody uses yet.
            unsafe { sys::call(libc::SYS_mprotect, rights) }.map_err(|_| REFUSED)?;
        }
    }
    // SAFETY: our mapping of the file, all needed parts of which are elsewhere now.
    unsafe { sys::unmap(file, bytes) };
    FILE[0].store(0, Relaxed);
    BASE.store(base, Release);
    let stack = sys::reserve(0, GUARD + STACK).map_err(|_| REFUSED)?;
    let prot = (libc::PROT_READ | libc::PROT_WRITE) as usize;
    let rights = [stack + GUARD, STACK, prot, 0, 0, 0];
    // SAFETY: our own mapping.
    unsafe { sys::call(libc::SYS_mprotect, rights) }.map_err(|_| REFUSED)?;
    STACK_TOP.store(stack + GUARD + STACK, Relaxed);
    DOOR.image.store(span + GUARD + STACK, Relaxed);
    Ok(base)
}

/// `MREMAP_DONTUNMAP`: two segments may share a page of the file.
const MREMAP_DONTUNMAP: i32 = 4;

/// Gives the writable segments the bytes that the file has, and zeros behind them.
///
/// # Safety
/// The image is at `base`, and no task runs in it.
unsafe fn renew(base: usize) -> Result<Elf, &'static str> {
    // SAFETY: the image's first page; what lies in its writable segments is not needed, as
    // no task runs, and their last page of the file is the image's alone.
    unsafe {
        let elf = elf(base)?;
        for h in segments(base, elf).filter(|h| h.flags & PF_W != 0) {
            let (start, end) = (base + h.addr, base + h.addr + h.memory_bytes);
            let drop = libc::MADV_DONTNEED as usize;
            let args = [down(start), up(end) - down(start), drop, 0, 0, 0];
            sys::call(libc::SYS_madvise, args).map_err(|_| REFUSED)?;
            let tail = start + h.file_bytes;
            core::ptr::write_bytes(tail as *mut u8, 0, up(tail) - tail);
        }
        Ok(elf)
    }
}

/// Starts the service and waits until it runs. Called by one thread of the program at a time;
/// in a child of fork by its only one, before anything else.
///
/// # Errors
/// Why there is none, for people.
pub fn start(mode: Mode) -> Result<(), &'static str> {
    let base = match mode {
        Mode::First => place()?,
        Mode::Child => BASE.load(Acquire),
    };
    // SAFETY: nothing runs in it: it is new, or its tasks are the parent's.
    let elf = unsafe { renew(base) }?;
    DOOR.mode.store(mode as u32, Relaxed);
    DOOR.state.store(State::Pending as u32, Relaxed);
    DOOR.pid.store(sys::getpid() as i32, Relaxed);
    if mode == Mode::Child || DOOR.left.load(Relaxed) == 0 {
        // Who has forked is the main thread of the child; before we were initialised there is
        // no other.
        DOOR.left.store(sys::main_thread_word(), Relaxed);
    }
    let top = STACK_TOP.load(Relaxed);
    // No handler of the program ever runs in a task of the service: they inherit the mask.
    let mask = set_mask(u64::MAX);
    // SAFETY: the stack is the first task's, which does not run yet; the image is whole.
    let made = unsafe {
        let stack = prepare_stack(top, base, elf);
        clone_into(stack, base + elf.entry)
    };
    set_mask(mask);
    made.map_err(|_| "the system refuses a task for its service")?;
    wait()
}

/// Waits for what comes of the start.
fn wait() -> Result<(), &'static str> {
    loop {
        match DOOR.outcome() {
            State::Runs => return Ok(()),
            State::Failed => {
                let why = core::str::from_utf8(DOOR.reason.get());
                return Err(why.unwrap_or("for a reason that is no text"));
            }
            // Looked at in this order: it may have said why just before its end.
            State::Pending if DOOR.task.load(Acquire) == 0 => {
                if DOOR.outcome() == State::Pending {
                    return Err("its service has died");
                }
            }
            State::Pending => {
                let time = Duration::from_millis(50);
                let woken = futex::wait(&DOOR.state, State::Pending as u32, Some(time));
                // The kernel does not clear its word for who is ended by a filter.
                let task = DOOR.task.load(Acquire) as i32;
                if woken == Wait::TimedOut && task != 0 && fork::is_dead(task) {
                    DOOR.task.store(0, Release);
                }
            }
        }
    }
}

/// Writes what a program finds on its stack at its start: arguments (a name and the address of
/// the door), no environment, and the auxiliary vector. Returns the stack pointer.
///
/// # Safety
/// At least a page below `top` is writable and unused; the image is at `base`.
unsafe fn prepare_stack(top: usize, base: usize, elf: Elf) -> usize {
    const AT_PHDR: usize = 3;
    const AT_PHENT: usize = 4;
    const AT_PHNUM: usize = 5;
    const AT_PAGESZ: usize = 6;
    const AT_ENTRY: usize = 9;
    const AT_HWCAP: usize = 16;
    const AT_RANDOM: usize = 25;
    const AT_SYSINFO_EHDR: usize = 33;
    let words = [
        2,
        c"deckle".as_ptr() as usize,
        core::ptr::from_ref(&DOOR) as usize,
        0,
        // No environment.
        0,
        AT_PHDR,
        base + elf.table,
        AT_PHENT,
        size_of::<Header>(),
        AT_PHNUM,
        elf.count,
        AT_PAGESZ,
        PAGE,
        AT_ENTRY,
        base + elf.entry,
        AT_HWCAP,
        host::auxiliary(AT_HWCAP),
        // Sixteen bytes that nobody outside can guess: for its stack guard.
        AT_RANDOM,
        host::auxiliary(AT_RANDOM),
        AT_SYSINFO_EHDR,
        host::auxiliary(AT_SYSINFO_EHDR),
        0,
        0,
    ];
    let stack = (top - size_of_val(&words)) & !15;
    // SAFETY: inside the page below the top.
    unsafe { core::ptr::copy_nonoverlapping(words.as_ptr(), stack as *mut usize, words.len()) };
    stack
}

/// Makes a task that begins at `entry` with stack pointer `stack`, as a program does. It shares
/// the memory and nothing else; its end sends no signal, `wait` does not see it, and it is not
/// traced when the program is.
///
/// # Safety
/// `entry` is the start of a program whose stack was prepared.
unsafe fn clone_into(stack: usize, entry: usize) -> Result<u32, i32> {
    let flags = libc::CLONE_VM
        | libc::CLONE_PARENT_SETTID
        | libc::CLONE_CHILD_CLEARTID
        | libc::CLONE_UNTRACED;
    let word = DOOR.task.as_ptr() as usize;
    let ret: isize;
    // SAFETY: the new task starts behind the call with the same registers, but on its own stack;
    // it leaves for the entry at once and so never uses this frame.
    unsafe {
        asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "xor ebp, ebp",
            "xor edx, edx",
            "jmp r12",
            "2:",
            inlateout("rax") libc::SYS_clone as isize => ret,
            in("rdi") flags as usize,
            in("rsi") stack,
            inlateout("rdx") word => _,
            in("r10") word,
            in("r8") 0,
            in("r12") entry,
            lateout("rcx") _,
            lateout("r11") _,
        );
    }
    match ret {
        ..0 => Err(-ret as i32),
        tid => Ok(tid as u32),
    }
}
