//! The programs of `lab underused` on real memory.

use deckle_lab::program::underused::{CHURN_BYTES, churn};
use deckle_lab::region::Region;
use deckle_lab::size::BLOCK;

#[test]
fn r138_the_churn_finds_a_wrong_byte() {
    let mut memory = Region::new(CHURN_BYTES).unwrap();
    churn(&mut memory, &mut |_| Ok(())).unwrap();
    let mut spoil = |memory: &mut Region| {
        let at = memory.bytes().iter().position(|b| *b != 0).unwrap();
        for byte in &mut memory.bytes_mut()[at..at + BLOCK] {
            *byte ^= 1;
        }
        Ok(())
    };
    let mut memory = Region::new(CHURN_BYTES).unwrap();
    assert!(churn(&mut memory, &mut spoil).is_err());
}
