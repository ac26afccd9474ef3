//! `fill SIZE [--ratio R] [--seed N]`: fills memory with pages of lz4 ratio R, each different,
//! then reads every byte back and compares.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::{Failure, check_all, pages_of, parse, say};
use crate::content::{self, Recipe};
use crate::region;
use crate::size::{self, PAGE};

/// Pages between two updates of the progress bar.
const STEP: usize = 1024;
/// Pages compressed to measure the content.
const SAMPLES: u64 = 512;

#[derive(clap::Parser)]
#[command(name = "fill", no_binary_name = true)]
struct Options {
    #[arg(value_parser = pages_of)]
    size: usize,
    #[arg(long, default_value_t = 3.0)]
    ratio: f64,
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

pub(super) fn main(args: &[&str]) -> Result<(), Failure> {
    let options: Options = parse(args)?;
    run(
        options.size,
        Recipe::new(options.ratio)?,
        options.seed,
        |_| (),
    )
}

/// The workload; `meddle` gets the memory between filling and checking (tests spoil a byte there).
pub(crate) fn run(
    pages: usize,
    recipe: Recipe,
    seed: u64,
    meddle: impl FnOnce(&mut [u8]),
) -> Result<(), Failure> {
    let bytes = pages * PAGE;
    say(format_args!(
        "content: {} in {pages} pages, each different, asked lz4 ratio {}:1, measured {:.2}:1",
        size::human(bytes as u64),
        recipe.ratio(),
        measured(&recipe, seed, pages as u64),
    ))?;
    let mut region = region::map(bytes)?;
    fill(&mut region, &recipe, seed);
    meddle(&mut region);
    check_all(&region, |n, want| recipe.page(seed, n as u64, want))
}

/// Fills all pages.
pub(super) fn fill(bytes: &mut [u8], recipe: &Recipe, seed: u64) {
    let bar = progress((bytes.len() / PAGE) as u64, "filling");
    for (n, page) in bytes.chunks_exact_mut(PAGE).enumerate() {
        recipe.page(seed, n as u64, page);
        step(&bar, n);
    }
    bar.finish_and_clear();
}

/// lz4 ratio of pages spread over the content, made aside: the workload's own memory is only
/// touched by filling and checking.
fn measured(recipe: &Recipe, seed: u64, pages: u64) -> f64 {
    let mut page = [0; PAGE];
    let step = (pages / SAMPLES).max(1);
    let (mut raw, mut small) = (0, 0);
    for n in (0..pages).step_by(step as usize) {
        recipe.page(seed, n, &mut page);
        raw += PAGE;
        small += content::compressed(&page);
    }
    raw as f64 / small.max(1) as f64
}

/// A bar on stderr; draws nothing where stderr is not a terminal.
pub(crate) fn progress(length: u64, what: &'static str) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(length), ProgressDrawTarget::stderr());
    if let Ok(style) =
        ProgressStyle::with_template("{msg:9} [{bar:40}] {percent:>3} % {elapsed}, {eta} left")
    {
        bar.set_style(style.progress_chars("=> "));
    }
    bar.set_message(what);
    bar
}

/// So many pages are done.
pub(super) fn step(bar: &ProgressBar, pages: usize) {
    if pages.is_multiple_of(STEP) {
        bar.set_position(pages as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r150_fill_is_right_when_memory_is() {
        run(700, Recipe::new(6.0).unwrap(), 3, |_| ()).unwrap();
    }

    #[test]
    fn r150_fill_finds_one_flipped_bit() {
        let spoil = |bytes: &mut [u8]| bytes[613 * PAGE + 4095] ^= 0x10;
        match run(700, Recipe::new(6.0).unwrap(), 3, spoil) {
            Err(Failure::Mismatch {
                page: 613,
                offset: 4095,
                found,
                want,
            }) => {
                assert_eq!(found ^ want, 0x10);
            }
            other => panic!("not found: {other:?}"),
        }
    }
}
