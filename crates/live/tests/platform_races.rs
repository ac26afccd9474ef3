//! Others who use the memory at the same time: writers, forks, references, fork events.

use crate::common::*;
use crate::skipped::skipped;
use deckle_live::{Capability, LiveConfig, LiveMemory};
use deckle_mm::platform::{Content, Prot, Stop};
use deckle_mm::{FrameRun, PageRun, Platform};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Threads add to counters in the pages while they go out and come back.
fn writers_lose_nothing(p: &'static LiveMemory, at: PageRun, whole: bool) {
    const THREADS: u64 = 3;
    let first = if whole { huge(p, 0) } else { small(p, 0) };
    let book = forever(Book::new(first, at));
    let server = std::thread::spawn(|| book.serve(p));
    let end = Instant::now() + Duration::from_millis(700);
    let words: Vec<_> = (0..THREADS)
        .map(|t| {
            std::thread::spawn(move || {
                let mut done = 0u64;
                let mut i = t * 7919;
                while Instant::now() < end {
                    for _ in 0..16 {
                        i = i.wrapping_mul(6364136223846793005).wrapping_add(t + 1);
                        let page = (i >> 33) % u64::from(at.pages);
                        let to = (addr(at) + page as usize * PAGE) as *const AtomicU64;
                        // SAFETY: aligned, lives for ever, faults are served.
                        unsafe { &*to }.fetch_add(1, Ordering::Relaxed);
                        done += 1;
                    }
                }
                done
            })
        })
        .collect();
    let (mut out, mut tries) = (0u64, 0u64);
    while Instant::now() < end {
        tries += 1;
        let mut inside = book.inside.lock().unwrap();
        let (from, pages) = match whole {
            true if inside.iter().all(|i| *i) => (0, at.pages),
            _ => {
                let from = (tries * 13 % u64::from(at.pages)) as u32;
                let pages = inside[from as usize..].iter().take_while(|i| **i).count();
                (from, pages.min(16) as u32)
            }
        };
        if pages == 0 {
            continue;
        }
        let part = PageRun::new(at.space, at.start.add(u64::from(from)), pages);
        let done = match unmap(p, part, first.add(from)) {
            Ok(n) => n,
            Err(e) if matches!(e.why, Stop::Retry | Stop::Busy) => e.at,
            Err(e) => panic!("{e}"),
        };
        out += u64::from(done);
        inside[from as usize..][..done as usize].fill(false);
        if whole && done == 512 {
            // Back at once as a whole, so that the next round finds a huge page.
            match p.map(part, first, Content::Parked, Prot::RW) {
                Ok(_) => inside.fill(true),
                Err(e) => inside[..e.at as usize].fill(true),
            }
        }
    }
    let written: u64 = words.into_iter().map(|t| t.join().unwrap()).sum();
    book.stop.store(true, Ordering::Relaxed);
    server.join().unwrap();
    let inside = book.inside.lock().unwrap();
    let mut sum = 0;
    for (i, inside) in inside.iter().enumerate() {
        let one = PageRun::new(at.space, at.start.add(i as u64), 1);
        let bytes = match inside {
            true => read(one),
            false => rest(p, first.add(i as u32), 1),
        };
        sum += u64::from_ne_bytes(bytes[..8].try_into().unwrap());
    }
    assert_eq!(sum, written, "writes lost");
    let met = book.faults.load(Ordering::Relaxed);
    assert!(
        out > 100 && written > 100 && met > 0,
        "{out} pages out, {written} writes, {met} of them to what was away"
    );
}

#[test]
fn r98_no_write_is_lost_while_small_pages_go_out_and_in() {
    case(|| {
        let p = forever(platform());
        open(p, 0, Prot::RW);
        let at = run(p, 0, 0, 128);
        map(p, at, small(p, 0), Content::Zero).unwrap();
        writers_lose_nothing(p, at, false);
    });
}

#[test]
fn r98_no_write_is_lost_while_a_huge_page_goes_out_and_in() {
    case(|| {
        let p = forever(platform());
        open(p, 0, Prot::RW);
        let at = run(p, 0, 0, 512);
        map(p, at, huge(p, 0), Content::Zero).unwrap();
        writers_lose_nothing(p, at, true);
    });
}

#[test]
fn r98_no_write_is_lost_on_the_copy_road() {
    case(|| {
        let caps = deckle_live::self_test().without(Capability::Move);
        let p = forever(platform_of(LiveConfig {
            parking_bytes: Some(256 << 20),
            capabilities: Some(caps),
            ..LiveConfig::default()
        }));
        open(p, 0, Prot::RW);
        let at = run(p, 0, 0, 128);
        map(p, at, small(p, 0), Content::Zero).unwrap();
        writers_lose_nothing(p, at, false);
    });
}

/// Forks a child that ends when told; its memory shares every page with ours until then.
fn fork_child() -> (libc::pid_t, std::io::PipeWriter) {
    let (mut read, write) = std::io::pipe().unwrap();
    // SAFETY: the child only reads one byte and exits.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0);
    if pid == 0 {
        drop(write);
        let _ = std::io::Read::read(&mut read, &mut [0]);
        // SAFETY: the end of the child.
        unsafe { libc::_exit(0) };
    }
    (pid, write)
}

fn reap(pid: libc::pid_t) {
    deckle_sys::process::wait(pid, 0).unwrap();
}

