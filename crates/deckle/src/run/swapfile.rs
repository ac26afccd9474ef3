//! The files that hold swapped pages: one for each process, without a name, given to its service.
//!
//! A child of fork needs those that its parent had, and asks for them by their numbers, which
//! nobody else knows: they are random. So each is kept here while somebody may ask for it.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use deckle_group::{Group, LineId};
use deckle_sys::file::set_flags;
use deckle_sys::{Errno, Fd, random};

use crate::fail::{Fail, plain};

/// How long who has ended counts as one who has its files: a parent may be killed while its child
/// is about to ask.
const GRACE: Duration = Duration::from_secs(5);

/// A connection, by number.
pub type User = u64;

struct Kept {
    number: u64,
    file: Fd,
    owner: User,
    /// The owner's line, once it is known.
    line: LineId,
    /// When the owner ended.
    ended: Option<Instant>,
    holders: Vec<Holder>,
}

/// Who has another's file, by a fork.
struct Holder {
    user: User,
    /// The number of the owner's fork that it comes from, if not from its children's.
    fork: u64,
    /// When it ended.
    ended: Option<Instant>,
}

impl Kept {
    /// Tells the owner who has its file.
    fn tell(&self, group: &Group) {
        let oldest = self.holders.iter().map(|h| h.fork).min();
        group.note_file_holders(self.line, oldest);
    }
}

/// The directory, and the files.
pub struct SwapFiles {
    dir: Option<PathBuf>,
    kept: Vec<Kept>,
}

impl SwapFiles {
    /// Files in `dir`, if there are to be any: tried before the program runs.
    ///
    /// # Errors
    /// `dir` is no directory, or takes no file; for people.
    pub fn new(dir: Option<&Path>) -> Result<SwapFiles, Fail> {
        let kept = Vec::new();
        let Some(dir) = dir else {
            return Ok(SwapFiles { dir: None, kept });
        };
        let shown = dir.display();
        let fail = |why: &str| {
            Fail::own(format!(
                "--swap: file:{shown}: {why}: give a directory on a disk with room that you may \
                 write to, such as /var/tmp (the files in it have no names)"
            ))
        };
        let whole = dir.canonicalize().map_err(|e| fail(&plain(&e)))?;
        if !whole.is_dir() {
            return Err(fail("is not a directory"));
        }
        let tried = make(&whole).and_then(|file| try_out(&file));
        tried.map_err(|e| fail(&plain(&e)))?;
        let dir = Some(whole);
        Ok(SwapFiles { dir, kept })
    }

    /// A new file for `user`, with its number.
    ///
    /// # Errors
    /// There is no directory, or it takes none now.
    fn open(&mut self, user: User) -> Result<(u64, &Fd), Errno> {
        let dir = self.dir.as_ref().ok_or(Errno(libc::ENOENT))?;
        let errno = |e: io::Error| Errno(e.raw_os_error().unwrap_or(libc::EIO));
        let file = Fd::from(OwnedFd::from(make(dir).map_err(errno)?));
        let number = loop {
            let number = u64::from_le_bytes(random()?);
            if number != 0 && self.kept.iter().all(|k| k.number != number) {
                break number;
            }
        };
        self.kept.push(Kept {
            number,
            file,
            owner: user,
            line: LineId::NONE,
            ended: None,
            holders: Vec::new(),
        });
        let last = self.kept.last().ok_or(Errno(libc::EIO))?;
        Ok((number, &last.file))
    }

    /// A file for `user`: a new one for number 0, else the one of that number, which it came by
    /// through this fork.
    ///
    /// # Errors
    /// As the two.
    pub fn give(
        &mut self,
        (user, fork): (User, u64),
        number: u64,
        group: &Group,
    ) -> Result<(u64, &Fd), Errno> {
        match number {
            0 => self.open(user),
            number => self.again((user, fork), number, group),
        }
    }

    /// The file of that number, for `user`, who came by this fork of its owner's.
    ///
    /// # Errors
    /// There is none, or none any more.
    fn again(
        &mut self,
        (user, fork): (User, u64),
        number: u64,
        group: &Group,
    ) -> Result<(u64, &Fd), Errno> {
        let kept = self.kept.iter_mut().find(|k| k.number == number);
        let kept = kept.ok_or(Errno(libc::ENOENT))?;
        kept.holders.push(Holder {
            user,
            fork: fork.max(1),
            ended: None,
        });
        kept.tell(group);
        Ok((number, &kept.file))
    }

    /// `user` has this line.
    pub fn joined(&mut self, user: User, line: LineId) {
        for kept in self.kept.iter_mut().filter(|k| k.owner == user) {
            kept.line = line;
        }
    }

    /// `user` has ended.
    pub fn ended(&mut self, user: User, now: Instant) {
        for kept in &mut self.kept {
            if kept.owner == user {
                kept.ended.get_or_insert(now);
            }
            for holder in kept.holders.iter_mut().filter(|h| h.user == user) {
                holder.ended.get_or_insert(now);
            }
        }
    }

    /// Forgets who has ended long enough ago, and closes what nobody will ask for.
    pub fn expire(&mut self, now: Instant, group: &Group) {
        let is_over = |ended: Option<Instant>| ended.is_some_and(|at| now >= at + GRACE);
        for kept in &mut self.kept {
            let before = kept.holders.len();
            kept.holders.retain(|h| !is_over(h.ended));
            if kept.holders.len() < before {
                kept.tell(group);
            }
        }
        self.kept
            .retain(|k| !k.holders.is_empty() || !is_over(k.ended));
    }

