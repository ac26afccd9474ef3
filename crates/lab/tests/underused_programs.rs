//! The programs of `lab underused` on real memory.

use deckle_lab::program::underused::{CHURN_BYTES, churn};
use deckle_lab::region;
use deckle_lab::size::BLOCK;

#[test]
fn r138_the_churn_finds_a_wrong_byte() {
    let mut memory = region::map(CHURN_BYTES).unwrap();
    churn(&mut memory, &mut |_| Ok(())).unwrap();
    let mut spoil = |memory: &mut deckle_sys::Memory| {
        let at = memory.iter().position(|b| *b != 0).unwrap();
        for byte in &mut memory[at..at + BLOCK] {
            *byte ^= 1;
        }
        Ok(())
    };
    let mut memory = region::map(CHURN_BYTES).unwrap();
    assert!(churn(&mut memory, &mut spoil).is_err());
}
