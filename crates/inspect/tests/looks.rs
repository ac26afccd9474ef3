//! What is seen of memory that is known, and that looking leaves no trace.

use deckle_inspect::folios::Folios;
use deckle_inspect::gather::Kind;
use deckle_inspect::look::find;
use deckle_inspect::{PAGE, Process, THRESHOLDS};
use deckle_sys::Memory;
use deckle_sys::mapping::Advice;

use crate::common::{
    HUGE, Subject, blocks, ends_with, fill, fork, is_gone, told_frames, wait_for_the_end, zeros,
};
use crate::skipped::skipped;

const KNOWN: [u32; 14] = [
    0, 1, 64, 65, 255, 256, 409, 410, 450, 470, 490, 510, 511, 512,
];

#[test]
fn r98_zeros_of_each_huge_page_and_what_each_threshold_frees_are_told() {
    let Some(subject) = Subject::new(|| blocks(&KNOWN)) else {
        return;
    };
    let looked = subject.look();
    assert_eq!(zeros(&looked, Kind::Free), KNOWN);
    assert_eq!((looked.huge(), looked.seen()), (14, 14));
    for n in THRESHOLDS {
        let freed: u32 = KNOWN.iter().filter(|zeros| **zeros > n).sum();
        assert_eq!(
            looked.freed_at(n).value as u64,
            u64::from(freed) * PAGE,
            "{n}"
        );
        let split = KNOWN.iter().filter(|zeros| **zeros > n).count();
        assert_eq!(looked.split_at(n).value as usize, split, "{n}");
    }
    assert!(!looked.managed);
    assert_eq!(looked.vmas.len(), 1);
}

#[test]
fn a_huge_page_that_was_collapsed_is_seen_like_any() {
    let subject = Subject::new(|| {
        let mut memory = Memory::map_aligned(HUGE, HUGE).ok()?;
        memory.advise(0..HUGE, Advice::NoHugePage).ok()?;
        fill(&mut memory, 0..HUGE, 500);
        memory.advise(0..HUGE, Advice::HugePage).ok()?;
        memory.advise(0..HUGE, Advice::Collapse).ok()?;
        Some(memory)
    });
    let Some(subject) = subject else { return };
    assert_eq!(zeros(&subject.look(), Kind::Free), [500]);
}

#[test]
fn what_is_locked_or_shared_is_told_apart_and_not_copied() {
    let subject = Subject::new(|| {
        let (own, locked, shared) = (blocks(&[300])?, blocks(&[400])?, blocks(&[500, 512])?);
        // SAFETY: a call on memory of our own, which changes no byte.
        let done = unsafe { libc::mlock(locked.as_ptr().cast(), locked.len()) };
        if done != 0 {
            return None;
        }
        // Not in the child of the fork.
        // SAFETY: as above.
        unsafe {
            libc::madvise(
                own.as_ptr().cast_mut().cast(),
                own.len(),
                libc::MADV_DONTFORK,
            )
        };
        fork(|| ());
        Some((own, locked, shared))
    });
    let Some(subject) = subject else { return };
    let before = ["Rss", "Anonymous", "AnonHugePages"].map(|key| subject.sum(key));
    let looked = subject.look();
    assert_eq!(zeros(&looked, Kind::Free), [300]);
    assert_eq!(zeros(&looked, Kind::Locked), [400]);
    assert_eq!(zeros(&looked, Kind::Shared), [500, 512]);
    assert_eq!(looked.locked().value as u64, 400 * PAGE);
    assert_eq!(looked.shared().value as u64, 1012 * PAGE);
    let after = ["Rss", "Anonymous", "AnonHugePages"].map(|key| subject.sum(key));
    assert_eq!(
        before, after,
        "a page was copied or taken apart by looking at it"
    );
}

#[test]
fn what_was_shared_with_a_process_that_has_ended_is_not_copied() {
    let subject = Subject::new(|| {
        let memory = blocks(&[500, 100])?;
        // SAFETY: the child ends at once.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: the end of the child, without the parent's exit handlers.
            unsafe { libc::_exit(0) };
        }
        deckle_sys::process::wait(child, 0).ok()?;
        Some(memory)
    });
    let Some(subject) = subject else { return };
    let before = ["Rss", "Anonymous", "AnonHugePages"].map(|key| subject.sum(key));
    assert_eq!(zeros(&subject.look(), Kind::Free), [100, 500]);
    let after = ["Rss", "Anonymous", "AnonHugePages"].map(|key| subject.sum(key));
    assert_eq!(before, after);
}

