//! Where managed memory may be.

use super::Places;

const GIB: usize = 1 << 30;

#[test]
fn a_range_is_noted_where_it_is() {
    static PLACES: Places = Places::new();
    let top = 1 << 47;
    PLACES.note(5 * GIB - 1, 2);
    PLACES.note(60 * GIB, 100 * GIB);
    PLACES.note(top - GIB, GIB);
    PLACES.note(top - GIB, 2 * GIB);
    PLACES.note(usize::MAX, 5);
    for at in 0..top / GIB {
        let noted = matches!(at, 4 | 5 | 60..160) || at == top / GIB - 1;
        assert_eq!(PLACES.may_hold(at * GIB, GIB), noted, "{at}");
        assert_eq!(PLACES.may_hold(at * GIB + 77, 0), noted, "{at}");
    }
    assert!(PLACES.may_hold(0, 5 * GIB) && !PLACES.may_hold(0, 4 * GIB));
    assert!(PLACES.may_hold(6 * GIB, 200 * GIB) && !PLACES.may_hold(6 * GIB, 54 * GIB));
    assert!(!PLACES.may_hold(top, 1) && !PLACES.may_hold(4 * GIB, usize::MAX));
}
