//! Two CPUs: each way a write fault is served, against everything that may come between its
//! estimate and its lock. The seed decides the interleaving; many are tried.

use crate::cow::machine::{BASE, Bare};
use deckle_mm::space::remap::Remap;
use deckle_mm::{
    Advice, FaultError, FaultOrder, Item, LockClass, PAGE_SIZE, Prot, Site, SpaceId, ThpMode,
    Tunables, Vpn,
};
use deckle_model::{Event, Rng, Trace, cpu};

/// Pages that exist.
const PAGES: u64 = 32;
/// Pages that the first CPU writes, from [`AT`] on.
const WRITTEN: u64 = 4;
const AT: u64 = 5;

/// Offsets of the bytes in a page: what was there first, and what each CPU writes.
const OLD: u64 = 16;
const MINE: u64 = 0;
const OTHERS: u64 = 8;

#[derive(Clone, Copy, PartialEq, Debug)]
enum Path {
    /// A write on a hole.
    F1,
    /// A write on the zero page.
    F2,
    /// A write to what a living child shares.
    F3,
    /// A write to what an ended child has shared.
    F4,
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Against {
    /// The same pages are written by another thread of the program.
    SameFault,
    /// The child writes them.
    ChildFault,
    /// The program discards them.
    Zap,
    /// The child unmaps them, and ends.
    ChildExit,
    /// Reclaim.
    Reclaim,
    /// The program forks.
    Fork,
    /// The program moves a part of them away, and back.
    Remap,
    /// Rights come and go.
    Mprotect,
    /// A page is pinned for a moment.
    Pin,
    /// The pages move to other frames.
    Migrate,
}

const ALL: [Against; 10] = [
    Against::SameFault,
    Against::ChildFault,
    Against::Zap,
    Against::ChildExit,
    Against::Reclaim,
    Against::Fork,
    Against::Remap,
    Against::Mprotect,
    Against::Pin,
    Against::Migrate,
];

struct Race {
    m: Bare,
    path: Path,
    child: Option<SpaceId>,
}

fn page(i: u64) -> Vpn {
    BASE.add(i)
}

impl Race {
    fn new(path: Path, seed: u64) -> Race {
        let mut rng = Rng::new(seed);
        let t = Tunables {
            thp: [ThpMode::Never, ThpMode::Never, ThpMode::Always][rng.below(3) as usize],
            fault_order: FaultOrder::Fixed,
            ..Default::default()
        };
        let m = Bare::new(32, 3, seed, true, t);
        m.map(0, 512);
        let mut child = None;
        if matches!(path, Path::F1 | Path::F2) && t.thp == ThpMode::Never {
            // Something in the block that reclaim and a move can find, beyond what is looked at.
            m.write(m.space, page(PAGES + 32), 1);
        }
        match path {
            Path::F1 => {}
            Path::F2 => {
                for i in 0..PAGES {
                    m.read(m.space, page(i));
                }
            }
            Path::F3 | Path::F4 => {
                for i in 0..PAGES {
                    m.write_at(0, m.space, page(i), OLD, i as u8 + 1).unwrap();
                }
            }
        }
        if path != Path::F1 || rng.below(2) == 0 {
            child = Some(m.mm.fork(m.space).unwrap());
        }
        if let (Path::F4, Some(id)) = (path, child) {
            m.mm.destroy_space(id).unwrap();
            child = None;
        }
        m.verify(&"set-up");
        Race { m, path, child }
    }

    fn old(&self, i: u64) -> u8 {
        match self.path {
            Path::F1 | Path::F2 => 0,
            Path::F3 | Path::F4 => i as u8 + 1,
        }
    }

    /// Writes one byte of each page; false where there is no right or no mapping now.
    fn write_all(&self, cpu: usize, space: SpaceId, at: u64, byte: u8) {
        for i in AT..AT + WRITTEN {
            match self.m.write_at(cpu, space, page(i), at, byte) {
                Ok(()) | Err(FaultError::Access | FaultError::NoMapping) => {}
                Err(e) => panic!("{e}"),
            }
        }
    }

