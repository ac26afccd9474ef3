//! `fill SIZE [--ratio R] [--seed N]`: fills memory with pages of lz4 ratio R, each different,
//! then reads every byte back and compares.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::{Failure, check, number, option, pages_of, say};
use crate::LabError;
use crate::content::{self, Recipe};
use crate::region::Region;
use crate::size::{self, PAGE};

/// Pages between two updates of the progress bar.
const STEP: usize = 1024;
/// Pages compressed to measure the content.
const SAMPLES: u64 = 512;

pub(super) fn main(args: &[&str]) -> Result<(), Failure> {
    let mut args = args.to_vec();
    let ratio = option(&mut args, "--ratio")?.map_or(Ok(3.0), |t| number("--ratio", t))?;
    let seed = option(&mut args, "--seed")?.map_or(Ok(1), |t| number("--seed", t))?;
    let [size] = args[..] else {
        return Err(LabError::Option("usage: fill SIZE [--ratio R] [--seed N]".into()).into());
    };
    run(pages_of(size)?, Recipe::new(ratio)?, seed, |_| ())
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
    let mut region = Region::new(bytes).map_err(|e| LabError::io("mapping memory", e))?;

    let bar = progress(pages as u64, "filling");
    for (n, page) in region.bytes_mut().chunks_exact_mut(PAGE).enumerate() {
        recipe.page(seed, n as u64, page);
        if n % STEP == 0 {
            bar.set_position(n as u64);
        }
    }
    bar.finish_and_clear();

    meddle(region.bytes_mut());

    let bar = progress(pages as u64, "checking");
    let mut want = [0; PAGE];
    for (n, page) in region.bytes().chunks_exact(PAGE).enumerate() {
        recipe.page(seed, n as u64, &mut want);
        check(n, page, &want)?;
        if n % STEP == 0 {
            bar.set_position(n as u64);
        }
    }
    bar.finish_and_clear();
    say(format_args!("checked: {pages} pages, every byte right"))?;
    Ok(())
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
    if let Ok(style) = ProgressStyle::with_template("{msg:9} [{bar:40}] {percent:>3} % {eta}") {
        bar.set_style(style.progress_chars("=> "));
    }
    bar.set_message(what);
    bar
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
