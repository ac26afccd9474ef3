//! What the environment says: the group's name and where this library is.
//!
//! Read once, at the program's start, because programs change their environment. Kept in
//! static memory.

use crate::DOOR;
use core::ffi::{CStr, c_char};
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::{Acquire, Release};
use deckle_door::Text;

/// The variable that names the group.
pub const GROUP: &[u8] = b"DECKLE_GROUP=";
/// The loader's variable.
pub const PRELOAD: &[u8] = b"LD_PRELOAD=";
const LIBRARY: &[u8] = b"libdeckle.so";
/// The service image, beside the library.
const IMAGE: &[u8] = b"libdeckle.image";
/// Asks the service for a defect; tests see by it that none of them hangs the program.
const FAULT: &[u8] = b"DECKLE_FAULT=";

static LIBRARY_PATH: Text<4096> = Text::new();
/// `LD_PRELOAD=` and this library, with NUL.
static PRELOAD_ALONE: Text<4112> = Text::new();
/// The same with the list that the environment had at the start behind it; empty if this library
/// was the first of it, or if there is no room.
static PRELOAD_START: Text<8192> = Text::new();
/// `DECKLE_GROUP=` and the name, with NUL.
static GROUP_ENTRY: Text<96> = Text::new();
/// 0: not read, 1: being read, 2: read.
static READ: AtomicU32 = AtomicU32::new(0);

unsafe extern "C" {
    static environ: *mut *const c_char;
    /// The loader's word for where the kernel has put the count of arguments, which they follow, up
    /// to a null one, and the environment.
    static __libc_stack_end: *mut usize;
}

/// The environment, which libc does not know before its own constructors have run.
pub fn environment() -> *mut *const c_char {
    // SAFETY: a word of libc's and one of the loader's, set before any code but its own runs, and
    // what the kernel has written there.
    unsafe {
        match environ.is_null() {
            true => __libc_stack_end.add(*__libc_stack_end + 2).cast(),
            false => environ,
        }
    }
}

/// Reads the environment, once. Called by the loader at the start, or by the first caller that
/// needs it before.
pub fn read() {
    if READ.compare_exchange(0, 1, Acquire, Acquire).is_err() {
        return;
    }
    // SAFETY: the program's environment: pointers to strings up to a null one.
    unsafe {
        let mut at = environment();
        while !(*at).is_null() {
            let entry = CStr::from_ptr(*at).to_bytes();
            if let Some(name) = entry.strip_prefix(GROUP) {
                DOOR.group.set(name);
                GROUP_ENTRY.set_all(&[GROUP, name, b"\0"]);
            } else if let Some(name) = entry.strip_prefix(FAULT) {
                DOOR.fault.set(name);
            } else if let Some(list) = entry.strip_prefix(PRELOAD)
                && let Some(path) = ours(list)
            {
                LIBRARY_PATH.set(path);
                PRELOAD_ALONE.set_all(&[PRELOAD, path, b"\0"]);
                let first = entries(list).next() == Some(path);
                if !first && !PRELOAD_START.set_all(&[PRELOAD, path, b":", list, b"\0"]) {
                    PRELOAD_START.set(b"");
                }
            }
            at = at.add(1);
        }
    }
    READ.store(2, Release);
}

/// The name of the group, if the program runs under `deckle run`.
pub fn group_name() -> Option<&'static [u8]> {
    if READ.load(Acquire) == 0 {
        read();
    }
    Some(DOOR.group.get()).filter(|name| !name.is_empty())
}

/// Whether the program runs under `deckle run`.
pub fn is_managed() -> bool {
    group_name().is_some() && library_path().is_some()
}

/// Where this library is.
pub fn library_path() -> Option<&'static [u8]> {
    Some(LIBRARY_PATH.get()).filter(|path| !path.is_empty())
}

/// The group's name as an entry of the environment.
pub fn group_entry() -> Option<&'static CStr> {
    CStr::from_bytes_with_nul(GROUP_ENTRY.get()).ok()
}

/// This library in front of `list`, as an entry of the environment, if that one was made at the
/// start: for no list, and for the one that was there then.
pub fn preload_entry(list: &[u8]) -> Option<&'static CStr> {
    let entry = match list.is_empty() {
        true => PRELOAD_ALONE.get(),
        false => {
            let entry = PRELOAD_START.get();
            let rest = entry.strip_suffix(b"\0")?.strip_suffix(list)?;
            let library = rest.strip_prefix(PRELOAD)?.strip_suffix(b":")?;
            (Some(library) == library_path()).then_some(entry)?
        }
    };
    CStr::from_bytes_with_nul(entry).ok()
}

/// Calls `work` with the path of the service image.
pub fn with_image_path<T>(work: impl FnOnce(&CStr) -> T) -> Option<T> {
    let library = library_path()?;
    let dir = library.strip_suffix(LIBRARY)?;
    let path: Text<4096> = Text::new();
    path.set_all(&[dir, IMAGE, b"\0"]);
    Some(work(CStr::from_bytes_with_nul(path.get()).ok()?))
}

/// The entries of a value of LD_PRELOAD.
pub fn entries(list: &[u8]) -> impl Iterator<Item = &[u8]> {
    list.split(|b| matches!(b, b':' | b' '))
        .filter(|e| !e.is_empty())
}

fn ours(list: &[u8]) -> Option<&[u8]> {
    entries(list).find(|e| e.rsplit(|b| *b == b'/').next() == Some(LIBRARY))
}
