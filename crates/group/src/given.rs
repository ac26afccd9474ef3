//! Whether it pays to give up pages that a fork shares.
//!
//! The parent's pages can be reclaimed only when no child shares any of them any more. Until
//! then each copy in a child's store takes memory and frees none. So a child begins with a
//! sample, and goes on while copies for all that share them take less than what comes free.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

const PAGE: u64 = 4096;
/// Of the stored pages one in so many may be refused by the store and be taken over in the end.
const REST: u64 = 8;

/// What this process has given up since it was forked.
#[derive(Default)]
pub struct Given {
    pages: AtomicU64,
    /// That these take in the store.
    bytes: AtomicU64,
    /// Pages that the store has refused.
    refused: AtomicU64,
    /// Pages of the first ones, and the bytes that they take.
    sample: [AtomicU64; 2],
}

impl Given {
    /// For a new child.
    pub fn reset(&self) {
        let [pages, bytes] = &self.sample;
        for word in [&self.pages, &self.bytes, &self.refused, pages, bytes] {
            word.store(0, Relaxed);
        }
    }

    /// `pages` more were stored in `bytes`, and `refused` pages were not; the first time these are
    /// a sample of all that is shared.
    pub fn add(&self, pages: u64, bytes: u64, refused: u64) {
        if !self.has_begun() {
            self.sample[0].store(pages, Relaxed);
            self.sample[1].store(bytes, Relaxed);
        }
        self.pages.fetch_add(pages, Relaxed);
        self.bytes.fetch_add(bytes, Relaxed);
        self.refused.fetch_add(refused, Relaxed);
    }

    /// Whether something was given up, which is of no use before all is.
    pub fn has_begun(&self) -> bool {
        self.pages.load(Relaxed) > 0
    }

    /// Whether no sample was taken yet.
    pub fn is_new(&self) -> bool {
        !self.has_begun() && self.refused.load(Relaxed) == 0
    }

    /// Whether it pays to give up the `shared` pages that are left, which all processes together
    /// share `all` times, as far as the sample can tell.
    pub fn pays(&self, shared: u64, all: u64) -> bool {
        let load = |word: &AtomicU64| u128::from(word.load(Relaxed));
        let [sample, sampled] = self.sample.each_ref().map(load);
        let (pages, bytes, refused) = (load(&self.pages), load(&self.bytes), load(&self.refused));
        if sample == 0 || refused * u128::from(REST) > pages {
            return false;
        }
        let (shared, all) = (u128::from(shared), u128::from(all.max(shared)));
        let mine = shared + pages;
        // This process's copies, those of the other children, and the parent's own.
        let copy = bytes + shared * sampled / sample;
        copy * (all + pages + mine) <= mine * mine * u128::from(PAGE)
    }

    /// Whether so few pages are left that the store has refused that this process had better be
    /// charged with them: one page that is shared keeps all of the parent's resident.
    pub fn may_take_over(&self, rest: u64) -> bool {
        rest.saturating_mul(REST) <= self.pages.load(Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(pages: u64, bytes: u64, refused: u64) -> Given {
        let given = Given::default();
        given.add(pages, bytes, refused);
        given
    }

    #[test]
    fn p20_shared_pages_are_given_up_while_all_copies_take_less_than_comes_free() {
        assert!(given(0, 0, 0).is_new() && !given(0, 0, 64).is_new());
        assert!(!given(0, 0, 64).pays(1000, 8000));
        // Of one child: its copy and the parent's.
        assert!(given(64, 32 * PAGE, 0).pays(1000, 1000));
        assert!(!given(64, 33 * PAGE, 0).pays(1000, 1000));
        // Of eight: nine copies.
        assert!(given(64, 7 * PAGE, 0).pays(6400, 8 * 6400));
        assert!(!given(64, 8 * PAGE, 0).pays(6400, 8 * 6400));
        // The last child goes on although the others share nothing any more, and when little
        // is left.
        assert!(given(64, 32 * PAGE, 0).pays(1, 1));
        // Pages that the store refuses keep the parent's resident.
        assert!(given(64, PAGE, 8).pays(1000, 1000));
        assert!(!given(64, PAGE, 9).pays(1000, 1000));
    }

    #[test]
    fn p20_pages_that_compress_badly_end_it_only_if_the_whole_does() {
        // An eighth for the sample, then a half for pages that lie before most of the rest.
        let given = given(64, 8 * PAGE, 0);
        given.add(936, 468 * PAGE, 0);
        assert!(given.pays(9000, 3 * 9000));
        given.add(6000, 4000 * PAGE, 0);
        assert!(!given.pays(3000, 3 * 3000));
        given.reset();
        assert!(given.is_new() && !given.has_begun());
    }
}
