//! `readzero-then-write SIZE [--seed N]`: reads untouched memory, which costs nothing, and then
//! writes all of it with bytes that do not compress. A limit must see the second step.

use super::{Failure, check, number, option, pages_of, say};
use crate::LabError;
use crate::content::Recipe;
use crate::region::Region;
use crate::size::{self, PAGE};

pub(super) fn main(args: &[&str]) -> Result<(), Failure> {
    let mut args = args.to_vec();
    let seed = option(&mut args, "--seed")?.map_or(Ok(1), |t| number("--seed", t))?;
    let [size] = args[..] else {
        return Err(LabError::Option("usage: readzero-then-write SIZE [--seed N]".into()).into());
    };
    run(pages_of(size)?, seed)
}

fn run(pages: usize, seed: u64) -> Result<(), Failure> {
    let mut region = Region::new(pages * PAGE).map_err(|e| LabError::io("mapping memory", e))?;
    let zero = [0; PAGE];
    for (n, page) in region.bytes().chunks_exact(PAGE).enumerate() {
        check(n, page, &zero)?;
    }
    say(format_args!(
        "read: {} of zeros",
        size::human((pages * PAGE) as u64)
    ))?;
    let recipe = Recipe::new(1.0)?;
    for (n, page) in region.bytes_mut().chunks_exact_mut(PAGE).enumerate() {
        recipe.page(seed, n as u64, page);
    }
    say(format_args!("wrote: the same with lz4 ratio 1:1"))?;
    let mut want = [0; PAGE];
    for (n, page) in region.bytes().chunks_exact(PAGE).enumerate() {
        recipe.page(seed, n as u64, &mut want);
        check(n, page, &want)?;
    }
    say(format_args!("checked: {pages} pages, every byte right"))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    #[test]
    fn r150_read_zero_then_write_is_right_without_a_limit() {
        super::run(300, 5).unwrap();
    }
}
