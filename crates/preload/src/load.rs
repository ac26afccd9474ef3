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
use crate::{DOOR, child, config, host};
use core::arch::asm;
use core::ffi::{CStr, c_int};
use core::sync::atomic::AtomicUsize;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::time::Duration;
use deckle_door::request::set_mask;
use deckle_door::{Mode, NO_TASK, State};
use deckle_sys::Fd;
use deckle_sys::futex;
use libc::{Elf64_Ehdr, Elf64_Phdr};

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
    let open = |path: &CStr| Fd::open(path, libc::O_RDONLY, 0);
    let Some(Ok(file)) = config::with_image_path(open) else {
        return;
    };
    let (fd, end) = (file.raw() as usize, libc::SEEK_END as usize);
    let (prot, flags) = (libc::PROT_READ as usize, libc::MAP_PRIVATE as usize);
    // SAFETY: asks for the length; a new read-only mapping.
    unsafe {
        if let Ok(bytes) = sys::call(libc::SYS_lseek, [fd, 0, end])
            && let Ok(at) = sys::call(libc::SYS_mmap, [0, bytes, prot, flags, fd])
        {
            FILE[1].store(bytes, Relaxed);
            FILE[0].store(at, Release);
        }
    }
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
unsafe fn elf(at: usize) -> Result<Elf64_Ehdr, &'static str> {
    // SAFETY: within the first page, and any bytes are a value.
    let elf = unsafe { (at as *const Elf64_Ehdr).read() };
    let (size, table) = (usize::from(elf.e_phentsize), elf.e_phoff as usize);
    let in_page = table + usize::from(elf.e_phnum) * size <= PAGE;
    let magic = elf.e_ident[..8] == *b"\x7fELF\x02\x01\x01\0";
    match magic && size == size_of::<Elf64_Phdr>() && in_page {
        true => Ok(elf),
        false => Err("its service image is no such image"),
    }
}

/// The loadable segments of the image at `at`.
///
/// # Safety
/// As [`elf`], which has accepted it.
unsafe fn segments(at: usize, elf: &Elf64_Ehdr) -> impl Iterator<Item = Segment> {
    let table = (at + elf.e_phoff as usize) as *const Elf64_Phdr;
    (0..usize::from(elf.e_phnum))
        // SAFETY: within the first page; the table is aligned to a word.
        .map(move |i| unsafe { table.add(i).read() })
        .filter(|h| h.p_type == libc::PT_LOAD)
        .map(|h| {
            let right = |flag, prot| if h.p_flags & flag != 0 { prot } else { 0 };
            let (write, exec) = (libc::PROT_WRITE, libc::PROT_EXEC);
            let prot = libc::PROT_READ | right(libc::PF_W, write) | right(libc::PF_X, exec);
            let words = [h.p_offset, h.p_vaddr, h.p_filesz, h.p_memsz];
            (words.map(|word| word as usize), prot)
        })
}

/// Offset in the file, address from the image's base on, bytes in the file and in memory; rights.
type Segment = ([usize; 4], c_int);

fn is_writable((_, prot): &Segment) -> bool {
    prot & libc::PROT_WRITE != 0
}

/// Sets the rights of a part of what we have mapped.
///
/// # Safety
/// Nobody uses it otherwise.
unsafe fn protect(start: usize, bytes: usize, prot: c_int) -> Result<(), &'static str> {
    // SAFETY: the caller's promise.
    let done = unsafe { sys::call(libc::SYS_mprotect, [start, bytes, prot as usize]) };
    done.map(drop).map_err(|_| REFUSED)
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
    let all = || unsafe { segments(file, &elf) };
    let span = all()
        .map(|([_, addr, _, memory], _)| up(addr + memory))
        .max()
        .unwrap_or(0);
    let base = host::reserve_image(span).map_err(|_| REFUSED)?;
    for segment in all() {
        let ([offset, addr, in_file, in_memory], prot) = segment;
        let (from, to) = (down(offset), base + down(addr));
        let len = up(offset + in_file) - from;
        if from + len > up(bytes) {
            return Err("its service image is cut off");
        }
        // The old place stays: two segments may share a page of the file.
        let how = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP;
        let end = base + up(addr + in_memory);
        // SAFETY: a part of our file's mapping, moved over our reservation; the rights of it; the
        // end of our reservation, which nobody uses yet.
        unsafe {
            let args = [file + from, len, len, how as usize, to];
            sys::call(libc::SYS_mremap, args).map_err(|_| REFUSED)?;
            protect(to, len, prot)?;
            if is_writable(&segment) && end > to + len {
                protect(to + len, end - to - len, prot)?;
            }
        }
    }
    // SAFETY: our mapping of the file, all needed parts of which are elsewhere now.
    unsafe { sys::unmap(file, bytes) };
    FILE[0].store(0, Relaxed);
    BASE.store(base, Release);
    let stack = sys::reserve(0, GUARD + STACK).map_err(|_| REFUSED)?;
    // SAFETY: our own mapping.
    unsafe { protect(stack + GUARD, STACK, libc::PROT_READ | libc::PROT_WRITE) }?;
    STACK_TOP.store(stack + GUARD + STACK, Relaxed);
    DOOR.image.store(span + GUARD + STACK, Relaxed);
    Ok(base)
}

/// Gives the writable segments the bytes that the file has, and zeros behind them.
///
/// # Safety
/// The image is at `base`, and no task runs in it.
unsafe fn renew(base: usize) -> Result<Elf64_Ehdr, &'static str> {
    // SAFETY: the image's first page; what lies in its writable segments is not needed, as
    // no task runs, and their last page of the file is the image's alone.
    unsafe {
        let elf = elf(base)?;
        for ([_, addr, in_file, in_memory], _) in segments(base, &elf).filter(is_writable) {
            let (start, end) = (base + addr, base + addr + in_memory);
            let drop = libc::MADV_DONTNEED as usize;
            let args = [down(start), up(end) - down(start), drop];
            sys::call(libc::SYS_madvise, args).map_err(|_| REFUSED)?;
            let tail = start + in_file;
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
        let stack = prepare_stack(top, base, &elf);
        clone_into(stack, base + elf.e_entry as usize)
    };
    set_mask(mask);
    made.map_err(|_| NO_TASK)?;
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
                let in_time = futex::wait(&DOOR.state, State::Pending as u32, Some(time));
                // The kernel does not clear its word for who is ended by a filter.
                let task = DOOR.task.load(Acquire) as i32;
                if !in_time && task != 0 && child::is_dead(task) {
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
unsafe fn prepare_stack(top: usize, base: usize, elf: &Elf64_Ehdr) -> usize {
    let words = [
        2,
        c"deckle".as_ptr() as usize,
        core::ptr::from_ref(&DOOR) as usize,
        0,
        // No environment.
        0,
        libc::AT_PHDR as usize,
        base + elf.e_phoff as usize,
        libc::AT_PHENT as usize,
        elf.e_phentsize.into(),
        libc::AT_PHNUM as usize,
        elf.e_phnum.into(),
        libc::AT_PAGESZ as usize,
        PAGE,
        libc::AT_ENTRY as usize,
        base + elf.e_entry as usize,
        libc::AT_HWCAP as usize,
        host::auxiliary(libc::AT_HWCAP as usize),
        // Sixteen bytes that nobody outside can guess: for its stack guard.
        libc::AT_RANDOM as usize,
        host::auxiliary(libc::AT_RANDOM as usize),
        // Not AT_SYSINFO_EHDR: the program may unmap or move its vDSO.
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
