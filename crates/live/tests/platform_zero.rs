//! Runs of the zero page.

use crate::common::*;
use deckle_mm::Platform;
use deckle_mm::platform::{Content, Prot, Stop};
use deckle_uffd::{Categories, Event, Msg};
use std::sync::atomic::{AtomicU32, Ordering};

#[test]
fn p13_a_zero_run_reads_as_zeros_and_its_first_write_is_delivered() {
    case(|| {
        let p = forever(platform());
        open(p, 0, Prot::RW);
        let at = run(p, 0, 8, 64);
        // Pages 10 and 11 of the run are written memory: left alone, not protected.
        let data = bytes(1, 2);
        map(p, run(p, 0, 18, 2), small(p, 0), Content::Bytes(&data)).unwrap();
        assert_eq!(p.map_zero(at).unwrap().pages, 64);
        let none = Categories::empty();
        assert_eq!(count(addr(at), 64 * PAGE, Categories::PFNZERO, none), 62);
        let unprotected = Categories::PRESENT | Categories::WRITTEN;
        assert_eq!(count(addr(at), 64 * PAGE, unprotected, none), 2);
        assert_eq!(read(run(p, 0, 18, 2)), data);
        write(run(p, 0, 18, 2), &data);
        assert_eq!(read(run(p, 0, 20, 52)), vec![0; 52 * PAGE]);
        // Again: nothing to do.
        assert_eq!(p.map_zero(at).unwrap().pages, 64);
        // A write waits for us.
        let to = addr(run(p, 0, 30, 1));
        // SAFETY: served below.
        let writer = std::thread::spawn(move || unsafe { (to as *mut u64).write_volatile(7) });
        assert!(p.program_uffd().wait(10_000).unwrap());
        let mut msg = [Msg::empty()];
        p.program_uffd().read_events(&mut msg).unwrap();
        match msg[0].take() {
            Some(Event::Pagefault { addr, wp, .. }) => assert!(wp && addr & !4095 == to),
            other => panic!("{other:?}"),
        }
        // The window is dropped and a written folio installed.
        drop(p.drop_zero(run(p, 0, 28, 4)));
        let four = run(p, 0, 28, 4);
        assert_eq!(map(p, four, small(p, 4), Content::Zero), Ok(4));
        writer.join().unwrap();
        assert_eq!(read(four)[2 * PAGE..2 * PAGE + 8], 7u64.to_ne_bytes());
        assert_eq!(count(addr(at), 64 * PAGE, Categories::PFNZERO, none), 58);
        drop(p.drop_zero(run(p, 0, 32, 40)));
        assert_eq!(present(run(p, 0, 32, 40)), 0);
    });
}

