//! `pageout SIZE_MIB OFFSET NUM_DIRTY [--text] [--check]`: the program of the S000 series.
//!
//! For every 2 MiB region: one byte 0xff at OFFSET in each of its first NUM_DIRTY pages. Then
//! MADV_PAGEOUT over the whole, unmap, exit. `--text` (OFFSET and NUM_DIRTY have no meaning then)
//! writes every page whole with content of lz4 ratio 2.5:1. Before paging out it prints how long
//! the first huge page faults took; that is how the experiment knows a cold run.
//!
//! `--check` is for a run that is not timed: paged out, the program says so, waits for a line on
//! stdin, and then reads every byte back.

use std::io::{self, BufRead};
use std::time::Instant;

use super::{Failure, check_all, number, say, switch};
use crate::LabError;
use crate::content::Recipe;
use crate::region::Region;
use crate::size::{BLOCK, PAGE};

/// lz4 ratio of the pages of `--text`.
pub const TEXT_RATIO: f64 = 2.5;
/// First touches of a block that are timed.
pub const TIMED_FAULTS: usize = 16;
/// Starts the line with the average of the timed faults in microseconds.
pub const FAULTS_LINE: &str = "first huge faults us: ";
/// The line that `--check` prints when the memory is paged out.
pub const PAGED_OUT_LINE: &str = "paged out";

/// Different page contents that `--text` cycles through: more than the 64 KiB that lz4 looks
/// back, so that no store gains from compressing neighbours together.
const TEMPLATES: usize = 64;
const SEED: u64 = 0x5330_3030;

/// What the program writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Content {
    /// One byte in each of the first `dirty` pages of a block.
    Byte { offset: usize, dirty: usize },
    /// Every page whole, at ratio 2.5:1.
    Text,
}

pub(super) fn main(args: &[&str]) -> Result<(), Failure> {
    let mut args = args.to_vec();
    let (text, wait) = (switch(&mut args, "--text"), switch(&mut args, "--check"));
    let [mib, offset, dirty] = args[..] else {
        let usage = "usage: pageout SIZE_MIB OFFSET NUM_DIRTY [--text] [--check]";
        return Err(LabError::Option(usage.into()).into());
    };
    let mib: usize = number("SIZE_MIB", mib)?;
    let offset: usize = number("OFFSET", offset)?;
    let dirty: usize = number("NUM_DIRTY", dirty)?;
    if mib == 0 || !mib.is_multiple_of(2) || mib > 1 << 26 {
        return Err(LabError::Option(format!("SIZE_MIB {mib}: must be even and above 0")).into());
    }
    if offset >= PAGE || dirty > BLOCK / PAGE {
        return Err(
            LabError::Option("OFFSET is at most 4095, NUM_DIRTY at most 512".into()).into(),
        );
    }
    let content = if text {
        Content::Text
    } else {
        Content::Byte { offset, dirty }
    };
    let for_a_line = || io::stdin().lock().read_line(&mut String::new()).map(|_| ());
    run(mib << 20, content, wait.then_some(&for_a_line), |_| ())
}

