//! The sparse toucher.

use super::{Memory, check};

/// What is mapped.
pub const BYTES: usize = 256 << 20;
/// From one byte to the next, as in the test of the series: 41 of the 512 pages of a block.
const STRIDE: usize = 50 << 10;
/// How often the same bytes are written.
const ROUNDS: u8 = 64;

/// One byte in each stride, again and again; half of the rounds come after `settle`.
///
/// # Errors
/// Those of the memory and of `settle`, and a wrong byte.
pub fn run<M: Memory>(
    memory: &mut M,
    settle: &mut dyn FnMut(&mut M) -> Result<(), M::Error>,
) -> Result<(), M::Error> {
    for round in 1..=ROUNDS {
        for at in (0..BYTES).step_by(STRIDE) {
            memory.write(at, &[round])?;
        }
        if round == ROUNDS / 2 {
            settle(memory)?;
        }
    }
    for at in (0..BYTES).step_by(STRIDE) {
        check(memory, at, &[ROUNDS])?;
    }
    Ok(())
}
