//! `readzero-then-write SIZE [--seed N]`: reads untouched memory, which costs nothing, and then
//! writes all of it with bytes that do not compress. A limit must see the second step.

use super::{Failure, check, check_all, fill, pages_of, parse, say};
use crate::content::Recipe;
use crate::region;
use crate::size::{self, PAGE};

#[derive(clap::Parser)]
#[command(name = "readzero-then-write", no_binary_name = true)]
struct Options {
    #[arg(value_parser = pages_of)]
    size: usize,
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

pub(super) fn main(args: &[&str]) -> Result<(), Failure> {
    let options: Options = parse(args)?;
    run(options.size, options.seed)
}

fn run(pages: usize, seed: u64) -> Result<(), Failure> {
    let mut region = region::map(pages * PAGE)?;
    for (n, page) in region.chunks_exact(PAGE).enumerate() {
        check(n, page, &[0; PAGE])?;
    }
    let all = size::human((pages * PAGE) as u64);
    say(format_args!("read: {all} of zeros"))?;
    let recipe = Recipe::new(1.0)?;
    fill::fill(&mut region, &recipe, seed);
    say(format_args!("wrote: the same with lz4 ratio 1:1"))?;
    check_all(&region, |n, want| recipe.page(seed, n as u64, want))
}

#[cfg(test)]
mod tests {
    #[test]
    fn r150_read_zero_then_write_is_right_without_a_limit() {
        super::run(300, 5).unwrap();
    }
}
