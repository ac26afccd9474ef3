//! What the cases share: an allocator of their own, a task that runs a closure, and pipes.

use deckle_task::{Area, Options, Task, exit, futex, spawn};
use std::alloc::{GlobalAlloc, Layout};
use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;

/// Takes from one large reservation and gives nothing back: usable from program and task alike,
/// as the allocator of a real service must be.
struct Bump;

const RESERVED: usize = 1 << 30;
static BASE: AtomicUsize = AtomicUsize::new(0);
static USED: AtomicUsize = AtomicUsize::new(0);

#[global_allocator]
static ALLOCATOR: Bump = Bump;

fn base() -> usize {
    match BASE.load(Ordering::Acquire) {
        0 => {
            // SAFETY: a new mapping.
            let new = unsafe {
                let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
                libc::mmap(
                    std::ptr::null_mut(),
                    RESERVED,
                    libc::PROT_READ | libc::PROT_WRITE,
                    kind,
                    -1,
                    0,
                )
            } as usize;
            match BASE.compare_exchange(0, new, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => new,
                Err(first) => first,
            }
        }
        base => base,
    }
}

// SAFETY: hands out each byte once, aligned.
unsafe impl GlobalAlloc for Bump {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let take = layout.size() + layout.align();
        let at = USED.fetch_add(take, Ordering::Relaxed);
        if at + take > RESERVED {
            return std::ptr::null_mut();
        }
        (base() + at).next_multiple_of(layout.align()) as *mut u8
    }

    unsafe fn dealloc(&self, _: *mut u8, _: Layout) {}
}

pub const LONG: Duration = Duration::from_secs(20);

pub fn area() -> &'static Area {
    Box::leak(Box::new(Area::new(256 * 1024).unwrap()))
}

extern "C" fn run_boxed(work: *mut c_void) -> ! {
    // SAFETY: `start` leaked exactly this.
    let work = unsafe { Box::from_raw(work.cast::<Box<dyn FnOnce()>>()) };
    work();
    exit(0)
}

pub fn entry_of(work: impl FnOnce() + 'static) -> (deckle_task::Entry, *mut c_void) {
    let work: Box<Box<dyn FnOnce()>> = Box::new(Box::new(work));
    (run_boxed, Box::into_raw(work).cast())
}

/// A task in `area` that runs `work` and ends.
pub fn start_in(area: &'static Area, keep: &[i32], work: impl FnOnce() + 'static) -> Task<'static> {
    let (entry, argument) = entry_of(work);
    // SAFETY: the closures of the cases only touch what is shared on purpose; areas are leaked.
    unsafe {
        spawn(
            area,
            &Options {
                name: c"deckle-test",
                keep,
            },
            entry,
            argument,
        )
    }
    .unwrap()
}

pub fn start(keep: &[i32], work: impl FnOnce() + 'static) -> Task<'static> {
    start_in(area(), keep, work)
}

/// A word that program and task wait for.
pub struct Step(AtomicU32);

impl Step {
    pub fn new() -> &'static Step {
        Box::leak(Box::new(Step(AtomicU32::new(0))))
    }

    pub fn get(&self) -> u32 {
        self.0.load(Ordering::Acquire)
    }

    pub fn set(&self, value: u32) {
        self.0.store(value, Ordering::Release);
        futex::wake(&self.0, u32::MAX);
    }

    pub fn await_value(&self, value: u32) {
        loop {
            let now = self.get();
            if now == value {
                return;
            }
            let ended = futex::wait(&self.0, now, Some(LONG));
            assert_ne!(
                ended,
                futex::Wait::TimedOut,
                "step {value} is not reached, still {now}"
            );
        }
    }
}

pub fn pipe() -> (i32, i32) {
    let mut ends = [0; 2];
    // SAFETY: writes two descriptors.
    let made = unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) };
    assert_eq!(made, 0);
    (ends[0], ends[1])
}

/// Reads at most 64 bytes; empty at the end of the file.
pub fn read(fd: i32) -> String {
    let mut slot = libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    };
    let mut bytes = [0_u8; 64];
    // SAFETY: one slot; a buffer of that length.
    let got = unsafe {
        assert_eq!(
            libc::poll(&mut slot, 1, LONG.as_millis() as i32),
            1,
            "nothing to read"
        );
        libc::read(fd, bytes.as_mut_ptr().cast(), bytes.len())
    };
    assert!(got >= 0, "{}", std::io::Error::last_os_error());
    String::from_utf8_lossy(&bytes[..got as usize]).into_owned()
}

pub fn write(fd: i32, text: &str) {
    // SAFETY: a buffer of that length.
    let put = unsafe { libc::write(fd, text.as_ptr().cast(), text.len()) };
    assert_eq!(
        put,
        text.len() as isize,
        "{}",
        std::io::Error::last_os_error()
    );
}

pub fn close(fd: i32) {
    // SAFETY: a descriptor of the case.
    assert_eq!(unsafe { libc::close(fd) }, 0);
}

/// Forks; the child runs `work` and ends with status 0, or 1 after a panic.
pub fn fork(work: impl FnOnce() + std::panic::UnwindSafe) -> i32 {
    // SAFETY: the cases have one thread and an allocator without locks.
    match unsafe { libc::fork() } {
        0 => {
            let status = std::panic::catch_unwind(work).map_or(1, |()| 0);
            // SAFETY: ends the child.
            unsafe { libc::_exit(status) }
        }
        pid => {
            assert!(pid > 0);
            pid
        }
    }
}

pub fn wait_status(pid: i32) -> i32 {
    let mut status = 0;
    // SAFETY: writes the status.
    assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
    status
}
