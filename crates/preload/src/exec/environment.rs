//! The environment of the next program: as the caller wants it, plus ours.
//!
//! Works in a vfork child, where the heap is the parent's, and on the small stack of a signal
//! handler: the list is made on the stack, in a mapping only if it is unusually long; our entries
//! are static. What is rare has functions of its own, whose frames are taken only then.

use crate::config::{self, GROUP, PRELOAD};
use crate::{pointers, rights, sys};
use core::ffi::{CStr, c_char};
use deckle_door::Text;
use deckle_door::entry::{NOTHING, Told};

/// Longest list on any stack.
const SHORT: usize = 104;
/// Longest list that is no mapping.
const LONG: usize = 512;
/// Longest entry that is made here.
const TEXT: usize = 8192;

type Env = *const *const c_char;
/// Tells an executed program what [`rights::told`] says: numbers in hexadecimal.
const TOLD: &[u8] = b"DECKLE_TOLD=";

/// [`TOLD`] with its value; `None`: there is nothing to tell.
fn told() -> Option<[u8; 256]> {
    let told = rights::told();
    let mut text = [0; 256];
    text[..TOLD.len()].copy_from_slice(TOLD);
    for (number, to) in told.iter().zip(text[TOLD.len()..].chunks_exact_mut(17)) {
        for (place, digit) in (0..16).rev().zip(to.iter_mut()) {
            *digit = b"0123456789abcdef"[(number >> (4 * place)) as usize & 15];
        }
        to[16] = b':';
    }
    (told != NOTHING).then_some(text)
}

/// At the start of a program: takes over what who has executed it tells, and takes it out of the
/// environment, where it would grow old.
///
/// # Safety
/// Nobody else uses the environment.
pub unsafe fn read_told() {
    let environment = config::environment();
    let (mut from, mut to) = (environment, environment);
    // SAFETY: pointers to strings up to a null one, in memory of the process's own; the caller's
    // promise.
    unsafe {
        while !(*from).is_null() {
            match CStr::from_ptr(*from).to_bytes().strip_prefix(TOLD) {
                Some(text) => rights::take(&parse(text)),
                None => {
                    *to = *from;
                    to = to.add(1);
                }
            }
            from = from.add(1);
        }
        if from != to {
            *to = core::ptr::null();
        }
    }
}

fn parse(text: &[u8]) -> Told {
    let mut told = NOTHING;
    for (to, digits) in told.iter_mut().zip(text.split(|b| *b == b':')) {
        let number = core::str::from_utf8(digits).map(|digits| u64::from_str_radix(digits, 16));
        if let Ok(Ok(number)) = number {
            *to = number;
        }
    }
    told
}

/// Calls `work` with `env`, to which LD_PRELOAD with this library in front and the group's
/// name are added where they are missing; and what the next program is told, if it `reads` that.
///
/// # Safety
/// `env` is null, or pointers to strings up to a null one.
pub unsafe fn with_ours<T>(env: Env, reads: bool, work: impl FnOnce(Env) -> T) -> T {
    let (Some(group), Some(library)) = (config::group_name(), config::library_path()) else {
        return work(env);
    };
    if !pointers::is_list(env) {
        // The kernel refuses it.
        return work(env);
    }
    // SAFETY: just looked at.
    let seen = unsafe { look(env, group, library) };
    let told = reads.then(told).flatten();
    if seen.preload_fits && seen.group_fits && told.is_none() {
        return work(env);
    }
    let told = told
        .as_ref()
        .map_or(core::ptr::null(), |t| t.as_ptr().cast());
    let preload = match seen.preload_fits {
        true => seen.preload_entry,
        false => config::preload_entry(seen.preload),
    };
    // SAFETY: as above; the entry is one of the caller's or static.
    unsafe {
        match preload {
            None => with_text(env, seen.count, told, (library, seen.preload), work),
            Some(entry) => with_entries(env, seen.count, [entry.as_ptr(), told], work),
        }
    }
}

