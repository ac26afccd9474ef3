//! `deckle stat`.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use deckle_group::{LineId, Name};
use deckle_mm::{Item, PAGE_SIZE};

use super::waits::Waits;
use super::{Tree, Trees, find, json, openmetrics, table};
use crate::args::look::{Format, StatArgs};
use crate::fail::Fail;
use crate::procfs;
use crate::run::report::Report;
use crate::{print, say};

/// Lines between two headers.
const HEADER_EVERY: u64 = 20;

/// A process of a tree, amounts in bytes.
pub struct Process {
    /// Its line in the page.
    pub line: LineId,
    /// Its pid, in its own pid namespace.
    pub pid: u32,
    /// That of its service.
    pub service: u32,
    /// Its name, as far as it can be shown.
    pub command: String,
    /// What the limit is held against.
    pub charged: u64,
    /// Its pages in memory that are mapped.
    pub resident: u64,
    /// Those that are not, since they may be evicted next.
    pub inactive: u64,
    /// Its pages in swap.
    pub swapped: u64,
    /// Memory that they take.
    pub store: u64,
    /// Compressed data there.
    pub stored: u64,
    /// Of its pages in files, and what they take there.
    pub filed: [u64; 2],
    counters: [u64; Item::COUNT],
}

impl Process {
    /// Those of a tree, who has most first.
    pub fn all(tree: &Tree, names: &mut Names) -> Vec<Process> {
        let (group, bytes) = (tree.group(), |pages: u64| {
            pages.saturating_mul(PAGE_SIZE as u64)
        });
        let mut all: Vec<Process> = group
            .processes()
            .map(|p| Process {
                line: p.line,
                pid: p.pid,
                service: p.service,
                command: names.of(p.line, p.pid),
                charged: bytes(p.charged),
                resident: bytes(p.gauges.resident),
                inactive: bytes(p.gauges.inactive),
                swapped: bytes(p.gauges.swapped),
                store: bytes(p.gauges.stored_pages),
                stored: p.gauges.stored_bytes,
                filed: [p.gauges.filed, p.gauges.file_pages].map(bytes),
                counters: group.counters_of(p.line),
            })
            .collect();
        all.sort_by_key(|p| (std::cmp::Reverse(p.charged), p.pid));
        all
    }

    /// A counter or gauge.
    pub fn counter(&self, item: Item) -> u64 {
        self.counters[item as usize]
    }

    /// One that has nothing but these, and has waited for a hundredth of a second at each fault.
    #[cfg(test)]
    pub fn plain(line: LineId, pid: u32, command: &str, charged: u64, faults: u64) -> Process {
        let mut counters = [0; Item::COUNT];
        counters[Item::Pgfault as usize] = faults;
        counters[Item::PressureSome as usize] = faults * 10_000;
        Process {
            line,
            pid,
            service: 0,
            command: command.into(),
            charged,
            resident: 0,
            inactive: 0,
            swapped: 0,
            store: 0,
            stored: 0,
            filed: [0; 2],
            counters,
        }
    }
}

/// Names of processes, each read once for each program: that costs more than all the rest.
#[derive(Default)]
pub struct Names(HashMap<[u32; 2], String>);

impl Names {
    fn of(&mut self, line: LineId, pid: u32) -> String {
        // Lines are used again and again.
        if self.0.len() > 4096 {
            self.0.clear();
        }
        let name = self.0.entry(line.into()).or_insert_with(|| command(pid));
        name.clone()
    }
}

/// Its name, without what a terminal would take for more than letters.
fn command(pid: u32) -> String {
    let shown = |c: char| if c.is_control() { '?' } else { c };
    match procfs::comm(pid).as_str() {
        "" => "-".to_owned(),
        name => name.chars().map(shown).collect(),
    }
}

/// A tree at one moment.
pub struct Seen {
    /// Its name, or its pid.
    pub called: String,
    /// The process that the user has started.
    pub pid: u32,
    /// Its `deckle run`'s supervisor.
    pub supervisor: u32,
    /// Those of the whole tree.
    pub report: Report,
    /// Its processes, if they are asked for.
    pub processes: Vec<Process>,
    /// What some counters were before, and how long ago that was.
    before: Option<([u64; RATES.len()], Duration)>,
    /// Microseconds that were waited since then.
    waited: u64,
}

#[cfg(test)]
impl Seen {
    /// A tree of these processes, in a group that has none.
    pub fn plain(called: &str, group: &deckle_group::Group, processes: Vec<Process>) -> Seen {
        Seen {
            called: called.into(),
            pid: 4711,
            supervisor: 4712,
            report: Report::gather(group, "none".into(), Err(Duration::from_millis(1500))),
            processes,
            before: None,
            waited: 0,
        }
    }
}

