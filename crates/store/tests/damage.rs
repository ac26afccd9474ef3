//! Damaged encodings are decoded before their checksum tells: whatever is in them, the decoder
//! reads and writes nothing beyond its buffers. It is compiled without its safe form, for a reason
//! that Cargo.toml has.

use crate::common::{KINDS, Rng, page};
use deckle_mm::PAGE_SIZE;
use lz4_flex::block::{compress_into, decompress_into, get_maximum_output_size};

/// Three pages of memory of which the first and the last may not be touched.
struct Guarded(*mut u8);

impl Guarded {
    fn new() -> Guarded {
        let (flags, all) = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, 3 * PAGE_SIZE);
        // SAFETY: a new mapping, and rights of its middle page.
        unsafe {
            let at = libc::mmap(std::ptr::null_mut(), all, libc::PROT_NONE, flags, -1, 0);
            assert_ne!(at, libc::MAP_FAILED);
            let middle = at.cast::<u8>().add(PAGE_SIZE);
            let rights = libc::PROT_READ | libc::PROT_WRITE;
            assert_eq!(libc::mprotect(middle.cast(), PAGE_SIZE, rights), 0);
            Guarded(middle)
        }
    }

    /// The last `len` bytes of the page, or its first ones.
    fn part(&mut self, len: usize, last: bool) -> &mut [u8] {
        let from = if last { PAGE_SIZE - len } else { 0 };
        // SAFETY: within the page that may be touched, which nobody else knows of.
        unsafe { std::slice::from_raw_parts_mut(self.0.add(from), len) }
    }
}

#[test]
fn a_decoder_of_damaged_bytes_stays_within_its_buffers() {
    let (mut from, mut to) = (Guarded::new(), Guarded::new());
    let mut rng = Rng(19);
    let mut below = |n: usize| rng.below(n as u64) as usize;
    let (mut refused, mut decoded) = (0, 0);
    for round in 0..20_000 {
        let mut room = vec![0; get_maximum_output_size(PAGE_SIZE)];
        let whole = page(round % KINDS, round.into());
        let len = compress_into(&whole, &mut room).expect("room for any page");
        if len > PAGE_SIZE {
            continue;
        }
        for _ in 0..8 {
            // Cut short, and some bytes changed: to anything, or to what makes lengths grow.
            let len = if below(4) == 0 { below(len) + 1 } else { len };
            let last = below(2) == 0;
            let bytes = from.part(len, last);
            bytes.copy_from_slice(&room[..len]);
            for _ in 0..below(4) {
                bytes[below(len)] = if below(2) == 0 { 255 } else { below(256) as u8 };
            }
            match decompress_into(bytes, to.part(PAGE_SIZE, last)) {
                Ok(_) => decoded += 1,
                Err(_) => refused += 1,
            }
        }
    }
    // Both are met often, or nothing was tried.
    assert!(refused > 10_000 && decoded > 10_000, "{refused} {decoded}");
}
