//! What `deckle run` gives to the code that it puts into a program at its exec.

use core::ffi::CStr;

/// All code and data of the second door, and the service image, lie in 4 GiB of this size and
/// alignment, at one place for a whole tree: a program inherits its parent's filter, which lets
/// calls pass that come from there.
pub const WINDOW: usize = 1 << 32;
/// Where in the window the service image goes.
pub const IMAGE: usize = 1 << 28;
/// What a trapped call of the filter's is told by (the filter's data, in `si_errno`).
pub const MARK: u16 = 0xdec1;

/// What a program tells the one that it executes: the well and which socket that is, the system
/// calls that filters refuse, and its own limits (`RLIMIT_AS`, `RLIMIT_DATA`), soft and hard.
pub type Told = [u64; 14];
const NONE: u64 = u64::MAX;
/// Nothing.
pub const NOTHING: Told = [NONE, 0, 0, 0, 0, 0, 0, 0, 0, 0, NONE, NONE, NONE, NONE];

/// The page behind the code and data.
#[repr(C)]
pub struct Entry {
    /// Where the program begins: instruction and stack.
    pub program: [usize; 2],
    /// What of the code and data is to be writable: address and bytes.
    pub writable: [usize; 2],
    /// The program has the filter from its parent.
    pub is_filtered: usize,
    /// By the program that has executed it.
    pub told: Told,
    /// Name of the group.
    pub group: [u8; 64],
    /// `DECKLE_FAULT`.
    pub fault: [u8; 64],
    /// Path of the service image.
    pub image: [u8; 2048],
}

impl Entry {
    /// All of it.
    pub fn bytes(&self) -> &[u8; size_of::<Entry>()] {
        const { assert!(size_of::<Entry>() == (2 + 2 + 1 + 14) * 8 + 64 + 64 + 2048) };
        // SAFETY: plain words and bytes, and by the line above without gaps.
        unsafe { &*core::ptr::from_ref(self).cast() }
    }

    /// A text of it, up to its NUL.
    pub fn text(field: &[u8]) -> &[u8] {
        CStr::from_bytes_until_nul(field).map_or(b"", CStr::to_bytes)
    }
}
