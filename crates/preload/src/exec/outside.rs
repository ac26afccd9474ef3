//! Programs that this library cannot be loaded into: seen before they are executed. `deckle run`
//! holds on to who executes them and puts the second door in; where that cannot be, it is told,
//! and under `--strict` they are refused.

use crate::{DOOR, config, pointers, rights, sys};
use core::ffi::{CStr, c_char};
use deckle_door::Text;
use deckle_group::program::{self, PATH_MAX, Reason, Verdict};
use deckle_group::{Group, Name};

/// Who executes the program: the calling thread, or a child that it makes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum By {
    /// The thread.
    Me,
    /// The child.
    Child,
}

/// What lasts as long as the call that executes a program: when it is back, whoever was held on
/// to for it stops for `deckle run`, and is let go.
pub struct Held(bool);

impl Held {
    /// Whether the program hears by its environment what it is told.
    pub fn reads(&self) -> bool {
        !self.0
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if self.0 {
            // SAFETY: a stop that nobody sees but who holds on to us.
            unsafe { core::arch::asm!("int3", options(nomem, nostack)) };
        }
    }
}

/// Whether the program at `path` may be executed.
///
/// # Errors
/// EACCES: it cannot be managed and `--strict` was given.
///
/// # Safety
/// `path` is null or a string.
pub unsafe fn check(path: *const c_char, by: By) -> Result<Held, i32> {
    // SAFETY: the caller's promise.
    unsafe { look(path, |group, path| inspect(group, path, by)) }
}

/// What `verdict` says in this group of a program's name; nothing is said of none. Keeps `errno`.
///
/// # Safety
/// `file` is null or a string.
unsafe fn look(
    file: *const c_char,
    verdict: impl FnOnce(&[u8], &CStr) -> Result<Held, i32>,
) -> Result<Held, i32> {
    // The kernel refuses what is no string.
    let Some(group) = looks().filter(|_| pointers::is_string(file)) else {
        return Ok(Held(false));
    };
    let before = sys::errno();
    // SAFETY: the caller's promise.
    let said = verdict(group, unsafe { CStr::from_ptr(file) });
    sys::set_errno(before);
    said
}

/// The group, if programs are to be looked at, and no filter of the program's own hinders that.
fn looks() -> Option<&'static [u8]> {
    let calls = [libc::SYS_openat, libc::SYS_newfstatat, libc::SYS_pread64];
    let may = || calls.iter().all(|number| DOOR.may(*number));
    config::group_name().filter(|_| may())
}

/// As [`check`], for a name that is looked up in PATH.
///
/// # Errors
/// As [`check`].
///
/// # Safety
/// `file` is null or a string.
pub unsafe fn check_in_path(file: *const c_char, by: By) -> Result<Held, i32> {
    let in_path = |group: &[u8], name: &CStr| {
        if name.to_bytes().contains(&b'/') {
            return inspect(group, name, by);
        }
        // SAFETY: libc's string.
        let search = unsafe {
            let search = libc::getenv(c"PATH".as_ptr());
            match search.is_null() {
                true => &b"/bin:/usr/bin"[..],
                false => CStr::from_ptr(search).to_bytes(),
            }
        };
        let longest = search.split(|b| *b == b':').map(<[u8]>::len).max();
        match longest.unwrap_or(0) + name.count_bytes() + 3 {
            ..=SHORT => found::<SHORT>(group, name, search, by),
            _ => found::<PATH_MAX>(group, name, search, by),
        }
    };
    // SAFETY: the caller's promise.
    unsafe { look(file, in_path) }
}

/// Longest path that is looked for on any stack.
const SHORT: usize = 512;

/// Looks for a program by paths of up to `N` bytes.
#[inline(never)]
fn found<const N: usize>(group: &[u8], name: &CStr, search: &[u8], by: By) -> Result<Held, i32> {
    let buffer: Text<N> = Text::new();
    // What is not found is libc's to tell.
    match program::find(name, search, &buffer) {
        Ok(path) => inspect(group, path, by),
        Err(_) => Ok(Held(false)),
    }
}

/// Says that this program's memory cannot be managed. Under `--strict` that is its end.
#[cold]
#[inline(never)]
pub fn unmanaged(why: &str) {
    let before = sys::errno();
    let name = config::group_name().and_then(|name| Name::new(name).ok());
    let may = DOOR.may(libc::SYS_openat) && DOOR.may(libc::SYS_readlinkat);
    let group = name
        .filter(|_| may)
        .and_then(|name| Group::attach(name).ok());
    let mut path = [0_u8; PATH_MAX];
    let (file, room) = (c"/proc/self/exe".as_ptr() as usize, path.len());
    let here = libc::AT_FDCWD as usize;
    let to = path.as_mut_ptr() as usize;
    // SAFETY: a path that ends in NUL; writes into the buffer.
    let read = || unsafe { sys::call(libc::SYS_readlinkat, [here, file, to, room]) };
    let path = match may.then(read) {
        Some(Ok(n)) => &path[..n],
        _ => b"a program",
    };
    if group.is_some_and(|group| group.strict()) {
        sys::say(&[b"deckle: ", path, b": cannot be managed: ", why.as_bytes()]);
        sys::exit_all(125);
    }
    let told = rights::connection().map(|link| link.unmanaged(path, why.as_bytes()));
    if !matches!(told, Some(Ok(()))) {
        if let Some(group) = group {
            group.count_unmanaged_program();
        }
        sys::say(&[
            b"deckle: ",
            path,
            b": runs outside the limit: ",
            why.as_bytes(),
        ]);
    }
    sys::set_errno(before);
}

fn inspect(group: &[u8], path: &CStr, by: By) -> Result<Held, i32> {
    match program::inspect(path) {
        Ok(Verdict::Injected(_)) if rights::announce(false, by == By::Child) => Ok(Held(true)),
        Ok(Verdict::Unmanaged(reason) | Verdict::Injected(reason)) => report(group, path, reason),
        _ => Ok(Held(false)),
    }
}

/// Tells of a program that cannot be managed; whether it may be executed.
#[cold]
#[inline(never)]
fn report(group: &[u8], path: &CStr, reason: Reason) -> Result<Held, i32> {
    let Ok(name) = Name::new(group) else {
        return Ok(Held(false));
    };
    let strict = Group::is_strict(name);
    if let Some(link) = rights::connection() {
        let (what, cure) = (reason.text().as_bytes(), reason.remedy().as_bytes());
        let text: Text<1024> = Text::new();
        let path = path.to_bytes();
        if strict {
            let program = &path[..path.len().min(500)];
            let refused = b": not executed (--strict): ";
            text.set_all(&[b"deckle: ", program, refused, what, b": ", cure, b"\n"]);
            let _ = link.say(text.get());
        } else {
            text.set_all(&[what, b" (", cure, b")"]);
            let _ = link.unmanaged(path, text.get());
        }
    }
    match strict {
        true => Err(libc::EACCES),
        false => Ok(Held(false)),
    }
}