/// Writers hammer pages while they become zero pages. A write that gets through must be
/// reported as `Exists` at its page and keep its byte; one that does not must wait.
#[test]
fn p13_a_write_that_slips_into_a_zero_run_is_reported_not_lost() {
    case(|| {
        const PAGES: u32 = 256;
        let p = forever(platform());
        open(p, 0, Prot::RW);
        let at = run(p, 0, 0, PAGES);
        static ROUND: AtomicU32 = AtomicU32::new(0);
        static DONE: AtomicU32 = AtomicU32::new(0);
        const ROUNDS: u32 = 400;
        let start = addr(at);
        let writer = std::thread::spawn(move || {
            for round in 1..=ROUNDS {
                while ROUND.load(Ordering::Acquire) < round {
                    std::hint::spin_loop();
                }
                // Somewhere inside the time that the other side needs for the run.
                for _ in 0..round * 37 % 4096 {
                    std::hint::spin_loop();
                }
                for i in 0..PAGES as usize {
                    let page = (start + i * PAGE) as *mut u32;
                    // SAFETY: served by the test below.
                    unsafe {
                        page.add(1).write_volatile(round);
                    }
                }
                DONE.store(round, Ordering::Release);
            }
        });
        let mut slipped = 0;
        for round in 1..=ROUNDS {
            ROUND.store(round, Ordering::Release);
            let mut written = vec![false; PAGES as usize];
            let mut at_page = 0;
            while at_page < PAGES {
                match p.map_zero(at.tail(at_page)) {
                    Ok(_) => break,
                    Err(e) => {
                        assert_eq!(e.why, Stop::Exists);
                        let page = at_page + e.at;
                        slipped += 1;
                        written[page as usize] = true;
                        drop_flush(p.write_protect(run(p, 0, page, 1), false));
                        at_page = page + 1;
                    }
                }
            }
            let mut msgs = [const { Msg::empty() }; 8];
            while DONE.load(Ordering::Acquire) < round {
                if !p.program_uffd().wait(1).unwrap() {
                    continue;
                }
                let n = p.program_uffd().read_events(&mut msgs).unwrap();
                for msg in &mut msgs[..n] {
                    let Some(Event::Pagefault { addr: a, .. }) = msg.take() else {
                        panic!("not a fault");
                    };
                    let page = ((a - start) / PAGE) as u32;
                    let one = run(p, 0, page, 1);
                    if written[page as usize] {
                        p.wake(one.start, 1);
                        continue;
                    }
                    // Missing or zero: becomes a charged page.
                    drop(p.drop_zero(one));
                    map(p, one, small(p, page), Content::Zero).unwrap();
                    written[page as usize] = true;
                }
            }
            assert!(
                written.iter().all(|w| *w),
                "a page was written that nobody was told of"
            );
            let data = read(at);
            for i in 0..PAGES as usize {
                let word = u32::from_ne_bytes(data[i * PAGE + 4..i * PAGE + 8].try_into().unwrap());
                assert_eq!(word, round, "page {i}: write lost");
            }
            drop(p.discard(at));
        }
        writer.join().unwrap();
        eprintln!("slipped in: {slipped} of {}", ROUNDS * PAGES);
    });
}

/// The same, without luck: the slip is made by hand between the two steps of the kernel.
#[test]
fn p13_pages_written_and_protected_are_found_one_after_the_other() {
    case(|| {
        let p = platform();
        open(&p, 0, Prot::RW);
        let at = run(&p, 0, 0, 32);
        // Written pages under protection, as a slipped write leaves them.
        let data = bytes(9, 2);
        for (page, i) in [(5, 0), (20, 1)] {
            let bytes = &data[i * PAGE..][..PAGE];
            map(
                &p,
                run(&p, 0, page, 1),
                small(&p, page),
                Content::Bytes(bytes),
            )
            .unwrap();
            drop_flush(p.write_protect(run(&p, 0, page, 1), true));
        }
        let e = p.map_zero(at).unwrap_err();
        assert_eq!((e.at, e.why), (5, Stop::Exists));
        assert_eq!(present(run(&p, 0, 0, 6)), 6);
        assert_eq!(present(run(&p, 0, 6, 26)), 1, "the rest is as before");
        let e = p.map_zero(at.tail(6)).unwrap_err();
        assert_eq!((e.at, e.why), (14, Stop::Exists));
        assert_eq!(p.map_zero(at.tail(21)).unwrap().pages, 11);
        assert_eq!(read(run(&p, 0, 5, 1)), data[..PAGE]);
        assert_eq!(read(run(&p, 0, 20, 1)), data[PAGE..]);
    });
}

/// What the manager's own tables are charged by.
#[test]
fn memory_is_touched_where_it_was_written_and_not_where_it_was_read_or_left_alone() {
    case(|| {
        let p = platform();
        open(&p, 0, Prot::RW);
        let at = run(&p, 0, 0, 32);
        let touched = || p.touched(addr(at), addr(at) + 512 * PAGE).unwrap() / PAGE;
        assert_eq!(touched(), 0);
        map(
            &p,
            run(&p, 0, 3, 2),
            small(&p, 0),
            Content::Bytes(&bytes(1, 2)),
        )
        .unwrap();
        assert_eq!(touched(), 2);
        assert_eq!(p.map_zero(run(&p, 0, 8, 16)).unwrap().pages, 16);
        assert_eq!(touched(), 2, "the page of zeros is nobody's");
        drop(p.discard(run(&p, 0, 3, 1)));
        assert_eq!(touched(), 1);
    });
}