pub(crate) fn run(
    len: usize,
    content: Content,
    wait: Option<&dyn Fn() -> io::Result<()>>,
    meddle: impl FnOnce(&mut [u8]),
) -> Result<(), Failure> {
    let templates = match content {
        Content::Text => templates()?,
        Content::Byte { .. } => Vec::new(),
    };
    let mut region = Region::new(len).map_err(|e| LabError::io("mapping memory", e))?;
    region
        .advise(libc::MADV_HUGEPAGE)
        .map_err(|e| LabError::io("MADV_HUGEPAGE", e))?;

    let blocks = len / BLOCK;
    let timed = blocks.min(TIMED_FAULTS);
    let started = Instant::now();
    let mut fault_us = 0.0;
    for block in 0..blocks {
        let first = match content {
            Content::Byte { dirty: 0, .. } => continue,
            Content::Byte { offset, .. } => block * BLOCK + offset,
            Content::Text => block * BLOCK,
        };
        if block < timed {
            let before = started.elapsed();
            region.touch(first, 0xff);
            fault_us += (started.elapsed() - before).as_secs_f64() * 1e6;
        }
        let bytes = &mut region.bytes_mut()[block * BLOCK..][..BLOCK];
        match content {
            Content::Byte { offset, dirty } => {
                for page in bytes.chunks_exact_mut(PAGE).take(dirty) {
                    page[offset] = 0xff;
                }
            }
            Content::Text => {
                for (i, page) in bytes.chunks_exact_mut(PAGE).enumerate() {
                    text_page(&templates, block * (BLOCK / PAGE) + i, page);
                }
            }
        }
    }
    say(format_args!("{FAULTS_LINE}{:.1}", fault_us / timed as f64))?;

    region
        .advise(libc::MADV_PAGEOUT)
        .map_err(|e| LabError::io("MADV_PAGEOUT", e))?;
    let Some(wait) = wait else { return Ok(()) };
    say(format_args!("{PAGED_OUT_LINE}"))?;
    wait().map_err(|e| LabError::io("waiting for a line on stdin", e))?;
    meddle(region.bytes_mut());
    check_all(region.bytes(), |n, want| match content {
        Content::Byte { offset, dirty } => {
            want[offset] = if n % (BLOCK / PAGE) < dirty { 0xff } else { 0 };
        }
        Content::Text => text_page(&templates, n, want),
    })
}

/// The pages that [`text_page`] stamps.
pub(crate) fn templates() -> Result<Vec<u8>, LabError> {
    let recipe = Recipe::new(TEXT_RATIO)?;
    let mut bytes = vec![0; TEMPLATES * PAGE];
    for (n, page) in bytes.chunks_exact_mut(PAGE).enumerate() {
        recipe.page(SEED, n as u64, page);
    }
    Ok(bytes)
}

/// A template, stamped with the page's number so that no two pages are equal.
pub(crate) fn text_page(templates: &[u8], n: usize, page: &mut [u8]) {
    page.copy_from_slice(&templates[n % TEMPLATES * PAGE..][..PAGE]);
    page[..8].copy_from_slice(&(n as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::content::measure;

    #[test]
    fn r115_text_case_is_2_5_to_1_without_a_zero_page() {
        let templates = templates().unwrap();
        let mut bytes = vec![0; 512 * PAGE];
        for (n, page) in bytes.chunks_exact_mut(PAGE).enumerate() {
            text_page(&templates, n, page);
            assert!(page.iter().any(|b| *b != 0));
        }
        let ratio = measure(&bytes, 512);
        assert!((ratio / TEXT_RATIO - 1.0).abs() < 0.05, "measured {ratio}");
    }

    #[test]
    fn r115_pageout_program_finds_a_wrong_byte() {
        let best = Content::Byte {
            offset: 0,
            dirty: 1,
        };
        let worst = Content::Byte {
            offset: 4095,
            dirty: 512,
        };
        for content in [best, worst, Content::Text] {
            run(2 * BLOCK, content, Some(&|| Ok(())), |_| ()).unwrap();
            let spoil = |bytes: &mut [u8]| bytes[700 * PAGE + 17] ^= 1;
            match run(2 * BLOCK, content, Some(&|| Ok(())), spoil) {
                Err(Failure::Mismatch {
                    page: 700,
                    offset: 17,
                    ..
                }) => {}
                other => panic!("{content:?}: not found: {other:?}"),
            }
        }
    }

    #[test]
    fn r115_pageout_program_refuses_what_makes_no_sense() {
        for bad in [
            &["4"][..],
            &["3", "0", "1"],
            &["4", "4096", "1"],
            &["4", "0", "513"],
        ] {
            assert!(
                matches!(main(bad), Err(Failure::Lab(LabError::Option(_)))),
                "{bad:?}"
            );
        }
    }
}
