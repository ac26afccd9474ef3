//! What the program's loader and libc tell about thread-local storage.
//!
//! The symbols are private to glibc (version GLIBC_PRIVATE) and looked up at run time. What they
//! return is checked, so that a libc that changed them is refused rather than believed.

use crate::{SpawnError, sys, tcb};
use core::ffi::{CStr, c_void};

/// Largest alignment of thread-local data that an area can give, in bytes.
const ALIGN_MAX: usize = 4096;
/// Room for the thread descriptor where libc does not tell its size, in bytes. It is about 2300
/// in glibc 2.36.
const DESCRIPTOR_BYTES: usize = 4096;
/// Where `struct pthread` keeps the thread id: the same since glibc 2.4. Checked before use.
const TID_OFFSET: usize = 0x2d0;

/// Sizes and entry points, as found in this process.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Loader {
    allocate: unsafe extern "C" fn(*mut c_void) -> *mut c_void,
    ctype_init: Option<unsafe extern "C" fn()>,
    /// Bytes below the thread pointer that thread-local data may need.
    pub(crate) below: usize,
    /// Bytes from the thread pointer up that the thread descriptor needs.
    pub(crate) above: usize,
    /// Where the descriptor keeps the thread id, in bytes from the thread pointer.
    pub(crate) tid: usize,
    /// Where the kernel's rseq area is, in bytes from the thread pointer, if libc says so.
    pub(crate) rseq: Option<isize>,
}

fn symbol(name: &CStr) -> Option<*mut c_void> {
    // SAFETY: a look-up by a name that ends in NUL; it runs no code of the symbol.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    (!found.is_null()).then_some(found)
}

impl Loader {
    /// Looks everything up. Called on a thread of the program.
    pub(crate) fn find() -> Result<Loader, SpawnError> {
        let allocate =
            symbol(c"_dl_allocate_tls").ok_or(SpawnError::Unsupported("no _dl_allocate_tls"))?;
        let info = symbol(c"_dl_get_tls_static_info")
            .ok_or(SpawnError::Unsupported("no _dl_get_tls_static_info"))?;
        type Allocate = unsafe extern "C" fn(*mut c_void) -> *mut c_void;
        type Info = unsafe extern "C" fn(*mut usize, *mut usize);
        // SAFETY: these are the functions' signatures on x86-64, in every version of glibc.
        let (allocate, info) = unsafe {
            (
                core::mem::transmute::<*mut c_void, Allocate>(allocate),
                core::mem::transmute::<*mut c_void, Info>(info),
            )
        };
        let (mut below, mut align) = (0, 0);
        // SAFETY: writes two sizes.
        unsafe { info(&mut below, &mut align) };
        if align > ALIGN_MAX || below == 0 || below > 1 << 30 {
            return Err(SpawnError::Unsupported(
                "unusual size or alignment of thread-local data",
            ));
        }
        let above = match symbol(c"_thread_db_sizeof_pthread") {
            // SAFETY: a constant of 32 bits that libc exports for debuggers.
            Some(size) => unsafe { size.cast::<u32>().read() as usize },
            None => DESCRIPTOR_BYTES,
        };
        // SAFETY: glibc defines it as a function without arguments.
        let ctype_init = symbol(c"__ctype_init")
            .map(|f| unsafe { core::mem::transmute::<*mut c_void, unsafe extern "C" fn()>(f) });
        // SAFETY: a constant that libc exports (2.35 on), of the size of a pointer.
        let rseq = symbol(c"__rseq_offset").map(|offset| unsafe { offset.cast::<isize>().read() });
        let known = (TID_OFFSET + 4..=1 << 20).contains(&above)
            && tcb::read_u32(TID_OFFSET) == sys::gettid() as u32;
        if !known {
            return Err(SpawnError::Unsupported(
                "unknown layout of the thread descriptor",
            ));
        }
        Ok(Loader {
            allocate,
            ctype_init,
            below,
            above,
            tid: TID_OFFSET,
            rseq,
        })
    }

    /// Lets the loader fill the thread-local data below `tcb` and make the module vector. Takes
    /// the loader's lock and memory from `calloc`.
    ///
    /// # Safety
    ///
    /// `self.below` zero bytes below `tcb` and `self.above` from it on are writable and unused.
    pub(crate) unsafe fn fill(&self, tcb: *mut u8) -> Result<(), SpawnError> {
        // SAFETY: with an argument the function only writes around it, as libc's own
        // pthread_create has it do.
        let done = unsafe { (self.allocate)(tcb.cast()) };
        if done.is_null() {
            return Err(SpawnError::Refused {
                call: "_dl_allocate_tls",
                errno: libc::ENOMEM,
            });
        }
        Ok(())
    }

    /// Sets up the calling task's character tables, without which `isalpha` and `strtol` crash.
    pub(crate) fn init_ctype(&self) {
        if let Some(init) = self.ctype_init {
            // SAFETY: writes three thread-local pointers of the caller.
            unsafe { init() };
        }
    }
}
