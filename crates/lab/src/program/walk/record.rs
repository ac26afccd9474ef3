//! What a record holds: its number, its version, and content of a stated lz4 ratio.

use crate::LabError;
use crate::content::{Recipe, measure};
use crate::size::PAGE;

/// lz4 ratio of each page.
pub(crate) const RATIO: f64 = 3.0;
/// Sizes of a record, in bytes: a page, or many in one.
pub const LENGTHS: [usize; 2] = [PAGE, 200];
/// Number and version, each of eight bytes.
const HEADER: usize = 16;
/// Different pages that contents cycle through: more than the 64 KiB that lz4 looks back, so that
/// no store gains from compressing neighbours together.
const TEMPLATES: usize = 32;
/// Pages that the ratio is measured of.
const SAMPLES: usize = 16;
const SEED: u64 = 0x7761_6c6b;

/// A record that does not hold what it should.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Wrong {
    /// Byte within the record.
    pub offset: usize,
    /// What was read.
    pub found: u8,
    /// What was written.
    pub want: u8,
}

/// The contents of records of one length. No record crosses a page.
pub(crate) struct Records {
    len: usize,
    templates: Vec<u8>,
    ratio: f64,
}

impl Records {
    /// For records of `len` bytes: finds how much of them must be random, and prepares them.
    ///
    /// # Errors
    /// [`LabError::Option`] for a length that is none of [`LENGTHS`].
    pub fn new(len: usize) -> Result<Self, LabError> {
        if !LENGTHS.contains(&len) {
            let [page, small] = LENGTHS;
            let why = format!("--record {len}: must be {page} or {small}");
            return Err(LabError::Option(why));
        }
        if len == PAGE {
            return Ok(Self::of(len, Recipe::new(RATIO)?));
        }
        // The ratio falls as the random part grows.
        let (mut low, mut high) = (0, PAGE);
        while low + 1 < high {
            let middle = usize::midpoint(low, high);
            match Self::of(len, Recipe::with_random(RATIO, middle)).ratio > RATIO {
                true => low = middle,
                false => high = middle,
            }
        }
        Ok(Self::of(len, Recipe::with_random(RATIO, high)))
    }

    fn of(len: usize, recipe: Recipe) -> Self {
        let mut templates = vec![0; TEMPLATES * (PAGE / len) * len];
        for (n, template) in templates.chunks_exact_mut(len).enumerate() {
            recipe.page(SEED, n as u64, template);
        }
        let mut all = Self {
            len,
            templates,
            ratio: 0.0,
        };
        let mut pages = vec![0; SAMPLES * PAGE];
        for n in 0..SAMPLES * all.in_page() {
            let at = all.at(n);
            all.write(&mut pages[at..at + len], n as u64, 0);
        }
        all.ratio = measure(&pages, SAMPLES);
        all
    }

    /// Bytes of a record.
    pub fn len(&self) -> usize {
        self.len
    }

    /// lz4 ratio of pages full of records, as measured.
    pub fn ratio(&self) -> f64 {
        self.ratio
    }

    /// Records in a page.
    pub fn in_page(&self) -> usize {
        PAGE / self.len
    }

    /// Where record `n` begins.
    pub fn at(&self, n: usize) -> usize {
        n / self.in_page() * PAGE + n % self.in_page() * self.len
    }

    /// Writes the whole record.
    pub fn write(&self, record: &mut [u8], number: u64, version: u8) {
        record[..HEADER].copy_from_slice(&header(number, version));
        record[HEADER..].copy_from_slice(self.body(number, version));
    }

    /// Compares the whole record with what was written; none if it is that.
    pub fn wrong(&self, record: &[u8], number: u64, version: u8) -> Option<Wrong> {
        let (header, body) = (header(number, version), self.body(number, version));
        if record[..HEADER] == header && record[HEADER..] == *body {
            return None;
        }
        let want = header.iter().chain(body);
        let differs = |(_, (a, b)): &(usize, (&u8, &u8))| a != b;
        (record.iter().zip(want).enumerate())
            .find(differs)
            .map(|(offset, (&found, &want))| Wrong {
                offset,
                found,
                want,
            })
    }

    /// Another one for each version, and never the same for two records of a page: they would
    /// compress together.
    fn body(&self, number: u64, version: u8) -> &[u8] {
        let in_page = self.in_page();
        let page = (number as usize / in_page).wrapping_add(version.into()) % TEMPLATES;
        let n = page * in_page + number as usize % in_page;
        &self.templates[n * self.len..][HEADER..self.len]
    }
}

/// Both times an odd number, so that they can be told from it and compress alike, whatever they
/// are.
fn header(number: u64, version: u8) -> [u8; HEADER] {
    let both = number << 8 | u64::from(version);
    let mut bytes = [0; HEADER];
    bytes[..8].copy_from_slice(&number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes());
    bytes[8..].copy_from_slice(&both.wrapping_mul(0xd1b5_4a32_d192_ed03).to_le_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r150_pages_of_records_have_the_ratio_whatever_was_written() {
        for len in LENGTHS {
            let records = Records::new(len).unwrap();
            let mix = |n: usize| (n.wrapping_mul(0x9e37_79b9) >> 20) as u8;
            let mut pages = vec![0; 256 * PAGE];
            for n in 0..256 * records.in_page() {
                let number = n as u64 + 1_000_000;
                records.write(&mut pages[records.at(n)..][..len], number, mix(n));
            }
            for ratio in [records.ratio(), measure(&pages, 256)] {
                assert!((ratio / RATIO - 1.0).abs() < 0.05, "{len}: {ratio}");
            }
        }
        assert!(Records::new(100).is_err());
    }

    #[test]
    fn r150_records_lie_in_pages_one_after_the_other() {
        let records = Records::new(200).unwrap();
        assert_eq!((records.in_page(), records.len()), (20, 200));
        assert_eq!((records.at(19), records.at(20)), (3800, PAGE));
        assert_eq!(Records::new(PAGE).unwrap().at(3), 3 * PAGE);
    }

    #[test]
    fn r150_another_number_version_or_byte_is_found() {
        for len in LENGTHS {
            let records = Records::new(len).unwrap();
            let mut record = vec![0; len];
            records.write(&mut record, 5, 9);
            assert_eq!(records.wrong(&record, 5, 9), None);
            assert!(records.wrong(&record, 6, 9).unwrap().offset < 8);
            assert!((8..16).contains(&records.wrong(&record, 5, 8).unwrap().offset));
            for offset in [0, 15, 16, len - 1] {
                record[offset] ^= 4;
                let wrong = records.wrong(&record, 5, 9).unwrap();
                assert_eq!((wrong.offset, wrong.found ^ wrong.want), (offset, 4));
                record[offset] ^= 4;
            }
        }
    }
}
