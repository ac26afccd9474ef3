//! `oom-sparse [--size 40M] [--stride 50K] [--zero-blocks]`: the memory use of the S003 test.
//!
//! One byte in every stride of block-aligned memory: with the defaults 41 of the 512 pages of each
//! block are touched, so 471 hold only zeros. `--zero-blocks` writes zeros to every page instead.
//! The program then holds the memory for a moment, checks all of it and ends. The series used
//! `stress --vm 1 --vm-bytes 40M --vm-stride 50K`, which writes the same byte.

use std::thread;
use std::time::Duration;

use super::{Failure, check_all, pages_of, parse};
use crate::region;
use crate::size::{self, PAGE};

const BYTE: u8 = b'Z';
const HOLD: Duration = Duration::from_millis(300);

#[derive(clap::Parser)]
#[command(name = "oom-sparse", no_binary_name = true)]
struct Options {
    #[arg(long, default_value = "40M", value_parser = pages_of)]
    size: usize,
    #[arg(long, default_value = "50K", value_parser = size::parse)]
    stride: usize,
    #[arg(long)]
    zero_blocks: bool,
}

pub(super) fn main(args: &[&str]) -> Result<(), Failure> {
    let options: Options = parse(args)?;
    run(
        options.size * PAGE,
        options.stride,
        options.zero_blocks,
        |_| (),
    )
}

pub(crate) fn run(
    len: usize,
    stride: usize,
    zeros: bool,
    meddle: impl FnOnce(&mut [u8]),
) -> Result<(), Failure> {
    let mut region = region::map(len)?;
    for (at, byte) in touches(len, stride, zeros) {
        region.touch(at, byte);
    }
    thread::sleep(HOLD);
    meddle(&mut region);
    check_all(&region, |n, want| page(n, stride, zeros, want))
}

/// What is written, in order: bytes by their place.
pub(crate) fn touches(len: usize, stride: usize, zeros: bool) -> impl Iterator<Item = (usize, u8)> {
    let (step, byte) = if zeros { (PAGE, 0) } else { (stride, BYTE) };
    (0..len).step_by(step).map(move |at| (at, byte))
}

/// What page `n` holds then.
pub(crate) fn page(n: usize, stride: usize, zeros: bool, page: &mut [u8; PAGE]) {
    page.fill(0);
    if !zeros {
        let first = (n * PAGE).next_multiple_of(stride);
        for at in (first..(n + 1) * PAGE).step_by(stride) {
            page[at % PAGE] = BYTE;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::size::BLOCK;

    #[test]
    fn r137_sparse_program_touches_41_pages_of_each_block() {
        for block in 0..20 {
            let touched = (0..40 << 20)
                .step_by(50 << 10)
                .filter(|at| at / BLOCK == block)
                .map(|at| at / PAGE)
                .collect::<std::collections::HashSet<_>>();
            assert_eq!(touched.len(), 41, "block {block}");
        }
    }

    #[test]
    fn r137_sparse_program_finds_a_wrong_byte() {
        for zeros in [false, true] {
            run(2 * BLOCK, 50 << 10, zeros, |_| ()).unwrap();
            let spoil = |bytes: &mut [u8]| bytes[300 * PAGE + 5] ^= 1;
            match run(2 * BLOCK, 50 << 10, zeros, spoil) {
                Err(Failure::Mismatch {
                    page: 300,
                    offset: 5,
                    ..
                }) => {}
                other => panic!("not found: {other:?}"),
            }
        }
    }
}
