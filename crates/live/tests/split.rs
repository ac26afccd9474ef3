//! The scenarios that the kernel's split is tested by, on real memory: every order that can be
//! asked for, and readers while holes are punched and huge pages come and go.

use crate::common::{PAGE, case};
use crate::service::Inside;
use crate::skipped::skipped;
use crate::trim::Trim;
use deckle_live::{Capability, Die, Limit, LiveConfig, Pager, Region, Service};
use deckle_mm::{Advice, BlockNr, Item, SizeItem, SizeMode, Sizes, SplitFlags};
use deckle_mm::{SplitMode, ThpMode, Tunables, Vpn};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

const BLOCK: u64 = 512;
const WORDS: usize = PAGE / 8;

type Managed = Region<Limit, Trim>;

/// Folios of one order only, and nobody in the background who changes them.
fn knobs(order: u8) -> Tunables {
    Tunables {
        thp: ThpMode::Always,
        sizes: Sizes::NEVER.with(order, SizeMode::Always),
        fault_max: 1 << 20,
        khugepaged_scan_sleep_millisecs: u32::MAX,
        max_ptes_none: 511,
        ..Tunables::default()
    }
}

/// A service without need. `None`, said loudly: no huge page is to be had here.
fn service(test: &str) -> Option<Service<Limit, Trim>> {
    let limit = Arc::new(Limit::new(1 << 17, 1 << 17, u64::MAX));
    let config = LiveConfig {
        dont_fork: true,
        ..LiveConfig::default()
    };
    let pager = Pager::new(config, limit, Trim::default(), knobs(9), Box::new(Die));
    let pager = pager.expect("pager");
    let caps = pager.platform().capabilities();
    if !caps.has(Capability::Move) || !caps.huge() {
        skipped(format_args!("{test}: the system moves no huge page"));
        return None;
    }
    Some(Service::start(pager).expect("threads"))
}

