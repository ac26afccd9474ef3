//! Operations on small pages: contents, partial results, where the bytes are after.

use crate::common::*;
use crate::skipped::skipped;
use deckle_live::{Capability, Place};
use deckle_mm::platform::{Content, Prot, Stop};
use deckle_mm::{FrameRun, Platform};
use deckle_uffd::Categories;

#[test]
fn p5_pages_move_out_and_in_without_a_copy() {
    case(|| {
        let p = platform();
        if !needs(
            &p,
            "p5_pages_move_out_and_in_without_a_copy",
            Capability::Move,
        ) {
            return;
        }
        open(&p, 1, Prot::RW);
        let (at, f, data) = (run(&p, 1, 7, 40), small(&p, 3), bytes(1, 40));
        assert_eq!(map(&p, at, f, Content::Bytes(&data)), Ok(40));
        assert_eq!((present(at), resting(&p, f, 40)), (40, 0));
        let frame = kernel_frame(addr(at));
        if frame == 0 {
            skipped("in part: the kernel tells frames to root only");
        }
        assert_eq!(unmap(&p, at, f), Ok(40));
        assert_eq!((present(at), resting(&p, f, 40)), (0, 40));
        let (park, _) = p.parking().place(f, 40).unwrap();
        assert_eq!(kernel_frame(park), frame, "the page itself moved");
        assert_eq!(rest(&p, f, 40), data);
        assert_eq!(map(&p, at, f, Content::Parked), Ok(40));
        assert_eq!((present(at), resting(&p, f, 40)), (40, 0));
        assert_eq!(read(at), data);
    });
}

#[test]
fn p8_a_hole_and_an_occupied_slot_stop_the_run_where_they_are() {
    case(|| {
        let p = platform();
        open(&p, 0, Prot::RW);
        let (at, f, data) = (run(&p, 0, 0, 16), small(&p, 0), bytes(2, 16));
        map(&p, at, f, Content::Bytes(&data)).unwrap();
        drop(p.discard(run(&p, 0, 5, 1)));
        let e = unmap(&p, at, f).unwrap_err();
        assert_eq!((e.at, e.why), (5, Stop::Gone));
        assert_eq!((present(at), resting(&p, f, 16)), (10, 5));
        assert_eq!(rest(&p, f, 5), data[..5 * PAGE]);
        // The rest is as before, and goes once the hole is left out.
        assert_eq!(unmap(&p, at.tail(6), f.add(6)), Ok(10));
        // In again: page 3 is occupied.
        map(&p, run(&p, 0, 3, 1), small(&p, 100), Content::Zero).unwrap();
        let e = map(&p, run(&p, 0, 0, 5), f, Content::Parked).unwrap_err();
        assert_eq!((e.at, e.why), (3, Stop::Exists));
        assert_eq!(read(run(&p, 0, 0, 3)), data[..3 * PAGE]);
        assert_eq!(rest(&p, f.add(3), 2), data[3 * PAGE..5 * PAGE]);
        // Bytes and zeros stop at the same place.
        let e = map(&p, run(&p, 0, 3, 2), f, Content::Zero).unwrap_err();
        assert_eq!((e.at, e.why), (0, Stop::Exists));
    });
}

#[test]
fn zero_content_is_written_memory_and_writable() {
    case(|| {
        let p = platform();
        open(&p, 0, Prot::RW);
        let at = run(&p, 0, 16, 16);
        assert_eq!(map(&p, at, small(&p, 16), Content::Zero), Ok(16));
        assert_eq!(read(at), vec![0; 16 * PAGE]);
        let zero = Categories::PFNZERO;
        assert_eq!(count(addr(at), 16 * PAGE, zero, Categories::empty()), 0);
        write(at, &bytes(3, 16));
        assert_eq!(read(at), bytes(3, 16));
    });
}

#[test]
fn scan_copy_and_release_of_frames() {
    case(|| {
        let p = platform();
        open(&p, 0, Prot::RW);
        let (at, f) = (run(&p, 0, 0, 64), small(&p, 64));
        map(&p, at, f, Content::Zero).unwrap();
        for i in [0, 9, 63] {
            write(run(&p, 0, i, 1), &bytes(4, 1));
        }
        unmap(&p, at, f).unwrap();
        let mask = p.scan_zero(FrameRun::new(f, 64));
        assert_eq!(mask.count(), 61);
        assert!(!mask.get(0) && !mask.get(9) && !mask.get(63) && mask.get(1));
        let to = FrameRun::new(small(&p, 256), 64);
        assert_eq!(p.copy(to, f).unwrap().pages, 64);
        assert_eq!(rest(&p, to.start, 64), rest(&p, f, 64));
        p.release(FrameRun::new(f, 64));
        assert_eq!((resting(&p, f, 64), resting(&p, to.start, 64)), (0, 64));
        p.release(FrameRun::new(f, 64));
        let fresh = FrameRun::new(small(&p, 512), 4);
        assert_eq!(p.fill_zero(fresh).unwrap().pages, 4);
        assert_eq!(
            (resting(&p, fresh.start, 4), p.scan_zero(fresh).count()),
            (4, 4)
        );
    });
}

