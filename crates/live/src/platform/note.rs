//! What a core dump of the program says of memory that is not in it.
//!
//! The kernel dumps what is there, and waits for nothing: pages that rest or are stored are holes,
//! which read as zeros. So one page of ours that is dumped says so in plain text, for `strings`.
//! Its number is brought up to date from time to time, never on the way of a fault.

use std::sync::atomic::{AtomicU64, Ordering};

use deckle_uffd::Errno;

use super::LivePlatform;
use super::kernel::{self, Advice, PAGE, Reservation};

/// The words before the number: one word of memory, as its eight digits are.
const BEFORE: &[u8; 8] = b"deckle: ";
/// What follows it, ended by zeros.
const AFTER: &[u8] = b" pages of 4 KiB of this process were evicted, and are not in this core \
    (as counted at most 0.1 s before)\n";
/// What its digits can say.
const MOST: u64 = 99_999_999;

/// The page.
#[derive(Debug)]
pub struct Note(Reservation);

/// A number as eight digits, in the order in which they lie in memory.
fn digits(mut pages: u64) -> u64 {
    pages = pages.min(MOST);
    let mut text = [b'0'; 8];
    for digit in text.iter_mut().rev() {
        *digit += (pages % 10) as u8;
        pages /= 10;
    }
    u64::from_ne_bytes(text)
}

impl Note {
    /// A page that says nothing yet. A forked child gets it so, too.
    ///
    /// # Errors
    /// No room in the address space.
    pub fn new() -> Result<Note, Errno> {
        let range = Reservation::new(PAGE, libc::PROT_READ | libc::PROT_WRITE)?;
        // SAFETY: changes no byte here, and the mapping is ours and new.
        unsafe { kernel::madvise(range.base(), PAGE, Advice::WipeOnFork)? };
        Ok(Note(range))
    }

    fn words(&self) -> &[AtomicU64] {
        // SAFETY: a page of ours, readable and writable, aligned to words, as long as self; all
        // access goes through these atomics.
        unsafe { core::slice::from_raw_parts(self.0.base() as *const AtomicU64, PAGE / 8) }
    }

    /// Says that so many pages of the program are away.
    pub fn say(&self, pages: u64) {
        let [before, number, after @ ..] = self.words() else {
            return;
        };
        number.store(digits(pages), Ordering::Relaxed);
        if before.load(Ordering::Relaxed) == 0 {
            for (word, part) in after.iter().zip(AFTER.chunks(8)) {
                let mut text = [0; 8];
                text[..part.len()].copy_from_slice(part);
                word.store(u64::from_ne_bytes(text), Ordering::Relaxed);
            }
            before.store(u64::from_ne_bytes(*BEFORE), Ordering::Release);
        }
    }
}

impl LivePlatform {
    /// Has core dumps of the program say that so many of its pages are not in them.
    pub fn note_away(&self, pages: u64) {
        self.note.say(pages);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(note: &Note) -> String {
        let words = note.words().iter();
        let bytes: Vec<u8> = words
            .flat_map(|w| w.load(Ordering::Relaxed).to_ne_bytes())
            .collect();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn a_note_is_one_line_with_the_last_number() {
        let note = Note::new().unwrap();
        assert_eq!(text(&note).trim_end_matches('\0'), "");
        note.say(7);
        note.say(1234);
        let said = text(&note);
        let line = said.trim_end_matches('\0');
        assert!(line.starts_with("deckle: 00001234 pages of 4 KiB of this process were evicted"));
        assert!(line.ends_with("0.1 s before)\n"), "{line:?}");
        note.say(u64::MAX);
        assert!(text(&note).starts_with("deckle: 99999999 pages"));
    }
}
