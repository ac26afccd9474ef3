//! Real memory, and what the system counts about it.

use std::hint::black_box;
use std::mem::MaybeUninit;
use std::path::Path;

use deckle_sys::mapping::Advice;
use deckle_sys::{Errno, Memory};

use super::Accesses;
use crate::LabError;
use crate::host;
use crate::region::failed;
use crate::size::PAGE;

/// The memory of this process.
pub struct Real;

/// A piece of it.
pub enum Map {
    /// By mmap.
    Mapped(Memory),
    /// By malloc: the room of a vector without elements.
    Malloc(Vec<u8>),
}

impl Accesses for Real {
    type Map = Map;
    type Error = LabError;

    fn map(&mut self, bytes: usize, malloc: bool) -> Result<Map, LabError> {
        let failed = failed("mapping memory");
        if !malloc {
            return Memory::map(bytes).map(Map::Mapped).map_err(failed);
        }
        let mut room = Vec::new();
        let made = room.try_reserve_exact(bytes);
        made.map_err(|_| failed(Errno(libc::ENOMEM)))?;
        Ok(Map::Malloc(black_box(room)))
    }

    fn unmap(&mut self, map: Map) -> Result<(), LabError> {
        drop(map);
        Ok(())
    }

    fn write(&mut self, map: &mut Map, page: usize) -> Result<(), LabError> {
        match map {
            Map::Mapped(memory) => memory.touch(page * PAGE, 1),
            Map::Malloc(room) => {
                black_box(&mut room.spare_capacity_mut()[page * PAGE]).write(1);
            }
        }
        Ok(())
    }

    fn fill(&mut self, map: &mut Map, page: usize) -> Result<(), LabError> {
        let bytes = page * PAGE..(page + 1) * PAGE;
        match map {
            Map::Mapped(memory) => black_box(&mut memory[bytes]).fill(0x5a),
            Map::Malloc(room) => {
                black_box(&mut room.spare_capacity_mut()[bytes]).fill(MaybeUninit::new(0x5a));
            }
        }
        Ok(())
    }

    fn read(&mut self, map: &mut Map, page: usize) -> Result<(), LabError> {
        match map {
            Map::Mapped(memory) => drop(black_box(*black_box(&memory[page * PAGE]))),
            Map::Malloc(room) => {
                black_box(*black_box(&room.spare_capacity_mut()[page * PAGE]));
            }
        }
        Ok(())
    }

    fn clear(&mut self, map: &mut Map) -> Result<(), LabError> {
        let done = match map {
            Map::Mapped(memory) => memory.advise(0..memory.len(), Advice::DontNeed),
            Map::Malloc(_) => Err(Errno(libc::EINVAL)),
        };
        done.map_err(failed("giving memory back"))
    }
}

/// Anonymous memory of this process in bytes: with whatever manages it, since that shares the
/// address space.
pub fn anonymous() -> Result<u64, LabError> {
    Ok(host::field(Path::new("/proc/self/smaps_rollup"), "Anonymous")? << 10)
}
