//! Which folio a frame belongs to, by the kernel's flags of frames (root only).

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;

/// Flags of `/proc/kpageflags`.
const HEAD: u64 = 1 << 15;
const TAIL: u64 = 1 << 16;
const HUGETLB: u64 = 1 << 17;

/// Frames of a huge page, which is what is asked for at a time.
const WINDOW: u64 = 512;

/// A folio of several pages.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Folio {
    /// Its first frame.
    pub head: u64,
    /// Its pages.
    pub pages: u32,
}

/// What the kernel says of frames. What was asked for once is remembered: it is a picture of one
/// moment, as all that is told of a running system.
pub struct Folios {
    file: File,
    /// How often each frame is mapped, if that is told, too.
    counts: Option<File>,
    /// For each window its folios, in order.
    known: HashMap<u64, Vec<Folio>>,
}

impl Folios {
    /// If the kernel tells us.
    pub fn open() -> Option<Folios> {
        let file = File::open("/proc/kpageflags").ok()?;
        Some(Folios {
            file,
            counts: File::open("/proc/kpagecount").ok(),
            known: HashMap::new(),
        })
    }

    /// How many of the 512 frames from `first` on are mapped as often as `mapped` wants, if that is
    /// told.
    pub fn pages(&self, first: u64, mapped: impl Fn(u64) -> bool) -> Option<u32> {
        let mut counts = [0; WINDOW as usize];
        let told = words(self.counts.as_ref()?, first, &mut counts);
        told.then(|| counts.iter().map(|n| u32::from(mapped(*n))).sum())
    }

    /// The folios of `n` frames from `first` on, at most 512, but for single pages: the place of
    /// each frame among them, and its folio.
    pub fn of_run(&mut self, first: u64, n: usize) -> Vec<(usize, Folio)> {
        let mut flags = [0; WINDOW as usize];
        let flags = &mut flags[..n.min(WINDOW as usize)];
        if !self.flags(first, flags) {
            return Vec::new();
        }
        let is_part = |flags: &u64| flags & (HEAD | TAIL) != 0 && flags & HUGETLB == 0;
        let parts = flags.iter().enumerate().filter(|(_, flags)| is_part(flags));
        let of = |(nth, _): (usize, &u64)| Some((nth, self.of(first + nth as u64)?));
        parts.filter_map(of).collect()
    }

    /// The folio of a frame that is part of one.
    fn of(&mut self, frame: u64) -> Option<Folio> {
        let start = frame / WINDOW * WINDOW;
        if !self.known.contains_key(&start) {
            let mut flags = [0; WINDOW as usize];
            let all = match self.flags(start, &mut flags) {
                true => folios(start, &flags),
                false => Vec::new(),
            };
            self.known.insert(start, all);
        }
        let known = &self.known[&start];
        let at = known.partition_point(|f| f.head <= frame).checked_sub(1)?;
        let folio = known[at];
        (frame < folio.head + u64::from(folio.pages)).then_some(folio)
    }

    /// The flags of frames from `first` on, at most 512; whether they were told.
    fn flags(&self, first: u64, out: &mut [u64]) -> bool {
        words(&self.file, first, out)
    }
}

/// What a file that has a word for each frame says of those from `first` on, at most 512; whether
/// it told.
fn words(file: &File, first: u64, out: &mut [u64]) -> bool {
    let mut bytes = [0; 8 * WINDOW as usize];
    let bytes = &mut bytes[..8 * out.len()];
    let told = file.read_exact_at(bytes, first * 8).is_ok();
    let (words, _) = bytes.as_chunks::<8>();
    let words = words.iter().map(|w| u64::from_ne_bytes(*w));
    out.iter_mut().zip(words).for_each(|(to, word)| *to = word);
    told
}

/// Folios of several pages, by the flags of frames from `start` on. One that is larger than the
/// window looks as if it began and ended there.
fn folios(start: u64, flags: &[u64]) -> Vec<Folio> {
    let mut all: Vec<Folio> = Vec::new();
    for (head, flags) in (start..).zip(flags) {
        let is_ours = flags & HUGETLB == 0;
        if is_ours && flags & HEAD != 0 {
            all.push(Folio { head, pages: 1 });
        } else if is_ours && flags & TAIL != 0 {
            match all.last_mut() {
                Some(f) if f.head + u64::from(f.pages) == head => f.pages += 1,
                _ => all.push(Folio { head, pages: 1 }),
            }
        }
    }
    all.retain(|f| f.pages > 1);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folios_are_heads_with_their_tails() {
        let mut flags = vec![0; 512];
        flags[16] = HEAD;
        flags[17..32].fill(TAIL);
        flags[32] = HEAD;
        flags[33..36].fill(TAIL);
        flags[64] = HEAD | HUGETLB;
        flags[65..512].fill(TAIL | HUGETLB);
        let folio = |head, pages| Folio { head, pages };
        assert_eq!(folios(1024, &flags), [folio(1040, 16), folio(1056, 4)]);
    }
}