/// Counters of which is told how fast they grow; waits are the last.
const RATES: [Item; 3] = [Item::Pgfault, Item::Pswpin, Item::PressureSome];

impl Seen {
    fn rates(&self) -> [u64; RATES.len()] {
        RATES.map(|item| self.report.counter(item))
    }

    /// How much a counter grew in a second, since the look before or the start.
    pub fn rate(&self, item: Item) -> f64 {
        let now = self.report.counter(item);
        let Some((before, time)) = &self.before else {
            return now as f64 / self.report.wall_s.max(1e-3);
        };
        let at = RATES.iter().position(|of| *of == item);
        let before = at.map_or(now, |i| before[i]);
        now.saturating_sub(before) as f64 / time.as_secs_f64().max(1e-3)
    }

    /// Per cent of the time in which somebody waited for memory.
    pub fn pressure(&self) -> f64 {
        match &self.before {
            Some((_, time)) => self.waited as f64 / time.as_secs_f64().max(1e-3) / 1e4,
            None => self.rate(Item::PressureSome) / 1e4,
        }
    }
}

/// A look at a tree.
struct Before {
    rates: [u64; RATES.len()],
    at: Instant,
    processes: u64,
    waits: Waits,
}

/// Looks from time to time.
struct Watch {
    before: HashMap<Name, Before>,
    names: HashMap<Name, Names>,
    processes: bool,
}

impl Watch {
    fn look(&mut self, tree: &Tree) -> Seen {
        let (group, now) = (tree.group(), Instant::now());
        let mut seen = Seen {
            called: tree.called(),
            pid: group.front(),
            supervisor: group.supervisor(),
            report: tree.report(),
            processes: match self.processes {
                true => Process::all(tree, self.names.entry(group.name()).or_default()),
                false => Vec::new(),
            },
            before: None,
            waited: 0,
        };
        let mut next = Before {
            rates: seen.rates(),
            at: now,
            processes: seen.report.processes,
            waits: Waits::default(),
        };
        if let Some(before) = self.before.remove(&group.name()) {
            let time = now - before.at;
            let waits = RATES.len() - 1;
            let told = next.rates[waits].saturating_sub(before.rates[waits]);
            let most = before.processes.max(next.processes);
            next.waits = before.waits;
            seen.waited = next.waits.within(told, time, most);
            seen.before = Some((before.rates, time));
        }
        self.before.insert(group.name(), next);
        seen
    }
}

/// A time between two looks.
pub fn time(seconds: f64) -> Result<Duration, Fail> {
    match (0.01..=86_400.0).contains(&seconds) {
        true => Ok(Duration::from_secs_f64(seconds)),
        false => Err(Fail::own(format!(
            "--interval: `{seconds}` is no time to wait: give 0.01 to 86400 seconds"
        ))),
    }
}

/// Shows statistics; the exit status of `deckle`.
pub fn stat(args: &StatArgs) -> Result<i32, Fail> {
    let every = args.interval.map(time).transpose()?;
    let mut trees = match &args.tree {
        Some(word) => Trees::only(find(word)?),
        None => Trees::now(),
    };
    let (one, text) = (args.tree.is_some(), args.format == Format::Text);
    let mut watch = Watch {
        before: HashMap::new(),
        names: HashMap::new(),
        processes: args.format == Format::Json || text && one && every.is_none(),
    };
    let (mut round, mut next) = (0, Instant::now());
    loop {
        let seen: Vec<Seen> = trees.all().iter().map(|tree| watch.look(tree)).collect();
        show(args, &seen, round)?;
        round += 1;
        let Some(every) = every else { return Ok(0) };
        if args.count.is_some_and(|count| round >= count) {
            return Ok(0);
        }
        // The first look has no time behind it: what is told by the second begins after it.
        next = (next + every).max(Instant::now());
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
        trees.renew();
        if one && trees.all().is_empty() {
            if text {
                say(format_args!("the tree has ended"));
            }
            return Ok(0);
        }
    }
}

fn show(args: &StatArgs, seen: &[Seen], round: u64) -> Result<(), Fail> {
    let (one, again) = (args.tree.is_some(), args.interval.is_some());
    let text = match (args.format, seen) {
        (Format::Json, _) if again => json::line(seen),
        (Format::Json, _) => json::lines(seen),
        (Format::Openmetrics, _) => {
            let all: Vec<_> = seen.iter().map(|t| (&t.called, &t.report)).collect();
            openmetrics::text(&all)
        }
        (Format::Text, []) if !one => "no tree runs under deckle".to_owned(),
        (Format::Text, [tree]) if one && !again => table::whole(tree),
        (Format::Text, seen) => {
            let head = !one || round.is_multiple_of(HEADER_EVERY);
            table::lines(seen, again, head)
        }
    };
    print(text.trim_end_matches('\n'))
}
