//! A look at a group from outside: which file is one, whether its tree lives, what it is called.
//!
//! Whose a page is says the file itself, opened: it must be a regular one and the caller's own,
//! unless the caller is root. Neither its name nor what is written in it gives anybody a right. Who
//! only reads takes a copy, which nobody changes any more: whatever the page holds, and however
//! short it becomes, the reader comes to no harm.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};

use deckle_door::link::{Where, address};
use deckle_mm::Item;
use deckle_sys::file::{stat_at, stat_of, try_lock};
use deckle_sys::process::effective_user;
use deckle_sys::socket::is_refused;
use deckle_sys::{Errno, Fd, shared, signal};

use crate::attach::{AttachError, Group, Name, check};
use crate::layout::{LINES, Line, Page};
use crate::line::LineId;
use crate::proc::{namespaces, proc_stat};

/// Words that an alias takes.
pub(crate) const ALIAS_WORDS: usize = 4;

/// It is about to be called so, unless another is.
const CLAIMED: u32 = 1;
/// It is called so.
const CALLED: u32 = 2;

/// What a user calls a tree: 1 to 32 letters, digits, `.`, `_` and `-`, not all of them digits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Alias([u8; ALIAS_WORDS * 8]);

impl Alias {
    /// Longest, in bytes.
    pub const MAX: usize = ALIAS_WORDS * 8;

    /// `None`: it cannot be called so.
    pub fn new(text: &str) -> Option<Alias> {
        let may = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
        let fits = (1..=Alias::MAX).contains(&text.len())
            && text.bytes().all(may)
            // Not to be taken for an option or a pid.
            && !text.starts_with(['-', '.'])
            && !text.bytes().all(|b| b.is_ascii_digit());
        let mut alias = [0; Alias::MAX];
        alias
            .get_mut(..text.len())?
            .copy_from_slice(text.as_bytes());
        fits.then_some(Alias(alias))
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        let len = self.0.iter().position(|b| *b == 0);
        core::str::from_utf8(&self.0[..len.unwrap_or(Alias::MAX)]).unwrap_or("")
    }

    fn words(&self) -> [u64; ALIAS_WORDS] {
        core::array::from_fn(|i| {
            u64::from_le_bytes(core::array::from_fn(|byte| self.0[8 * i + byte]))
        })
    }

    /// From a page, which may hold anything.
    fn of(words: [u64; ALIAS_WORDS]) -> Option<Alias> {
        let mut bytes = [0; Alias::MAX];
        for (to, word) in bytes.chunks_exact_mut(8).zip(words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        let text = Alias(bytes);
        let known = Alias::new(text.as_str())?;
        (known == text).then_some(known)
    }
}

/// Opens the page of a group if it may be looked at, or with `O_RDWR` written.
fn open(name: Name, how: i32) -> Result<Fd, AttachError> {
    // A pipe of that name is not waited for.
    let flags = how | libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY;
    let fd = name.with_path(|path| Fd::open(path, flags, 0));
    let fd = fd.map_err(|e| AttachError::Call("open /dev/shm/deckle-NAME", e))?;
    let st = stat_of(&fd).map_err(|e| AttachError::Call("stat", e))?;
    let me = effective_user();
    let ours = st.st_mode & libc::S_IFMT == libc::S_IFREG && (me == 0 || st.st_uid == me);
    if !ours {
        return Err(AttachError::Foreign);
    }
    check(&fd)?;
    Ok(fd)
}

/// A copy of a group's page.
pub struct Look {
    fd: Fd,
    group: Group,
}

impl Look {
    /// Takes the first copy of the page of group `name`.
    ///
    /// # Errors
    /// See [`AttachError`].
    pub fn open(name: Name) -> Result<Look, AttachError> {
        let fd = open(name, libc::O_RDONLY)?;
        let page = shared::room().map_err(|e| AttachError::Call("map", e))?;
        let look = Look {
            fd,
            group: Group { page, name },
        };
        look.again()?;
        look.group.is_whole()?;
        Ok(look)
    }