    fn oppose(&self, against: Against) {
        let (m, id) = (&self.m, self.m.space);
        let few = page(AT + 1);
        match (against, self.child) {
            (Against::SameFault, _) => self.write_all(1, id, OTHERS, 0xB0),
            (Against::ChildFault, Some(child)) => self.write_all(1, child, OTHERS, 0xC0),
            (Against::ChildExit, Some(child)) => {
                m.mm.munmap(child, few, 2).unwrap();
                m.mm.destroy_space(child).unwrap();
            }
            (Against::ChildFault | Against::ChildExit, None) => {}
            (Against::Zap, _) => m.mm.madvise(id, few, 7, Advice::DontNeed).unwrap(),
            (Against::Reclaim, _) => {
                for _ in 0..3 {
                    m.mm.reclaim(600);
                }
            }
            (Against::Migrate, _) => {
                for i in 0..3 * WRITTEN {
                    let zeros = i % 2 == 0;
                    let _ = m.mm.migrate_page(id, page(AT + i % WRITTEN), zeros);
                }
                m.mm.compact(4);
            }
            (Against::Fork, _) => {
                let new = m.mm.fork(id).unwrap();
                for i in AT..AT + WRITTEN {
                    let bytes = m.read_on(1, new, page(i)).unwrap();
                    assert_eq!(bytes[OLD as usize], self.old(i));
                    assert!([0, 0xA0].contains(&bytes[MINE as usize]));
                }
                m.mm.destroy_space(new).unwrap();
            }
            (Against::Remap, _) => {
                let away = page(300);
                m.mm.mremap(id, few, 2, 2, Remap::Fixed(away)).unwrap();
                m.mm.mremap(id, away, 2, 2, Remap::Fixed(few)).unwrap();
            }
            (Against::Mprotect, _) => {
                m.mm.mprotect(id, few, 7, Prot::R).unwrap();
                m.mm.mprotect(id, few, 7, Prot::RW).unwrap();
            }
            (Against::Pin, _) => {
                let pin = m.mm.pin(id, few, true).unwrap();
                let frame = pin.frame();
                m.write_at(1, id, few, OTHERS, 0xB0).unwrap();
                assert_eq!(m.model.frame_bytes(frame)[OTHERS as usize], 0xB0);
                m.mm.unpin(pin);
            }
        }
    }