#[test]
fn operations_outside_the_ranges_are_refused() {
    case(|| {
        let p = platform();
        let last = p.zones().huge.unwrap();
        let beyond = last.first.add(last.frames);
        open(&p, 0, Prot::RW);
        let at = run(&p, 0, 0, 1);
        assert_eq!(
            map(&p, at, beyond, Content::Parked).unwrap_err().why,
            Stop::Gone
        );
        let short = Content::Bytes(&[0; 100]);
        let refused = Stop::Refused(libc::EINVAL);
        assert_eq!(map(&p, at, small(&p, 0), short).unwrap_err().why, refused);
        let mut off = at;
        off.start.0 = 5;
        assert_eq!(unmap(&p, off, small(&p, 0)).unwrap_err().why, Stop::Gone);
        assert!(p.create_space(deckle_mm::SpaceId(1)).is_err());
        assert!(p.map_shared(at, small(&p, 0), Prot::RW).is_err());
    });
}

#[test]
fn p6_every_kind_of_rights_goes_out_and_comes_back() {
    case(|| {
        let p = platform();
        let kinds = [
            (Prot::R, Capability::Tested),
            (Prot::NONE, Capability::ProcMem),
            (
                Prot {
                    exec: true,
                    ..Prot::R
                },
                Capability::Tested,
            ),
            (
                Prot {
                    exec: true,
                    ..Prot::RW
                },
                Capability::Tested,
            ),
            (
                Prot {
                    write: true,
                    ..Prot::NONE
                },
                Capability::Tested,
            ),
        ];
        for (block, (prot, need)) in kinds.into_iter().enumerate() {
            if !needs(&p, "p6_every_kind_of_rights_goes_out_and_comes_back", need) {
                continue;
            }
            let block = block as u64;
            let (at, f) = (run(&p, block, 3, 20), small(&p, 32));
            let data = bytes(10 + block, 20);
            open(&p, block, prot);
            p.hold(at);
            assert_eq!(p.map(at, f, Content::Bytes(&data), prot).unwrap().pages, 20);
            assert_eq!(p.unmap(at, f, prot).unwrap().0.pages, 20, "{prot:?}");
            assert_eq!((present(at), resting(&p, f, 20)), (0, 20));
            assert_eq!(rest(&p, f, 20), data, "{prot:?}");
            assert_eq!(p.map(at, f, Content::Parked, prot).unwrap().pages, 20);
            assert_eq!((present(at), resting(&p, f, 20)), (20, 0));
            open(&p, block, Prot::RW);
            assert_eq!(read(at), data);
            write(at, &data);
            // A hole: what is before it is done, what is after stays readable and writable.
            drop(p.discard(run(&p, block, 3 + 8, 1)));
            open(&p, block, prot);
            let e = p.unmap(at, f, prot).unwrap_err();
            assert_eq!((e.at, e.why), (8, Stop::Gone), "{prot:?}");
            assert_eq!((present(at), resting(&p, f, 20)), (11, 8), "{prot:?}");
            p.release(FrameRun::new(f, 20));
            open(&p, block, Prot::RW);
            assert_eq!(read(at.tail(9)), data[9 * PAGE..]);
            write(at.tail(9), &data[9 * PAGE..]);
        }
    });
}

#[test]
fn p6_locked_memory_takes_the_copy_road() {
    case(|| {
        let p = platform();
        open(&p, 0, Prot::RW);
        let (at, f, data) = (run(&p, 0, 0, 8), small(&p, 0), bytes(5, 8));
        map(&p, at, f, Content::Bytes(&data)).unwrap();
        // SAFETY: locks pages that are present.
        assert_eq!(unsafe { libc::mlock(addr(at) as *const _, 8 * PAGE) }, 0);
        assert_eq!(unmap(&p, at, f), Ok(8));
        assert_eq!((present(at), rest(&p, f, 8)), (0, data.clone()));
        assert_eq!(map(&p, at, f, Content::Parked), Ok(8));
        assert_eq!((read(at), resting(&p, f, 8)), (data, 0));
    });
}

#[test]
fn p12_a_moved_page_comes_back_writable_and_protection_can_be_lifted() {
    case(|| {
        let p = platform();
        open(&p, 0, Prot::RW);
        let (at, f, data) = (run(&p, 0, 0, 8), small(&p, 0), bytes(6, 8));
        map(&p, at, f, Content::Bytes(&data)).unwrap();
        let protected = || {
            let len = 8 * PAGE;
            count(addr(at), len, Categories::PRESENT, Categories::WRITTEN)
        };
        drop_flush(p.write_protect(at, true));
        assert_eq!(protected(), 8);
        drop_flush(p.write_protect(at, false));
        assert_eq!(protected(), 0);
        drop_flush(p.write_protect(at, true));
        unmap(&p, at, f).unwrap();
        map(&p, at, f, Content::Parked).unwrap();
        assert_eq!(protected(), 0);
        write(at, &data);
    });
}

