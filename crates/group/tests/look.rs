//! A group as others see it: whose page it is, what a copy of it says, changes of its settings.

use crate::common::*;
use deckle_group::look::{Locked, Look, names};
use deckle_group::{AttachError, Group, GroupCharge, Limits, Name, SwapKind};
use deckle_mm::{Charge, Tunables};
use deckle_sys::Errno;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// A file with the prefix of groups, removed at the end.
struct File(Name);

impl File {
    fn new() -> File {
        File(name())
    }
    fn path(&self) -> PathBuf {
        format!("/dev/shm/deckle-{}", self.0.as_str()).into()
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let path = self.path();
        let _ = fs::remove_dir(&path).or_else(|_| fs::remove_file(&path));
    }
}

fn error(file: &File) -> AttachError {
    Look::open(file.0).err().expect("no group")
}

#[test]
fn what_is_no_group_of_ours_is_told_apart_and_does_no_harm() {
    let ours = group(100);
    let page = fs::read(format!("/dev/shm/deckle-{}", ours.0.name().as_str())).unwrap();
    let file = File::new();
    type Is = fn(&AttachError) -> bool;
    let contents: [(&[u8], Is); 5] = [
        (b"", |e| *e == AttachError::Magic),
        (b"deckle", |e| *e == AttachError::Magic),
        (&[0xff; 600_000], |e| *e == AttachError::Magic),
        (&page[..4096], |e| matches!(e, AttachError::Size { .. })),
        (&page[..page.len() - 1], |e| {
            matches!(e, AttachError::Size { .. })
        }),
    ];
    for (bytes, is) in contents {
        fs::write(file.path(), bytes).unwrap();
        let e = error(&file);
        assert!(is(&e), "{} bytes: {e}", bytes.len());
        assert!(Locked::take(file.0, 0).is_err());
    }
    // Only its head is a group's: whatever the rest says is read as numbers.
    let mut lie = page.clone();
    lie[24..].fill(0xff);
    fs::write(file.path(), &lie).unwrap();
    let look = Look::open(file.0).unwrap();
    let seen = look.group();
    assert!(seen.knobs().is_err() && seen.alias().is_none());
    assert!(seen.processes().count() <= deckle_group::layout::LINES);
    let _ = (
        seen.usage(),
        seen.swap_usage(),
        seen.gauges(),
        seen.seen(),
        look.is_alive(),
    );
    let (pipe, dir, link) = (File::new(), File::new(), File::new());
    deckle_sys::file::make_fifo(&cstring(&pipe), 0o600).unwrap();
    fs::create_dir(dir.path()).unwrap();
    symlink(
        format!("/dev/shm/deckle-{}", ours.0.name().as_str()),
        link.path(),
    )
    .unwrap();
    assert_eq!(error(&pipe), AttachError::Foreign);
    assert_eq!(error(&dir), AttachError::Foreign);
    assert!(matches!(
        error(&link),
        AttachError::Call(_, Errno(libc::ELOOP))
    ));
    let all = names();
    for name in [ours.0.name(), file.0, pipe.0, dir.0, link.0] {
        assert!(all.contains(&name), "{name:?}");
    }
}

fn cstring(file: &File) -> std::ffi::CString {
    std::ffi::CString::new(file.path().to_str().unwrap()).unwrap()
}

#[test]
fn another_users_group_is_not_looked_at_whatever_its_rights_say() {
    if deckle_sys::process::effective_user() != 0 {
        return crate::skipped::skipped("needs root");
    }
    let group = group(100);
    let path = format!("/dev/shm/deckle-{}", group.0.name().as_str());
    fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
    let name = group.0.name();
    let child = spawn(|| {
        // SAFETY: calls on numbers, in a process of this alone.
        unsafe {
            assert_eq!(libc::setgid(65534), 0);
            assert_eq!(libc::setuid(65534), 0);
        }
        let looked = Look::open(name).err() == Some(AttachError::Foreign);
        let locked = Locked::take(name, 0).err() == Some(AttachError::Foreign);
        let attached = Group::attach_from_outside(name).err() == Some(AttachError::Foreign);
        i32::from(!(looked && locked && attached))
    });
    assert_eq!(wait(child), 0);
    // Root looks at everybody's.
    std::os::unix::fs::chown(&path, Some(65534), None).unwrap();
    assert!(Look::open(name).is_ok());
}

