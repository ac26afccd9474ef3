//! The steps of a request in their order: free lists, compaction, rounds of reclaim, giving way.

use super::super::why::Reason;
use super::*;
use Step::{Begin, Compact, End, Round};

/// What a request has asked for; the number of the round.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    Round(u32),
    Begin,
    Compact(u32),
    End(bool),
}

/// Writes down what it is asked for: reclaim frees eight frames a round while there are some,
/// compaction has three steps and forms nothing.
struct Steps<'a> {
    m: &'a Cpus,
    frames: Vec<Pfn>,
    seen: Vec<Step>,
}

impl<'a> Steps<'a> {
    fn new(m: &'a Cpus, frames: impl IntoIterator<Item = Pfn>) -> Steps<'a> {
        Steps {
            m,
            frames: frames.into_iter().collect(),
            seen: Vec::new(),
        }
    }
}

impl Reclaim for Steps<'_> {
    fn round(&mut self, goal: &Goal<'_>) -> u64 {
        self.seen.push(Round(goal.round));
        let n = self.frames.len().min(8);
        for pfn in self.frames.drain(..n) {
            goal.zone.free(self.m, pfn, 0).unwrap();
        }
        n as u64
    }

    fn begin_compaction(&mut self, _: &Goal<'_>) -> bool {
        self.seen.push(Begin);
        true
    }

    fn compact(&mut self, goal: &Goal<'_>) -> bool {
        self.seen.push(Compact(goal.round));
        goal.round < 2
    }

    fn end_compaction(&mut self, _: &Goal<'_>, success: bool) {
        self.seen.push(End(success));
    }
}

const COMPACTION: [Step; 5] = [Begin, Compact(0), Compact(1), Compact(2), End(false)];

#[test]
fn a_costly_block_is_formed_by_moving_pages_before_any_page_goes() {
    let m = Cpus::default();
    for (order, before, after) in [(0, 0, 0), (3, 0, 1), (4, 1, 1), (9, 1, 1)] {
        let zones = [full(0, 4096)];
        let all = fill(&zones[0], &m);
        // Of what comes free no two frames make a block.
        let odd = all.iter().copied().skip(1).step_by(2);
        let mut steps = Steps::new(&m, odd.take(if order == 0 { 0 } else { 24 }));
        let list = Zonelist::new(&zones);
        let why = alloc_pages(&m, &list, &Request::new(order), Some(&mut steps)).unwrap_err();
        assert_eq!(why.reason, Reason::Reclaimed);
        let mut wanted = COMPACTION.repeat(before);
        let rounds = match order {
            0 => std::vec![Round(0)],
            // A pass ends with what it is for; another finds nothing.
            3 => std::vec![Round(0), Round(1), Round(2), Round(3), Round(0)],
            _ => std::vec![Round(0), Round(1), Round(2), Round(3)],
        };
        wanted.extend(&rounds);
        wanted.extend(COMPACTION.repeat(after));
        assert_eq!(steps.seen, wanted, "order {order}");
        let text = why.to_string();
        let said = std::format!("{} rounds freed {} pages", rounds.len(), why.freed);
        assert!(text.contains(&said), "{said} in {text}");
        assert_eq!(why.freed, if order == 0 { 0 } else { 24 });
    }
}

#[test]
fn a_pass_ends_when_it_has_freed_what_it_is_for() {
    let m = Cpus::default();
    let zones = [full(0, 4096)];
    let all = fill(&zones[0], &m);
    let mut steps = Steps::new(&m, all.iter().copied().step_by(2).take(100));
    let list = Zonelist::new(&zones);
    // Twice the block, and no second pass above the costly order.
    let why = alloc_pages(&m, &list, &Request::new(4), Some(&mut steps)).unwrap_err();
    assert_eq!((why.rounds, why.freed), (4, 32));
}

#[test]
fn a_small_block_empties_the_per_cpu_lists_only_when_all_else_has_failed() {
    let m = Cpus::default();
    let zones = [full(0, 4096)];
    let all = fill(&zones[0], &m);
    let mut steps = Steps::new(&m, all[8..16].iter().copied());
    let list = Zonelist::new(&zones);
    let got = alloc_pages(&m, &list, &Request::new(3), Some(&mut steps)).unwrap();
    assert_eq!(got.pfn, Pfn(8));
    let rounds = [Round(0), Round(1), Round(0)];
    assert_eq!(steps.seen, [&rounds[..], &COMPACTION].concat());
    // Above the costly order they are emptied after each round.
    let mut steps = Steps::new(&m, all[32..48].iter().copied());
    let got = alloc_pages(&m, &list, &Request::new(4), Some(&mut steps)).unwrap();
    assert_eq!((got.pfn, got.captured), (Pfn(32), true));
    assert_eq!(
        steps.seen,
        [&COMPACTION[..], &[Round(0), Round(1)]].concat()
    );
}

