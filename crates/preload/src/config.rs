//! What the environment says: the group's name and where this library is.
//!
//! Read once, at the program's start, because programs change their environment. Kept in
//! static memory.

use core::cell::UnsafeCell;
use core::ffi::{CStr, c_char};
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// The variable that names the group.
pub const GROUP: &[u8] = b"DECKLE_GROUP=";
/// The loader's variable.
pub const PRELOAD: &[u8] = b"LD_PRELOAD=";
const LIBRARY: &[u8] = b"libdeckle.so";
/// Asks the service for a defect; tests see by it that none of them hangs the program.
const FAULT: &[u8] = b"DECKLE_FAULT=";

/// A string that is written once.
struct Text<const N: usize> {
    bytes: UnsafeCell<[u8; N]>,
    /// 0: not set; else its length plus one.
    len: AtomicU32,
}

// SAFETY: written by `read` before `len` is set, by one thread; read after.
unsafe impl<const N: usize> Sync for Text<N> {}

impl<const N: usize> Text<N> {
    const fn new() -> Text<N> {
        Text {
            bytes: UnsafeCell::new([0; N]),
            len: AtomicU32::new(0),
        }
    }

    fn set(&self, text: &[u8]) {
        if text.len() < N && self.len.load(Relaxed) == 0 {
            // SAFETY: nobody reads before the length is set; `read` runs once.
            unsafe {
                let to = self.bytes.get().cast::<u8>();
                core::ptr::copy_nonoverlapping(text.as_ptr(), to, text.len());
            }
            self.len.store(text.len() as u32 + 1, Release);
        }
    }

    fn get(&'static self) -> Option<&'static [u8]> {
        let len = self.len.load(Acquire).checked_sub(1)? as usize;
        // SAFETY: written before the length was, and never again.
        Some(unsafe { core::slice::from_raw_parts(self.bytes.get().cast(), len) })
    }
}

static GROUP_NAME: Text<128> = Text::new();
static LIBRARY_PATH: Text<4096> = Text::new();
static FAULT_NAME: Text<32> = Text::new();
/// 0: not read, 1: being read, 2: read.
static READ: AtomicU32 = AtomicU32::new(0);

unsafe extern "C" {
    static environ: *const *const c_char;
}

/// Reads the environment, once. Called by the loader at the start, or by the first who needs
/// it before.
pub fn read() {
    if READ.compare_exchange(0, 1, Acquire, Acquire).is_err() {
        return;
    }
    // SAFETY: the program's environment: null, or pointers to strings up to a null one.
    unsafe {
        let mut at = environ;
        while !at.is_null() && !(*at).is_null() {
            let entry = CStr::from_ptr(*at).to_bytes();
            if let Some(name) = entry.strip_prefix(GROUP) {
                GROUP_NAME.set(name);
            } else if let Some(name) = entry.strip_prefix(FAULT) {
                FAULT_NAME.set(name);
            } else if let Some(list) = entry.strip_prefix(PRELOAD)
                && let Some(path) = ours(list)
            {
                LIBRARY_PATH.set(path);
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
    GROUP_NAME.get()
}

/// The defect that is asked for; `panic`: one of the service, under way; `force`: see
/// [`forcing`].
pub fn fault() -> Option<&'static [u8]> {
    FAULT_NAME.get()
}

/// `DECKLE_FAULT=force:SEED:MILLISECS`: what the service does to huge pages at random.
pub fn forcing() -> Option<deckle_live::Forcing> {
    let text = core::str::from_utf8(fault()?).ok()?;
    let (seed, millisecs) = text.strip_prefix("force:")?.split_once(':')?;
    Some(deckle_live::Forcing {
        seed: seed.parse().ok()?,
        every: core::time::Duration::from_millis(millisecs.parse().ok()?),
    })
}

/// Where this library is.
pub fn library_path() -> Option<&'static [u8]> {
    LIBRARY_PATH.get()
}

/// The entries of a value of LD_PRELOAD.
pub fn entries(list: &[u8]) -> impl Iterator<Item = &[u8]> {
    list.split(|b| matches!(b, b':' | b' '))
        .filter(|e| !e.is_empty())
}

fn ours(list: &[u8]) -> Option<&[u8]> {
    entries(list).find(|e| e.rsplit(|b| *b == b'/').next() == Some(LIBRARY))
}
