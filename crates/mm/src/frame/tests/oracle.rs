//! The whole zone against a naive one: a bitmap of what is allocated.
//!
//! Events are drawn from a seed and applied to both; after each, what is allocated must agree
//! and the pages must sum up.

use super::*;

/// Owner of each frame: 0 nobody, else the order of its folio plus one.
struct Naive {
    first: u32,
    frames: Vec<u8>,
    live: BTreeMap<u32, u8>,
    allocated: u64,
}

impl Naive {
    fn new(zone: &Zone) -> Naive {
        let span = zone.span();
        Naive {
            first: span.first.0,
            frames: std::vec![0; span.frames as usize],
            live: BTreeMap::new(),
            allocated: 0,
        }
    }
    fn mark(&mut self, pfn: Pfn, order: u8, to: u8) {
        let at = (pfn.0 - self.first) as usize;
        for frame in &mut self.frames[at..at + order_pages(order) as usize] {
            assert_eq!(
                *frame == 0,
                to != 0,
                "{pfn} order {order}: given or freed twice"
            );
            *frame = to;
        }
    }
    fn gave(&mut self, pfn: Pfn, order: u8) {
        assert!(pfn.is_aligned(order));
        self.mark(pfn, order, order + 1);
        self.live.insert(pfn.0, order);
        self.allocated += order_pages(order) as u64;
    }
    fn took(&mut self, pfn: Pfn, order: u8) {
        self.mark(pfn, order, 0);
        assert_eq!(self.live.remove(&pfn.0), Some(order));
        self.allocated -= order_pages(order) as u64;
    }
    fn pick(&self, random: &mut Random) -> Option<(Pfn, u8)> {
        let at = self.first + random.below(self.frames.len()) as u32;
        let (p, o) = self.live.range(at..).chain(&self.live).next()?;
        Some((Pfn(*p), *o))
    }
    fn has(&self, order: u8) -> bool {
        let free: Vec<bool> = self.frames.iter().map(|f| *f == 0).collect();
        order <= MAX_ORDER && naive_has(&free, self.first as usize, order)
    }
}

/// Frees live folios of the naive zone, as reclaim would.
struct Reclaimer<'a> {
    m: &'a Cpus,
    naive: &'a mut Naive,
    random: &'a mut Random,
}

impl Reclaim for Reclaimer<'_> {
    fn round(&mut self, goal: &Goal<'_>) -> u64 {
        let mut freed = 0;
        let cpu = self.m.this_cpu();
        while freed < goal.pages {
            let Some((pfn, order)) = self.naive.pick(self.random) else {
                break;
            };
            // Half of what comes free comes from others.
            let by = self.random.below(2) * (cpu + 1) % 4;
            self.naive.took(pfn, order);
            goal.zone.free(self.m.on(by), pfn, order).unwrap();
            self.m.on(cpu);
            freed += order_pages(order) as u64;
            if self.random.below(8) == 0
                && let Ok(pfn) = goal.zone.alloc(self.m.on(3 - cpu), 0)
            {
                self.naive.gave(pfn, 0);
            }
            self.m.on(cpu);
        }
        freed
    }
}

