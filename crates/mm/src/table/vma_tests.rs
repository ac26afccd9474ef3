use super::*;
use std::vec;

const PAGES: u64 = 200;
/// Where the tested window lies.
const BASE: u64 = 512;

type Naive = Vec<Option<(Prot, ThpAdvice, bool)>>;

struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) % n
    }
}

fn vma(start: u64, pages: u64) -> Vma {
    Vma {
        start: Vpn(start),
        pages,
        prot: Prot::RW,
        advice: ThpAdvice::None,
        locked: false,
        uffd_missing: false,
        uffd_wp: false,
        on_fork: Default::default(),
        touched: false,
        shift: 0,
        whole: false,
        soft_dirty: true,
    }
}

/// What the naive map says about a range, as clipped pieces.
fn pieces(naive: &Naive, from: usize, to: usize) -> Vec<Vma> {
    let mut out: Vec<Vma> = Vec::new();
    for (i, page) in naive.iter().enumerate().take(to).skip(from) {
        let Some((prot, advice, locked)) = *page else {
            continue;
        };
        let page = Vma {
            start: Vpn(BASE + i as u64),
            pages: 1,
            prot,
            advice,
            locked,
            uffd_missing: false,
            uffd_wp: false,
            on_fork: Default::default(),
            touched: false,
            shift: 0,
            whole: false,
            soft_dirty: true,
        };
        match out.last_mut() {
            Some(last) if last.joins(&page) => last.pages += 1,
            _ => out.push(page),
        }
    }
    out
}

fn naive_free(naive: &Naive, lo: u64, hi: u64, n: u64, align: u64, from: Search) -> Option<u64> {
    let fits = |i: &u64| {
        (BASE + i).is_multiple_of(align)
            && i + n <= hi
            && (*i..i + n).all(|k| naive[k as usize].is_none())
    };
    match from {
        Search::Bottom => (lo..hi).find(fits),
        Search::Top => (lo..hi).rev().find(fits),
    }
    .map(|i| BASE + i)
}

#[test]
fn tree_agrees_with_a_map_of_pages() {
    let mut random = Random(0xabcd_ef01_2345_6789);
    let mut tree = VmaTree::new();
    let mut naive: Naive = vec![None; PAGES as usize];
    for step in 0..20_000 {
        let start = random.below(PAGES);
        let pages = random.below((PAGES - start).min(40) + 1);
        let (from, to) = (start as usize, (start + pages) as usize);
        let at = Vpn(BASE + start);
        let prot = [Prot::RW, Prot::R, Prot::NONE][random.below(3) as usize];
        match random.below(6) {
            0 => {
                let new = Vma {
                    prot,
                    ..vma(at.0, pages)
                };
                let taken = (from..to).find(|i| naive[*i].is_some());
                let expected = match taken {
                    _ if pages == 0 => Err(InsertError::Empty),
                    Some(i) => Err(InsertError::Overlap(Vpn(BASE + i as u64))),
                    None => Ok(()),
                };
                assert_eq!(tree.insert(new), expected, "step {step}");
                if expected.is_ok() {
                    naive[from..to].fill(Some((prot, ThpAdvice::None, false)));
                }
            }
            1 => {
                assert_eq!(tree.remove(at, pages), pieces(&naive, from, to), "{step}");
                naive[from..to].fill(None);
            }
            2 | 3 => {
                let kind = random.below(3);
                let hole = (from..to).find(|i| naive[*i].is_none());
                let done = tree.update(at, pages, |v| {
                    match kind {
                        0 => v.prot = prot,
                        1 => v.advice = ThpAdvice::Huge,
                        _ => v.locked = !v.locked,
                    }
                    (v.start, v.pages) = (Vpn(1), 1);
                });
                let expected = hole.map_or(Ok(()), |i| Err(Hole(Vpn(BASE + i as u64))));
                assert_eq!(done, expected, "step {step}");
                if hole.is_none() {
                    for (p, a, l) in naive[from..to].iter_mut().flatten() {
                        match kind {
                            0 => *p = prot,
                            1 => *a = ThpAdvice::Huge,
                            _ => *l = !*l,
                        }
                    }
                }
            }
            _ => {
                let (n, align) = (random.below(12) + 1, 1 << random.below(5));
                for side in [Search::Bottom, Search::Top] {
                    let got = tree.find_free(at, pages, n, align, side).map(|v| v.0);
                    let naive = naive_free(&naive, start, start + pages, n, align, side);
                    assert_eq!(
                        got, naive,
                        "step {step}: {n} pages, align {align}, {side:?}"
                    );
                }
            }
        }
        tree.verify().unwrap_or_else(|e| panic!("{e}, step {step}"));
        assert_eq!(
            tree.range(at, pages).collect::<Vec<_>>(),
            pieces(&naive, from, to),
            "step {step}"
        );
        let all = pieces(&naive, 0, PAGES as usize);
        assert_eq!(tree.iter().copied().collect::<Vec<_>>(), all);
        assert_eq!(tree.pages(), all.iter().map(|v| v.pages).sum::<u64>());
        let found = tree.find(at).map(|v| (v.prot, v.advice, v.locked));
        assert_eq!(found, naive[from], "step {step}");
        let covered = naive[from..to].iter().all(Option::is_some);
        assert_eq!(tree.is_covered(at, pages), covered, "step {step}");
    }
}

