//! Pages that are held.

use super::Held;

#[test]
fn pages_are_noted_once_and_found_in_their_range() {
    static HELD: Held = Held::new();
    let pages = (1..=1000_usize).map(|n| n << 12);
    assert!(pages.clone().all(|page| HELD.note(page)));
    assert!(pages.clone().all(|page| !HELD.note(page)));
    assert!(
        HELD.within(10 << 12, 20 << 12)
            .eq((10..30).map(|n| n << 12))
    );
    assert_eq!(HELD.within(0, 1 << 12).count(), 0);
    assert!(!HELD.is_full());
    (0..5000_usize).for_each(|n| _ = HELD.note((n + 7) << 24));
    assert!(HELD.is_full());
    assert!(pages.clone().all(|page| !HELD.note(page)));
}
