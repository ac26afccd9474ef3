//! Files in memory that fail on purpose, and panic when what is in use is overwritten.

use crate::SwapFile;
use deckle_mm::PAGE_SIZE;
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What goes wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// The call fails with this errno and has moved nothing.
    Errno(i32),
    /// A write moves a part and fails.
    Part,
    /// A bit of what is read is wrong, this time.
    FlipRead,
    /// A bit of what is written is wrong on the medium.
    FlipWritten,
}

/// When calls fail, counted from the call that set it.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Calls that go well first.
    pub after: u64,
    /// Calls that fail then.
    pub times: u64,
    /// How.
    pub fault: Fault,
}

#[derive(Default)]
struct File {
    bytes: Vec<u8>,
    /// What was written and not discarded: start and length.
    used: BTreeMap<u64, u64>,
}

/// Files by number.
#[derive(Default)]
pub struct Disk {
    files: Mutex<HashMap<u64, File>>,
    /// Bytes that may be charged, and that are.
    room: AtomicU64,
    charged: AtomicU64,
    /// Writes and reads until now.
    calls: [AtomicU64; 2],
    plans: Mutex<[Option<Plan>; 2]>,
}

impl Disk {
    /// No file yet; all together may have `room` bytes.
    pub fn new(room: u64) -> Arc<Disk> {
        let room = AtomicU64::new(room);
        Arc::new(Disk {
            room,
            ..Disk::default()
        })
    }

    /// Fails writes and reads by these plans.
    pub fn plan(&self, plans: [Option<Plan>; 2]) {
        *self.plans.lock().unwrap_or_else(PoisonError::into_inner) = plans;
    }

    /// Writes and reads until now.
    pub fn calls(&self) -> [u64; 2] {
        self.calls.each_ref().map(|n| n.load(Ordering::Relaxed))
    }

    /// Bytes that are charged.
    pub fn charged(&self) -> u64 {
        self.charged.load(Ordering::Relaxed)
    }

    /// Whether these bytes are anywhere in a file.
    pub fn holds(&self, number: u64, bytes: &[u8]) -> bool {
        let files = self.files();
        let file = files.get(&number);
        file.is_some_and(|f| f.bytes.windows(bytes.len()).any(|some| some == bytes))
    }

    /// Swaps two blocks of a file.
    pub fn swap_blocks(&self, number: u64, one: u64, other: u64) {
        let mut files = self.files();
        let file = files.get_mut(&number).expect("it was written");
        for i in 0..PAGE_SIZE {
            let at = |block: u64| block as usize * PAGE_SIZE + i;
            file.bytes.swap(at(one), at(other));
        }
    }

    /// Bytes of a file that were written and not discarded.
    pub fn used(&self, number: u64) -> u64 {
        let files = self.files();
        files.get(&number).map_or(0, |f| f.used.values().sum())
    }

    fn files(&self) -> MutexGuard<'_, HashMap<u64, File>> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn fault(&self, which: usize) -> Option<Fault> {
        self.calls[which].fetch_add(1, Ordering::Relaxed);
        let mut plans = self.plans.lock().unwrap_or_else(PoisonError::into_inner);
        let plan = plans[which].as_mut()?;
        if plan.after > 0 {
            plan.after -= 1;
            return None;
        }
        plan.times = plan.times.checked_sub(1)?;
        Some(plan.fault)
    }
}

/// One process's file.
pub struct Handle {
    disk: Arc<Disk>,
    number: u64,
}

impl Handle {
    /// The file of that number.
    pub fn new(disk: &Arc<Disk>, number: u64) -> Handle {
        let disk = disk.clone();
        Handle { disk, number }
    }
}

fn flip(bytes: &mut [u8], seed: u64) {
    let at = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) as usize % bytes.len();
    bytes[at] ^= 1 << (seed % 8);
}

fn aligned(bytes: &[u8], at: u64) {
    let words = [bytes.as_ptr().addr() as u64, bytes.len() as u64, at];
    assert!(
        words.iter().all(|w| w.is_multiple_of(PAGE_SIZE as u64)),
        "{words:x?}"
    );
    assert!(!bytes.is_empty());
}

impl SwapFile for Handle {
    fn number(&self) -> u64 {
        self.number
    }
    fn charge(&self, bytes: u64) -> bool {
        let room = self.disk.room.load(Ordering::Relaxed);
        let add = |now: u64| (now + bytes <= room).then_some(now + bytes);
        let charged = &self.disk.charged;
        charged
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, add)
            .is_ok()
    }
    fn uncharge(&self, bytes: u64) {
        let before = self.disk.charged.fetch_sub(bytes, Ordering::Relaxed);
        assert!(before >= bytes, "{bytes} of {before}");
    }
    fn write(&self, at: u64, bytes: &[u8]) -> Result<(), i32> {
        aligned(bytes, at);
        let fault = self.disk.fault(0);
        let mut files = self.disk.files();
        let file = files.entry(self.number()).or_default();
        let (from, end) = (at as usize, at as usize + bytes.len());
        let before = file.used.range(..end as u64).next_back();
        let free = before.is_none_or(|(start, len)| start + len <= at);
        assert!(free, "{at} is in use: {before:?}");
        if file.bytes.len() < end {
            file.bytes.resize(end, 0);
        }
        let mut moved = bytes.len();
        match fault {
            Some(Fault::Errno(errno)) => return Err(errno),
            Some(Fault::Part) => moved /= 2,
            _ => {}
        }
        file.bytes[from..from + moved].copy_from_slice(&bytes[..moved]);
        if fault == Some(Fault::FlipWritten) {
            flip(&mut file.bytes[from..end], at + 1);
        }
        if fault == Some(Fault::Part) {
            return Err(5);
        }
        file.used.insert(at, bytes.len() as u64);
        Ok(())
    }
    fn read(&self, number: u64, at: u64, bytes: &mut [u8]) -> Result<(), i32> {
        aligned(bytes, at);
        let fault = self.disk.fault(1);
        if let Some(Fault::Errno(errno)) = fault {
            return Err(errno);
        }
        let files = self.disk.files();
        let from = at as usize;
        let there = files
            .get(&number)
            .and_then(|f| f.bytes.get(from..from + bytes.len()));
        bytes.copy_from_slice(there.expect("nothing was written there"));
        if fault == Some(Fault::FlipRead) {
            flip(bytes, at + 1);
        }
        Ok(())
    }
    fn discard(&self, at: u64, _bytes: u64) {
        let mut files = self.disk.files();
        let file = files.get_mut(&self.number()).expect("it was written");
        let len = file.used.remove(&at).expect("something is there");
        file.bytes[at as usize..(at + len) as usize].fill(0);
    }
}