#[test]
fn a_copy_stays_as_it_is_until_the_next_and_survives_a_shorter_file() {
    let group = group(1000);
    let charge = GroupCharge::new(group.0, group.0.join(std::process::id(), 7).unwrap());
    charge.try_charge(10).unwrap();
    let look = Look::open(group.0.name()).unwrap();
    let seen = look.group();
    assert_eq!((seen.usage(), seen.limits().max), (10, 1000));
    charge.try_charge(20).unwrap();
    group.0.set_limits(Limits {
        max: 500,
        ..group.0.limits()
    });
    assert_eq!((seen.usage(), seen.limits().max), (10, 1000));
    look.again().unwrap();
    assert_eq!((seen.usage(), seen.limits().max), (30, 500));
    let processes: Vec<_> = seen
        .processes()
        .map(|p| (p.pid, p.service, p.charged))
        .collect();
    assert_eq!(processes, [(std::process::id(), 7, 30)]);
    // What is written to a copy is nobody's.
    seen.set_limits(Limits::NONE);
    assert_eq!(group.0.limits().max, 500);
    assert!(look.is_alive());
    let path = format!("/dev/shm/deckle-{}", group.0.name().as_str());
    let whole = fs::read(&path).unwrap();
    fs::OpenOptions::new()
        .write(true)
        .open(&path)
        .unwrap()
        .set_len(100)
        .unwrap();
    assert!(matches!(look.again(), Err(AttachError::Size { .. })));
    fs::write(&path, whole).unwrap();
    look.again().unwrap();
    fs::remove_file(&path).unwrap();
    assert!(!look.is_alive());
}

#[test]
fn a_page_whose_supervisor_is_gone_is_no_tree_that_runs() {
    let file = File::new();
    let name = file.0;
    let child = spawn(|| {
        let made = Group::create(name, Limits::NONE, &Tunables::default(), SwapKind::Lz4);
        i32::from(made.is_err() || !Look::open(name).is_ok_and(|look| look.is_alive()))
    });
    assert_eq!(wait(child), 0);
    let look = Look::open(name).unwrap();
    assert_eq!(look.group().supervisor(), child);
    assert!(!look.is_alive());
}

/// Limits of which one tells the others, and a knob.
fn settings(n: u64) -> (Limits, Tunables) {
    let limits = Limits {
        max: n,
        high: n,
        swap_max: n,
    };
    let knobs = Tunables {
        thp_waste_max: n,
        max_ptes_none: (n % 512) as u16,
        ..Tunables::default()
    };
    (limits, knobs)
}

#[test]
fn a_change_of_settings_is_seen_whole_or_not_at_all_whoever_is_killed_in_it() {
    let group = group(0);
    let g = group.0;
    g.change(settings(0).0, &settings(0).1);
    let end = AtomicBool::new(false);
    let reads = std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let (mut reads, mut wrong) = (0u64, 0u64);
            while !end.load(Relaxed) {
                let (limits, knobs) = (g.limits(), g.knobs().unwrap());
                let whole = limits.max == limits.high && limits.max == limits.swap_max;
                let waste = knobs.thp_waste_max;
                wrong += u64::from(!whole || knobs.max_ptes_none != (waste % 512) as u16);
                reads += 1;
            }
            assert_eq!(wrong, 0, "of {reads}");
            reads
        });
        for round in 0..40u64 {
            let writer = spawn(|| {
                let mut n = round << 32;
                loop {
                    n += 1;
                    let (limits, knobs) = settings(n);
                    g.change(limits, &knobs);
                }
            });
            sleep_ms(2 + round % 3);
            kill(writer, libc::SIGKILL);
            wait(writer);
            // The next one finds nothing half done.
            let (limits, knobs) = settings(round);
            let before = g.changes();
            g.change(limits, &knobs);
            assert_eq!((g.limits(), g.knobs().unwrap()), (limits, knobs));
            assert_eq!(g.changes(), before.wrapping_add(1));
        }
        end.store(true, Relaxed);
        reader.join().unwrap()
    });
    assert!(reads > 1000, "{reads}");
}

#[test]
fn one_changes_settings_at_a_time_and_the_lock_ends_with_its_process() {
    let group = group(100);
    let name = group.0.name();
    /// Milliseconds: a fork of another test has the same open file, as long as it lives.
    const LONG: u32 = 60_000;
    let lock = Locked::take(name, 0).unwrap();
    let taken = Locked::take(name, 3).err();
    assert_eq!(taken, Some(AttachError::Call("lock", Errno(libc::EAGAIN))));
    drop(lock);
    let holder = spawn(|| {
        let _lock = Locked::take(name, LONG).unwrap();
        loop {
            sleep_ms(1000);
        }
    });
    while Locked::take(name, 0).is_ok() {
        sleep_ms(1);
    }
    kill(holder, libc::SIGKILL);
    wait(holder);
    let lock = Locked::take(name, LONG).unwrap();
    lock.group().change(settings(9).0, &settings(9).1);
    assert_eq!(group.0.limits().max, 9);
}
