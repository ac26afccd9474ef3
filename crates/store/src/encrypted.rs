//! A file whose blocks are encrypted, each for itself, so that each can be read alone.
//!
//! ChaCha20-Poly1305 (RFC 8439). Each file has a key of its own, and each write of a block a nonce
//! that is never used again with it: a count. Nonces and tags are in RAM, 24 bytes for a block, so
//! the file holds nothing but what is encrypted, and what was written to a place before is refused
//! there as is anything else. The keys are in this process alone, and in its children by fork.

use crate::swapfile::{BLOCK, SwapFile};
use chacha20poly1305::aead::{AeadInOut, KeyInit};
use chacha20poly1305::{ChaCha20Poly1305, Nonce, Tag};
use deckle_sys::Memory;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Bytes of a key.
pub const KEY: usize = 32;
/// EBADMSG: what is there is not what was written.
const BAD: i32 = 74;
/// ENOMEM.
const NO_MEMORY: i32 = 12;

const BYTES: usize = BLOCK as usize;
/// Blocks that are encrypted and written at once.
const AT_ONCE: usize = 64;
/// Blocks whose seals are kept together.
const TOGETHER: u64 = 64;

/// What is sealed beside a block. Not even its place: the nonce and the tag that it is opened with
/// are those of the last write to that place, and no other block has them.
const NOTHING_MORE: &[u8] = &[];

/// What it takes to read a block.
#[derive(Clone, Copy)]
struct Seal {
    /// 0: nothing was written there.
    nonce: u64,
    tag: [u8; 16],
}

const NONE: Seal = Seal {
    nonce: 0,
    tag: [0; 16],
};

/// One file, by number.
struct Keyed {
    number: u64,
    cipher: Arc<ChaCha20Poly1305>,
    /// The nonce used last.
    last: u64,
    seals: BTreeMap<u64, Box<[Seal; TOGETHER as usize]>>,
}

impl Keyed {
    fn set(&mut self, block: u64, seal: Seal) {
        let some = self.seals.entry(block / TOGETHER);
        some.or_insert_with(|| Box::new([NONE; TOGETHER as usize]))[(block % TOGETHER) as usize] =
            seal;
    }

    fn get(&self, block: u64) -> Seal {
        let some = self.seals.get(&(block / TOGETHER));
        some.map_or(NONE, |some| some[(block % TOGETHER) as usize])
    }

    /// Nothing is there any more.
    fn forget(&mut self, from: u64, to: u64) {
        for at in from / TOGETHER..to.div_ceil(TOGETHER) {
            let Entry::Occupied(mut some) = self.seals.entry(at) else {
                continue;
            };
            let first = at * TOGETHER;
            let within = |block: u64| (block.clamp(first, first + TOGETHER) - first) as usize;
            some.get_mut()[within(from)..within(to)].fill(NONE);
            if some.get().iter().all(|seal| seal.nonce == 0) {
                some.remove();
            }
        }
    }
}

/// Files that are encrypted where a key was given, and as they are where none was.
pub struct Encrypted<F> {
    inner: F,
    keyed: Mutex<Vec<Keyed>>,
}

impl<F: SwapFile> Encrypted<F> {
    /// Nothing is encrypted yet.
    pub fn new(inner: F) -> Encrypted<F> {
        let keyed = Mutex::new(Vec::new());
        Encrypted { inner, keyed }
    }

    /// The files.
    pub fn inner(&self) -> &F {
        &self.inner
    }

    fn keyed(&self) -> MutexGuard<'_, Vec<Keyed>> {
        self.keyed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is written to this process's file from now on is encrypted with this key, which no
    /// other file has, and was never given before. Before its first write.
    pub fn encrypt(&self, key: &[u8; KEY]) {
        self.keyed().push(Keyed {
            number: self.inner.number(),
            cipher: Arc::new(ChaCha20Poly1305::new(key.into())),
            last: 0,
            seals: BTreeMap::new(),
        });
    }

    /// Forgets the keys of all files but these: a child's that has not its parent's.
    pub fn keep(&self, files: &[u64]) {
        self.keyed().retain(|k| files.contains(&k.number));
    }

