//! `pageout SIZE_MIB OFFSET NUM_DIRTY [--middle | --text] [--check]`: the program of the S000
//! series.
//!
//! For every 2 MiB region: one byte 0xff at OFFSET in each of its first NUM_DIRTY pages. Then
//! MADV_PAGEOUT over the whole, unmap, exit. With `--middle` the byte is in every page, each time
//! elsewhere in its middle; `--text` writes every page whole with content of lz4 ratio 2.5:1
//! (OFFSET and NUM_DIRTY have no meaning with either). Before paging out it prints how long the
//! first huge page faults took; that is how the experiment knows a cold run.
//!
//! `--check` is for a run that is not timed: paged out, the program says so, waits for a line on
//! stdin, and then reads every byte back.

use std::time::Instant;

use deckle_sys::mapping::Advice;

use super::{Failure, check_all, parse, say, wait_for_a_line};
use crate::LabError;
use crate::content::{Recipe, mix};
use crate::experiment::bad;
use crate::region;
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
/// Seed of the places of `--middle`.
const PLACES: u64 = 0x6d69_6464;

/// What the program writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Content {
    /// One byte in each of the first `dirty` pages of a block.
    Byte {
        /// Its place in the page.
        offset: usize,
        /// How many pages.
        dirty: usize,
    },
    /// One byte in every page, somewhere in its two middle quarters.
    Middle,
    /// Every page whole, at ratio 2.5:1.
    Text,
}

impl Content {
    /// How many pages of each block are written, from its first on.
    pub const fn pages(self) -> usize {
        match self {
            Self::Byte { dirty, .. } => dirty,
            Self::Middle | Self::Text => BLOCK / PAGE,
        }
    }

    /// Where page `n` of the mapping holds its one byte, if it is written; its first byte where it
    /// is written whole. The same for the same page at all times.
    pub const fn offset(self, n: usize) -> usize {
        match self {
            Self::Byte { offset, .. } => offset,
            Self::Middle => PAGE / 4 + (mix(PLACES ^ mix(n as u64)) % (PAGE as u64 / 2)) as usize,
            Self::Text => 0,
        }
    }

    /// The arguments of the program that say so, SIZE_MIB aside.
    pub(crate) fn words(self) -> String {
        let option = match self {
            Self::Byte { .. } => "",
            Self::Middle => " --middle",
            Self::Text => " --text",
        };
        format!("{} {}{option}", self.offset(0), self.pages())
    }

    /// Page `n` of the mapping as the program leaves it, whatever `page` held; `templates` are
    /// those of [`Content::templates`].
    pub(crate) fn page(self, templates: &[u8], n: usize, page: &mut [u8]) {
        page.fill(0);
        if n % (BLOCK / PAGE) < self.pages() {
            self.write(templates, n, page);
        }
    }

    /// What is written into page `n`, one that is written.
    fn write(self, templates: &[u8], n: usize, page: &mut [u8]) {
        match self {
            Self::Byte { .. } | Self::Middle => page[self.offset(n)] = 0xff,
            Self::Text => text_page(templates, n, page),
        }
    }

    /// The pages that `--text` stamps; none for other contents.
    pub(crate) fn templates(self) -> Result<Vec<u8>, LabError> {
        match self {
            Self::Byte { .. } | Self::Middle => Ok(Vec::new()),
            Self::Text => templates(),
        }
    }
}

#[derive(clap::Parser)]
#[command(name = "pageout", no_binary_name = true)]
struct Options {
    #[arg(value_name = "SIZE_MIB")]
    mib: usize,
    /// At most 4095.
    offset: usize,
    /// At most 512.
    num_dirty: usize,
    #[arg(long, conflicts_with = "text")]
    middle: bool,
    #[arg(long)]
    text: bool,
    #[arg(long)]
    check: bool,
}

pub(super) fn main(args: &[&str]) -> Result<(), Failure> {
    let options: Options = parse(args)?;
    let (mib, offset, dirty) = (options.mib, options.offset, options.num_dirty);
    if mib == 0 || !mib.is_multiple_of(2) || mib > 1 << 26 {
        return bad(format!("SIZE_MIB {mib}: must be even and above 0")).map_err(Failure::Lab);
    }
    if offset >= PAGE || dirty > BLOCK / PAGE {
        let why = "OFFSET is at most 4095, NUM_DIRTY at most 512";
        return bad(why).map_err(Failure::Lab);
    }
    let content = match (options.text, options.middle) {
        (true, _) => Content::Text,
        (_, true) => Content::Middle,
        _ => Content::Byte { offset, dirty },
    };
    let wait: Option<Wait> = options.check.then_some(&wait_for_a_line);
    run(mib << 20, content, wait, |_| ())
}

