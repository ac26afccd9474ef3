//! A look at one process: which huge pages it has, and what is in them.

use std::collections::{BTreeMap, HashSet};
use std::fs;

use deckle_sys::process::same_memory;

use crate::PAGE;
use crate::error::InspectError;
use crate::folios::Folios;
use crate::gather::{self, Gathered, Huge, Kind};
use crate::pace::Pace;
use crate::process::Process;
use crate::reader::Reader;
use crate::sample::{Estimate, Rng, choose};
use crate::smaps::{self, Vma};
use crate::tally::Tally;

/// Huge pages of a kind that are looked at however small the sample is, if there are as many.
const LEAST: usize = 16;

/// What a process has, before a byte is read.
pub struct Found {
    process: Process,
    vmas: Vec<Vma>,
    reader: Reader,
    huge: Vec<Huge>,
    sizes: BTreeMap<u64, u64>,
    pinned: u64,
}

/// How it is looked at.
pub struct How<'a> {
    /// Of each kind of huge page so many per cent; 100: all.
    pub percent: f64,
    /// Chooses them.
    pub rng: Rng,
    /// The bound on CPU.
    pub pace: &'a Pace,
    /// Is told of huge pages done.
    pub step: &'a mut dyn FnMut(u64),
}

/// Huge pages of one mapping.
#[derive(Clone, Default, PartialEq, Debug)]
pub struct LookedVma {
    /// The mapping.
    pub vma: Vma,
    /// Its huge pages, of all kinds.
    pub tally: Tally,
}

/// What a process has.
#[derive(Clone, PartialEq, Debug)]
pub struct Looked {
    /// Which.
    pub process: Process,
    /// Whether it runs under deckle, whose own settings hold for its memory.
    pub managed: bool,
    /// Resident bytes.
    pub rss: u64,
    /// Of these, those that are no file's.
    pub anonymous: u64,
    /// Resident bytes in folios of each size, in bytes; below 2 MiB for root only.
    pub sizes: BTreeMap<u64, u64>,
    /// Huge pages that are not mapped as a whole; told to root only.
    pub apart: u64,
    /// Huge pages by kind.
    pub tallies: BTreeMap<Kind, Tally>,
    /// Of those that others have, too, those that were met here first: for sums.
    pub first: BTreeMap<Kind, Tally>,
    /// Bytes that are held because another part of their huge page is mapped; of huge pages that
    /// others have, too, where they were met first.
    pub unmapped: u64,
    /// Bytes that are pinned (io_uring, RDMA, VFIO), in which pages nobody tells: at most as many
    /// huge bytes cannot be split.
    pub pinned: u64,
    /// The mappings that have huge pages.
    pub vmas: Vec<LookedVma>,
}

/// Finds the huge pages of a process. `folios`: also those that are not mapped as a whole.
///
/// # Errors
/// The process is gone, or its memory is not shown to us.
pub fn find(process: &Process, mut folios: Option<&mut Folios>) -> Result<Found, InspectError> {
    let pid = process.pid;
    let vmas = smaps::vmas(pid)?;
    let reader = Reader::open(pid)?;
    let mut all = Gathered::default();
    for (nth, vma) in vmas.iter().enumerate().filter(|(_, vma)| vma.may_waste()) {
        gather::gather(&reader, (nth, vma), folios.as_deref_mut(), &mut all)
            .map_err(|why| InspectError::of(pid, why))?;
    }
    if let Some(folios) = folios {
        gather::settle_rest(&mut all.huge, folios);
    }
    if !process.is_there() {
        return Err(InspectError::Gone(pid));
    }
    Ok(Found {
        process: process.clone(),
        vmas,
        reader,
        huge: all.huge,
        sizes: all.sizes,
        pinned: pinned(pid),
    })
}

/// `VmPin` of a process.
fn pinned(pid: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let kib = text.lines().find_map(|line| {
        let value = line.strip_prefix("VmPin:")?.trim().strip_suffix(" kB")?;
        value.trim().parse::<u64>().ok()
    });
    kib.unwrap_or(0) << 10
}

