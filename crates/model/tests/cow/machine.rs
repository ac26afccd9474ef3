//! A manager on bare hardware (copy on write is its own), driven by hand.

use super::common::PlainStore;
use deckle_mm::{
    Env, FaultError, FaultMode, FaultOrder, Item, Mm, PAGE_SIZE, Prot, SpaceId, ThpMode, Tunables,
    Vpn,
};
use deckle_model::{CoreModel, FaultKind, ModelCharge, ModelMachine};

/// Bare hardware with a plain store.
pub struct CoreEnv;
impl Env for CoreEnv {
    type P = CoreModel;
    type M = ModelMachine;
    type C = ModelCharge;
    type S = PlainStore;
    type Sharing = deckle_mm::CoreCow;
    type Frames = deckle_mm::Ram;
}

/// First page and size of the window.
pub const BASE: Vpn = Vpn(512 * 16);
pub const WINDOW: u64 = 512 * 8;

/// Everything a test holds.
pub struct Bare {
    pub model: CoreModel,
    #[allow(dead_code)]
    pub machine: ModelMachine,
    pub charge: ModelCharge,
    pub mm: Mm<CoreEnv>,
    pub space: SpaceId,
}

impl Bare {
    pub fn new(ram_mib: u64, cpus: usize, seed: u64, swap: bool, tunables: Tunables) -> Bare {
        let machine = match cpus {
            1 => ModelMachine::single(),
            _ => ModelMachine::new(cpus, seed),
        };
        let model = CoreModel::of(ram_mib << 20, cpus, seed);
        model.attach(&machine);
        let charge = ModelCharge::unlimited();
        let store = PlainStore::new(swap);
        let platform = model.clone();
        let mm = Mm::new(platform, machine.clone(), charge.clone(), store, tunables).unwrap();
        let space = mm.create_space(BASE, WINDOW).unwrap();
        Bare {
            model,
            machine,
            charge,
            mm,
            space,
        }
    }

    /// One CPU; 64 KiB folios unless `thp` says huge ones.
    pub fn simple(thp: ThpMode) -> Bare {
        let t = Tunables {
            thp,
            fault_order: FaultOrder::Fixed,
            ..Default::default()
        };
        Bare::new(32, 1, 1, true, t)
    }

    /// Maps pages at `BASE + at`, read-write.
    pub fn map(&self, at: u64, pages: u64) -> Vpn {
        let start = BASE.add(at);
        self.mm
            .mmap(self.space, Some(start), pages, 1, Prot::RW)
            .unwrap()
    }

    /// Writes a byte to the first of a page as CPU 0 does; faults are served.
    pub fn write(&self, space: SpaceId, page: Vpn, byte: u8) {
        self.write_at(0, space, page, 0, byte).unwrap();
    }

    pub fn write_at(
        &self,
        cpu: usize,
        space: SpaceId,
        page: Vpn,
        at: u64,
        byte: u8,
    ) -> Result<(), FaultError> {
        loop {
            match self.model.store(cpu, space, page.addr() + at, &[byte]) {
                Ok(()) => return Ok(()),
                Err(f) => self.serve(space, f.page, f.write, f.kind)?,
            }
        }
    }

    /// Reads a page; faults are served.
    pub fn read(&self, space: SpaceId, page: Vpn) -> [u8; PAGE_SIZE] {
        self.read_on(0, space, page).unwrap()
    }

    pub fn read_on(
        &self,
        cpu: usize,
        space: SpaceId,
        page: Vpn,
    ) -> Result<[u8; PAGE_SIZE], FaultError> {
        let mut bytes = [0; PAGE_SIZE];
        loop {
            match self.model.load(cpu, space, page.addr(), &mut bytes) {
                Ok(()) => return Ok(bytes),
                Err(f) => self.serve(space, f.page, f.write, f.kind)?,
            }
        }
    }

    fn serve(
        &self,
        space: SpaceId,
        page: Vpn,
        write: bool,
        kind: FaultKind,
    ) -> Result<(), FaultError> {
        if kind == FaultKind::Protection {
            return Err(FaultError::Access);
        }
        match self.mm.fault(space, page, write, FaultMode::MayWait) {
            Ok(_) | Err(FaultError::Busy) => Ok(()),
            Err(e) => Err(e),
        }
    }

    /// The frame behind a page, as the page table has it.
    pub fn frame(&self, space: SpaceId, page: Vpn) -> Option<deckle_mm::Pfn> {
        self.model.translation(space, page).and_then(|t| t.frame)
    }

    pub fn get(&self, item: Item) -> u64 {
        self.mm.stats().get(item)
    }

    /// Checks everything, with nothing under way.
    pub fn verify(&self, when: &dyn std::fmt::Debug) {
        if let Err(lines) = self.mm.verify(true) {
            panic!("after {when:?}:\n{}", lines.join("\n"));
        }
        self.model.assert_clean();
    }
}
