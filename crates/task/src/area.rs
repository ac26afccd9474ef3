//! The memory of one task: stack, thread-local storage, module vector.
//!
//! One mapping, made by a raw system call, so that no part of it is ever the program's malloc:
//!
//! ```text
//! guard | stack | thread-local data | descriptor | module vector | control | clean copies
//! ```
//!
//! The clean copies are taken before the first task runs. They let an area be used again without
//! the loader: after a task died, and in a child of fork, where the loader's lock may be held by
//! a thread that does not exist there.

use crate::loader::Loader;
use crate::{SpawnError, locks, sys, tcb};
use core::ptr;
use core::sync::atomic::{AtomicU32, Ordering};

const PAGE: usize = 4096;
/// No access below the stack: larger than any frame of a function that does not probe.
const GUARD_BYTES: usize = 64 * 1024;
/// Smallest stack, in bytes.
const STACK_MIN: usize = 16 * 1024;
/// Largest stack, in bytes.
const STACK_MAX: usize = 1 << 30;
/// Address space for the module vector: 4094 modules with thread-local data. Its length says so
/// to the loader, which therefore never moves it with `realloc`. Pages are touched as needed.
const VECTOR_BYTES: usize = 64 * 1024;
const VECTOR_ENTRIES: usize = VECTOR_BYTES / size_of::<tcb::Entry>();

/// Start-up arguments and results of the task in an area.
#[repr(C)]
pub(crate) struct Control {
    /// 0 while the task sets itself up, 1 when it runs, 2 when it gave up.
    pub(crate) ready: AtomicU32,
    /// Which call failed, as an index into the spawner's table.
    pub(crate) failed: AtomicU32,
    /// Its errno.
    pub(crate) errno: AtomicU32,
    /// 1 after a task has run here.
    used: AtomicU32,
}

/// Stack and thread-local storage of one task. It is kept when the value goes away, because a
/// task may run in it; see [`Area::unmap`].
#[derive(Debug)]
pub struct Area {
    base: *mut u8,
    bytes: usize,
    tcb: *mut u8,
    control: *mut Control,
    pub(crate) loader: Loader,
    /// Entries of the module vector that have a clean copy.
    vector_used: usize,
}

// SAFETY: the memory behind the pointers belongs to the area; what is shared in it is atomic, and
// the rest is touched by `spawn` alone, which is unsafe and asks for one caller at a time.
unsafe impl Send for Area {}
// SAFETY: as above.
unsafe impl Sync for Area {}

fn up(bytes: usize) -> usize {
    bytes.next_multiple_of(PAGE)
}

impl Area {
    /// Maps an area with a stack of `stack_bytes` (at least 16 KiB, at most 1 GiB, rounded up to
    /// pages). Call it on a thread of the program, not in a signal handler: it takes the loader's
    /// lock, and the loader calls the interposed `calloc` once for a few hundred bytes, which are
    /// never freed. Leaves `errno` alone.
    ///
    /// # Errors
    ///
    /// [`SpawnError::Unsupported`] where libc or the loader are not known,
    /// [`SpawnError::Refused`] if memory cannot be had.
    pub fn new(stack_bytes: usize) -> Result<Area, SpawnError> {
        locks::keep_errno(|| Area::make(stack_bytes))
    }

    fn make(stack_bytes: usize) -> Result<Area, SpawnError> {
        let loader = Loader::find()?;
        let stack = up(stack_bytes.clamp(STACK_MIN, STACK_MAX));
        let (below, above) = (up(loader.below), up(loader.above));
        let live = below + above + VECTOR_BYTES;
        let bytes = GUARD_BYTES + stack + live + PAGE + live;
        let base = map(bytes)?;
        let tcb = base.wrapping_add(GUARD_BYTES + stack + below);
        let control = base
            .wrapping_add(GUARD_BYTES + stack + live)
            .cast::<Control>();
        let mut area = Area {
            base,
            bytes,
            tcb,
            control,
            loader,
            vector_used: 0,
        };
        match area.fill() {
            Ok(()) => Ok(area),
            Err(why) => {
                // SAFETY: nobody but us has seen the mapping.
                unsafe { area.unmap() };
                Err(why)
            }
        }
    }

    fn fill(&mut self) -> Result<(), SpawnError> {
        // SAFETY: all ranges are parts of our new mapping: `below` zero bytes under the
        // descriptor, `above` from it on, then the vector. The loader's own vector has entries
        // -1..=length, which its allocation ensures.
        unsafe {
            self.loader.fill(self.tcb)?;
            tcb::fill_head(self.tcb, self.rseq());
            let made = tcb::vector(self.tcb).wrapping_sub(1);
            let length = (*made)[0];
            self.vector_used = length + 2;
            if self.vector_used > VECTOR_ENTRIES {
                return Err(SpawnError::Unsupported(
                    "too many modules with thread-local data",
                ));
            }
            let ours = self.vector();
            ptr::copy_nonoverlapping(made, ours, self.vector_used);
            (*ours)[0] = VECTOR_ENTRIES - 2;
            tcb::set_vector(self.tcb, ours.add(1));
            let (data, vector) = self.clean();
            ptr::copy_nonoverlapping(self.data(), data, self.data_bytes());
            ptr::copy_nonoverlapping(ours, vector, self.vector_used);
        }
        Ok(())
    }

