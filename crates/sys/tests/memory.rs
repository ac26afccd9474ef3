//! Memory and its owners.

use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::Relaxed;
use deckle_sys::mapping::Advice;
use deckle_sys::{Errno, Fd, Memory, PAGE, shared};
use std::os::fd::OwnedFd;

/// Whether something is mapped there.
fn is_mapped(address: usize) -> bool {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().any(|line| {
        let (start, end) = line.split_once(' ').unwrap().0.split_once('-').unwrap();
        let number = |text| usize::from_str_radix(text, 16).unwrap();
        (number(start)..number(end)).contains(&address)
    })
}

/// So large that nobody else's mapping takes its place at once.
const LARGE: usize = 64 << 20;

#[test]
fn a_mapping_is_zeros_keeps_what_is_written_and_is_given_back() {
    let mut memory = Memory::map_aligned(LARGE, 2 << 20).unwrap();
    let at = memory.as_ptr().addr();
    assert!(at.is_multiple_of(2 << 20) && is_mapped(at) && is_mapped(at + LARGE - 1));
    memory.touch(LARGE - 1, 7);
    assert_eq!((memory[0], memory[LARGE - 1]), (0, 7));
    let last = LARGE - PAGE..LARGE;
    assert_eq!(memory.advise(last, Advice::DontNeed), Ok(()));
    assert_eq!(memory[LARGE - 1], 0);
    for wrong in [1..PAGE, 0..PAGE + 1, 0..LARGE + PAGE] {
        let said = memory.advise(wrong, Advice::DontNeed);
        assert_eq!(said, Err(Errno(libc::EINVAL)));
    }
    drop(memory);
    assert!(!is_mapped(at));
}

#[test]
fn what_is_lent_is_neither_written_nor_given_back_until_it_is_taken_back() {
    let mut memory = Memory::map(LARGE).unwrap();
    memory[PAGE] = 9;
    let (at, lent) = (memory.as_ptr().addr(), memory.lend().unwrap());
    assert!(memory.lend().is_none() && memory.bytes_mut().is_none());
    let said = memory.advise(0..PAGE, Advice::DontNeed);
    assert_eq!(said, Err(Errno(libc::EBUSY)));
    // Another's is no help.
    let mut other = Memory::heap(PAGE).unwrap();
    let others = other.lend().unwrap();
    assert!(!memory.take_back(others) && memory.bytes_mut().is_none());
    std::thread::scope(|s| {
        s.spawn(|| assert_eq!(lent[PAGE], 9));
    });
    assert!(memory.take_back(lent) && memory.bytes_mut().is_some());
    let lent = memory.lend().unwrap();
    drop(memory);
    assert!(is_mapped(at) && lent[PAGE] == 9);
}

#[test]
fn memory_of_the_heap_is_whole_pages_of_zeros() {
    let memory = Memory::heap(3 * PAGE).unwrap();
    assert!(memory.as_ptr().addr().is_multiple_of(PAGE) && memory.iter().all(|b| *b == 0));
    assert!(Memory::heap(0).is_none() && Memory::heap(PAGE + 1).is_none());
}

#[test]
fn threads_write_words_of_one_memory() {
    let mut memory = Memory::map(4 * PAGE).unwrap();
    let words = memory.words();
    std::thread::scope(|s| {
        (0..4).for_each(|_| {
            s.spawn(|| {
                words
                    .iter()
                    .for_each(|word| assert!(word.fetch_add(1, Relaxed) < 4))
            });
        });
    });
    assert_eq!(words.advise(0..PAGE, Advice::DontNeed), Ok(()));
    assert!(words[..PAGE / 8].iter().all(|word| word.load(Relaxed) == 0));
    assert!(
        memory[PAGE..]
            .chunks(8)
            .all(|word| word == 4_u64.to_le_bytes())
    );
}

deckle_sys::shared! {
    /// Of two who share it.
    pub struct Two {
        words: [AtomicU32; 2],
    }
}

#[test]
fn what_has_no_memory_is_an_error_and_no_signal() {
    let file = deckle_sys::file::in_memory(c"short").unwrap();
    let empty: &Two = shared::map(&file).unwrap();
    assert!(shared::populate(empty).is_err());
}

#[test]
fn a_shared_file_is_one_memory() {
    let file = deckle_sys::file::in_memory(c"two").unwrap();
    file.set_len(size_of::<Two>() as u64).unwrap();
    let (a, b): (&Two, &Two) = (shared::map(&file).unwrap(), shared::map(&file).unwrap());
    a.words[1].store(5, Relaxed);
    assert!(!core::ptr::eq(a, b) && b.words[1].load(Relaxed) == 5);
    shared::populate(a).unwrap();
    assert_eq!(b.words[1].load(Relaxed), 5);
    let closed = Fd::from(OwnedFd::from(std::fs::File::open("/dev/null").unwrap()));
    assert!(shared::map::<Two>(&closed).is_err());
}