fn torture(zone: &Zone, m: &Cpus, steps: u32, seed: u64) {
    let mut naive = Naive::new(zone);
    // Passes of reclaim that stay open over many steps, one for each CPU.
    let mut open: [Option<Capture<'_, Cpus>>; 4] = [const { None }; 4];
    let mut random = Random(seed);
    let frames = zone.span().frames as usize;
    for step in 0..steps {
        let say = || format!("seed {seed:#x}, {zone:?}, step {step}");
        let cpu = random.below(4);
        let m = m.on(cpu);
        // Long phases of growth and of decline, so that both ends are reached.
        let growing = step / 700 % 2 == 0;
        match random.below(16) {
            0 => {
                if let Some((pfn, order)) = naive.pick(&mut random) {
                    zone.split_allocated(pfn, order).unwrap();
                    naive.took(pfn, order);
                    (0..order_pages(order)).for_each(|i| naive.gave(pfn.add(i), 0));
                }
            }
            1 => {
                // Wrong frees change nothing.
                let at = Pfn(zone
                    .span()
                    .first
                    .0
                    .wrapping_add(random.below(frames + 9) as u32));
                let order = random.below(13) as u8;
                if naive.live.get(&at.0) != Some(&order) {
                    assert!(zone.free(m, at, order).is_err(), "{}", say());
                }
            }
            2 => {
                let mut out = std::vec![Pfn(0); random.below(200)];
                let n = zone.alloc_bulk(m, &mut out);
                out[..n].iter().for_each(|p| naive.gave(*p, 0));
                let left = frames as u64 - naive.allocated;
                assert!(n == out.len() || left == zone.captured_pages(), "{}", say());
            }
            3 => {
                let at = zone.span().first.0 + random.below(frames) as u32;
                let some: Vec<Pfn> = (naive.live.range(at..))
                    .filter(|(_, order)| **order == 0)
                    .take(200)
                    .map(|(p, _)| Pfn(*p))
                    .collect();
                zone.free_bulk(m, &some).unwrap();
                some.iter().for_each(|p| naive.took(*p, 0));
            }
            4 if open[cpu].is_none() => {
                open[cpu] = zone.begin_capture(m, random.below(11) as u8);
            }
            4 => {
                let order = open[cpu].as_ref().unwrap().order();
                let mobility = Mobility::ALL[random.below(3)];
                let permit = random.below(4) > 0;
                let got = (open[cpu].as_mut().unwrap()).consult(mobility, |_| permit);
                assert_eq!(open[cpu].as_ref().unwrap().pages(), 0, "{}", say());
                if let Some(pfn) = got {
                    naive.gave(pfn, order);
                    open[cpu] = None;
                }
            }
            5 if random.below(4) == 0 => open[cpu] = None,
            5 if random.below(20) == 0 => {
                zone.drain(m);
                assert_eq!(zone.cached_pages(), 0, "{}", say());
            }
            5 if random.below(20) == 0 => {
                let policy = CapturePolicy {
                    enabled: random.below(3) > 0,
                    above: random.below(6) as u8,
                    absorb_free: random.below(3) > 0,
                    from_others: random.below(3) > 0,
                };
                zone.set_capture(m, policy);
            }
            6 => {
                let mut request = Request::new(random.below(11) as u8);
                request.mobility = Mobility::ALL[random.below(3)];
                request.reclaim_pages = random.below(200) as u64;
                let zones = std::slice::from_ref(zone);
                let mut reclaimer = Reclaimer {
                    m,
                    naive: &mut naive,
                    random: &mut random,
                };
                let got = alloc_pages(m, &Zonelist::new(zones), &request, Some(&mut reclaimer));
                match got {
                    Ok(got) => naive.gave(got.pfn, request.order),
                    Err(why) => {
                        let there = zone.captured_pages() == 0 && naive.has(request.order);
                        assert!(!there, "{why}, {}", say());
                    }
                }
            }
            k if (k < 12) == growing => {
                let order = (random.below(12).min(random.below(12)).min(random.below(12))) as u8;
                match zone.alloc_as(m, order, Mobility::ALL[random.below(3)]) {
                    Ok(pfn) => naive.gave(pfn, order),
                    Err(e) => {
                        let there = zone.captured_pages() == 0 && naive.has(order);
                        assert!(!there, "{e}, {}", say());
                    }
                }
            }
            _ => {
                if let Some((pfn, order)) = naive.pick(&mut random) {
                    zone.free(m, pfn, order).unwrap();
                    naive.took(pfn, order);
                }
            }
        }
        assert_eq!(zone.allocated_pages(), naive.allocated, "{}", say());
        let events = zone.events();
        assert_eq!(events.pgalloc - events.pgfree, naive.allocated, "{}", say());
        if step < 10_000 || step % 64 == 0 {
            zone.verify().unwrap_or_else(|e| panic!("{e}, {}", say()));
        }
    }
    drop(open);
    for (p, order) in naive.live {
        zone.free(m, Pfn(p), order).unwrap();
    }
    zone.drain(m);
    zone.set_capture(m, CapturePolicy::ON);
    zone.verify().unwrap();
    let whole = full(zone.span().first.0, zone.span().frames).free_by_order();
    assert_eq!(zone.free_by_order(), whole, "all merged again");
}

/// The events that matter all happened: a seed that never captures proves nothing.
fn all_happened(zone: &Zone, m: &Cpus) {
    let s = zone.capture_stats(m);
    assert!(
        s.own > 0 && s.absorbed > 0 && s.joined > 0 && s.handed_over > 0,
        "{s:?}"
    );
    assert!(s.taken > 0 && s.returned > 0 && s.refused > 0, "{s:?}");
    assert_eq!(
        s.own + s.absorbed + s.joined,
        s.now + s.taken + s.returned,
        "{s:?}"
    );
    assert_eq!(s.now, 0);
}

#[test]
fn r18_sums_agree_with_a_bitmap_at_every_step() {
    // 100,000 steps in all. The large zone has per-CPU lists of every order.
    for (i, frames) in [8192, 65_536].into_iter().enumerate() {
        let (zone, m) = (full(1024, frames), Cpus::default());
        torture(&zone, &m, 50_000, 0x5eed_0001 + i as u64);
        all_happened(&zone, &m);
    }
}

#[test]
fn r18_ragged_zones_agree_with_a_bitmap() {
    for (i, (first, frames)) in [(1024, 1), (1024, 1023), (1021, 1500), (3, 70), (700, 5000)]
        .into_iter()
        .enumerate()
    {
        torture(
            &full(first, frames),
            &Cpus::default(),
            3000,
            0xfeed_0001 + i as u64,
        );
    }
}

#[test]
fn each_part_of_a_zone_can_be_left_out() {
    for parts in 0..8 {
        let config = ZoneConfig {
            cpus: 4,
            pcp: parts & 1 > 0,
            mobility: parts & 2 > 0,
            capture: parts & 4 > 0,
            node: 0,
        };
        let span = FrameSpan {
            first: Pfn(1024),
            frames: 9000,
        };
        let zone = Zone::with(span, config);
        torture(&zone, &Cpus::default(), 3000, 0xabc0 + parts as u64);
    }
}