#[test]
fn p7_pages_shared_by_a_fork_are_taken_all_the_same() {
    case(|| {
        let p = platform();
        for block in 0..2 {
            open(&p, block, Prot::RW);
        }
        let (at, f, data) = (run(&p, 0, 0, 64), small(&p, 0), bytes(1, 64));
        let (block, hf, more) = (run(&p, 1, 0, 512), huge(&p, 0), bytes(2, 512));
        map(&p, at, f, Content::Bytes(&data)).unwrap();
        map(&p, block, hf, Content::Zero).unwrap();
        write(block, &more);
        let (pid, pipe) = fork_child();
        // Alive and sharing.
        assert_eq!(unmap(&p, at, f), Ok(64));
        assert_eq!(rest(&p, f, 64), data);
        drop(pipe);
        reap(pid);
        // Dead, but the kernel still takes the pages for shared.
        assert_eq!(unmap(&p, block, hf), Ok(512));
        assert_eq!(rest(&p, hf, 512), more);
        assert_eq!(map(&p, block, hf, Content::Parked), Ok(512));
        assert_eq!(read(block), more);
    });
}

#[test]
fn p7_a_protected_page_shared_by_a_fork_is_taken_without_waiting_for_a_handler() {
    case(|| {
        let p = platform();
        open(&p, 0, Prot::RW);
        let (at, f, data) = (run(&p, 0, 0, 32), small(&p, 0), bytes(1, 32));
        map(&p, at, f, Content::Bytes(&data)).unwrap();
        drop_flush(p.write_protect(at, true));
        let (pid, pipe) = fork_child();
        assert_eq!(unmap(&p, at, f), Ok(32));
        assert_eq!(rest(&p, f, 32), data);
        drop(pipe);
        reap(pid);
    });
}

#[test]
fn p29_who_holds_an_older_reference_keeps_its_bytes() {
    case(|| {
        let p = platform();
        open(&p, 0, Prot::RW);
        let (at, f) = (run(&p, 0, 0, 1), small(&p, 0));
        map(&p, at, f, Content::Bytes(&[b'A'; PAGE])).unwrap();
        let mut pipe = [0; 2];
        // SAFETY: plain system calls on a page that is present.
        unsafe {
            assert_eq!(libc::pipe(pipe.as_mut_ptr()), 0);
            let io = libc::iovec {
                iov_base: addr(at) as *mut _,
                iov_len: PAGE,
            };
            assert_eq!(libc::vmsplice(pipe[1], &raw const io, 1, 0), PAGE as isize);
        }
        unmap(&p, at, f).unwrap();
        p.release(FrameRun::new(f, 1));
        // The frame is used again, by every operation that puts bytes there.
        p.fill_zero(FrameRun::new(f, 1)).unwrap();
        p.release(FrameRun::new(f, 1));
        let other = small(&p, 1);
        p.fill_zero(FrameRun::new(other, 1)).unwrap();
        p.copy(FrameRun::new(f, 1), other).unwrap();
        p.release(FrameRun::new(f, 1));
        map(&p, at, f, Content::Bytes(&[b'B'; PAGE])).unwrap();
        unmap(&p, at, f).unwrap();
        let mut got = [0u8; PAGE];
        // SAFETY: reads what the pipe holds.
        let n = unsafe { libc::read(pipe[0], got.as_mut_ptr().cast(), PAGE) };
        assert_eq!(n, PAGE as isize);
        assert!(
            got.iter().all(|b| *b == b'A'),
            "the pipe's reader got another page"
        );
        assert_eq!(rest(&p, f, 1), [b'B'; PAGE]);
    });
}

#[test]
fn p7_a_busy_page_is_skipped_not_lost() {
    case(|| {
        let p = platform();
        open(&p, 0, Prot::RW);
        let (at, f, data) = (run(&p, 0, 0, 16), small(&p, 0), bytes(1, 16));
        map(&p, at, f, Content::Bytes(&data)).unwrap();
        // Page 9 is pinned by a registered buffer of io_uring.
        let Some(_ring) = pin(addr(run(&p, 0, 9, 1))) else {
            skipped("no io_uring here");
            return;
        };
        let e = unmap(&p, at, f).unwrap_err();
        assert_eq!((e.at, e.why), (9, Stop::Busy));
        assert_eq!((present(at), resting(&p, f, 16)), (7, 9));
        assert_eq!(unmap(&p, at.tail(10), f.add(10)), Ok(6));
        assert_eq!(read(run(&p, 0, 9, 1)), data[9 * PAGE..10 * PAGE]);
    });
}

/// Registers one page as a buffer of a new io_uring; the descriptor keeps it pinned.
fn pin(page: usize) -> Option<std::os::fd::OwnedFd> {
    use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
    let mut params = [0u8; 120];
    let io = libc::iovec {
        iov_base: page as *mut _,
        iov_len: PAGE,
    };
    // SAFETY: setup fills 120 bytes of parameters; register reads one iovec (opcode 0:
    // IORING_REGISTER_BUFFERS).
    unsafe {
        let fd = libc::syscall(libc::SYS_io_uring_setup, 4, params.as_mut_ptr());
        if fd < 0 {
            return None;
        }
        let ring = OwnedFd::from_raw_fd(fd as i32);
        let done = libc::syscall(
            libc::SYS_io_uring_register,
            ring.as_raw_fd(),
            0,
            &raw const io,
            1,
        );
        (done == 0).then_some(ring)
    }
}