/// Every eighth byte of a page tells which it is and when it was written.
fn word(page: u64, round: u64, k: usize) -> u64 {
    (page + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ round << 16 ^ k as u64 | 1
}

fn write(region: &mut Managed, page: u64, round: u64) {
    let at = page as usize * PAGE;
    for k in 0..WORDS {
        let bytes = word(page, round, k).to_ne_bytes();
        region[at + k * 8..][..8].copy_from_slice(&bytes);
    }
}

/// Whether `bytes` are page `page` as it was written in that round.
fn is_page(bytes: &[u8], page: u64, round: u64) -> bool {
    let mut words = bytes.chunks(8).enumerate();
    words.all(|(k, b)| b == word(page, round, k).to_ne_bytes())
}

fn page_of(region: &Managed, page: u64) -> &[u8] {
    &region[page as usize * PAGE..][..PAGE]
}

/// Waits until nothing is left to do, and reconciles everything.
fn sound(service: &Service<Limit, Trim>) {
    service
        .inside()
        .set_tunables(Tunables {
            thp: ThpMode::Never,
            ..knobs(9)
        })
        .unwrap();
    let mut broken = Vec::new();
    for _ in 0..400 {
        service.inside().platform().nursery().drain();
        match service.inside().mm().verify(true) {
            Ok(()) => return,
            Err(lines) => broken = lines,
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    panic!("{broken:?}");
}

/// How a folio is found by the split.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Found {
    Mapped,
    /// At rest: unmapped, and still resident.
    Inactive,
    Isolated,
}

/// Orders that a folio can be split to.
fn lower(order: u8) -> impl Iterator<Item = u8> {
    (0..order).filter(|to| *to != 1)
}

/// A folio of `order` of which every second page is zeros, split to `to`: its parts are all of
/// that order, hold what the folio held, and are the program's to write; zeros go only where
/// single pages are made and the caller says so.
fn split_one(service: &Service<Limit, Trim>, order: u8, to: u8, found: Found, flags: SplitFlags) {
    let what = format!("{order} to {to}, {found:?}, {flags:?}");
    let pager = service.inside();
    let (mm, space) = (pager.mm(), pager.space());
    let n = 1u64 << order;
    let mut region = service.map(2 << 20).expect("map");
    let start = region.start();
    let used = |i: u64| i.is_multiple_of(2);
    (0..n)
        .filter(|i| used(*i))
        .for_each(|i| write(&mut region, i, 1));
    let folio = |i: u64| mm.folio_at(space, start.add(i));
    let head = folio(0).expect("a folio").head;
    assert_eq!(folio(0).map(|f| f.order), Some(order), "{what}");
    let huge = || pager.platform().is_huge(space, BlockNr(start.block().0));
    assert_eq!(huge(), order == 9, "{what}");
    if found == Found::Inactive {
        mm.madvise(space, start, n, Advice::Cold).expect("cold");
    }
    let stats = mm.stats();
    let now = || {
        (
            stats.size(order, SizeItem::Split),
            stats.get(Item::ThpSplitPage),
            stats.get(Item::NrAnon) + stats.get(Item::NrInactive),
            stats.get(Item::NrZero),
        )
    };
    let before = now();
    let done = if found == Found::Isolated {
        let mut list = mm.isolate_page(space, start).expect("on the list");
        let done = mm.split_isolated(&mut list, to, flags).expect("split");
        assert_eq!(list.folios().first(), Some(&head), "{what}");
        mm.putback_list(list);
        done
    } else {
        mm.split_page(space, start, to, flags).expect("split")
    };
    let drops = to == 0 && flags.has(SplitFlags::DROP_ZERO);
    let dropped = if drops { n / 2 } else { 0 };
    let parts = n >> to;
    assert_eq!(
        (u64::from(done.parts), u64::from(done.dropped)),
        (parts, dropped),
        "{what}"
    );
    let want = (
        before.0 + 1,
        before.1 + u64::from(order == 9),
        before.2 - dropped,
        before.3 + dropped,
    );
    assert_eq!(now(), want, "{what}");
    for i in 0..n {
        let of = folio(i).map(|f| (f.order, f.head));
        let part = (!drops || used(i)).then(|| (to, head.add((i >> to << to) as u32)));
        assert_eq!(of, part, "{what}: page {i}");
    }
    assert!(!huge(), "{what}: the kernel has a huge page still");
    // By the program's eyes; each part goes its own way.
    let right = |region: &Managed, round: u64| {
        for i in 0..n {
            let bytes = page_of(region, i);
            let fine = match used(i) {
                true => is_page(bytes, i, round),
                false => bytes.iter().all(|b| *b == 0),
            };
            assert!(fine, "{what}: page {i}");
        }
    };
    right(&region, 1);
    (0..n)
        .filter(|i| used(*i))
        .for_each(|i| write(&mut region, i, 2));
    let half = start.add(n / 2);
    mm.madvise(space, half, n / 2, Advice::Cold).expect("cold");
    right(&region, 2);
}

#[test]
fn r96_r102_r146_live_folios_of_every_order_are_split_to_every_order_and_keep_every_byte() {
    case(|| {
        let test =
            "r96_r102_r146_live_folios_of_every_order_are_split_to_every_order_and_keep_every_byte";
        let Some(service) = service(test) else {
            return;
        };
        for order in 2..=9 {
            service.inside().set_tunables(knobs(order)).unwrap();
            for to in lower(order) {
                for found in [Found::Mapped, Found::Inactive, Found::Isolated] {
                    for flags in [SplitFlags::NONE, SplitFlags::DROP_ZERO] {
                        split_one(&service, order, to, found, flags);
                    }
                }
            }
        }
        sound(&service);
    });
}

/// A huge page of which a part has gone, or got other rights, is in parts already; these are
/// split further, down to every order.
#[test]
fn r96_r102_a_live_huge_page_that_is_cut_is_split_on_to_every_order() {
    case(|| {
        let test = "r96_r102_a_live_huge_page_that_is_cut_is_split_on_to_every_order";
        let Some(service) = service(test) else {
            return;
        };
        let pager = service.inside();
        let (mm, space) = (pager.mm(), pager.space());
        for (to, gone, flags) in lower(9).flat_map(|to| {
            [false, true].into_iter().flat_map(move |gone| {
                [SplitFlags::NONE, SplitFlags::DROP_ZERO].map(|flags| (to, gone, flags))
            })
        }) {
            let what = format!("to {to}, gone {gone}, {flags:?}");
            let knobs = Tunables {
                split_mode: SplitMode::InPlace,
                ..knobs(9)
            };
            pager.set_tunables(knobs).unwrap();
            let mut region = service.map(2 << 20).expect("map");
            let start = region.start();
            (0..BLOCK).for_each(|i| write(&mut region, i, 3));
            let holes = [64..128, 301..304];
            let hole = |i: u64| gone && holes.iter().any(|h| h.contains(&i));
            if gone {
                for h in &holes {
                    let (at, n) = (start.add(h.start), h.end - h.start);
                    mm.madvise(space, at, n, Advice::DontNeed).expect("holes");
                }
            } else {
                for prot in [deckle_mm::Prot::R, deckle_mm::Prot::RW] {
                    mm.mprotect(space, start.add(300), 1, prot).expect("rights");
                }
            }
            let order = |i: u64| mm.folio_at(space, start.add(i)).map_or(0, |f| f.order);
            let most = || (0..BLOCK).map(order).max().unwrap();
            assert_eq!(most(), 8, "{what}");
            let resident = mm.resident(space);
            for i in 0..BLOCK {
                let _ = mm.split_page(space, start.add(i), to, flags);
            }
            assert!(most() <= to, "{what}: {}", most());
            // What can be as large as that is.
            assert_eq!(order(384), to, "{what}");
            assert_eq!(mm.resident(space), resident, "{what}");
            for i in 0..BLOCK {
                let bytes = page_of(&region, i);
                let fine = match hole(i) {
                    true => bytes.iter().all(|b| *b == 0),
                    false => is_page(bytes, i, 3),
                };
                assert!(fine, "{what}: page {i}");
            }
        }
        sound(&service);
    });
}

/// Holes: three pages of fifty, not aligned to anything.
const STRIDE: u64 = 50;
const WIDE: u64 = 3;

fn punched(i: u64) -> bool {
    (i + STRIDE - 7) % STRIDE < WIDE
}

/// Pages that are never written.
fn empty(i: u64) -> bool {
    i % 5 == 4
}

/// What a reader finds: its own page whole, or zeros where a hole is punched, or was always. A hole
/// that is punched while somebody reads: from there on.
fn look(bytes: &[u8], i: u64) -> Result<(), String> {
    let mut words = bytes.chunks(8).enumerate();
    let own = words.position(|(k, b)| empty(i) || b != word(i, 0, k).to_ne_bytes());
    let rest = own.map_or(&[][..], |k| &bytes[k * 8..]);
    let zeros = rest.iter().all(|b| *b == 0);
    if zeros && (rest.is_empty() || punched(i) || empty(i)) {
        return Ok(());
    }
    match zeros && own == Some(0) {
        true => Err(format!("page {i} is all zeros")),
        false => Err(format!("page {i} is another, or torn: {:?}", &bytes[..16])),
    }
}

/// Reads a page as a program does, or has the kernel read it.
fn read_page(at: usize, by_kernel: bool, into: &mut [u8; PAGE]) {
    if by_kernel {
        let to = libc::iovec {
            iov_base: into.as_mut_ptr().cast(),
            iov_len: PAGE,
        };
        let from = libc::iovec {
            iov_base: at as *mut libc::c_void,
            iov_len: PAGE,
        };
        // SAFETY: of this process, whose memory at `at` is mapped; into a buffer of a page.
        let n = unsafe { libc::process_vm_readv(libc::getpid(), &to, 1, &from, 1, 0) };
        assert_eq!(n, PAGE as isize, "{}", std::io::Error::last_os_error());
        return;
    }
    for (k, b) in into.chunks_mut(8).enumerate() {
        // SAFETY: a word of a page of the region, which outlives the readers; nobody writes it.
        let word = unsafe { ((at + k * 8) as *const u64).read_volatile() };
        b.copy_from_slice(&word.to_ne_bytes());
    }
}

fn next(x: &mut u64) -> u64 {
    *x ^= *x << 13;
    *x ^= *x >> 7;
    *x ^= *x << 17;
    *x
}

/// How often each thing has been done.
#[derive(Default, Debug)]
struct Done {
    splits: [u64; 10],
    dropping: u64,
    shattered: u64,
    collapsed: u64,
}

impl Done {
    fn enough(&self) -> bool {
        let orders = lower(9).all(|to| self.splits[usize::from(to)] >= 6);
        orders && self.dropping >= 20 && self.shattered >= 20 && self.collapsed >= 100
    }
}

/// Splits, shatters or punches, as the dice say, and makes the block huge again.
fn disturb(service: &Service<Limit, Trim>, start: Vpn, blocks: u64, dice: u64, done: &mut Done) {
    let pager = service.inside();
    let (mm, space) = (pager.mm(), pager.space());
    let block = dice % blocks * BLOCK;
    let page = start.add(block + (dice >> 8) % BLOCK);
    let to = [0, 0, 0, 2, 3, 4, 5, 6, 7, 8][(dice >> 20) as usize % 10];
    match (dice >> 28) % 8 {
        0..=2 => {
            if mm.split_page(space, page, to, SplitFlags::NONE).is_ok() {
                done.splits[usize::from(to)] += 1;
            }
        }
        3 | 4 => {
            let flags = SplitFlags::DROP_ZERO;
            if mm
                .split_page(space, page, 0, flags)
                .is_ok_and(|s| s.dropped > 0)
            {
                done.dropping += 1;
            }
        }
        5 | 6 => done.shattered += u64::from(mm.shatter_page(space, page).is_ok()),
        _ => {
            let split_mode = match dice >> 33 & 1 {
                0 => SplitMode::InPlace,
                _ => SplitMode::Shatter,
            };
            let knobs = Tunables {
                split_mode,
                ..knobs(9)
            };
            pager.set_tunables(knobs).unwrap();
            for i in (block..block + BLOCK).filter(|i| punched(*i)) {
                mm.madvise(space, start.add(i), 1, Advice::DontNeed)
                    .expect("a hole");
            }
        }
    }
    let again = mm.collapse(space, start.add(block));
    done.collapsed += u64::from(again.is_ok());
}

#[test]
fn r85_r98_r104_r140_readers_see_their_own_pages_while_live_huge_ones_come_and_go() {
    case(|| {
        let test = "r85_r98_r104_r140_readers_see_their_own_pages_while_live_huge_ones_come_and_go";
        let Some(service) = service(test) else {
            return;
        };
        let kernel = (service.inside().platform().capabilities()).has(Capability::KernelFaults);
        if !kernel {
            skipped(format_args!(
                "{test}: in part: the kernel's own faults are not served"
            ));
        }
        const BLOCKS: u64 = 4;
        let pages = BLOCKS * BLOCK;
        let mut region = service.map(pages as usize * PAGE).expect("map");
        (0..pages)
            .filter(|i| !empty(*i))
            .for_each(|i| write(&mut region, i, 0));
        let (base, start) = (region.as_ptr() as usize, region.start());
        let (stop, reads) = (AtomicBool::new(false), AtomicU64::new(0));
        let mut done = Done::default();
        std::thread::scope(|s| {
            let reader = |number: u64| {
                let (stop, reads) = (&stop, &reads);
                move || {
                    let mut x = 88_172_645_463_325_252u64 + number;
                    let mut bytes = [0; PAGE];
                    while !stop.load(Relaxed) {
                        let i = next(&mut x) % pages;
                        read_page(base + i as usize * PAGE, kernel && number == 0, &mut bytes);
                        if let Err(wrong) = look(&bytes, i) {
                            stop.store(true, Relaxed);
                            panic!("{wrong}");
                        }
                        reads.fetch_add(1, Relaxed);
                    }
                }
            };
            (0..4).for_each(|number| drop(s.spawn(reader(number))));
            let mut x = 362_436_069;
            while !(stop.load(Relaxed) || done.enough() && reads.load(Relaxed) >= 100_000) {
                let dice = next(&mut x);
                disturb(&service, start, BLOCKS, dice >> 3, &mut done);
            }
            stop.store(true, Relaxed);
        });
        eprintln!("{done:?}, {} reads", reads.load(Relaxed));
        // What a hole was punched in stays one, everything else is there.
        for i in 0..pages {
            look(page_of(&region, i), i).unwrap();
        }
        sound(&service);
    });
}
