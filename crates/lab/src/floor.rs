//! The floor under any pager in the pageout experiment: every huge page has to be zeroed once and
//! scanned once, with all CPUs. Measured in the same run as the rows it is printed beside.

use std::hint::black_box;
use std::thread;
use std::time::Instant;

use deckle_sys::mapping::Advice;

use crate::LabError;
use crate::program::in_threads;
use crate::program::pageout::Content;
use crate::region;
use crate::size::{BLOCK, PAGE};

/// Memory per thread, used over and over: more than its caches hold.
const WINDOW: usize = 64 << 20;

/// Seconds that all CPUs together need to zero `len` bytes and to scan them, when each page that
/// holds something holds one byte, where `content` has one or has its first.
///
/// # Errors
/// If memory cannot be mapped.
pub fn measure(len: usize, content: Content) -> Result<f64, LabError> {
    let threads = thread::available_parallelism().map_or(1, |n| n.get());
    let blocks = (len / BLOCK).div_ceil(threads);
    // Two passes over the windows: the first only warms them.
    work(threads, WINDOW / BLOCK, content)?;
    let started = Instant::now();
    let prepared = work(threads, blocks, content)?;
    Ok((started.elapsed().as_secs_f64() - prepared).max(0.0))
}

/// Returns the longest time a thread needed to get its window ready, in seconds.
fn work(threads: usize, blocks: usize, content: Content) -> Result<f64, LabError> {
    let prepared = in_threads(0..threads, |_| -> Result<f64, LabError> {
        let started = Instant::now();
        let mut window = region::map(WINDOW)?;
        let _ = region::advise(&mut window, Advice::HugePage);
        window.fill(1);
        let prepared = started.elapsed().as_secs_f64();
        zero_and_scan(&mut window, blocks, content);
        Ok(prepared)
    });
    (prepared.into_iter()).try_fold(0.0, |longest: f64, prepared| Ok(longest.max(prepared?)))
}

fn zero_and_scan(window: &mut [u8], mut blocks: usize, content: Content) {
    while blocks > 0 {
        let round = blocks.min(window.len() / BLOCK);
        let part = &mut window[..round * BLOCK];
        part.fill(0);
        for (first, block) in part.chunks_exact_mut(BLOCK).enumerate() {
            let pages = block.chunks_exact_mut(PAGE).take(content.pages());
            for (i, page) in pages.enumerate() {
                page[content.offset(first * (BLOCK / PAGE) + i)] = 0xff;
            }
        }
        black_box(part.chunks_exact(PAGE).filter(|page| is_zero(page)).count());
        blocks -= round;
    }
}

/// Looks at 64 bytes at a time and stops at the first that are not zero.
fn is_zero(page: &[u8]) -> bool {
    page.chunks_exact(64)
        .all(|line| line.iter().fold(0, |any, byte| any | byte) == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r99_the_floor_scans_whole_pages_and_finds_any_byte() {
        let mut page = vec![0; PAGE];
        assert!(is_zero(&page));
        for at in [0, 63, 64, 4095] {
            page[at] = 0xff;
            assert!(!is_zero(&page), "byte {at}");
            page[at] = 0;
        }
        assert!(measure(4 * BLOCK, Content::Middle).unwrap() >= 0.0);
    }
}