#[test]
fn a_large_area_is_found_among_thousands_of_small_gaps() {
    let mut tree = VmaTree::new();
    for i in 0..5000 {
        tree.insert(vma(i * 4, 2)).unwrap();
    }
    assert_eq!(tree.len(), 5000);
    let end = 4 * 4999 + 2;
    let find = |pages, align| tree.find_free(Vpn(0), 1 << 30, pages, align, Search::Bottom);
    assert_eq!(find(2, 1), Some(Vpn(2)));
    // Gaps of the class exist, but none fits: the area behind them all.
    assert_eq!(find(3, 1), Some(Vpn(end)));
    assert_eq!(find(1, 512), Some(Vpn(20480)));
    let inside = tree.find_free(Vpn(0), end, 3, 1, Search::Bottom);
    assert_eq!(inside, None);
    assert_eq!(
        tree.find_free(Vpn(0), end, 2, 1, Search::Top),
        Some(Vpn(4 * 4998 + 2))
    );
}

#[test]
fn ranges_at_the_end_of_numbers_are_refused_without_a_panic() {
    let mut tree = VmaTree::new();
    assert_eq!(tree.insert(vma(0, 0)), Err(InsertError::Empty));
    for (start, pages) in [(SPACE_PAGES, 1), (5, SPACE_PAGES), (u64::MAX, u64::MAX)] {
        assert_eq!(tree.insert(vma(start, pages)), Err(InsertError::Beyond));
        assert_eq!(tree.find_free(Vpn(start), 9, pages, 1, Search::Top), None);
    }
    tree.insert(vma(SPACE_PAGES - 2, 2)).unwrap();
    tree.verify().unwrap();
    let hole = tree.update(Vpn(SPACE_PAGES - 2), u64::MAX, |_| ());
    assert_eq!(hole, Err(Hole(Vpn(SPACE_PAGES))));
    assert!(!tree.is_covered(Vpn(u64::MAX), 1));
    assert!(!tree.is_covered(Vpn(u64::MAX), u64::MAX));
    assert_eq!(tree.find_free(Vpn(0), u64::MAX, 1, 3, Search::Top), None);
    assert_eq!(
        tree.find_free(Vpn(0), u64::MAX, 1, 1, Search::Top),
        Some(Vpn(SPACE_PAGES - 3))
    );
    assert_eq!(
        tree.find_free(Vpn(1), u64::MAX, 1, 1 << 63, Search::Bottom),
        None
    );
    assert_eq!(tree.remove(Vpn(0), u64::MAX), [vma(SPACE_PAGES - 2, 2)]);
    tree.verify().unwrap();
    assert!(tree.is_empty() && tree.pages() == 0);
}