    /// When [`expire`](SwapFiles::expire) has something to do.
    pub fn deadline(&self) -> Option<Instant> {
        let of = |k: &Kept| {
            let holders = k.holders.iter().filter_map(|h| h.ended).min();
            holders.or(k.ended.filter(|_| k.holders.is_empty()))
        };
        self.kept.iter().filter_map(of).min().map(|at| at + GRACE)
    }
}

/// To be opened by us alone, with these flags, too.
fn options(flags: i32) -> OpenOptions {
    let mut options = OpenOptions::new();
    let options = options.read(true).write(true).mode(0o600);
    options.custom_flags(flags).clone()
}

/// A file without a name. Past the page cache, where that can be: what it holds was put out of
/// memory.
fn make(dir: &Path) -> io::Result<File> {
    let unnamed = |flags| options(flags | libc::O_TMPFILE).open(dir);
    let is = |e: &io::Error, errnos: [i32; 2]| errnos.map(Some).contains(&e.raw_os_error());
    let made = match unnamed(libc::O_DIRECT) {
        Err(e) if is(&e, [libc::EINVAL; 2]) => unnamed(0),
        other => other,
    };
    match made {
        Err(e) if is(&e, [libc::EOPNOTSUPP, libc::EISDIR]) => make_named(dir),
        other => other,
    }
}

/// Where the file system has none without a name: one that has it for a moment.
fn make_named(dir: &Path) -> io::Result<File> {
    let word = random().map_err(|e| io::Error::from_raw_os_error(e.0))?;
    let path = dir.join(format!(".deckle-{:016x}", u64::from_le_bytes(word)));
    let file = options(0).create_new(true).open(&path)?;
    std::fs::remove_file(&path)?;
    // Not before: who is refused then has made the file, and its name stays.
    // Where it is refused all goes on without.
    let _ = set_flags(&file, libc::O_DIRECT);
    Ok(file)
}

/// A block, on a block's boundary.
#[repr(C, align(4096))]
struct Block([u8; 4096]);

/// Writes and reads a block.
fn try_out(file: &File) -> io::Result<()> {
    let (written, mut read) = (Block([0x5a; 4096]), Block([0; 4096]));
    file.write_all_at(&written.0, 0)?;
    file.read_exact_at(&mut read.0, 0)?;
    match read.0 == written.0 {
        true => Ok(()),
        false => Err(io::Error::other("it does not give back what was written")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use deckle_group::{Limits, Name, SwapKind};

    #[test]
    fn a_file_is_kept_until_all_that_had_it_have_been_gone_for_a_while() {
        let name = Name::new(format!("test-files-{}", std::process::id()).as_bytes()).unwrap();
        let tunables = deckle_mm::Tunables::default();
        let group = Group::create(name, Limits::NONE, &tunables, SwapKind::Lz4).unwrap();
        Group::unlink(name);
        let line = group.join(std::process::id(), 0).unwrap();
        let dir = std::env::temp_dir();
        let mut files = SwapFiles::new(Some(&dir)).unwrap_or_else(|e| panic!("{}", e.text));
        let now = Instant::now();
        let (first, _) = files.open(1).unwrap();
        let (second, _) = files.open(2).unwrap();
        files.joined(1, line);
        assert!(first != 0 && first != second && group.file_holders(line).is_none());
        // A child by its fourth fork, and that one's child.
        assert_eq!(files.again((3, 4), first, &group).unwrap().0, first);
        assert_eq!(files.again((4, 4), first, &group).unwrap().0, first);
        assert_eq!(files.again((5, 6), first, &group).unwrap().0, first);
        assert!(files.again((3, 1), first.wrapping_add(1), &group).is_err());
        assert_eq!(group.file_holders(line), Some(4));
        // The child ends, its own goes on.
        files.ended(3, now);
        files.ended(3, now + GRACE);
        assert_eq!(files.deadline(), Some(now + GRACE));
        files.expire(now + GRACE, &group);
        assert_eq!(
            (group.file_holders(line), files.deadline()),
            (Some(4), None)
        );
        files.ended(4, now);
        files.expire(now + GRACE / 2, &group);
        assert_eq!(group.file_holders(line), Some(4), "not at once");
        files.expire(now + GRACE, &group);
        assert_eq!(group.file_holders(line), Some(6));
        // The owner ends before who has its file.
        files.ended(1, now);
        files.expire(now + 2 * GRACE, &group);
        assert!(files.again((6, 1), first, &group).is_ok());
        files.ended(5, now);
        files.ended(6, now);
        files.expire(now + GRACE, &group);
        assert_eq!(group.file_holders(line), None);
        assert!(files.again((7, 1), first, &group).is_err());
        assert!(files.again((7, 1), second, &group).is_ok());
    }

    #[test]
    fn every_file_is_ours_alone_and_has_no_name() {
        use std::os::unix::fs::MetadataExt;
        let dir = std::env::temp_dir();
        for make in [make, make_named] {
            let file = make(&dir).unwrap();
            let meta = file.metadata().unwrap();
            assert_eq!((meta.mode() & 0o777, meta.nlink()), (0o600, 0));
            try_out(&file).unwrap();
        }
    }

    #[test]
    fn a_directory_that_takes_no_file_is_refused_before_anything_runs() {
        for (dir, part) in [
            ("/nowhere/at/all", "no such file"),
            ("/dev/null", "is not a directory"),
            ("/proc", ""),
        ] {
            let Err(fail) = SwapFiles::new(Some(Path::new(dir))) else {
                panic!("{dir} was taken");
            };
            let text = fail.text.to_lowercase();
            assert!(text.contains(dir) && text.contains(part), "{text}");
        }
        let mut none = SwapFiles::new(None).unwrap_or_else(|e| panic!("{}", e.text));
        assert!(none.open(1).is_err());
    }
}
