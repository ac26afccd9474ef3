//! What the workloads do, on whatever memory.

use crate::size::PAGE;

named! {
    /// A workload of the experiment.
    pub enum Workload {
        /// After will-it-scale's page_fault1: map 128 MiB, write to each page, unmap. An operation
        /// is a page.
        PageFault1 = "page_fault1",
        /// After malloc1: 128 MiB from malloc, given back untouched. An operation is such a pair.
        Malloc1 = "malloc1",
        /// After mmap1: 128 MiB are mapped and unmapped, untouched. An operation is such a pair.
        Mmap1 = "mmap1",
        /// After tlb_flush: each page of 16 MiB is read and then written, so that a translation is
        /// replaced; all of it is given back at the end of the round. An operation is a page.
        TlbFlush = "tlb_flush",
        /// 256 MiB are written from the first byte to the last, once. An operation is a page.
        Fill = "fill",
        /// One byte in each 64 KiB of 256 MiB, once. An operation is a touch.
        Sparse = "sparse",
        /// A server that forks for each request: the child writes to every eighth page of the 16
        /// MiB that it has from its parent. An operation is a request.
        Fork = "fork",
        /// `cc -O1` on a generated C file. An operation is one run.
        Compile = "compile",
    }
}

impl Workload {
    /// Whether it goes on for a time; the others are one round on fresh memory.
    pub const fn loops(self) -> bool {
        !matches!(self, Self::Fill | Self::Sparse | Self::Compile)
    }

    /// Bytes that a round maps.
    pub const fn bytes(self) -> usize {
        match self {
            Self::PageFault1 | Self::Malloc1 | Self::Mmap1 => 128 << 20,
            Self::TlbFlush | Self::Fork => 16 << 20,
            Self::Fill | Self::Sparse => 256 << 20,
            Self::Compile => pattern::BYTES,
        }
    }
}

/// Memory as a program uses it.
pub trait Accesses {
    /// A mapping.
    type Map;
    /// Why something could not be done.
    type Error;
    /// Maps zero-filled memory of so many bytes, as the program's allocator does (`malloc`) or
    /// at once.
    ///
    /// # Errors
    /// What the system says.
    fn map(&mut self, bytes: usize, malloc: bool) -> Result<Self::Map, Self::Error>;
    /// Unmaps it.
    ///
    /// # Errors
    /// What the system says.
    fn unmap(&mut self, map: Self::Map) -> Result<(), Self::Error>;
    /// Writes a byte of a page.
    ///
    /// # Errors
    /// An access that is not served.
    fn write(&mut self, map: &mut Self::Map, page: usize) -> Result<(), Self::Error>;
    /// Writes every byte of a page.
    ///
    /// # Errors
    /// An access that is not served.
    fn fill(&mut self, map: &mut Self::Map, page: usize) -> Result<(), Self::Error>;
    /// Reads a byte of a page.
    ///
    /// # Errors
    /// An access that is not served.
    fn read(&mut self, map: &mut Self::Map, page: usize) -> Result<(), Self::Error>;
    /// Gives the pages back, not the mapping.
    ///
    /// # Errors
    /// What the system says.
    fn clear(&mut self, map: &mut Self::Map) -> Result<(), Self::Error>;
}

/// What a round came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Round {
    /// Operations.
    pub ops: u64,
    /// Pages that base pages would have faulted for.
    pub pages: u64,
}

/// One round. `peak` is called when most memory is in use, with the pages touched.
///
/// # Errors
/// Those of the memory. [`Workload::Fork`] and [`Workload::Compile`] are no rounds of one
/// program's memory and do nothing here.
pub fn round<A: Accesses>(
    workload: Workload,
    memory: &mut A,
    peak: &mut dyn FnMut(&mut A, u64),
) -> Result<Round, A::Error> {
    let bytes = workload.bytes();
    let pages = bytes / PAGE;
    let count = |ops: usize, pages: usize| Round {
        ops: ops as u64,
        pages: pages as u64,
    };
    match workload {
        Workload::Malloc1 => {
            let map = memory.map(bytes, true)?;
            peak(memory, 1);
            memory.unmap(map)?;
            Ok(count(1, 1))
        }
        Workload::Mmap1 => {
            let map = memory.map(bytes, false)?;
            peak(memory, 0);
            memory.unmap(map)?;
            Ok(count(1, 0))
        }
        Workload::Fork | Workload::Compile => Ok(count(0, 0)),
        _ => {
            let mut map = memory.map(bytes, false)?;
            let step = if workload == Workload::Sparse { 16 } else { 1 };
            for page in (0..pages).step_by(step) {
                match workload {
                    Workload::Fill => memory.fill(&mut map, page)?,
                    Workload::TlbFlush => {
                        memory.read(&mut map, page)?;
                        memory.write(&mut map, page)?;
                    }
                    _ => memory.write(&mut map, page)?,
                }
            }
            let touched = pages / step;
            peak(memory, touched as u64);
            if workload == Workload::TlbFlush {
                memory.clear(&mut map)?;
            }
            memory.unmap(map)?;
            let faults = match workload {
                Workload::TlbFlush => 2 * touched,
                _ => touched,
            };
            Ok(count(touched, faults))
        }
    }
}

/// What a compiler does to its memory, for a machine that cannot run one.
///
/// A pattern, not a recording. It is made after the page faults of cc1 (GCC 12, -O1, the file
/// that the lab generates, base pages) as `perf record -e page-faults` tells them: three
/// quarters of its pages are touched right after the page before them, nine tenths beside one
/// that was touched earlier; the rest are look-ups in tables and arrays, where a hash decides
/// which page is next. Memory is mapped 2 MiB at a time, as GCC's garbage collector does.
pub mod pattern {
    use super::{Accesses, PAGE};
    use crate::content::Random;

    /// What is mapped at a time.
    const QUIRE: usize = 2 << 20;
    /// Quires, one after the other.
    const QUIRES: usize = 24;
    /// Bytes of the hash tables.
    const TABLES: usize = 8 << 20;
    /// All that is mapped.
    pub const BYTES: usize = QUIRES * QUIRE + TABLES;
    /// Pages filled between two look-ups.
    const TURN: usize = 6;

    /// The accesses; returns the pages touched.
    ///
    /// # Errors
    /// Those of the memory.
    pub fn run<A: Accesses>(
        memory: &mut A,
        peak: &mut dyn FnMut(&mut A, u64),
    ) -> Result<u64, A::Error> {
        let mut tables = memory.map(TABLES, false)?;
        let mut quires = Vec::new();
        let mut seen = vec![false; TABLES / PAGE];
        let (mut touched, mut random) = (0, Random(1));
        for _ in 0..QUIRES {
            let mut quire = memory.map(QUIRE, false)?;
            for page in 0..QUIRE / PAGE {
                memory.write(&mut quire, page)?;
                touched += 1;
                if page % TURN == 0 {
                    let at = random.below(seen.len());
                    memory.write(&mut tables, at)?;
                    touched += u64::from(!core::mem::replace(&mut seen[at], true));
                }
            }
            quires.push(quire);
        }
        peak(memory, touched);
        memory.unmap(tables)?;
        for quire in quires {
            memory.unmap(quire)?;
        }
        Ok(touched)
    }
}