/// Which pages are looked at is decided by the first of a huge page no more than by any other.
#[test]
fn a_huge_page_of_which_a_child_has_only_a_part_is_not_copied() {
    for gone in [0, 1, 511] {
        let subject = Subject::new(|| {
            let mut memory = blocks(&[500])?;
            let at = gone * PAGE as usize;
            fork(|| {
                memory
                    .advise(at..at + PAGE as usize, Advice::DontNeed)
                    .unwrap()
            });
            Some(memory)
        });
        let Some(subject) = subject else { return };
        let before = ["Rss", "Anonymous", "AnonHugePages"].map(|key| subject.sum(key));
        // As to who is not root, and then as to root.
        let looked = subject.look_with(None);
        assert_eq!(looked.zeros().value as u64, 500 * PAGE, "{gone}");
        if let Some(mut folios) = Folios::open() {
            let looked = subject.look_with(Some(&mut folios));
            assert_eq!(zeros(&looked, Kind::Shared), [500], "{gone}");
        }
        let after = ["Rss", "Anonymous", "AnonHugePages"].map(|key| subject.sum(key));
        assert_eq!(before, after, "{gone}");
    }
}

#[test]
fn what_another_process_has_of_a_huge_page_is_not_held_for_nobody() {
    if !told_frames() {
        return skipped("frames are told to root only");
    }
    let subject = Subject::new(|| {
        let mut memory = blocks(&[300])?;
        fork(|| memory.advise(0..HUGE / 2, Advice::DontNeed).unwrap());
        memory.advise(HUGE / 2..HUGE, Advice::DontNeed).ok()?;
        Some(memory)
    });
    let Some(subject) = subject else { return };
    let looked = subject.look();
    assert_eq!(zeros(&looked, Kind::Shared), [256]);
    assert_eq!((looked.unmapped, looked.partial()), (0, 0));
    assert_eq!(looked.freed_at(0).value as u64, 0);
    // A page that is copied is in the huge page no more.
    assert_eq!(looked.sizes, subject.look().sizes);
}

#[test]
fn a_part_that_nobody_maps_is_seen_of_what_is_shared_or_locked_too() {
    if !told_frames() {
        return skipped("frames are told to root only");
    }
    let part = 64 * PAGE as usize;
    let subject = Subject::new(|| {
        let (mut shared, locked) = (blocks(&[300])?, blocks(&[400])?);
        // SAFETY: memory of our own, of which nobody looks at the first pages any more.
        let done = unsafe {
            libc::madvise(locked.as_ptr().cast_mut().cast(), HUGE, libc::MADV_DONTFORK)
                | libc::mlock(locked.as_ptr().cast(), HUGE)
                | libc::munmap(locked.as_ptr().cast_mut().cast(), part)
        };
        shared.advise(0..part, Advice::DontNeed).ok()?;
        fork(|| ());
        (done == 0).then_some((shared, locked))
    });
    let Some(subject) = subject else { return };
    let looked = subject.look();
    assert_eq!(zeros(&looked, Kind::SharedPartial), [236]);
    assert_eq!(zeros(&looked, Kind::Locked), [336]);
    // Zeros of the shared one go whatever the threshold is, those of the locked one never.
    assert_eq!(looked.unmapped, 2 * part as u64);
    assert_eq!(looked.freed_at(511).value as u64, looked.unmapped);
    assert_eq!(looked.first_freed_at(511).value as u64, 236 * PAGE);
    assert_eq!(looked.locked().value as u64, 336 * PAGE);
}

