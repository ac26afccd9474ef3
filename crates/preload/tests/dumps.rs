//! Defects of core dumps: what they take, what they tell and what they must not tell.

use crate::common::host::{Alone, alone};
use crate::common::{Ran, compile, deckle, expect, run, without};
use crate::skipped::skipped;
use deckle_lab::host::Guard;
use std::collections::HashSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

const LIMIT: [&str; 2] = ["--memory-max", "64M"];

/// A directory in memory for one test's core, removed at its end; while it lives cores go to files
/// named "core" in the directory of who dumps, and no other test runs.
struct Cores {
    dir: PathBuf,
    _guard: Guard,
    _alone: Alone,
}

impl Cores {
    /// `None`, and it is said: the host's settings cannot be changed.
    fn new(test: &str) -> Option<Cores> {
        let _alone = alone();
        let program = [deckle().into_os_string(), "lab".into(), "program".into()];
        let set = |program: &[OsString]| {
            let mut guard = Guard::new(program)?;
            for (name, value) in [("core_pattern", "core"), ("core_uses_pid", "0")] {
                guard.set(&Path::new("/proc/sys/kernel").join(name), value)?;
            }
            Ok::<_, deckle_lab::LabError>(guard)
        };
        match set(&program) {
            Ok(_guard) => {
                let dir = PathBuf::from(format!("/dev/shm/deckle-{test}-{}", std::process::id()));
                std::fs::create_dir_all(&dir).expect("directory");
                Some(Cores {
                    dir,
                    _guard,
                    _alone,
                })
            }
            Err(e) => {
                skipped(e);
                None
            }
        }
    }

    fn path(&self) -> &str {
        self.dir.to_str().expect("path")
    }

    /// The core that was just dumped.
    fn core(&self) -> Vec<u8> {
        std::fs::read(self.dir.join("core")).expect("a core")
    }
}

impl Drop for Cores {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// The figure that follows `what` in what a program has said.
fn figure(ran: &Ran, what: &str) -> u64 {
    let rest = ran.out.split(what).nth(1).expect("a figure");
    let digits = rest.split(|c: char| !c.is_ascii_digit()).next();
    digits.expect("digits").parse().expect("a number")
}

/// What is only reserved was walked through page by page: 0.05 s became minutes.
///
/// A dump under deckle writes no more than the native one. Beside that it meets each of the 24,576
/// pages as a hole or as one that is away, which takes a refused fault: 2 us where the machine is
/// busy, 50 ms for all. The factor is for a machine that does something else.
#[test]
fn d14_a_core_dump_takes_no_longer_than_natively() {
    let Some(cores) = Cores::new("d14") else {
        return;
    };
    let program = compile("d14_dump", &[]);
    let command = [program.to_str().expect("path"), cores.path()];
    let (mut native, mut ours) = (u64::MAX, u64::MAX);
    let mut bytes = [0; 2];
    for _ in 0..3 {
        let ran = without(&command);
        expect(&ran, "d14 right");
        native = native.min(figure(&ran, "microseconds "));
        bytes[0] = figure(&ran, "bytes ");
        let ran = run(&LIMIT, &command);
        expect(&ran, "d14 right");
        ours = ours.min(figure(&ran, "microseconds "));
        bytes[1] = figure(&ran, "bytes ");
    }
    eprintln!(
        "native {native} us, {} bytes; ours {ours} us, {} bytes",
        bytes[0], bytes[1]
    );
    assert!(ours < 3 * native + 50_000, "{ours} us, natively {native}");
    // What is resident is in it, of 64 MiB what the store does not take. What deckle knows is not.
    assert!(bytes[1] <= bytes[0], "{bytes:?}");
    assert!((16 << 20..=66 << 20).contains(&bytes[1]), "{bytes:?}");
}

/// As `mixed` of defects.h.
fn mixed(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// How many pages of the 2048 of the pattern `seed` (`word` of defects.h) have left a word of their
/// middle somewhere in the dump.
fn pages_of(seed: u64, core: &[u8]) -> usize {
    let words: HashSet<u64> = (0..2048)
        .map(|page| mixed((seed << 48) + page * 512 + 21) | 1)
        .collect();
    let starts: HashSet<u16> = words.iter().map(|w| *w as u16).collect();
    let known: Vec<bool> = (0..=u16::MAX).map(|s| starts.contains(&s)).collect();
    let word = |at: &[u8]| u64::from_le_bytes(at.try_into().expect("eight bytes"));
    let found: HashSet<u64> = core
        .windows(8)
        .filter(|at| known[usize::from(u16::from_le_bytes([at[0], at[1]]))])
        .map(word)
        .filter(|w| words.contains(w))
        .collect();
    found.len()
}

/// What a program keeps out of its dumps was found there by way of the store, whose memory was
/// dumped; so was what it had wiped since.
#[test]
fn d17_what_is_kept_out_of_dumps_is_in_no_store_that_is_dumped() {
    let Some(cores) = Cores::new("d17") else {
        return;
    };
    let program = compile("d17_secrets", &[]);
    let ran = run(&LIMIT, &[program.to_str().expect("path"), cores.path()]);
    assert_eq!(ran.status, 128 + libc::SIGABRT, "{}", ran.err);
    let core = cores.core();
    let what = ["left out", "left out while away", "wiped", "unmapped"];
    for (seed, what) in (171..).zip(what) {
        assert_eq!(
            pages_of(seed, &core),
            0,
            "pages that are {what} in the dump"
        );
    }
    // The search finds what is there, and nothing that is away is there by another way.
    assert_eq!(pages_of(175, &core), 1024);
}

/// A dump has no bytes of what was evicted, and says so.
#[test]
fn d14_a_core_dump_says_what_is_not_in_it() {
    let Some(cores) = Cores::new("d14-note") else {
        return;
    };
    let program = compile("d14_dump", &[]);
    expect(
        &run(&LIMIT, &[program.to_str().expect("path"), cores.path()]),
        "d14 right",
    );
    let core = cores.core();
    let words = b" pages of 4 KiB of this process were evicted, and are not in this core";
    let at = core.windows(words.len()).position(|part| part == words);
    let before = &core[at.expect("a note") - 16..][..16];
    assert!(before.starts_with(b"deckle: "), "{before:?}");
    let pages = std::str::from_utf8(&before[8..]).expect("digits");
    // It has evicted 32 MiB of 96 by itself, and what did not fit beside what is stored.
    let pages: u64 = pages.parse().expect("a number");
    assert!((8192..24576).contains(&pages), "{pages}");
}
