//! A file behind the store: what does not compress has somewhere to go, and no byte is lost.

use super::P;
use super::common::{BASE, WINDOW};
use deckle_mm::{
    Charge, Env, FaultError, FaultMode, Item, Mm, PAGE_SIZE, Profile, Prot, SpaceId, ThpMode,
    Tunables,
};
use deckle_model::{Model, ModelCharge, ModelMachine, Rng};
use deckle_store::faulty::EIO;
use deckle_store::faulty::disk::{Disk, Fault, Handle, Plan};
use deckle_store::{Algorithm, Config, Heap, Ram};
use std::sync::Arc;

struct FiledEnv;
impl Env for FiledEnv {
    type P = Model<P>;
    type M = ModelMachine;
    type C = ModelCharge;
    type S = Ram<Heap, Handle>;
    type Sharing = <P as deckle_model::Profile>::Sharing;
    type Frames = <P as deckle_model::Profile>::Frames;
}

const PAGES: u64 = 2048;
const LIMIT: u64 = 768;

struct Bench {
    model: Model<P>,
    mm: Mm<FiledEnv>,
    space: SpaceId,
}

impl Bench {
    fn new(disk: &Arc<Disk>, thp: ThpMode) -> Bench {
        let machine = ModelMachine::single();
        let model = Model::of(64 << 20, 1, 1);
        model.attach(&machine);
        let config = Config {
            segment_bytes: 16 << 10,
            ..Config::new(Algorithm::Lz4)
        };
        let store = Ram::with_file(config, Heap, Handle::new(disk, 1));
        let charge = ModelCharge::new(LIMIT);
        charge.set_high(LIMIT - 32);
        let tunables = Tunables {
            thp,
            ..Tunables::of_profile(Profile::Deckle)
        };
        let mm = Mm::new(model.clone(), machine, charge, store, tunables).unwrap();
        let space = mm.create_space(BASE, WINDOW).unwrap();
        mm.mmap(space, Some(BASE), PAGES, 1, Prot::RW).unwrap();
        Bench { model, mm, space }
    }

    fn access(
        &self,
        page: u64,
        bytes: &mut [u8; PAGE_SIZE],
        write: bool,
    ) -> Result<(), FaultError> {
        let at = BASE.add(page);
        loop {
            let done = match write {
                true => self.model.store(0, self.space, at.addr(), bytes),
                false => self.model.load(0, self.space, at.addr(), bytes),
            };
            let Err(f) = done else { return Ok(()) };
            self.mm
                .fault(self.space, f.page, f.write, FaultMode::MayWait)?;
        }
    }

    fn verify(&self) {
        if let Err(lines) = self.mm.verify(true) {
            panic!("{}", lines.join("\n"));
        }
        self.mm.store().verify().unwrap();
        self.model.assert_clean();
    }
}

/// One page in four compresses.
fn content(page: u64, version: u64) -> [u8; PAGE_SIZE] {
    let mut rng = Rng::new(page << 32 | version | 1);
    let mut bytes = [version as u8; PAGE_SIZE];
    let random = if page.is_multiple_of(4) {
        1000
    } else {
        PAGE_SIZE
    };
    bytes[..random].fill_with(|| rng.below(256) as u8);
    bytes
}

#[test]
fn what_does_not_compress_goes_to_the_file_and_every_byte_comes_back() {
    for thp in [ThpMode::Never, ThpMode::Always] {
        let disk = Disk::new(u64::MAX);
        let rig = Bench::new(&disk, thp);
        let (mut rng, mut version) = (Rng::new(3), [0; PAGES as usize]);
        for page in 0..PAGES {
            rig.access(page, &mut content(page, 0), true).unwrap();
        }
        for step in 0..6000 {
            let page = rng.below(PAGES);
            let now = &mut version[page as usize];
            if rng.below(4) == 0 {
                *now += 1;
                rig.access(page, &mut content(page, *now), true).unwrap();
            } else {
                let mut bytes = [0; PAGE_SIZE];
                rig.access(page, &mut bytes, false).unwrap();
                assert!(bytes == content(page, *now), "page {page} at step {step}");
            }
            assert!(rig.mm.charge().usage() <= LIMIT + 16);
        }
        rig.verify();
        let stat = |item| rig.mm.stats().get(item);
        assert!(stat(Item::Zswpwb) > PAGES && stat(Item::OomKill) == 0);
        assert_eq!(stat(Item::StoreReject), 0);
        assert!(disk.used(1) > 0 && disk.calls()[1] > 1000);
        rig.mm.munmap(rig.space, BASE, PAGES).unwrap();
        assert_eq!((disk.used(1), disk.charged()), (0, 0));
    }
}

#[test]
fn a_file_that_is_full_or_fails_is_out_of_memory_and_not_wrong_bytes() {
    let broken = Plan {
        after: 50,
        times: u64::MAX,
        fault: Fault::Errno(EIO),
    };
    for (room, plan) in [(2 << 20, None), (u64::MAX, Some(broken))] {
        let disk = Disk::new(room);
        disk.plan([plan, None]);
        let rig = Bench::new(&disk, ThpMode::Never);
        let written = (0..PAGES).take_while(|page| {
            let done = rig.access(*page, &mut content(*page, 0), true);
            assert!(matches!(done, Ok(()) | Err(FaultError::Oom(_))), "{done:?}");
            done.is_ok()
        });
        let written = written.count() as u64;
        assert!((LIMIT..PAGES).contains(&written), "{written}");
        rig.verify();
        // Who is out of memory is killed; what there is is right.
        for page in 0..written {
            let mut bytes = [0; PAGE_SIZE];
            match rig.access(page, &mut bytes, false) {
                Ok(()) => assert!(bytes == content(page, 0), "page {page}"),
                Err(FaultError::Oom(_)) => {}
                Err(e) => panic!("{e}"),
            }
        }
        rig.verify();
    }
}
