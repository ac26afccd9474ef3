//! The S000 accesses: fill, advise, read back.

use std::time::Instant;

use deckle_mm::{Advice, Item, Store, Tunables};
use deckle_model::ModelCharge;
use deckle_store::{Algorithm, Ram};
use deckle_sys::clock::{Clock, nanos};

use super::process::Process;
use super::{PER_PAGE, fits};
use crate::LabError;
use crate::pageout::{Case, LEFT, Stored};
use crate::program::pageout::Content;
use crate::size::{BLOCK, PAGE, human};

/// RAM beside the mapping: room for what is split or read back in larger steps.
const SPARE: u64 = 64 << 20;

/// What the model says about one pageout run.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct ModelPageout {
    /// Real time the simulation took, in seconds (not the time of the simulated machine).
    pub wall_s: f64,
    /// CPU time the simulation took, in seconds.
    pub cpu_s: f64,
    /// What became of the pages.
    pub stored: Stored,
}

/// One run over `size` bytes: fills as `case` says, pages out, reads back and checks.
///
/// # Errors
/// [`LabError::Model`], also if a byte came back wrong.
pub fn run(case: Case, size: usize) -> Result<ModelPageout, LabError> {
    let ram = size as u64 + SPARE;
    // The store's bytes come on top, at most the size again for what does not compress.
    let need = ram + ram / PAGE as u64 * PER_PAGE + size as u64 / 2;
    fits(&human(size as u64), need)?;
    let store = Ram::new(Algorithm::Lz4);
    let charge = ModelCharge::unlimited();
    let program = Process::new(ram, charge, store, Tunables::default(), size)?.mapped()?;
    let content = Pages::new(case)?;

    let (started, cpu) = (Instant::now(), cpu_seconds());
    program.advise(Advice::HugePage)?;
    for block in 0..size / BLOCK {
        content.fill(&program, block)?;
    }
    program.advise(Advice::PageOut)?;
    let mut wall_s = started.elapsed().as_secs_f64();
    let mut cpu_s = cpu_seconds() - cpu;

    let stored = Stored {
        zero_pages: program.count(Item::SwpoutZero),
        stored_pages: program.count(Item::Pswpout),
        stored_bytes: program.store().ram_bytes(),
    };
    let left = (program.count(Item::NrAnon) + program.count(Item::NrInactive)) * PAGE as u64;
    if left as f64 > size as f64 * LEFT {
        return Err(LabError::Model(format!(
            "after MADV_PAGEOUT {} of the mapping are still resident",
            human(left)
        )));
    }
    content.check(&program, size / PAGE)?;
    program.verify(true)?;

    let (started, cpu) = (Instant::now(), cpu_seconds());
    program.unmap()?;
    wall_s += started.elapsed().as_secs_f64();
    cpu_s += cpu_seconds() - cpu;
    program.verify(true)?;
    Ok(ModelPageout {
        wall_s,
        cpu_s,
        stored,
    })
}

/// CPU time of this thread so far, in seconds.
fn cpu_seconds() -> f64 {
    nanos(Clock::Thread) as f64 / 1e9
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
            program.write(n * PAGE + at, bytes)?;
        }
        Ok(())
    }

    fn check(&self, program: &Process<Ram>, pages: usize) -> Result<(), LabError> {
        let (mut page, mut want) = ([0; PAGE], [0; PAGE]);
        for n in 0..pages {
            program.read(n * PAGE, &mut page)?;
            self.content.page(&self.templates, n, &mut want);
            if page != want {
                let why = format!("page {n} does not hold what was written");
                return Err(LabError::Model(why));
            }
        }
        Ok(())
    }
}