    /// What may be in a page in the end.
    fn check(&self, against: Against) {
        let m = &self.m;
        for i in 0..PAGES {
            let bytes = m.read(m.space, page(i));
            let written = (AT..AT + WRITTEN).contains(&i);
            let zapped = against == Against::Zap && (AT + 1..AT + 8).contains(&i);
            let hidden = [Against::Remap, Against::Mprotect].contains(&against) && written;
            let old: &[u8] = if zapped {
                &[0, self.old(i)]
            } else {
                &[self.old(i)]
            };
            let mine: &[u8] = match (written, zapped || hidden) {
                (true, false) => &[0xA0],
                (true, true) => &[0, 0xA0],
                (false, _) => &[0],
            };
            let others: &[u8] = match against {
                Against::SameFault if written => &[0xB0],
                Against::Pin if i == AT + 1 => &[0xB0],
                _ => &[0],
            };
            let at = |o: u64| bytes[o as usize];
            let right = old.contains(&at(OLD)) && mine.contains(&at(MINE));
            assert!(
                right && others.contains(&at(OTHERS)),
                "page {i}: {:?}",
                &bytes[..17]
            );
            // A page that was discarded lost all that was there before.
            let rest = (0..PAGE_SIZE as u64).filter(|o| ![OLD, MINE, OTHERS].contains(o));
            assert!(rest.map(at).all(|b| b == 0), "page {i}");
        }
        let Some(child) = self.child.filter(|_| against != Against::ChildExit) else {
            return;
        };
        for i in 0..PAGES {
            let bytes = m.read(child, page(i));
            let hers = against == Against::ChildFault && (AT..AT + WRITTEN).contains(&i);
            assert_eq!(
                bytes[MINE as usize], 0,
                "the child sees page {i} of its parent"
            );
            assert_eq!(bytes[OLD as usize], self.old(i), "page {i}");
            assert_eq!(bytes[OTHERS as usize], if hers { 0xC0 } else { 0 });
        }
    }
}

/// How often the first CPU, which had looked at a block and allocated, found that another one had
/// locked a block before it locked its own again.
fn met(trace: &Trace) -> u64 {
    let block = Event::Site(Site::Lock(LockClass::Block));
    // Whether it is between the two; the CPUs that began with a block meanwhile; whether one of
    // them went on.
    let (mut between, mut begun, mut others, mut met) = (false, [false; 3], false, 0);
    for step in trace.tail() {
        match (step.cpu, step.event) {
            (0, Event::Site(Site::Pcp | Site::Lock(LockClass::Zone))) => between = true,
            (0, event) if event == block => {
                met += u64::from(others);
                (between, begun, others) = (false, [false; 3], false);
            }
            (0, _) => {}
            (cpu, event) if between => {
                others |= begun[cpu];
                begun[cpu] |= event == block;
            }
            _ => {}
        }
    }
    met
}

/// What the runs have counted.
#[derive(Default)]
struct Counts {
    copied: u64,
    reused: u64,
    met: u64,
}

fn race(path: Path, against: Against, also: Option<Against>, seed: u64, counts: &mut Counts) {
    let race = Race::new(path, seed);
    let mut jobs = vec![
        cpu(|| race.write_all(0, race.m.space, MINE, 0xA0)),
        cpu(|| race.oppose(against)),
    ];
    if also == Some(Against::Reclaim) {
        jobs.push(cpu(|| race.oppose(Against::Reclaim)));
    }
    let what = format!("{path:?} against {against:?} and {also:?}, seed {seed}");
    let trace = race.m.machine.run(jobs);
    counts.met += met(&trace.unwrap_or_else(|e| panic!("{what}: {e}")));
    race.m.verify(&what);
    race.check(against);
    race.m.verify(&(&what, "read"));
    counts.copied += race.m.get(Item::Pgcopy);
    counts.reused += race.m.get(Item::Pgreuse);
}

/// All that may come between, 2 times `seeds` interleavings each: it did come between, each of
/// them, and what of the pages was copied and reused. DECKLE_SEED=n replays one.
fn races(path: Path, seeds: u64) -> (u64, u64) {
    let scale = super::variable("DECKLE_SCALE").unwrap_or(1);
    let one = super::variable("DECKLE_SEED");
    let range = match one {
        Some(seed) => seed..seed + 1,
        None => 1..1 + seeds * scale,
    };
    let (mut copied, mut reused) = (0, 0);
    for against in ALL {
        let mut counts = Counts::default();
        for seed in range.clone() {
            for also in [None, Some(Against::Reclaim)] {
                race(path, against, also, seed, &mut counts);
            }
        }
        eprintln!("{path:?} against {against:?}: met {} times", counts.met);
        assert!(one.is_some() || counts.met > 0, "{against:?} never met it");
        copied += counts.copied;
        reused += counts.reused;
    }
    (copied, reused)
}

#[test]
fn r53_r54_r55_write_faults_on_holes_race_and_lose_nothing() {
    races(Path::F1, 160);
}

#[test]
fn r53_r54_r55_write_faults_on_zero_pages_race_and_lose_nothing() {
    races(Path::F2, 160);
}

#[test]
fn r64_r66_r70_r81_copies_race_and_lose_nothing() {
    let (copied, reused) = races(Path::F3, 60);
    assert!(copied > 0 && reused > 0, "{copied} {reused}");
}

#[test]
fn r73_r74_r80_reuse_races_and_loses_nothing() {
    let (copied, reused) = races(Path::F4, 160);
    assert!(copied > 0 && reused > 0, "{copied} {reused}");
}

/// The child's copy is under way while its pages go, so that the program is the only one that has
/// them; who copies still reads them.
#[test]
fn r81_nobody_takes_a_folio_for_his_own_while_another_copies_it() {
    let (mut refused, mut reused) = (0, 0);
    for seed in 1..200 {
        let t = Tunables {
            thp: ThpMode::Never,
            fault_order: FaultOrder::Fixed,
            ..Default::default()
        };
        let m = Bare::new(32, 2, seed, true, t);
        m.machine.set_switch_of([1, 4, 16][seed as usize % 3]);
        m.map(0, 16);
        (0..16).for_each(|i| m.write(m.space, page(i), i as u8 + 1));
        let child = m.mm.fork(m.space).unwrap();
        let wrote = std::sync::atomic::AtomicBool::new(false);
        let copies = || {
            let done = m.write_at(0, child, page(5), OLD, 77).is_ok();
            wrote.store(done, std::sync::atomic::Ordering::SeqCst);
        };
        let takes = || {
            m.mm.munmap(child, BASE, 16).unwrap();
            m.write_at(1, m.space, page(5), MINE, 99).unwrap();
        };
        if let Err(e) = m.machine.run(vec![cpu(copies), cpu(takes)]) {
            panic!("seed {seed}: {e}");
        }
        // The child came to nothing: a copy was the program's.
        if !wrote.into_inner() {
            match m.get(Item::Pgcopy) {
                0 => reused += 1,
                _ => refused += 1,
            }
        }
        for i in 0..16 {
            let byte = if i == 5 { 99 } else { i as u8 + 1 };
            assert_eq!(m.read(m.space, page(i))[0], byte, "seed {seed} page {i}");
        }
        m.verify(&seed);
    }
    assert!(refused > 0 && reused > 0, "{refused} {reused}");
}
