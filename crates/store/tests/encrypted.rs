//! An encrypted file: what is put is what is got, the file tells nothing, and what was changed in
//! it is refused.

use deckle_store::faulty::disk::{Disk, Fault, Handle, Plan};
use deckle_store::{Encrypted, SwapFile};
use std::sync::Arc;

const BLOCK: usize = 4096;
const EBADMSG: i32 = 74;

/// Blocks on their boundary.
#[derive(Clone, PartialEq, Debug)]
#[repr(C, align(4096))]
struct Block([u8; BLOCK]);

fn blocks(seed: u8, count: usize) -> Vec<Block> {
    let of = |i: usize| Block([seed ^ i as u8; BLOCK]);
    (0..count).map(of).collect()
}

fn bytes(blocks: &[Block]) -> &[u8] {
    // SAFETY: blocks are bytes, one after the other.
    unsafe { std::slice::from_raw_parts(blocks.as_ptr().cast(), blocks.len() * BLOCK) }
}

fn read(file: &Encrypted<Handle>, number: u64, at: usize, count: usize) -> Result<Vec<Block>, i32> {
    let mut got = blocks(0xee, count);
    // SAFETY: as above, and nobody else's.
    let to =
        unsafe { std::slice::from_raw_parts_mut(got.as_mut_ptr().cast::<u8>(), count * BLOCK) };
    file.read(number, (at * BLOCK) as u64, to).map(|()| got)
}

fn encrypted(disk: &Arc<Disk>, number: u64, key: u8) -> Encrypted<Handle> {
    let file = Encrypted::new(Handle::new(disk, number));
    file.encrypt(&[key; deckle_store::KEY]);
    file
}

#[test]
fn any_blocks_come_back_and_none_is_in_the_file() {
    let disk = Disk::new(u64::MAX);
    let file = encrypted(&disk, 1, 9);
    // More than are encrypted at once, and not a multiple of it.
    let all = blocks(200, 150);
    file.write(BLOCK as u64 * 7, bytes(&all)).unwrap();
    for (from, count) in [(0, 150), (0, 1), (63, 3), (149, 1)] {
        let got = read(&file, 1, 7 + from, count).unwrap();
        assert!(got == all[from..from + count], "{count} from {from}");
    }
    for block in &all {
        assert!(!disk.holds(1, &block.0[..16]));
    }
    // Without a key all is as it is.
    let plain = Encrypted::new(Handle::new(&disk, 2));
    plain.write(0, bytes(&all[..1])).unwrap();
    assert!(disk.holds(2, &all[0].0));
    assert_eq!(read(&plain, 2, 0, 1).unwrap(), all[..1]);
}

#[test]
fn the_same_bytes_are_others_in_each_place_at_each_time_and_by_each_key() {
    let disk = Disk::new(u64::MAX);
    let (one, other) = (encrypted(&disk, 1, 1), encrypted(&disk, 2, 2));
    let same = vec![Block([5; BLOCK]); 2];
    let mut seen: Vec<Block> = Vec::new();
    let raw = |number| Encrypted::new(Handle::new(&disk, number));
    for file in [&one, &other] {
        for _ in 0..3 {
            file.write(0, bytes(&same)).unwrap();
            seen.extend(read(&raw(file.number()), file.number(), 0, 2).unwrap());
            file.discard(0, 2 * BLOCK as u64);
        }
    }
    for (i, a) in seen.iter().enumerate() {
        assert!(seen[..i].iter().all(|b| a != b), "{i}");
    }
}

#[test]
fn what_was_changed_moved_or_is_older_is_refused() {
    let disk = Disk::new(u64::MAX);
    let file = encrypted(&disk, 1, 1);
    let all = blocks(1, 4);
    file.write(0, bytes(&all)).unwrap();
    // A bit on the way: the next read is right.
    let fault = Fault::FlipRead;
    let (after, times) = (0, 1);
    disk.plan([
        None,
        Some(Plan {
            after,
            times,
            fault,
        }),
    ]);
    assert_eq!(read(&file, 1, 0, 4), Err(EBADMSG));
    assert_eq!(read(&file, 1, 0, 4).unwrap(), all);
    disk.swap_blocks(1, 1, 2);
    assert_eq!(read(&file, 1, 1, 1), Err(EBADMSG));
    assert_eq!(read(&file, 1, 0, 1).unwrap(), all[..1]);
    disk.swap_blocks(1, 1, 2);
    // What was there before it was written anew, put back.
    let raw = Encrypted::new(Handle::new(&disk, 1));
    let old = read(&raw, 1, 0, 4).unwrap();
    file.discard(0, 4 * BLOCK as u64);
    file.write(0, bytes(&blocks(2, 4))).unwrap();
    raw.discard(0, 4 * BLOCK as u64);
    raw.write(0, bytes(&old)).unwrap();
    assert_eq!(read(&file, 1, 0, 1), Err(EBADMSG));
}

#[test]
fn who_has_no_key_any_more_reads_nothing_of_it() {
    let disk = Disk::new(u64::MAX);
    let file = encrypted(&disk, 1, 1);
    let all = blocks(1, 3);
    file.write(0, bytes(&all)).unwrap();
    file.keep(&[1, 7]);
    assert_eq!(read(&file, 1, 0, 3).unwrap(), all);
    // What is given back is forgotten, and nothing else.
    let more = blocks(8, 70);
    file.write(BLOCK as u64 * 100, bytes(&more)).unwrap();
    file.discard(0, 3 * BLOCK as u64);
    assert_eq!(read(&file, 1, 0, 1).unwrap(), [Block([0; BLOCK])]);
    assert_eq!(read(&file, 1, 100, 70).unwrap(), more);
    file.keep(&[7]);
    assert_ne!(read(&file, 1, 100, 70).unwrap(), more);
}