/// [`with_ours`] for a list of libraries that is not known from the start.
///
/// # Safety
/// As [`with_ours`]; `env` has `count` entries.
#[inline(never)]
unsafe fn with_text<T>(
    env: Env,
    count: usize,
    told: *const c_char,
    (library, list): (&[u8], &[u8]),
    work: impl FnOnce(Env) -> T,
) -> T {
    let text: Text<TEXT> = Text::new();
    let entry = match text.set_all(&[PRELOAD, library, b":", list, b"\0"]) {
        true => CStr::from_bytes_with_nul(text.get()).ok(),
        // Longer than there is room: ours alone counts.
        false => config::preload_entry(b""),
    };
    let entry = entry.map_or(core::ptr::null(), CStr::as_ptr);
    // SAFETY: the caller's promise; the text lives until `work` is done.
    unsafe { with_entries(env, count, [entry, told], work) }
}

/// Calls `work` with `env`, in which these take the place of its LD_PRELOAD and of what
/// is told.
///
/// # Safety
/// As [`with_text`]; `ours` are null or strings that live until `work` is done.
#[inline]
unsafe fn with_entries<T>(
    env: Env,
    count: usize,
    ours: [*const c_char; 2],
    work: impl FnOnce(Env) -> T,
) -> T {
    // All of ours and the end.
    let wanted = count + 4;
    // SAFETY: the caller's promise; there is room.
    unsafe {
        if wanted <= SHORT {
            on_stack::<SHORT, T>(env, ours, work)
        } else if wanted <= LONG {
            on_stack::<LONG, T>(env, ours, work)
        } else {
            in_mapping(env, wanted, ours, work)
        }
    }
}

/// # Safety
/// As [`with_entries`]; `env` has at most `N - 4` entries.
#[inline(never)]
unsafe fn on_stack<const N: usize, T>(
    env: Env,
    ours: [*const c_char; 2],
    work: impl FnOnce(Env) -> T,
) -> T {
    let mut list = [core::ptr::null(); N];
    // SAFETY: the caller's promise.
    unsafe { fill(&mut list, env, ours) };
    work(list.as_ptr())
}

/// # Safety
/// As [`with_entries`]; `env` has `wanted - 4` entries.
#[cold]
#[inline(never)]
unsafe fn in_mapping<T>(
    env: Env,
    wanted: usize,
    ours: [*const c_char; 2],
    work: impl FnOnce(Env) -> T,
) -> T {
    let bytes = wanted * size_of::<*const c_char>();
    let Ok(place) = sys::map_anonymous(0, bytes) else {
        return work(env);
    };
    // SAFETY: a new mapping of that many pointers, all null; ours until it is unmapped, which
    // happens when the call comes back: then nobody uses it.
    unsafe {
        let list = core::slice::from_raw_parts_mut(place as *mut *const c_char, wanted);
        fill(list, env, ours);
        let result = work(place as Env);
        sys::unmap(place, bytes);
        result
    }
}

#[derive(Default)]
struct Seen<'a> {
    count: usize,
    preload: &'a [u8],
    preload_entry: Option<&'a CStr>,
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
            let entry = CStr::from_ptr(*at);
            if let Some(name) = entry.to_bytes().strip_prefix(GROUP) {
                seen.group_fits = name == group;
            } else if let Some(list) = entry.to_bytes().strip_prefix(PRELOAD) {
                seen.preload = list;
                seen.preload_entry = Some(entry);
                seen.preload_fits = config::entries(list).next() == Some(library);
            }
            seen.count += 1;
            at = at.add(1);
        }
    }
    seen
}

/// Whether a variable is one of those that we give.
///
/// # Safety
/// A string.
pub unsafe fn is_ours(entry: *const c_char) -> bool {
    // SAFETY: the caller's promise.
    let entry = unsafe { CStr::from_ptr(entry) }.to_bytes();
    let all = [GROUP, PRELOAD, TOLD];
    all.iter().any(|name| entry.starts_with(name))
}

/// # Safety
/// As [`with_ours`]; `list` has room for all entries of `env`, three more and the end.
unsafe fn fill(list: &mut [*const c_char], env: Env, ours: [*const c_char; 2]) {
    let group = config::group_entry().map_or(core::ptr::null(), CStr::as_ptr);
    let mut n = 0;
    for ours in [ours[0], group, ours[1]] {
        if !ours.is_null() {
            list[n] = ours;
            n += 1;
        }
    }
    let mut at = env;
    // SAFETY: the caller's promise.
    unsafe {
        while !at.is_null() && !(*at).is_null() {
            if !is_ours(*at) {
                list[n] = *at;
                n += 1;
            }
            at = at.add(1);
        }
    }
    list[n] = core::ptr::null();
}