    /// Takes a new copy.
    ///
    /// # Errors
    /// [`AttachError::Call`]; the file is shorter than it was.
    pub fn again(&self) -> Result<(), AttachError> {
        let head = core::mem::offset_of!(Page, lines);
        let copy = |from, to| {
            let done = shared::copy(self.group.page, &self.fd, from..to);
            let found = from + done.map_err(|e| AttachError::Call("read", e))?;
            match found < to {
                true => Err(AttachError::Size {
                    found: found as u64,
                    expected: size_of::<Page>() as u64,
                }),
                false => Ok(()),
            }
        };
        copy(0, head)?;
        // The mark goes up before a line is used.
        let used = self.group.page.lines_used.load(Relaxed) as usize;
        copy(head, head + used.min(LINES) * size_of::<Line>())
    }

    /// What was copied. What is written there changes the copy alone.
    pub fn group(&self) -> Group {
        self.group
    }

    /// Whether the tree's `deckle run` lives still.
    pub fn is_alive(&self) -> bool {
        // Its end takes the name away.
        let named = stat_of(&self.fd).is_ok_and(|st| st.st_nlink > 0);
        named && self.group.is_supervised()
    }
}

/// A group that this process may change; nobody else does meanwhile.
pub struct Locked {
    group: Group,
    _lock: Fd,
}

impl Locked {
    /// Takes the lock of the group `name`; waits at most `tries` times a millisecond for it.
    ///
    /// # Errors
    /// See [`AttachError`]; that of the lock is EAGAIN.
    pub fn take(name: Name, tries: u32) -> Result<Locked, AttachError> {
        let fd = open(name, libc::O_RDWR)?;
        let mut taken = try_lock(&fd);
        for _ in 0..tries {
            if taken != Err(Errno(libc::EAGAIN)) {
                break;
            }
            std::thread::sleep(core::time::Duration::from_millis(1));
            taken = try_lock(&fd);
        }
        taken.map_err(|e| AttachError::Call("lock", e))?;
        // Opened once more: a mapping stays for ever, and with it the lock of what is mapped.
        Ok(Locked {
            group: Group::attach_from_outside(name)?,
            _lock: fd,
        })
    }

    /// The group.
    pub fn group(&self) -> Group {
        self.group
    }
}

impl Group {
    /// Finds the group `name` of a tree that is not ours, to ask its processes for something.
    ///
    /// # Errors
    /// See [`AttachError`].
    pub fn attach_from_outside(name: Name) -> Result<Group, AttachError> {
        Group::attach_by(&open(name, libc::O_RDWR)?, name)
    }

    /// The calling process is the supervisor.
    pub(crate) fn note_supervisor(&self) {
        let (page, me) = (self.page, std::process::id());
        let start = proc_stat(me).map_or(0, |stat| stat.start);
        page.supervisor_pid.store(me, Relaxed);
        page.supervisor_start.store(start, Relaxed);
        let namespace = if start == 0 { 0 } else { namespaces() };
        page.supervisor_namespace.store(namespace, Relaxed);
    }

    /// Pid of `deckle run`'s supervisor, in its own pid namespace.
    pub fn supervisor(&self) -> u32 {
        self.page.supervisor_pid.load(Relaxed)
    }

    /// When it started, in clock ticks since boot.
    pub fn supervisor_start(&self) -> u64 {
        self.page.supervisor_start.load(Relaxed)
    }

    /// The process that the user has started is `pid`.
    pub fn note_front(&self, pid: u32) {
        self.page.front_pid.store(pid, Relaxed);
    }

    /// Pid of the process that the user has started.
    pub fn front(&self) -> u32 {
        match self.page.front_pid.load(Relaxed) {
            0 => self.supervisor(),
            pid => pid,
        }
    }

    /// The limit holds nothing of the tree (`--unmanaged`).
    pub fn set_unmanaged(&self, on: bool) {
        self.page.unmanaged.store(u32::from(on), Relaxed);
    }

    /// See [`set_unmanaged`](Group::set_unmanaged).
    pub fn is_unmanaged(&self) -> bool {
        self.page.unmanaged.load(Relaxed) != 0
    }

    /// Whether the supervisor lives, as far as that can be told: of one in another pid or time
    /// namespace it cannot, and it counts as alive.
    pub fn is_supervised(&self) -> bool {
        let page = self.page;
        let (pid, namespace) = (self.supervisor(), page.supervisor_namespace.load(Relaxed));
        if namespace == 0 || namespace != namespaces() {
            return true;
        }
        if pid == 0 || signal::send(pid as i32, 0) == Err(Errno(libc::ESRCH)) {
            return false;
        }
        let start = page.supervisor_start.load(Relaxed);
        proc_stat(pid).map_or(true, |now| {
            now.start == start && !matches!(now.state, b'Z' | b'X')
        })
    }

