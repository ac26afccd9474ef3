//! A simulated program: one CPU, one mapping, and the manager that serves its faults. On bare
//! hardware it may have children, which share its memory until somebody writes.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::marker::PhantomData;

use deckle_mm::frame::CapturePolicy;
use deckle_mm::{
    Advice, Charge, Env, FaultError, FaultMode, Item, Mm, OomReport, Prot, Served, SpaceId, Store,
    Tunables, Vpn,
};
use deckle_model::{Model, ModelCharge, ModelMachine, Profile, RamCoreCow, RamKernelCow};
use serde::Serialize;

use crate::LabError;
use crate::size::PAGE;

/// The CPU that runs the program, the only one.
const CPU: usize = 0;
const CPUS: usize = 1;
/// First page of the mapping, at the start of a block.
const BASE: Vpn = Vpn(512 * 16);
/// Decides which TLB entries are replaced; any value gives the same outcome.
const SEED: u64 = 0x6465_636b;

/// The software machine with a store of our choice.
pub(super) struct Software<S, P>(PhantomData<fn() -> (S, P)>);

impl<S: Store + 'static, P: Profile> Env for Software<S, P> {
    type P = Model<P>;
    type M = ModelMachine;
    type C = ModelCharge;
    type S = S;
    type Sharing = <P as deckle_model::Profile>::Sharing;
    type Frames = <P as deckle_model::Profile>::Frames;
}

/// How an access ended that was not served.
#[derive(Debug)]
pub(super) enum Death {
    /// Memory was out: the process is killed.
    Oom(Box<OomReport>),
    /// The manager or the machine is wrong.
    Failed(LabError),
}

impl From<Death> for LabError {
    /// The error of a run that has no limit to die at.
    fn from(death: Death) -> Self {
        match death {
            Death::Oom(report) => LabError::Model(format!("out of memory: {report}")),
            Death::Failed(e) => e,
        }
    }
}

/// Write faults by the way they went: how often so many pages were served at once.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Paths {
    /// On a hole (F1).
    pub anonymous: BTreeMap<u64, u64>,
    /// On the zero page (F2).
    pub zero_page: BTreeMap<u64, u64>,
    /// On pages that others have, too: copied (F3).
    pub copy: BTreeMap<u64, u64>,
    /// On pages that nobody else has any more: made writable (F4).
    pub reuse: BTreeMap<u64, u64>,
}

impl Paths {
    fn count(&mut self, served: Served, zero: bool, copied: u64, reused: u64) {
        let (path, pages) = match served {
            _ if copied > 0 => (&mut self.copy, copied),
            _ if reused > 0 => (&mut self.reuse, reused),
            Served::Mapped(n) if zero => (&mut self.zero_page, u64::from(n)),
            Served::Mapped(n) => (&mut self.anonymous, u64::from(n)),
            Served::Spurious => return,
        };
        *path.entry(pages).or_default() += 1;
    }
}

/// One program with one mapping of private anonymous memory.
pub(super) struct Process<S: Store + 'static, P: Profile = RamKernelCow> {
    model: Model<P>,
    machine: ModelMachine,
    charge: ModelCharge,
    mm: Mm<Software<S, P>>,
    space: SpaceId,
    pages: u64,
    paths: RefCell<Paths>,
}

impl<S: Store + 'static> Process<S, RamCoreCow> {
    /// Forks; the child.
    pub fn fork(&self) -> Result<SpaceId, LabError> {
        self.mm.fork(self.space).map_err(|e| odd("fork", &e))
    }

    /// A child ends.
    pub fn end(&self, child: SpaceId) -> Result<(), LabError> {
        self.mm.destroy_space(child).map_err(|e| odd("an end", &e))
    }

    /// Pages that the group is charged for.
    pub fn charged(&self) -> u64 {
        self.charge.usage()
    }
}