#[test]
fn r6_who_may_not_reclaim_does_not_reclaim_from_a_zone_either() {
    let m = Cpus::default();
    let zones = [full(0, 2048), full(65_536, 2048)];
    let all = fill(&zones[0], &m);
    let (min, low, high) = (4, 8, 12);
    zones[0].set_watermarks(Watermarks { min, low, high });
    let list = Zonelist {
        zone_reclaim: true,
        ..Zonelist::new(&zones)
    };
    for (flags, asked) in [(AllocFlags::WMARK_LOW, 0), (AllocFlags::USER, 1)] {
        // What it frees is too little for the mark.
        let mut steps = Steps::new(&m, all[..3].iter().copied());
        let request = Request::new(0).with_flags(flags);
        let got = alloc_pages(&m, &list, &request, Some(&mut steps)).unwrap();
        assert_eq!((got.zone, steps.seen.len()), (1, asked), "{flags:?}");
    }
}

/// Ends another CPU's pass when the request has given way for the second time.
struct Second<'z> {
    cpus: Cpus,
    gave_way: AtomicU32,
    capture: std::sync::Mutex<Option<Capture<'z, Cpus>>>,
}

impl Machine for Second<'_> {
    fn this_cpu(&self) -> usize {
        self.cpus.this_cpu()
    }
    fn nr_cpus(&self) -> usize {
        4
    }
    fn park(&self, _: &AtomicU32, _: u32) {
        panic!("nobody to wait for");
    }
    fn unpark(&self, _: &AtomicU32, _: u32) {}
    fn kick(&self, _: Work) {}
    fn preempt(&self, site: Site) {
        if site == Site::ReclaimRound && self.gave_way.fetch_add(1, Relaxed) == 1 {
            self.capture.lock().unwrap().take();
        }
    }
}

#[test]
fn r30_who_is_about_to_fail_waits_for_what_others_hold_captured() {
    let m = Cpus::default();
    let zones = [full(0, 2048)];
    let all = fill(&zones[0], &m);
    let capture = zones[0].begin_capture(m.on(1), 9);
    zones[0].free(&m, all[7], 0).unwrap();
    assert_eq!(zones[0].captured_pages(), 1);
    let second = Second {
        cpus: Cpus::default(),
        gave_way: AtomicU32::new(0),
        capture: std::sync::Mutex::new(capture),
    };
    // The first time is the round of reclaim, which brings nothing.
    let mut nothing = Steps::new(&m, []);
    let list = Zonelist::new(&zones);
    let got = alloc_pages(&second, &list, &Request::new(0), Some(&mut nothing));
    assert_eq!(got.map(|got| got.pfn), Ok(all[7]));
    assert_eq!(nothing.seen, [Round(0)]);
}

#[test]
fn r25_a_captured_pageblock_takes_the_type_of_its_new_owner_and_a_part_of_one_does_not() {
    let m = Cpus::default();
    for (order, becomes) in [(9, Mobility::Unmovable), (4, Mobility::Movable)] {
        let zone = full(0, 4096);
        let all = fill(&zone, &m);
        let mut capture = zone.begin_capture(&m, order).unwrap();
        for pfn in &all[512..512 + (1 << order)] {
            zone.free(&m, *pfn, 0).unwrap();
        }
        let got = capture.consult(Mobility::Unmovable, |_| true);
        assert_eq!(got, Some(Pfn(512)));
        assert_eq!(zone.pageblock(Pfn(512)), becomes, "order {order}");
    }
}

#[test]
fn candidates_are_whole_blocks_of_what_was_ever_in_use() {
    let m = Cpus::default();
    let zone = full(0, 2748);
    zone.alloc(&m, 0).unwrap();
    let first = |zone: &Zone| -> Vec<u32> {
        (zone.candidates(9, 8).iter())
            .map(|c| c.pfn.0 / 512)
            .collect()
    };
    assert_eq!(first(&zone), [1, 0], "above lies what was never used");
    fill(&zone, &m);
    assert_eq!(first(&zone).len(), 5, "the end is no whole block");
}

#[test]
fn where_no_block_is_free_no_mark_is_in_the_way() {
    let m = Cpus::default();
    let zones = [full(0, 2048)];
    let all = fill(&zones[0], &m);
    let (min, low, high) = (10, 20, 30);
    zones[0].set_watermarks(Watermarks { min, low, high });
    let list = Zonelist::new(&zones);
    for (free, below) in [(0, false), (3, true)] {
        zones[0].free_bulk(&m, &all[..free]).unwrap();
        let why = alloc_pages(&m, &list, &Request::new(0), None).unwrap_err();
        assert_eq!(why.zones[0].below_watermark, below, "{why}");
        assert!(!why.to_string().contains("rounds"), "{why}");
    }
}