#[test]
fn p12_what_is_mapped_protected_needs_no_second_call() {
    case(|| {
        let p = platform();
        open(&p, 0, Prot::RW);
        let (at, f, data) = (run(&p, 0, 0, 8), small(&p, 0), bytes(9, 8));
        let written = || {
            let len = 8 * PAGE;
            count(addr(at), len, Categories::WRITTEN, Categories::empty())
        };
        let protected = |content: Content<'_>, want: &[u8]| {
            let done = p.map_protected(at, f, content, Prot::RW).unwrap();
            assert_eq!((done.pages, present(at), resting(&p, f, 8)), (8, 8, 0));
            assert_eq!((written(), read(at)), (0, want.to_vec()));
            drop_flush(p.write_protect(at, false));
            assert_eq!(written(), 8);
        };
        p.hold(at);
        protected(Content::Bytes(&data), &data);
        write(at, &data);
        unmap(&p, at, f).unwrap();
        protected(Content::Parked, &data);
        drop(p.discard(at));
        protected(Content::Zero, &[0; 8 * PAGE]);
        write(at, &data);
        assert_eq!(read(at), data);
    });
}

#[test]
fn p19_a_range_leaves_and_a_foreign_mapping_becomes_managed() {
    case(|| {
        let p = platform();
        open(&p, 2, Prot::RW);
        let (at, before) = (run(&p, 2, 0, 16), p.managed().ranges());
        let (start, len) = (addr(at), 16 * PAGE);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: over a part of the managed range that holds nothing.
        unsafe {
            p.leave(start, len).unwrap();
            let got = libc::mmap(start as *mut _, len, prot, flags, -1, 0);
            assert_eq!(got as usize, start);
            *(start as *mut u8) = 1;
        }
        assert!(!p.managed().touches(start, len) && p.managed().contains(start + len, PAGE));
        assert!(map(&p, at, small(&p, 0), Content::Zero).is_err(), "foreign");
        // SAFETY: nothing of value there.
        unsafe {
            assert!(p.map_new(Place::Free(start), len, false).is_err(), "taken");
            assert_eq!(p.map_new(Place::At(start), len, false), Ok(start));
        }
        assert_eq!(p.managed().ranges(), before);
        open(&p, 2, Prot::RW);
        let data = bytes(7, 16);
        assert_eq!(map(&p, at, small(&p, 0), Content::Bytes(&data)), Ok(16));
        assert_eq!(unmap(&p, at, small(&p, 0)), Ok(16));
        assert_eq!(map(&p, at, small(&p, 0), Content::Parked), Ok(16));
        assert_eq!(read(at), data);
    });
}

#[test]
fn mappings_lie_where_they_are_asked_for() {
    case(|| {
        let p = platform();
        let hint = 5 << 42;
        let near = |hint, align, offset| Place::Near {
            hint,
            align,
            offset,
        };
        // SAFETY: at addresses that nobody uses, or of the kernel's choice.
        unsafe {
            assert_eq!(p.map_new(near(hint, BLOCK, 0), 4 * PAGE, false), Ok(hint));
            let other = p.map_new(near(hint, PAGE, 0), PAGE, false).unwrap();
            assert!(other + PAGE <= hint || hint + 4 * PAGE <= other);
            for (align, offset) in [(BLOCK, 0), (BLOCK, 5 * PAGE), (16 * BLOCK, 0)] {
                for len in [PAGE, 3 * BLOCK, 20 * BLOCK + PAGE] {
                    let at = p.map_new(near(0, align, offset), len, false).unwrap();
                    assert_eq!(at % align, offset, "{len} bytes");
                    assert!(p.managed().contains(at, len));
                }
            }
            assert_eq!(
                p.map_new(Place::Free(hint + 4 * PAGE), PAGE, false),
                Ok(hint + 4 * PAGE)
            );
            assert!(p.managed().contains(hint, 5 * PAGE));
            p.unmap_old(hint + PAGE, PAGE).unwrap();
            assert_eq!(
                p.map_new(Place::Free(hint + PAGE), PAGE, false),
                Ok(hint + PAGE)
            );
            // Far more than there is memory.
            let huge = p.map_new(Place::aligned(BLOCK), 8 << 40, false).unwrap();
            p.unmap_old(huge, 8 << 40).unwrap();
        }
    });
}

#[test]
fn p18_the_ranges_use_few_mappings() {
    case(|| {
        let p = platform();
        let (park, len) = p.parking().range();
        let text = std::fs::read_to_string("/proc/self/maps").unwrap();
        let within = |start: usize, len: usize| {
            text.lines()
                .filter(|l| {
                    let a = usize::from_str_radix(l.split('-').next().unwrap(), 16).unwrap();
                    a >= start && a < start + len
                })
                .count()
        };
        assert_eq!(within(park, len), 2);
        assert_eq!(within(addr(run(&p, 0, 0, 1)), MANAGED), 1);
    });
}
