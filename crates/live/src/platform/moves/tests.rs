use super::*;
use crate::platform::{LiveConfig, Place};
use deckle_uffd::WakeMode;
use std::io::Write;

/// A platform that follows moves, and a managed page with a word; `None`: there is no
/// userfaultfd.
fn page() -> Option<(LivePlatform, usize)> {
    let config = LiveConfig {
        adopts: true,
        parking_bytes: Some(1 << 26),
        ..LiveConfig::default()
    };
    let platform = LivePlatform::new(config)
        // To the stream itself, which the harness shows also when the test passes.
        .inspect_err(|why| drop(writeln!(std::io::stderr(), "SKIPPED: {why}")))
        .ok()?;
    // SAFETY: at no address in particular.
    let at = unsafe { platform.map_new(Place::aligned(PAGE), 4 * PAGE, false) }.unwrap();
    // SAFETY: a mapping of this test's alone.
    unsafe { kernel::mprotect(at, 4 * PAGE, libc::PROT_READ | libc::PROT_WRITE) }.unwrap();
    fill(&platform, at);
    Some((platform, at))
}

fn fill(platform: &LivePlatform, at: usize) {
    let bytes = [7_u8; PAGE];
    platform.copy_in(at, bytes.as_ptr(), PAGE).unwrap();
}

/// Others come to the page. The message has been read, so the kernel puts nothing off.
fn come(platform: &LivePlatform, at: usize) {
    let (from, len) = (at + PAGE, PAGE);
    platform.note_move(Move { from, to: at, len });
}

fn there(platform: &LivePlatform, at: usize) -> bool {
    platform.touched(at, at + PAGE) == Ok(PAGE)
}

#[test]
fn what_comes_to_a_place_after_it_was_looked_up_is_left_alone() {
    let Some((platform, at)) = page() else { return };
    let frame = platform.parking.range().0;
    let take = || {
        let call = || unsafe {
            // SAFETY: the page is the test's, and so is the frame.
            (platform.program).move_pages(frame, at, PAGE, deckle_uffd::MoveMode::empty())
        };
        platform.unmoved([at, frame], PAGE, call)
    };
    // SAFETY: the page is the test's, which expects zeros.
    let drop_it = || unsafe { platform.drop_booked(at, PAGE) };
    platform.placed(|| {
        come(&platform, at);
        assert_eq!(drop_it(), Err(Errno(libc::EAGAIN)));
        assert!(take().is_err());
        let none = ProtectMode::empty();
        assert_eq!(platform.protect_placed(at, PAGE, none), Err(RETRY));
    });
    assert!(there(&platform, at) && !platform.is_torn());
    platform.placed(|| assert_eq!(drop_it(), Ok(())));
    assert!(!there(&platform, at));
}

/// How many of so many pages have no marker, if that can be told.
fn unmarked(platform: &LivePlatform, at: usize, pages: usize) -> Option<u32> {
    Some(platform.unmarked(at, pages * PAGE)?.count())
}

#[test]
fn what_is_away_stays_so_where_others_have_come() {
    let Some((platform, at)) = page() else { return };
    // SAFETY: the page is the test's.
    unsafe { kernel::drop_pages(at, PAGE) }.unwrap();
    platform.remember(at, PAGE);
    platform.placed(|| {
        come(&platform, at);
        assert!(!platform.unmark(at, PAGE));
    });
    assert_eq!(unmarked(&platform, at, 1), Some(0));
    // A page of zeros is not put there, either.
    platform.placed(|| {
        come(&platform, at);
        assert!(platform.zero_in(at, PAGE).is_err());
    });
    assert_eq!(unmarked(&platform, at, 1), Some(0));
    platform.placed(|| assert!(platform.unmark(at, PAGE)));
    // Whether the program has discarded it cannot be told where it may have gone.
    platform.placed(|| {
        assert_eq!(unmarked(&platform, at, 1), Some(1));
        come(&platform, at);
        assert_eq!(unmarked(&platform, at, 1), None);
    });
    assert!(!platform.is_torn());
}

/// The program has moved a page of zeros before that was protected: what it writes there would be
/// heard by nobody, and dropped for a page of zeros.
#[test]
fn zeros_that_were_moved_as_they_were_mapped_are_taken_back() {
    let Some((platform, at)) = page() else { return };
    let (new, wake) = (at + 2 * PAGE, WakeMode::DONTWAKE);
    let moved = |from, to| Move {
        from,
        to,
        len: PAGE,
    };
    let zero_at_new = || {
        // SAFETY: a hole of the test's.
        unsafe { platform.program.zeropage(new, PAGE, wake) }.unwrap();
    };
    platform.placed(|| {
        zero_at_new();
        platform.note_move(moved(at, new));
        platform.take_zeros_back(at, PAGE);
    });
    assert_eq!(unmarked(&platform, new, 1), Some(1));
    // The bytes of one that was written stay.
    platform.placed(|| {
        fill(&platform, new);
        platform.note_move(moved(at, new));
        platform.take_zeros_back(at, PAGE);
    });
    assert!(there(&platform, new) && !platform.is_torn());
}

#[test]
fn what_was_done_where_others_may_have_come_is_told() {
    let Some((platform, at)) = page() else { return };
    let wake = WakeMode::DONTWAKE;
    platform.placed(|| {
        let done = platform.unless_moved(at, PAGE, || come(&platform, at));
        assert_eq!(done, Some(()));
    });
    assert!(platform.is_torn());
    let Some((platform, at)) = page() else { return };
    platform.placed(|| {
        let call = || {
            come(&platform, at);
            // SAFETY: a hole of the test's.
            unsafe { platform.program.zeropage(at + 2 * PAGE, PAGE, wake) }
        };
        assert!(platform.unmoved([at + 2 * PAGE, at], PAGE, call).is_ok());
    });
    assert!(platform.is_torn());
}

#[test]
fn a_page_that_was_taken_is_marked_where_it_is() {
    let Some((platform, at)) = page() else { return };
    // SAFETY: the page is the test's.
    unsafe { kernel::drop_pages(at, PAGE) }.unwrap();
    let (from, to, len) = (at, at + 2 * PAGE, PAGE);
    platform.placed(|| {
        platform.note_move(Move { from, to, len });
        platform.remember_taken(at, PAGE);
    });
    assert_eq!(unmarked(&platform, to, 1), Some(0));
    assert_eq!(unmarked(&platform, at, 1), Some(1));
}