#[test]
fn memory_that_two_processes_have_is_looked_at_once() {
    let Some(subject) = Subject::new(|| {
        let memory = blocks(&[300])?;
        let me = std::process::id();
        // SAFETY: the child does nothing but what follows.
        if unsafe { libc::fork() } == 0 {
            ends_with(me);
            let me = std::process::id();
            // SAFETY: the child of vfork has this memory, too, and only waits for its end; its
            // parent stands still meanwhile.
            unsafe { libc::syscall(libc::SYS_vfork) };
            ends_with(me);
            wait_for_the_end();
        }
        Some(memory)
    }) else {
        return;
    };
    let children = |pid: u32| -> Vec<u32> {
        let text = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
        let text = text.unwrap_or_default();
        text.split_whitespace()
            .map(|pid| pid.parse().unwrap())
            .collect()
    };
    let begun = std::time::Instant::now();
    let (child, grandchild) = loop {
        let child = children(subject.pid());
        let grandchild = child.first().map_or(vec![], |pid| children(*pid));
        if let (Some(child), Some(grandchild)) = (child.first(), grandchild.first()) {
            break (*child, *grandchild);
        }
        if begun.elapsed().as_secs() > 10 {
            return skipped("no list of children here");
        }
    };
    let found = |pid| find(&Process::of(pid).unwrap(), None).unwrap();
    assert!(found(child).is_same(&found(grandchild)));
    assert!(
        !found(subject.pid()).is_same(&found(child)),
        "a fork has memory of its own"
    );
}

#[test]
fn nothing_is_brought_in() {
    let subject = Subject::new(|| {
        let mut memory = blocks(&[100, 200, 300, 512])?;
        // Holes between and in what is there.
        memory.advise(HUGE..2 * HUGE, Advice::DontNeed).ok()?;
        memory
            .advise(2 * HUGE..2 * HUGE + 64 * PAGE as usize, Advice::DontNeed)
            .ok()?;
        Some(memory)
    });
    let Some(subject) = subject else { return };
    let before = (
        subject.sum("Rss"),
        subject.sum("Anonymous"),
        entries(&subject),
    );
    let faults = faults();
    let looked = subject.look();
    let brought = self::faults() - faults;
    assert_eq!(
        before,
        (
            subject.sum("Rss"),
            subject.sum("Anonymous"),
            entries(&subject)
        )
    );
    assert_eq!(zeros(&looked, Kind::Free), [100, 512]);
    if told_frames() {
        // Of 300 zero pages 64 are gone, and held.
        assert_eq!(zeros(&looked, Kind::Partial), [236]);
        assert_eq!(looked.unmapped, 64 * PAGE);
        assert_eq!(looked.freed_at(511).value as u64, 300 * PAGE);
    }
    // Those of this thread's own memory, and no more: each page brought in would be one.
    assert!(brought < 200, "{brought} faults");
}

/// Faults of this thread so far.
fn faults() -> i64 {
    deckle_sys::process::usage(libc::RUSAGE_THREAD).ru_minflt
}

/// What the page map says of the subject's largest mapping.
fn entries(subject: &Subject) -> Vec<bool> {
    let path = std::ffi::CString::new(format!("/proc/{}/pagemap", subject.pid())).unwrap();
    let map = deckle_uffd::Pagemap::open(&path).unwrap();
    let all = deckle_inspect::smaps::vmas(subject.pid()).unwrap();
    let vma = all
        .iter()
        .filter(|v| v.anonymous > 0)
        .max_by_key(|v| v.end - v.start)
        .unwrap();
    let pages = ((vma.end - vma.start) / PAGE) as usize;
    let mut out = vec![deckle_uffd::PageEntry::default(); pages];
    map.entries(vma.start as usize, &mut out).unwrap();
    out.iter().map(|entry| entry.is_present()).collect()
}

#[test]
fn a_huge_page_that_is_mapped_page_by_page_is_seen() {
    if !told_frames() {
        return skipped("frames are told to root only");
    }
    let subject = Subject::new(|| {
        let memory = blocks(&[200, 400])?;
        // Other rights for a part: the mapping is cut in the middle of the first huge page.
        let at = memory.as_ptr().cast_mut().cast();
        // SAFETY: memory of our own, which is read meanwhile by nobody here.
        let done = unsafe { libc::mprotect(at, 128 * PAGE as usize, libc::PROT_NONE) };
        (done == 0).then_some(memory)
    });
    let Some(subject) = subject else { return };
    let looked = subject.look();
    assert_eq!(zeros(&looked, Kind::Free), [200, 400]);
    assert_eq!((looked.apart, looked.unmapped), (1, 0));
    assert_eq!(looked.sizes[&(HUGE as u64)], 2 * HUGE as u64);
}

#[test]
fn who_has_ended_is_said_to_be_gone() {
    let Some(subject) = Subject::new(|| Some(())) else {
        return;
    };
    let process = subject.process();
    drop(subject);
    assert!(find(&process, None).err().is_some_and(|e| is_gone(&e)));
    assert_eq!(Process::of(process.pid), None);
}