    /// The cipher for `blocks` writes to this process's file, and the first nonce for them.
    fn cipher(&self, blocks: usize) -> Option<(Arc<ChaCha20Poly1305>, u64)> {
        let number = self.inner.number();
        let mut all = self.keyed();
        let keyed = all.iter_mut().find(|k| k.number == number)?;
        let first = keyed.last + 1;
        keyed.last += blocks as u64;
        Some((keyed.cipher.clone(), first))
    }

    fn write_some(
        &self,
        (at, bytes): (u64, &[u8]),
        (cipher, first): (&ChaCha20Poly1305, u64),
        room: &mut [u8],
    ) -> Result<(), i32> {
        let blocks = bytes.as_chunks::<BYTES>().0;
        let mut seals = Vec::with_capacity(blocks.len());
        for ((from, to), nonce) in blocks
            .iter()
            .zip(room.as_chunks_mut::<BYTES>().0)
            .zip(first..)
        {
            *to = *from;
            let place = at / BYTES as u64 + seals.len() as u64;
            let tag = cipher.encrypt_inout_detached(
                &nonce_of(nonce),
                NOTHING_MORE,
                to.as_mut_slice().into(),
            );
            let tag = tag.map_err(|_| BAD)?.into();
            seals.push((place, Seal { nonce, tag }));
        }
        self.inner.write(at, &room[..seals.len() * BYTES])?;
        let number = self.inner.number();
        if let Some(keyed) = self.keyed().iter_mut().find(|k| k.number == number) {
            seals
                .iter()
                .for_each(|(block, seal)| keyed.set(*block, *seal));
        }
        Ok(())
    }
}

fn nonce_of(count: u64) -> Nonce {
    let mut nonce = [0; 12];
    nonce[..8].copy_from_slice(&count.to_le_bytes());
    nonce.into()
}

impl<F: SwapFile> SwapFile for Encrypted<F> {
    const IS_FILE: bool = F::IS_FILE;

    fn number(&self) -> u64 {
        self.inner.number()
    }
    fn may_write(&self) -> bool {
        self.inner.may_write()
    }
    fn charge(&self, bytes: u64) -> bool {
        self.inner.charge(bytes)
    }
    fn uncharge(&self, bytes: u64) {
        self.inner.uncharge(bytes);
    }

    fn write(&self, at: u64, bytes: &[u8]) -> Result<(), i32> {
        let Some((cipher, mut nonce)) = self.cipher(bytes.len().div_ceil(BYTES)) else {
            return self.inner.write(at, bytes);
        };
        // On a block's boundary.
        let mut room = Memory::heap(AT_ONCE * BYTES).ok_or(NO_MEMORY)?;
        let mut at = at;
        for some in bytes.chunks(AT_ONCE * BYTES) {
            self.write_some((at, some), (&cipher, nonce), &mut room)?;
            nonce += AT_ONCE as u64;
            at += some.len() as u64;
        }
        Ok(())
    }

    fn read(&self, number: u64, at: u64, bytes: &mut [u8]) -> Result<(), i32> {
        self.inner.read(number, at, bytes)?;
        let first = at / BYTES as u64;
        let blocks = bytes.as_chunks_mut::<BYTES>().0;
        let (cipher, seals) = {
            let all = self.keyed();
            let Some(keyed) = all.iter().find(|k| k.number == number) else {
                return Ok(());
            };
            let seals = (first..).take(blocks.len()).map(|block| keyed.get(block));
            (keyed.cipher.clone(), seals.collect::<Vec<Seal>>())
        };
        for (block, seal) in blocks.iter_mut().zip(seals) {
            if seal.nonce == 0 {
                // Nothing of ours, and nobody's to read.
                block.fill(0);
                continue;
            }
            let opened = cipher.decrypt_inout_detached(
                &nonce_of(seal.nonce),
                NOTHING_MORE,
                block.as_mut_slice().into(),
                &Tag::from(seal.tag),
            );
            opened.map_err(|_| BAD)?;
        }
        Ok(())
    }

    fn discard(&self, at: u64, bytes: u64) {
        let (first, number) = (at / BYTES as u64, self.inner.number());
        if let Some(keyed) = self.keyed().iter_mut().find(|k| k.number == number) {
            keyed.forget(first, first + bytes / BYTES as u64);
        }
        self.inner.discard(at, bytes);
    }
}