impl Found {
    /// Whether another process has the very same memory, as a service of deckle has its program's,
    /// or a child of vfork its parent's.
    pub fn is_same(&self, other: &Found) -> bool {
        let at = |vma: &Vma| (vma.start, vma.end);
        let ours = self.vmas.iter().map(at);
        // What is laid out alike may be a fork's.
        ours.eq(other.vmas.iter().map(at)) && same_memory(self.process.pid, other.process.pid)
    }

    /// Huge pages that it has.
    pub fn huge(&self) -> usize {
        self.huge.len()
    }

    /// Which of them will be looked at.
    fn chosen(&self, how: &mut How<'_>) -> Vec<usize> {
        let mut kinds: BTreeMap<Kind, Vec<usize>> = BTreeMap::new();
        for (at, huge) in self.huge.iter().enumerate() {
            kinds.entry(huge.kind).or_default().push(at);
        }
        let mut all = Vec::new();
        for places in kinds.values() {
            let n = (places.len() as f64 * how.percent / 100.0).ceil() as usize;
            let n = n.max(LEAST).min(places.len());
            let chosen = choose(&mut how.rng, places.len(), n);
            all.extend(chosen.into_iter().map(|nth| places[nth]));
        }
        all.sort_unstable();
        all
    }

    /// Looks at them, or at a sample. `met`: first frames of huge pages that were met before, of
    /// other processes.
    pub fn look(mut self, how: &mut How<'_>, met: &mut HashSet<u64>) -> Looked {
        let mut tallies: BTreeMap<Kind, Tally> = BTreeMap::new();
        let mut of_vma: BTreeMap<usize, Tally> = BTreeMap::new();
        let (mut first, mut is_first) = (BTreeMap::<Kind, Tally>::new(), HashSet::new());
        let mut unmapped = 0;
        for (at, huge) in self.huge.iter().enumerate() {
            tallies.entry(huge.kind).or_default().all += 1;
            of_vma.entry(huge.vma).or_default().all += 1;
            if huge.kind.is_shared() {
                if huge.frame.is_some_and(|frame| !met.insert(frame)) {
                    continue;
                }
                is_first.insert(at);
                first.entry(huge.kind).or_default().all += 1;
            }
            unmapped += u64::from(huge.lost) * PAGE;
        }
        for at in self.chosen(how) {
            let huge = &self.huge[at];
            let zeros = self.reader.zeros(huge, self.vmas[huge.vma].served);
            let count = |tally: &mut Tally| match zeros {
                Some(zeros) => tally.seen.add(zeros),
                None => tally.all -= 1,
            };
            count(tallies.entry(huge.kind).or_default());
            count(of_vma.entry(huge.vma).or_default());
            if is_first.contains(&at) {
                count(first.entry(huge.kind).or_default());
            }
            (how.step)(1);
            how.pace.rest();
        }
        let sum = |of: fn(&Vma) -> u64| -> u64 { self.vmas.iter().map(of).sum() };
        let looked = |(nth, tally): (usize, Tally)| LookedVma {
            vma: self.vmas[nth].clone(),
            tally,
        };
        Looked {
            managed: self.vmas.iter().any(|vma| vma.name.contains("/libdeckle.")),
            rss: sum(|vma| vma.rss),
            anonymous: sum(|vma| vma.anonymous),
            apart: self.huge.iter().filter(|huge| !huge.is_whole()).count() as u64,
            vmas: of_vma.into_iter().map(looked).collect(),
            process: self.process,
            sizes: self.sizes,
            tallies,
            first,
            unmapped,
            pinned: self.pinned,
        }
    }
}

impl Looked {
    /// Huge pages of a kind.
    pub fn tally(&self, kind: Kind) -> Tally {
        self.tallies.get(&kind).cloned().unwrap_or_default()
    }

