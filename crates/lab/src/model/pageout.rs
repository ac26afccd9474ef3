//! The S000 accesses: fill, advise, read back.

use std::io;
use std::time::Instant;

use deckle_mm::{Advice, Item, Store, Tunables};
use deckle_model::ModelCharge;
use deckle_store::{Algorithm, Ram};

use super::ModelPageout;
use super::process::{Death, Process};
use crate::LabError;
use crate::host;
use crate::pageout::{Case, LEFT};
use crate::program::pageout::Content;
use crate::size::{self, BLOCK, PAGE};

/// RAM beside the mapping: room for what is split or read back in larger steps.
const SPARE: u64 = 64 << 20;
/// What the machine and the manager keep for each page of RAM, in bytes: their record of a frame
/// (16 and 64), entries of page tables and of the manager's.
const PER_PAGE: u64 = 128;

/// One run over `size` bytes. The whole RAM of the machine is memory of this process, so it is
/// asked first whether the host has that much.
pub(super) fn run(case: Case, size: usize) -> Result<ModelPageout, LabError> {
    let ram = size as u64 + SPARE;
    // The store's bytes come on top, at most the size again for what does not compress.
    let need = ram + ram / PAGE as u64 * PER_PAGE + size as u64 / 2;
    let have = host::mem_available()?;
    if need > have {
        return Err(LabError::Model(format!(
            "the machine's memory for {} is memory of this process: it needs {}, and {} are \
             available on this host; ask for less with --size",
            size::human(size as u64),
            size::human(need),
            size::human(have),
        )));
    }
    let store = Ram::new(Algorithm::Lz4);
    let charge = ModelCharge::unlimited();
    let program = Process::new(ram, charge, store, Tunables::default(), size)?;
    let content = Pages::new(case)?;

    let (started, cpu) = (Instant::now(), cpu_seconds()?);
    program.advise(Advice::HugePage)?;
    for block in 0..size / BLOCK {
        content.fill(&program, block)?;
    }
    program.advise(Advice::PageOut)?;
    let mut wall_s = started.elapsed().as_secs_f64();
    let mut cpu_s = cpu_seconds()? - cpu;

    let result = ModelPageout {
        wall_s: 0.0,
        cpu_s: 0.0,
        zero_pages: program.count(Item::SwpoutZero),
        stored_pages: program.count(Item::Pswpout),
        stored_bytes: program.store().ram_bytes(),
    };
    let left = (program.count(Item::NrAnon) + program.count(Item::NrInactive)) * PAGE as u64;
    if left as f64 > size as f64 * LEFT {
        return Err(LabError::Model(format!(
            "after MADV_PAGEOUT {} of the mapping are still resident",
            size::human(left)
        )));
    }
    content.check(&program, size / PAGE)?;
    program.verify(true)?;

    let (started, cpu) = (Instant::now(), cpu_seconds()?);
    program.unmap()?;
    wall_s += started.elapsed().as_secs_f64();
    cpu_s += cpu_seconds()? - cpu;
    program.verify(true)?;
    Ok(ModelPageout {
        wall_s,
        cpu_s,
        ..result
    })
}

/// CPU time of this thread so far, in seconds.
fn cpu_seconds() -> Result<f64, LabError> {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the call writes one timespec, which `time` is.
    match unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) } {
        0 => Ok(time.tv_sec as f64 + time.tv_nsec as f64 / 1e9),
        _ => Err(LabError::io(
            "reading the CPU time",
            io::Error::last_os_error(),
        )),
    }
}

/// What the program writes, as the real program does.
struct Pages {
    content: Content,
    templates: Vec<u8>,
}

impl Pages {
    fn new(case: Case) -> Result<Self, LabError> {
        let content = case.content();
        let templates = content.templates()?;
        Ok(Self { content, templates })
    }

    fn fill(&self, program: &Process<Ram>, block: usize) -> Result<(), LabError> {
        let first = block * (BLOCK / PAGE);
        let mut page = [0; PAGE];
        for n in first..first + self.content.pages() {
            self.content.page(&self.templates, n, &mut page);
            let (at, bytes) = match self.content {
                Content::Byte { .. } | Content::Middle => {
                    let offset = self.content.offset(n);
                    (offset, &page[offset..=offset])
                }
                Content::Text => (0, &page[..]),
            };
            let written = program.write(n * PAGE + at, bytes);
            written.map_err(Death::into_error)?;
        }
        Ok(())
    }

    fn check(&self, program: &Process<Ram>, pages: usize) -> Result<(), LabError> {
        let (mut page, mut want) = ([0; PAGE], [0; PAGE]);
        for n in 0..pages {
            program
                .read(n * PAGE, &mut page)
                .map_err(Death::into_error)?;
            self.content.page(&self.templates, n, &mut want);
            if page != want {
                let why = format!("page {n} does not hold what was written");
                return Err(LabError::Model(why));
            }
        }
        Ok(())
    }
}
