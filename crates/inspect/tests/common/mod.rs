//! A process with memory that is known to the byte.

use std::collections::HashSet;
use std::io::{PipeReader, PipeWriter, Read, Write, pipe};
use std::ops::Range;
use std::time::{Duration, Instant};

use deckle_inspect::folios::Folios;
use deckle_inspect::gather::Kind;
use deckle_inspect::look::{How, Looked, find};
use deckle_inspect::pace::Pace;
use deckle_inspect::sample::Rng;
use deckle_inspect::{BLOCK, InspectError, Process};
use deckle_sys::mapping::Advice;
use deckle_sys::{Memory, PAGE, signal};

use crate::skipped::skipped;

/// Bytes of a huge page.
pub const HUGE: usize = BLOCK as usize;

/// A child that holds memory and sleeps, until it is dropped.
pub struct Subject {
    pid: i32,
    told: PipeReader,
}

impl Subject {
    /// Forks: `work` makes memory in the child, which keeps what it returns. `None` where it
    /// returns none, since there are no huge pages to be had.
    pub fn new<T>(work: impl FnOnce() -> Option<T>) -> Option<Subject> {
        let (told, tell) = pipe().unwrap();
        let parent = std::process::id();
        // SAFETY: the child makes mappings of its own and system calls; what it allocates is
        // little, and by the C library's allocator, which is whole after a fork.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            ends_with(parent);
            drop(told);
            hold(tell, work);
        }
        assert!(pid > 0, "fork");
        drop(tell);
        let mut subject = Subject { pid, told };
        match subject.answer() {
            b'+' => {
                subject.wait_until_it_waits();
                Some(subject)
            }
            b'-' => {
                skipped("no huge page to be had by a touch or MADV_COLLAPSE");
                None
            }
            _ => panic!("the child has failed"),
        }
    }

    /// On its way there it may touch a page for the first time.
    fn wait_until_it_waits(&self) {
        let begun = Instant::now();
        let stat = || std::fs::read_to_string(format!("/proc/{}/stat", self.pid)).unwrap();
        while !stat().contains(") S ") {
            assert!(begun.elapsed().as_secs() < 60, "the child does not wait");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn answer(&mut self) -> u8 {
        let mut byte = [0];
        match self.told.read_exact(&mut byte) {
            Ok(()) => byte[0],
            Err(_) => 0,
        }
    }

    pub fn pid(&self) -> u32 {
        self.pid as u32
    }

    pub fn process(&self) -> Process {
        Process::of(self.pid()).expect("the child")
    }

    /// All of it is looked at.
    pub fn look(&self) -> Looked {
        self.sample(100.0, 0)
    }

    pub fn sample(&self, percent: f64, seed: u64) -> Looked {
        self.read(Folios::open().as_mut(), percent, seed)
    }

    /// All of it, with what the kernel tells of frames or without.
    pub fn look_with(&self, folios: Option<&mut Folios>) -> Looked {
        self.read(folios, 100.0, 0)
    }

    fn read(&self, folios: Option<&mut Folios>, percent: f64, seed: u64) -> Looked {
        let found = find(&self.process(), folios).expect("to be shown");
        let pace = Pace::new(100);
        let mut how = How {
            percent,
            rng: Rng(seed),
            pace: &pace,
            step: &mut |_| (),
        };
        found.look(&mut how, &mut HashSet::new())
    }

    /// A sum over its mappings, in bytes.
    pub fn sum(&self, key: &str) -> u64 {
        let path = format!("/proc/{}/smaps_rollup", self.pid);
        let text = std::fs::read_to_string(path).unwrap();
        let line = text
            .lines()
            .find_map(|l| l.strip_prefix(key)?.strip_prefix(':'));
        let kib = line.unwrap().trim().trim_end_matches(" kB");
        kib.parse::<u64>().unwrap() << 10
    }
}

impl Drop for Subject {
    fn drop(&mut self) {
        let _ = signal::send(self.pid, libc::SIGKILL);
        let _ = deckle_sys::process::wait(self.pid, 0);
    }
}

/// The calling process ends when its parent, whose number this is, does.
pub fn ends_with(parent: u32) {
    // SAFETY: system calls on numbers.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        // It may have ended before that.
        if libc::getppid() as u32 != parent {
            libc::_exit(1);
        }
    }
}

/// Forks a child that does this and then waits to be killed; when it has been done.
pub fn fork(work: impl FnOnce()) {
    let (mut told, mut tell) = pipe().unwrap();
    let parent = std::process::id();
    // SAFETY: the child changes memory that is its own by now, and waits.
    if unsafe { libc::fork() } == 0 {
        ends_with(parent);
        work();
        let _ = tell.write_all(b"+");
        wait_for_the_end();
    }
    drop(tell);
    told.read_exact(&mut [0]).expect("the child");
}

/// Waits to be killed.
pub fn wait_for_the_end() -> ! {
    loop {
        // SAFETY: a call without arguments.
        unsafe { libc::pause() };
    }
}

fn hold<T>(mut tell: PipeWriter, work: impl FnOnce() -> Option<T>) -> ! {
    let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
    let byte = match &done {
        Ok(Some(_)) => b'+',
        Ok(None) => b'-',
        Err(_) => b'!',
    };
    let _ = tell.write_all(&[byte]);
    wait_for_the_end()
}

/// Huge pages of which so many pages each are zeros, those at the beginning.
pub fn blocks(zeros: &[u32]) -> Option<Memory> {
    let mut memory = Memory::map_aligned(zeros.len() * HUGE, HUGE).ok()?;
    memory
        .advise(0..zeros.len() * HUGE, Advice::HugePage)
        .ok()?;
    for (nth, zeros) in zeros.iter().enumerate() {
        let block = nth * HUGE..(nth + 1) * HUGE;
        memory.touch(block.start, 0);
        fill(&mut memory, block.clone(), *zeros);
    }
    let all = 0..zeros.len() * HUGE;
    let is_huge = huge_bytes(&memory) == all.len();
    (is_huge || memory.advise(all, Advice::Collapse).is_ok()).then_some(memory)
}

/// Writes a byte into each page of the range but the first `zeros`, another byte each time.
pub fn fill(memory: &mut Memory, range: Range<usize>, zeros: u32) {
    let first = range.start + zeros as usize * PAGE;
    for (nth, page) in (first..range.end).step_by(PAGE).enumerate() {
        memory.touch(page + nth * 37 % PAGE, 1);
    }
}

/// Bytes in huge pages that are mapped as a whole, by this process's smaps.
pub fn huge_bytes(memory: &Memory) -> usize {
    let all = deckle_inspect::smaps::vmas(std::process::id()).unwrap();
    let at = memory.as_ptr().addr() as u64;
    let here = all
        .iter()
        .filter(|v| v.start < at + memory.len() as u64 && at < v.end);
    here.map(|v| v.huge as usize).sum()
}

/// Zero pages of each huge page of a kind that was looked at, in order.
pub fn zeros(looked: &Looked, kind: Kind) -> Vec<u32> {
    let all = looked.tally(kind).seen;
    all.iter()
        .flat_map(|(zeros, n)| (0..n).map(move |_| zeros))
        .collect()
}

/// Whether frames are told, as to root.
pub fn told_frames() -> bool {
    Folios::open().is_some()
}

/// What it is called when the child has ended.
pub fn is_gone(e: &InspectError) -> bool {
    matches!(e, InspectError::Gone(_))
}
