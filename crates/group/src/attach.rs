//! Creating a group and finding one by its name.

use core::ffi::CStr;
use core::fmt;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use deckle_door::Text;
use deckle_door::link::{Where, address};
use deckle_mm::{Item, Tunables};
use deckle_sys::file::{allocate, stat_of};
use deckle_sys::{Errno, Fd, clock, shared};

use crate::knobs::{Limits, SwapKind};
use crate::layout::{LINES, Line, MAGIC, Page, SLOTS, VERSION};

const DIR: &[u8] = b"/dev/shm/deckle-";
/// Lines that are allocated with the page, so that a full /dev/shm is an error of its maker.
const FIRST_LINES: usize = 16;
/// Longest name of a group, bytes.
const NAME_MAX: usize = 40;

/// Name of a group: 1 to 40 of `a-z`, `0-9` and `-`.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Name {
    len: u8,
    text: [u8; NAME_MAX],
}

impl Name {
    /// Checks a name from the environment.
    pub fn new(text: &[u8]) -> Result<Name, AttachError> {
        let fits = (1..=NAME_MAX).contains(&text.len())
            && text
                .iter()
                .all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'-'));
        if !fits {
            return Err(AttachError::Name);
        }
        let mut name = Name {
            len: text.len() as u8,
            text: [0; NAME_MAX],
        };
        name.text[..text.len()].copy_from_slice(text);
        Ok(name)
    }
    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.text[..usize::from(self.len).min(NAME_MAX)]
    }
    /// The text.
    pub fn as_str(&self) -> &str {
        core::str::from_utf8(self.as_bytes()).unwrap_or("")
    }

    pub(crate) fn with_path<T>(&self, f: impl FnOnce(&CStr) -> T) -> T {
        let path: Text<{ DIR.len() + NAME_MAX + 1 }> = Text::new();
        path.set_all(&[DIR, self.as_bytes(), b"\0"]);
        f(CStr::from_bytes_with_nul(path.get()).unwrap_or(c""))
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Why a group could not be made or joined.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AttachError {
    /// Not a name of a group.
    Name,
    /// The file is another user's, or no regular file.
    Foreign,
    /// A system call failed: which, and how.
    Call(&'static str, Errno),
    /// The file is not a group's.
    Magic,
    /// Made by another version of deckle.
    Version {
        /// Layout version of the file.
        found: u32,
        /// Layout version of this library.
        expected: u32,
    },
    /// The file has the right version but not the right size or counters.
    Size {
        /// Bytes found.
        found: u64,
        /// Bytes expected.
        expected: u64,
    },
}

impl fmt::Display for AttachError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AttachError::Name => f.write_str("DECKLE_GROUP does not hold the name of a group"),
            AttachError::Call(call, errno) => write!(f, "group page: {call}: {errno}"),
            AttachError::Foreign => f.write_str("group page: the file is another user's"),
            AttachError::Magic => f.write_str("group page: the file is not deckle's"),
            AttachError::Version { found, expected } => write!(
                f,
                "group page: layout version {found}, but this library knows {expected}: \
                 deckle and libdeckle.so must be of one version"
            ),
            AttachError::Size { found, expected } => write!(
                f,
                "group page: {found} bytes, expected {expected}: \
                 deckle and libdeckle.so must be of one build"
            ),
        }
    }
}

impl core::error::Error for AttachError {}

/// Whether an open file is a group's page, of this version.
pub(crate) fn check(fd: &Fd) -> Result<(), AttachError> {
    let st = stat_of(fd).map_err(|e| AttachError::Call("stat", e))?;
    // The head is read before anything is mapped: a file of another size must not give SIGBUS.
    let mut head = [0u8; 24];
    let n = fd
        .read_at(&mut head, 0)
        .map_err(|e| AttachError::Call("read", e))?;
    if n < head.len() || head[..8] != MAGIC.to_le_bytes() {
        return Err(AttachError::Magic);
    }
    let version = u32::from_le_bytes([head[8], head[9], head[10], head[11]]);
    if version != VERSION {
        return Err(AttachError::Version {
            found: version,
            expected: VERSION,
        });
    }
    let (found, expected) = (st.st_size as u64, size_of::<Page>() as u64);
    match found == expected {
        true => Ok(()),
        false => Err(AttachError::Size { found, expected }),
    }
}

/// A mapped group. A handle: copies name the same mapping, which stays for the life of the
/// process (a service uses it until its last instruction).
#[derive(Clone, Copy)]
pub struct Group {
    pub(crate) page: &'static Page,
    pub(crate) name: Name,
}