    /// Puts the clean copies back if a task has run here.
    ///
    /// # Safety
    ///
    /// No task runs in the area.
    pub(crate) unsafe fn renew(&self) {
        if self.control().used.swap(1, Ordering::Relaxed) == 0 {
            return;
        }
        let (data, vector) = self.clean();
        // SAFETY: as in `fill`; nobody uses the live parts, says the caller.
        unsafe {
            ptr::write_bytes(self.vector().cast::<u8>(), 0, VECTOR_BYTES);
            ptr::copy_nonoverlapping(data, self.data(), self.data_bytes());
            ptr::copy_nonoverlapping(vector, self.vector(), self.vector_used);
            // The guards may be others than at the time of the copy; the mark is the same.
            tcb::fill_head(self.tcb, self.rseq());
        }
    }

    /// Says that this process is a child of fork, in which no task of the parent runs: the area
    /// can be used for a task of the child. Touches nothing but the area.
    ///
    /// # Safety
    ///
    /// No task of *this* process runs in the area. (Tasks of the parent run in the parent's
    /// copy.)
    pub unsafe fn after_fork(&self) {
        self.tid_word().store(0, Ordering::SeqCst);
    }

    /// Gives the memory back.
    ///
    /// # Safety
    ///
    /// No task runs in the area, and nobody holds a pointer into it, such as
    /// [`Task::word`](crate::Task::word).
    pub unsafe fn unmap(self) {
        // SAFETY: our own mapping, which nobody uses, says the caller.
        let _ = unsafe {
            sys::call(
                libc::SYS_munmap,
                [self.base as usize, self.bytes, 0, 0, 0, 0],
            )
        };
    }

    /// First byte and length in bytes of the mapping, for a manager that must know which ranges
    /// are not the program's.
    pub fn range(&self) -> (usize, usize) {
        (self.base as usize, self.bytes)
    }

    /// The thread id of the task that runs here. The kernel sets it before the task's first
    /// instruction, and sets it to 0 and wakes it when the task has left the memory for good.
    pub(crate) fn tid_word(&self) -> &AtomicU32 {
        // SAFETY: an aligned word of the descriptor, in our mapping, which lives as long as self.
        unsafe { AtomicU32::from_ptr(self.tcb.add(self.loader.tid).cast()) }
    }

    pub(crate) fn control(&self) -> &Control {
        // SAFETY: a page of our mapping for it alone; any bytes are valid atomics.
        unsafe { &*self.control }
    }

    pub(crate) fn thread_pointer(&self) -> usize {
        self.tcb as usize
    }

    /// End of the stack, aligned to pages.
    pub(crate) fn stack_top(&self) -> usize {
        self.data() as usize
    }

    fn rseq(&self) -> Option<isize> {
        // Only where it lies inside the descriptor; newer libcs place it in the data below.
        let (from, to) = (
            -(self.loader.below as isize),
            self.loader.above as isize - 8,
        );
        self.loader.rseq.filter(|at| (from..=to).contains(at))
    }

    fn data(&self) -> *mut u8 {
        self.tcb.wrapping_sub(up(self.loader.below))
    }

    fn data_bytes(&self) -> usize {
        up(self.loader.below) + up(self.loader.above)
    }

    fn vector(&self) -> *mut tcb::Entry {
        self.tcb.wrapping_add(up(self.loader.above)).cast()
    }

    fn clean(&self) -> (*mut u8, *mut tcb::Entry) {
        let data = self.control.cast::<u8>().wrapping_add(PAGE);
        (data, data.wrapping_add(self.data_bytes()).cast())
    }
}

fn map(bytes: usize) -> Result<*mut u8, SpawnError> {
    let refused = |call| move |errno| SpawnError::Refused { call, errno };
    let access = (libc::PROT_READ | libc::PROT_WRITE) as usize;
    let kind = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE) as usize;
    // SAFETY: a new mapping at an address of the kernel's choice; then a change of our own
    // mapping, before anybody uses it.
    unsafe {
        let base = sys::call(libc::SYS_mmap, [0, bytes, access, kind, usize::MAX, 0])
            .map_err(refused("mmap"))?;
        let closed = [base, GUARD_BYTES, libc::PROT_NONE as usize, 0, 0, 0];
        if let Err(errno) = sys::call(libc::SYS_mprotect, closed) {
            let _ = sys::call(libc::SYS_munmap, [base, bytes, 0, 0, 0, 0]);
            return Err(SpawnError::Refused {
                call: "mprotect",
                errno,
            });
        }
        // A huge page for a few touched pages would be waste. Kernels without THP refuse.
        let _ = sys::call(
            libc::SYS_madvise,
            [base, bytes, libc::MADV_NOHUGEPAGE as usize, 0, 0, 0],
        );
        Ok(base as *mut u8)
    }
}