impl<S: Store + 'static, P: Profile> Process<S, P> {
    /// A program that has mapped nothing yet, with `len` bytes of address space, a multiple of a
    /// page, on a machine with `ram` bytes.
    pub fn new(
        ram: u64,
        charge: ModelCharge,
        store: S,
        tunables: Tunables,
        len: usize,
    ) -> Result<Self, LabError> {
        let model = Model::of(ram, CPUS, SEED);
        let machine = ModelMachine::single();
        model.attach(&machine);
        let pages = (len / PAGE) as u64;
        let (m, c) = (machine.clone(), charge.clone());
        let mm = Mm::new(model.clone(), m, c, store, tunables).map_err(wrong)?;
        let space = mm
            .create_space(BASE, pages)
            .map_err(|e| odd("a space", &e))?;
        Ok(Self {
            model,
            machine,
            charge,
            mm,
            space,
            pages,
            paths: RefCell::default(),
        })
    }

    /// The same with all of it mapped.
    pub fn mapped(self) -> Result<Self, LabError> {
        self.map(self.pages as usize * PAGE)?;
        Ok(self)
    }

    /// Maps `len` bytes; at which byte of the address space.
    pub fn map(&self, len: usize) -> Result<usize, LabError> {
        let at = self
            .mm
            .mmap(self.space, None, (len / PAGE) as u64, 1, Prot::RW)
            .map_err(|e| odd("mmap", &e))?;
        Ok((at.addr() - BASE.addr()) as usize)
    }

    /// Gives back `len` bytes from byte `at` on: their pages, and with `unmap` the mapping.
    pub fn give_back(&self, at: usize, len: usize, unmap: bool) -> Result<(), LabError> {
        let start = Vpn::of_addr(BASE.addr() + at as u64);
        let pages = (len / PAGE) as u64;
        match unmap {
            true => self.mm.munmap(self.space, start, pages),
            false => self.mm.madvise(self.space, start, pages, Advice::DontNeed),
        }
        .map_err(|e| odd("giving memory back", &e))
    }

    /// Whether who waits for a huge page keeps what it frees.
    pub fn set_capture(&self, on: bool) {
        self.mm.set_capture(match on {
            true => CapturePolicy::ON,
            false => CapturePolicy::OFF,
        });
    }

    /// The write faults until now.
    pub fn paths(&self) -> Paths {
        self.paths.borrow().clone()
    }

    /// The manager's count of `item`.
    pub fn count(&self, item: Item) -> u64 {
        self.mm.stats().get(item)
    }

    /// Reclaims until there is no more to be had.
    pub fn reclaim(&self) {
        while self.mm.reclaim(self.charge.usage()) > 0 {}
    }

    /// The store.
    pub fn store(&self) -> &S {
        self.mm.store()
    }

    /// Follows an advice over the whole mapping.
    pub fn advise(&self, advice: Advice) -> Result<(), LabError> {
        self.mm
            .madvise(self.space, BASE, self.pages, advice)
            .map_err(|e| odd("madvise", &e))
    }

    /// Unmaps all of it.
    pub fn unmap(&self) -> Result<(), LabError> {
        self.mm
            .munmap(self.space, BASE, self.pages)
            .map_err(|e| odd("munmap", &e))
    }

    /// Writes `bytes` at byte `at` of the mapping.
    pub fn write(&self, at: usize, bytes: &[u8]) -> Result<(), Death> {
        self.write_in(self.space, at, bytes)
    }

    /// The same in a space: this one's or a child's.
    pub fn write_in(&self, space: SpaceId, at: usize, bytes: &[u8]) -> Result<(), Death> {
        let addr = BASE.addr() + at as u64;
        while let Err(fault) = self.model.store(CPU, space, addr, bytes) {
            self.serve(space, fault.page, true)?;
        }
        Ok(())
    }

    /// Reads from byte `at` of the mapping on.
    pub fn read(&self, at: usize, bytes: &mut [u8]) -> Result<(), Death> {
        let addr = BASE.addr() + at as u64;
        while let Err(fault) = self.model.load(CPU, self.space, addr, bytes) {
            self.serve(self.space, fault.page, false)?;
        }
        Ok(())
    }

    /// One fault, as the live pager takes it: first what needs neither reclaim nor waiting,
    /// then a worker, then what background work was asked for.
    fn serve(&self, space: SpaceId, page: Vpn, write: bool) -> Result<(), Death> {
        let fault = |mode| self.mm.fault(space, page, write, mode);
        let moved = || [Item::Pgcopy, Item::Pgreuse].map(|item| self.count(item));
        let shown = self.model.translation(space, page);
        let (zero, before) = (shown.is_some_and(|t| t.frame.is_none()), moved());
        let served = match fault(FaultMode::NoWait) {
            Err(FaultError::Busy | FaultError::NeedReclaim) => fault(FaultMode::MayWait),
            other => other,
        };
        let result = match served {
            Ok(served) => {
                let after = moved();
                if write {
                    let [copied, reused] = [after[0] - before[0], after[1] - before[1]];
                    self.paths.borrow_mut().count(served, zero, copied, reused);
                }
                Ok(())
            }
            Err(FaultError::Oom(report)) => Err(Death::Oom(report)),
            Err(e) => Err(Death::Failed(odd("a fault", &e))),
        };
        while self.machine.take_kick().is_some() {
            while self.mm.reclaim_background() {}
        }
        result
    }

    /// Reconciles everything: the manager's books with each other, every operation with what
    /// the machine allows, every page returned with one charged; with `alone`, that nothing
    /// but the mapping and the store is charged.
    pub fn verify(&self, alone: bool) -> Result<(), LabError> {
        self.mm
            .verify(alone)
            .map_err(|lines| LabError::Model(lines.join("; ")))?;
        self.model.check_quiescent();
        if let Some(violation) = self.model.violations().first() {
            return Err(LabError::Model(format!("broken rule: {violation}")));
        }
        match self.charge.underflow() {
            0 => Ok(()),
            n => Err(LabError::Model(format!("{n} pages were uncharged twice"))),
        }
    }
}

fn wrong(e: impl std::fmt::Display) -> LabError {
    LabError::Model(e.to_string())
}

fn odd(what: &str, e: &dyn std::fmt::Debug) -> LabError {
    LabError::Model(format!("{what} failed: {e:?}"))
}
