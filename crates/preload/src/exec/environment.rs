//! The environment of the next program: as the caller wants it, plus ours.
//!
//! Works in a vfork child, where the heap is the parent's: the list is made on the stack, and
//! in a mapping only if it is unusually long.

use crate::config::{self, GROUP, PRELOAD};
use crate::sys;
use core::ffi::{CStr, c_char};

const LIST: usize = 512;
const TEXT: usize = 8192;

type Env = *const *const c_char;

/// Calls `work` with `env`, to which LD_PRELOAD with this library in front and the group's
/// name are added where they are missing.
///
/// # Safety
/// `env` is null, or pointers to strings up to a null one.
pub unsafe fn with_ours<T>(env: Env, work: impl FnOnce(Env) -> T) -> T {
    let (Some(group), Some(library)) = (config::group_name(), config::library_path()) else {
        return work(env);
    };
    // SAFETY: the caller's promise.
    let seen = unsafe { look(env, group, library) };
    if seen.preload_fits && seen.group_fits {
        return work(env);
    }
    let mut text = [0_u8; TEXT];
    let wanted = seen.count + 3;
    if wanted <= LIST {
        let mut list = [core::ptr::null(); LIST];
        // SAFETY: as above; the list has room for all entries, two more and the end.
        unsafe { fill(&mut list, &mut text, env, &seen, group, library) };
        return work(list.as_ptr());
    }
    let bytes = wanted * size_of::<*const c_char>();
    let Ok(place) = sys::map_anonymous(bytes) else {
        return work(env);
    };
    // SAFETY: a new mapping of that many pointers, all null; ours until it is unmapped, which
    // happens when the call comes back: then nobody uses it.
    unsafe {
        let list = core::slice::from_raw_parts_mut(place as *mut *const c_char, wanted);
        fill(list, &mut text, env, &seen, group, library);
        let result = work(place as Env);
        sys::unmap(place, bytes);
        result
    }
}

#[derive(Default)]
struct Seen<'a> {
    count: usize,
    preload: Option<&'a [u8]>,
    preload_fits: bool,
    group_fits: bool,
}

/// # Safety
/// As [`with_ours`].
unsafe fn look<'a>(env: Env, group: &[u8], library: &[u8]) -> Seen<'a> {
    let mut seen = Seen::default();
    let mut at = env;
    // SAFETY: the caller's promise.
    unsafe {
        while !at.is_null() && !(*at).is_null() {
            let entry = CStr::from_ptr(*at).to_bytes();
            if let Some(name) = entry.strip_prefix(GROUP) {
                seen.group_fits = name == group;
            } else if let Some(list) = entry.strip_prefix(PRELOAD) {
                seen.preload = Some(list);
                seen.preload_fits = config::entries(list).next() == Some(library);
            }
            seen.count += 1;
            at = at.add(1);
        }
    }
    seen
}

/// # Safety
/// As [`with_ours`]; `list` has room for `seen.count + 3`.
unsafe fn fill(
    list: &mut [*const c_char],
    text: &mut [u8; TEXT],
    env: Env,
    seen: &Seen<'_>,
    group: &[u8],
    library: &[u8],
) {
    let mut used = 0;
    let mut write = |parts: &[&[u8]]| -> *const c_char {
        let start = used;
        for part in parts.iter().chain([&&b"\0"[..]]) {
            let Some(to) = text.get_mut(used..used + part.len()) else {
                used = start;
                return core::ptr::null();
            };
            to.copy_from_slice(part);
            used += part.len();
        }
        text[start..].as_ptr().cast()
    };
    let mut n = 0;
    let theirs = seen.preload.unwrap_or(b"");
    let mut preload = match theirs.is_empty() {
        true => write(&[PRELOAD, library]),
        false => write(&[PRELOAD, library, b":", theirs]),
    };
    if preload.is_null() {
        // A list of libraries longer than the buffer: ours alone counts.
        preload = write(&[PRELOAD, library]);
    }
    for ours in [preload, write(&[GROUP, group])] {
        if !ours.is_null() {
            list[n] = ours;
            n += 1;
        }
    }
    let mut at = env;
    // SAFETY: the caller's promise.
    unsafe {
        while !at.is_null() && !(*at).is_null() {
            let entry = CStr::from_ptr(*at).to_bytes();
            if !entry.starts_with(GROUP) && !entry.starts_with(PRELOAD) {
                list[n] = *at;
                n += 1;
            }
            at = at.add(1);
        }
    }
    list[n] = core::ptr::null();
}