    /// All its huge pages.
    pub fn huge(&self) -> u64 {
        self.tallies.values().map(|tally| tally.all).sum()
    }

    /// Those that were looked at.
    pub fn seen(&self) -> u64 {
        self.tallies.values().map(|tally| tally.seen.pages()).sum()
    }

    /// Zero-filled bytes in its huge pages.
    pub fn zeros(&self) -> Estimate {
        Estimate::sum(self.tallies.values().map(Tally::zeros))
    }

    /// Bytes that huge pages waste here: zeros, and what is held and mapped nowhere.
    pub fn waste(&self) -> Estimate {
        Estimate::sum([self.zeros(), Estimate::exact(self.unmapped as f64)])
    }

    /// Bytes that the kernel frees at this threshold when memory is short, of pages that are this
    /// process's own, and with parts that nobody maps.
    pub fn freed_at(&self, max_ptes_none: u32) -> Estimate {
        let unmapped = Estimate::exact(self.unmapped as f64);
        Estimate::sum([freed_at(self.own(), max_ptes_none), unmapped])
    }

    /// Huge pages that are split for it.
    pub fn split_at(&self, max_ptes_none: u32) -> Estimate {
        split_at(self.own(), max_ptes_none)
    }

    /// The same of what others have, too, if it was met here first.
    pub fn first_freed_at(&self, max_ptes_none: u32) -> Estimate {
        freed_at(&self.first, max_ptes_none)
    }

    /// Huge pages that are split for that.
    pub fn first_split_at(&self, max_ptes_none: u32) -> Estimate {
        split_at(&self.first, max_ptes_none)
    }

    /// Those that no other process has.
    fn own(&self) -> impl Iterator<Item = (&Kind, &Tally)> {
        self.tallies.iter().filter(|(kind, _)| !kind.is_shared())
    }

    /// Huge pages that were not met in another process before.
    pub fn once(&self) -> impl Iterator<Item = &Tally> {
        self.own()
            .map(|(_, tally)| tally)
            .chain(self.first.values())
    }

    /// Huge pages of which a part is held and mapped nowhere.
    pub fn partial(&self) -> u64 {
        let partial = self.tallies.iter().filter(|(kind, _)| kind.is_partial());
        partial.map(|(_, tally)| tally.all).sum()
    }

    /// Zero-filled bytes that stay whatever the threshold is.
    pub fn locked(&self) -> Estimate {
        self.tally(Kind::Locked).zeros()
    }

    /// Zero-filled bytes in huge pages that others have, too.
    pub fn shared(&self) -> Estimate {
        let shared = self.tallies.iter().filter(|(kind, _)| kind.is_shared());
        Estimate::sum(shared.map(|(_, tally)| tally.zeros()))
    }
}

/// Bytes of pages that the kernel frees of these at a threshold.
fn freed_at<'a>(
    tallies: impl IntoIterator<Item = (&'a Kind, &'a Tally)>,
    max_ptes_none: u32,
) -> Estimate {
    let freed = |(kind, tally): (&Kind, &Tally)| match kind {
        Kind::Free | Kind::Shared => tally.freed_at(max_ptes_none),
        Kind::Partial | Kind::SharedPartial => tally.zeros(),
        Kind::Locked => Estimate::default(),
    };
    Estimate::sum(tallies.into_iter().map(freed))
}

/// Huge pages of these that are split for it.
fn split_at<'a>(
    tallies: impl IntoIterator<Item = (&'a Kind, &'a Tally)>,
    max_ptes_none: u32,
) -> Estimate {
    let split = |(kind, tally): (&Kind, &Tally)| match kind {
        Kind::Free | Kind::Shared => tally.split_at(max_ptes_none),
        Kind::Partial | Kind::SharedPartial => Estimate::exact(tally.all as f64),
        Kind::Locked => Estimate::default(),
    };
    Estimate::sum(tallies.into_iter().map(split))
}