/// What is done when the memory is paged out, before it is checked.
type Wait<'a> = &'a dyn Fn() -> Result<(), LabError>;

pub(crate) fn run(
    len: usize,
    content: Content,
    wait: Option<Wait<'_>>,
    meddle: impl FnOnce(&mut [u8]),
) -> Result<(), Failure> {
    let templates = content.templates()?;
    let mut region = region::map(len)?;
    region::advise(&mut region, Advice::HugePage)?;

    let blocks = len / BLOCK;
    let timed = blocks.min(TIMED_FAULTS);
    let started = Instant::now();
    let mut fault_us = 0.0;
    for block in 0..blocks {
        let first = block * (BLOCK / PAGE);
        if block < timed && content.pages() > 0 {
            let before = started.elapsed();
            region.touch(block * BLOCK + content.offset(first), 0xff);
            fault_us += (started.elapsed() - before).as_secs_f64() * 1e6;
        }
        let bytes = &mut region[block * BLOCK..][..BLOCK];
        let pages = bytes.chunks_exact_mut(PAGE).take(content.pages());
        for (i, page) in pages.enumerate() {
            content.write(&templates, first + i, page);
        }
    }
    say(format_args!("{FAULTS_LINE}{:.1}", fault_us / timed as f64))?;

    region::advise(&mut region, Advice::PageOut)?;
    let Some(wait) = wait else { return Ok(()) };
    say(format_args!("{PAGED_OUT_LINE}"))?;
    wait()?;
    meddle(&mut region);
    check_all(&region, |n, want| content.page(&templates, n, want))
}

/// The pages that [`text_page`] stamps.
fn templates() -> Result<Vec<u8>, LabError> {
    let recipe = Recipe::new(TEXT_RATIO)?;
    let mut bytes = vec![0; TEMPLATES * PAGE];
    for (n, page) in bytes.chunks_exact_mut(PAGE).enumerate() {
        recipe.page(SEED, n as u64, page);
    }
    Ok(bytes)
}

/// A template, stamped with the page's number so that no two pages are equal.
fn text_page(templates: &[u8], n: usize, page: &mut [u8]) {
    page.copy_from_slice(&templates[n % TEMPLATES * PAGE..][..PAGE]);
    page[..8].copy_from_slice(&(n as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::content::measure;
    use crate::pageout::Case;

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
        for content in [best, worst, Content::Middle, Content::Text] {
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
        // A byte that is right, but in the wrong place or gone.
        let at = 700 * PAGE + Content::Middle.offset(700);
        let moved = |bytes: &mut [u8]| bytes.swap(at, 700 * PAGE);
        match run(2 * BLOCK, Content::Middle, Some(&|| Ok(())), moved) {
            Err(Failure::Mismatch { page: 700, .. }) => {}
            other => panic!("not found: {other:?}"),
        }
    }

    #[test]
    fn r99_r115_bytes_in_the_middle_are_where_no_scan_can_guess() {
        let pages = 64 << 10;
        let (quarter, places) = (PAGE / 4, PAGE / 2);
        let mut times = vec![0; places];
        let (mut page, mut same) = (vec![7; PAGE], 0);
        for n in 0..pages {
            let at = Content::Middle.offset(n);
            times[at.checked_sub(quarter).unwrap()] += 1;
            same += usize::from(at == Content::Middle.offset(n + 1));
            Content::Middle.page(&[], n, &mut page);
            let set: Vec<_> = (0..PAGE).filter(|i| page[*i] != 0).collect();
            assert_eq!(set, [at], "page {n}");
        }
        // Each place 32 times on average, and no neighbour says where the next one is.
        let (least, most) = (times.iter().min().unwrap(), times.iter().max().unwrap());
        assert!(*least > 4 && *most < 80, "{least} to {most}");
        assert!(same < 80, "{same} neighbours alike");
    }

    #[test]
    fn r115_pageout_program_understands_its_words() {
        for case in Case::ALL {
            let words = case.content().words();
            let mut args = vec!["2"];
            args.extend(words.split(' '));
            main(&args).unwrap();
        }
        assert!(Content::Middle.words().ends_with("--middle"));
    }

    #[test]
    fn r115_pageout_program_refuses_what_makes_no_sense() {
        for bad in [
            &["4"][..],
            &["3", "0", "1"],
            &["4", "4096", "1"],
            &["4", "0", "513"],
            &["4", "0", "512", "--middle", "--text"],
        ] {
            assert!(
                matches!(main(bad), Err(Failure::Lab(LabError::Option(_)))),
                "{bad:?}"
            );
        }
    }
}