    /// The tree is to be called so, unless another is: to be [confirmed](Group::confirm_alias), or
    /// [withdrawn](Group::withdraw_alias), once the others were looked at.
    pub fn claim_alias(&self, alias: Alias) {
        crate::layout::store(&self.page.alias, alias.words());
        self.page.alias_state.store(CLAIMED, Release);
    }

    /// Nobody else is called so.
    pub fn confirm_alias(&self) {
        self.page.alias_state.store(CALLED, Release);
    }

    /// Somebody else is.
    pub fn withdraw_alias(&self) {
        self.page.alias_state.store(0, Release);
    }

    /// What the tree is called, or is about to be: then with `true`.
    pub fn alias(&self) -> Option<(Alias, bool)> {
        let state = self.page.alias_state.load(Acquire);
        let alias = Alias::of(crate::layout::load(&self.page.alias));
        alias
            .filter(|_| matches!(state, CLAIMED | CALLED))
            .map(|alias| (alias, state == CLAIMED))
    }

    /// Counters and gauges of one process, as it published them last, in the order of
    /// [`Item::ALL`].
    pub fn counters_of(&self, line: LineId) -> [u64; Item::COUNT] {
        let of = |line: &Line| crate::layout::load(&line.counters);
        self.line(line).map_or([0; Item::COUNT], of)
    }
}

/// The groups that there are files of, by their names: who may look at them, and whether they are
/// groups at all, says [`Look::open`].
pub fn names() -> Vec<Name> {
    names_behind(b"deckle-")
}

/// Groups by the names of files in /dev/shm that begin so.
fn names_behind(prefix: &[u8]) -> Vec<Name> {
    let dir = std::fs::read_dir("/dev/shm").into_iter().flatten();
    let name = |entry: std::fs::DirEntry| {
        Name::new(entry.file_name().as_bytes().strip_prefix(prefix)?).ok()
    };
    dir.flatten().filter_map(name).collect()
}

/// Removes what `deckle run` has left that was killed with all of its tree: pages whose supervisor
/// is gone, and sockets without a page on which no process listens. Those of the caller's user
/// alone, unless that is root. A run makes its page before its socket, and names are used once: so
/// none of a run that lives, or is about to, is taken.
pub fn sweep() {
    for name in names() {
        if Look::open(name).is_ok_and(|look| !look.group().is_supervised()) {
            Group::unlink(name);
        }
    }
    for name in names_behind(b".deckle-") {
        let (at, me) = (address(Where::File, name.as_bytes()), effective_user());
        let path = std::path::Path::new(OsStr::from_bytes(at.path().to_bytes()));
        let ours = std::fs::symlink_metadata(path)
            .is_ok_and(|of| of.file_type().is_socket() && (me == 0 || of.uid() == me));
        // Looked for last: the socket of a run that ends is without a page, and one that is
        // refused may just be in the making.
        let orphaned = || {
            is_refused(&at) && {
                let page = name.with_path(|path| stat_at(path).map(drop));
                page == Err(Errno(libc::ENOENT))
            }
        };
        if ours && orphaned() {
            let _ = std::fs::remove_file(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_tree_may_be_called() {
        let long = "x".repeat(33);
        for bad in [
            "", "4711", "a b", "a/b", "-x", ".x", "\u{e4}", "a\n", "a\0", &long,
        ] {
            assert_eq!(Alias::new(bad), None, "{bad:?}");
        }
        for good in ["a", "web-1", "4711x", "x.y_Z", &long[1..]] {
            let alias = Alias::new(good).unwrap();
            assert_eq!(alias.as_str(), good);
            assert_eq!(Alias::of(alias.words()), Some(alias));
        }
        // What somebody wrote there who is no deckle.
        for words in [[0; 4], [u64::MAX; 4], [0x41, 0x42, 0, 0], [0x2f41, 0, 0, 0]] {
            assert_eq!(Alias::of(words), None, "{words:x?}");
        }
    }
}
