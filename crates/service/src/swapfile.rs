//! The file behind the store: this process's own, and those of its parents, of which the store
//! holds something since a fork. `deckle run` has made them, and gives the descriptors.

use crate::{door, end, process, sys};
use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::Relaxed;
use core::time::Duration;
use deckle_door::Lock;
use deckle_group::Group;
use deckle_group::proto::Link;
use deckle_store::{Encrypted, SwapFile};
use deckle_sys::clock::{Clock, nanos};

/// A file that is had.
#[derive(Clone, Copy)]
struct Had {
    number: u64,
    fd: i32,
    /// A parent's: the number of its owner's fork by which it is had.
    fork: u64,
}

/// The files, the own one first. They are never closed: a child's are others.
pub struct Files {
    all: Lock<Vec<Had>>,
    /// Whether it was said that the file takes nothing more.
    said: AtomicBool,
}

/// The calls on files that the program's own filter must allow.
const CALLS: [libc::c_long; 2] = [libc::SYS_pread64, libc::SYS_pwrite64];

impl Files {
    /// None yet.
    pub fn none() -> Files {
        Files {
            all: Lock::new(Vec::new()),
            said: AtomicBool::new(false),
        }
    }

    /// Opens `files` and gives the own one a key if that is wanted.
    ///
    /// # Errors
    /// As of `open`, or there is no key to be had.
    pub fn begin(
        files: &Encrypted<Files>,
        group: &Group,
        link: &Link,
        (parents, fork): (&[u64], u64),
    ) -> Result<(), String> {
        files.inner().open(group, link, (parents, fork))?;
        files.keep(parents);
        if files.number() != 0 && group.swap_file().is_some_and(|file| file.encrypt) {
            let key = deckle_sys::random();
            files.encrypt(&key.map_err(|e| format!("no key for its file: {e}"))?);
        }
        Ok(())
    }

    /// Asks for a file, if the group has any, and for those of these numbers, of what was had
    /// before the parent's fork of that number.
    ///
    /// # Errors
    /// One of these cannot be had; for people.
    fn open(
        &self,
        group: &Group,
        link: &Link,
        (parents, fork): (&[u64], u64),
    ) -> Result<(), String> {
        let before = core::mem::take(&mut *self.all.lock());
        let mut own = Had {
            number: 0,
            fd: -1,
            fork: 0,
        };
        if group.swap_file().is_some() && CALLS.iter().all(|number| door().may(*number)) {
            match link.file(0, 0) {
                Ok((number, fd)) => (own.number, own.fd) = (number, fd.into_raw()),
                Err(e) => {
                    let text = format!("deckle: a process has no file for its pages: {e}\n");
                    let _ = link.say(text.as_bytes());
                }
            }
        }
        let mut all = vec![own];
        for number in parents.iter().copied() {
            let had = before.iter().find(|had| had.number == number);
            // The parent's own, or one that it had by a fork itself.
            let fork = had
                .map(|had| had.fork)
                .filter(|earlier| *earlier > 0)
                .unwrap_or(fork);
            let file = link.file(number, fork);
            let (_, fd) = file.map_err(|e| format!("its parent's file is gone: {e}"))?;
            let fd = fd.into_raw();
            all.push(Had { number, fd, fork });
        }
        *self.all.lock() = all;
        Ok(())
    }

    fn fd(&self, number: u64) -> Result<usize, i32> {
        let all = self.all.lock();
        let found = all.iter().find(|had| had.number == number && number != 0);
        found.map_or(Err(libc::ENXIO), |had| Ok(had.fd as usize))
    }

    /// Moves all of a range by a call on (descriptor, address, bytes, offset), part by part.
    fn transfer(
        call: libc::c_long,
        fd: usize,
        at: u64,
        from: usize,
        all: usize,
    ) -> Result<(), i32> {
        let mut done = 0;
        while done < all {
            let args = [fd, from + done, all - done, at as usize + done];
            // SAFETY: `from` is the address of that many bytes of the caller's, which for reading
            // are the caller's alone.
            match unsafe { sys::call(call, args) } {
                Ok(0) => return Err(libc::EIO),
                Ok(n) => done += n,
                Err(libc::EINTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }
}

/// A clock that all processes of a group have.
fn now() -> Duration {
    Duration::from_nanos(nanos(Clock::Monotonic))
}

impl SwapFile for Files {
    fn number(&self) -> u64 {
        self.all.lock().first().map_or(0, |own| own.number)
    }

    fn may_write(&self) -> bool {
        process::process().is_none_or(|p| p.account.group().write_wait(now()).is_zero())
    }

    fn charge(&self, bytes: u64) -> bool {
        process::process().is_some_and(|p| {
            let account = &p.account;
            account.group().charge_file(account.line(), bytes)
        })
    }

    fn uncharge(&self, bytes: u64) {
        if let Some(p) = process::process() {
            p.account.group().uncharge_file(p.account.line(), bytes);
        }
    }

    fn write(&self, at: u64, bytes: &[u8]) -> Result<(), i32> {
        let fd = self.fd(self.number())?;
        if let Some(p) = process::process() {
            let group = p.account.group();
            // Only who finds nothing else to reclaim does not find it paid for already.
            let wait = group.write_wait(now());
            if !wait.is_zero() {
                end::sleep(wait);
            }
            group.note_writing(bytes.len() as u64, now());
        }
        let from = bytes.as_ptr().addr();
        let done = Files::transfer(libc::SYS_pwrite64, fd, at, from, bytes.len());
        if let Err(errno) = done
            && !self.said.swap(true, Relaxed)
            && let Some(p) = process::process()
        {
            let why = std::io::Error::from_raw_os_error(errno);
            let pid = p.pid;
            let what = "its file for swapped pages takes no more, they stay in memory";
            let text = format!("deckle: process {pid}: {what}: {why}\n");
            let _ = p.link.say(text.as_bytes());
        }
        done
    }

    fn read(&self, number: u64, at: u64, bytes: &mut [u8]) -> Result<(), i32> {
        let fd = self.fd(number)?;
        let to = bytes.as_mut_ptr().addr();
        Files::transfer(libc::SYS_pread64, fd, at, to, bytes.len())
    }

    fn discard(&self, at: u64, bytes: u64) {
        let Ok(fd) = self.fd(self.number()) else {
            return;
        };
        let mode = (libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE) as usize;
        if door().may(libc::SYS_fallocate) {
            // SAFETY: a call on numbers. Where it is refused the place is written over in time.
            let _ =
                unsafe { sys::call(libc::SYS_fallocate, [fd, mode, at as usize, bytes as usize]) };
        }
    }
}
