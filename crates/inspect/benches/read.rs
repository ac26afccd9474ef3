//! How fast another process's huge pages are read and tested, beside memory of our own: the share
//! of one CPU's memory bandwidth. CPU time, so that work beside it does not count; rounds
//! alternate.

use std::collections::HashSet;

use deckle_inspect::look::{How, find};
use deckle_inspect::pace::Pace;
use deckle_inspect::sample::Rng;
use deckle_inspect::{BLOCK, Process};
use deckle_live::zero_scan::zero_pages;
use deckle_sys::clock::{Clock, nanos};
use deckle_sys::mapping::Advice;
use deckle_sys::{Memory, PAGE, Page, process, signal};

const BLOCKS: usize = 256;
const ROUNDS: usize = 7;

/// Huge pages: of each all pages are zeros, or each has a byte that a scan meets at once.
fn memory(zeros: bool) -> Memory {
    let len = BLOCKS * BLOCK as usize;
    let mut memory = Memory::map_aligned(len, BLOCK as usize).expect("memory");
    memory.advise(0..len, Advice::HugePage).expect("advice");
    let step = if zeros { BLOCK as usize } else { PAGE };
    (0..len)
        .step_by(step)
        .for_each(|at| memory.touch(at, u8::from(!zeros)));
    memory
}

fn timed(work: impl FnOnce()) -> f64 {
    let begun = nanos(Clock::Thread);
    work();
    let bytes = (BLOCKS as u64 * BLOCK) as f64;
    bytes / (nanos(Clock::Thread) - begun) as f64
}

/// Gigabytes a second of our own memory: tested, and copied.
fn own(memory: &Memory, buffer: &mut [Page]) -> (f64, f64) {
    let test = timed(|| {
        let mut zeros = 0;
        for block in memory.chunks(BLOCK as usize) {
            zeros += pages(block, |pages| zero_pages(pages).count());
        }
        std::hint::black_box(zeros);
    });
    // As a plain copy into a buffer that stays in the cache.
    let copy = timed(|| {
        for (nth, chunk) in memory.chunks(buffer.len() * PAGE).enumerate() {
            pages(chunk, |from| buffer.copy_from_slice(from));
            std::hint::black_box(buffer[nth % buffer.len()][0]);
        }
    });
    (test, copy)
}

/// The words of whole pages.
fn pages<T>(bytes: &[u8], work: impl FnOnce(&[Page]) -> T) -> T {
    // SAFETY: memory on a page's boundary, of which any bits are words.
    let (_, pages, _) = unsafe { bytes.align_to::<Page>() };
    work(pages)
}

fn others(pid: u32) -> f64 {
    let process = Process::of(pid).expect("the child");
    let pace = Pace::new(100);
    let mut how = How {
        percent: 100.0,
        rng: Rng(0),
        pace: &pace,
        step: &mut |_| (),
    };
    timed(|| {
        let found = find(&process, None).expect("to be shown");
        let looked = found.look(&mut how, &mut HashSet::new());
        assert_eq!(looked.seen(), BLOCKS as u64);
    })
}

fn main() {
    for (name, zeros) in [("zeros", true), ("filled", false)] {
        let Some(child) = process::fork_alone().expect("fork") else {
            let _memory = memory(zeros);
            wait_for_the_end();
        };
        let memory = memory(zeros);
        std::thread::sleep(std::time::Duration::from_secs(2));
        let mut buffer = vec![[0; PAGE / 8]; 64];
        let mut best = [0.0f64; 3];
        for _ in 0..ROUNDS {
            let (test, copy) = own(&memory, &mut buffer);
            let rates = [test, copy, others(child as u32)];
            best.iter_mut().zip(rates).for_each(|(b, r)| *b = b.max(r));
        }
        let [test, copy, other] = best;
        println!(
            "{name}: own memory tested {test:.1} GB/s, copied {copy:.1} GB/s; another process's \
             {other:.1} GB/s: {:.2} of the copy",
            other / copy
        );
        let _ = signal::send(child, libc::SIGKILL);
        let _ = process::wait(child, 0);
    }
}

/// The child holds its memory until it is killed.
fn wait_for_the_end() -> ! {
    loop {
        std::thread::sleep(std::time::Duration::from_secs(60));
    }
}