impl Group {
    /// Makes the group `name`. Fails with EEXIST when there is one.
    pub fn create(
        name: Name,
        limits: Limits,
        knobs: &Tunables,
        swap: SwapKind,
    ) -> Result<Group, AttachError> {
        let fd = name.with_path(|path| {
            Fd::open(
                path,
                libc::O_RDWR | libc::O_CREAT | libc::O_EXCL | libc::O_NOFOLLOW,
                0o600,
            )
        });
        let fd = fd.map_err(|e| AttachError::Call("create /dev/shm/deckle-NAME", e))?;
        // Another user may fill /dev/shm at any time. Lines are allocated as they are taken.
        let head = core::mem::offset_of!(Page, lines) + FIRST_LINES * size_of::<Line>();
        let sized = allocate(&fd, head as u64, size_of::<Page>() as u64);
        let sized = sized.map_err(|e| AttachError::Call("allocate", e));
        let group = sized.and_then(|()| Group::map(&fd, name));
        let group = group.inspect_err(|_| Group::unlink(name))?;
        let page = group.page;
        page.items.store(Item::COUNT as u32, Relaxed);
        page.bytes.store(size_of::<Page>() as u64, Relaxed);
        page.lines_max.store(LINES as u32, Relaxed);
        page.slots.store(clock::cpus().min(SLOTS as u32), Relaxed);
        group.note_supervisor();
        group.set_limits(limits);
        group.set_knobs(knobs, swap);
        page.version.store(VERSION, Relaxed);
        // Last: an attacher that sees the magic sees all of the above.
        page.magic.store(MAGIC, Release);
        Ok(group)
    }

    /// Finds the group `name`.
    pub fn attach(name: Name) -> Result<Group, AttachError> {
        Group::attach_by(&Group::open(name)?, name)
    }

    /// Opens the page of the group `name`.
    ///
    /// # Errors
    /// [`AttachError::Call`].
    pub fn open(name: Name) -> Result<Fd, AttachError> {
        let fd = name.with_path(|path| Fd::open(path, libc::O_RDWR | libc::O_NOFOLLOW, 0));
        fd.map_err(|e| AttachError::Call("open /dev/shm/deckle-NAME", e))
    }

    /// Whether the group `name` is strict, for who does not attach: a mapping stays for ever, and
    /// a child of vfork has its parent's memory.
    pub fn is_strict(name: Name) -> bool {
        let (mut word, at) = ([0; 4], core::mem::offset_of!(Page, strict) as u64);
        let read = Group::open(name).is_ok_and(|fd| fd.read_at(&mut word, at) == Ok(word.len()));
        read && word != [0; 4]
    }

    /// Finds the group `name`, whose page is open as `fd`.
    ///
    /// # Errors
    /// See [`AttachError`].
    pub fn attach_by(fd: &Fd, name: Name) -> Result<Group, AttachError> {
        check(fd)?;
        let group = Group::map(fd, name)?;
        group.is_whole()?;
        Ok(group)
    }

    /// Whether the page says of itself what its file does.
    pub(crate) fn is_whole(&self) -> Result<(), AttachError> {
        let expected = size_of::<Page>() as u64;
        let found = self.page.bytes.load(Acquire);
        let items = self.page.items.load(Relaxed);
        match found == expected && items == Item::COUNT as u32 {
            true => Ok(()),
            false => Err(AttachError::Size { found, expected }),
        }
    }

    /// Removes the name, and the socket's beside it; mappings stay. For either process of
    /// `deckle run` at its end. No harm if they are gone already.
    pub fn unlink(name: Name) {
        let unlink = |path: &CStr| std::fs::remove_file(OsStr::from_bytes(path.to_bytes()));
        let _ = name.with_path(unlink);
        let _ = unlink(address(Where::File, name.as_bytes()).path());
    }

    fn map(fd: &Fd, name: Name) -> Result<Group, AttachError> {
        let page = shared::map(fd).map_err(|e| AttachError::Call("map", e))?;
        Ok(Group { page, name })
    }

    /// Its name.
    pub fn name(&self) -> Name {
        self.name
    }

    /// Where its page is mapped: address and bytes.
    pub fn range(&self) -> (usize, usize) {
        ((&raw const *self.page).addr(), size_of::<Page>())
    }

    /// Bytes of the page that processes may have touched.
    pub fn used_bytes(&self) -> usize {
        core::mem::offset_of!(Page, lines) + size_of_val(self.lines())
    }

    /// The lines that were ever used.
    pub(crate) fn lines(&self) -> &[Line] {
        let used = self.page.lines_used.load(Acquire) as usize;
        &self.page.lines[..used.min(LINES)]
    }
}
