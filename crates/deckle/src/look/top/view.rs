//! What `deckle top` shows, without a terminal: rows, their order, what is looked for, history.

use std::cmp::Reverse;
use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use deckle_mm::Item;

use crate::look::Tree;
use crate::look::stat::{Names, Process};
use crate::look::waits::Waits;
use crate::run::report::Report;

/// Looks that the history line has.
pub const HISTORY: usize = 512;

/// What rows are sorted by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sort {
    /// What the limit is held against.
    Charged,
    /// Pages in memory.
    Resident,
    /// Pages in swap.
    Stored,
    /// Page faults a second.
    Faults,
    /// Pages read back a second.
    SwapIns,
    /// The time that it waited for memory.
    Waits,
    /// Pids, the smallest first.
    Pid,
}

/// In the order of the columns, with the letter that chooses each.
pub const SORTS: [(char, Sort); 7] = [
    ('p', Sort::Pid),
    ('c', Sort::Charged),
    ('r', Sort::Resident),
    ('s', Sort::Stored),
    ('f', Sort::Faults),
    ('i', Sort::SwapIns),
    ('w', Sort::Waits),
];

/// Counters that are told by the second; waits are the last.
const RATES: [Item; 3] = [Item::Pgfault, Item::Pswpin, Item::PressureSome];

type Rates = [f64; RATES.len()];

/// What some counters of so many processes were, and the waits that were told late.
#[derive(Clone, Copy)]
struct Before {
    counts: [u64; RATES.len()],
    processes: u64,
    waits: Waits,
}

impl Before {
    /// How fast they grew to `now` in `time`, and what they are now.
    fn grown(&self, now: [u64; RATES.len()], processes: u64, time: Duration) -> (Rates, Before) {
        let mut next = Before {
            counts: now,
            processes,
            waits: self.waits,
        };
        let mut grown: [u64; RATES.len()] =
            std::array::from_fn(|i| now[i].saturating_sub(self.counts[i]));
        let waited = &mut grown[RATES.len() - 1];
        *waited = next
            .waits
            .within(*waited, time, processes.max(self.processes));
        let seconds = time.as_secs_f64().max(1e-3);
        (grown.map(|n| n as f64 / seconds), next)
    }

    /// The first look.
    fn first(counts: [u64; RATES.len()], processes: u64) -> Before {
        let waits = Waits::default();
        Before {
            counts,
            processes,
            waits,
        }
    }
}

/// A process.
pub struct Row {
    /// All of it.
    pub process: Process,
    /// Faults, swap-ins and microseconds waited, a second.
    pub rates: Rates,
}

/// All that is shown.
pub struct View {
    /// What the tree is called, and the pid of its `deckle run`.
    pub tree: (String, u32),
    /// The whole of it.
    pub report: Option<Report>,
    /// Of the whole of it.
    pub rates: Rates,
    /// What is charged, at each look, oldest first.
    pub history: VecDeque<u64>,
    /// Its processes.
    pub rows: Vec<Row>,
    /// What they are sorted by.
    pub sort: Sort,
    /// Those alone whose name or pid has this.
    pub filter: String,
    /// Letters go to that.
    pub types: bool,
    /// The first that is shown.
    pub top: usize,
    before: HashMap<[u32; 2], Before>,
    whole: Option<(Before, Instant)>,
    names: Names,
}

impl View {
    /// Nothing was looked at yet.
    pub fn new() -> View {
        View {
            tree: Default::default(),
            report: None,
            rates: [0.0; 3],
            history: VecDeque::new(),
            rows: Vec::new(),
            sort: Sort::Charged,
            filter: String::new(),
            types: false,
            top: 0,
            before: HashMap::new(),
            whole: None,
            names: Names::default(),
        }
    }

    /// Takes in what a tree was at its last look.
    pub fn take(&mut self, tree: &Tree) {
        let group = tree.group();
        let called = (tree.called(), group.front());
        if self.tree != called {
            // Nothing of another tree tells anything here.
            let (sort, filter) = (self.sort, std::mem::take(&mut self.filter));
            *self = View {
                tree: called,
                sort,
                filter,
                ..View::new()
            };
        }
        let processes = Process::all(tree, &mut self.names);
        self.see(tree.report(), processes, Instant::now());
    }

    fn see(&mut self, report: Report, processes: Vec<Process>, at: Instant) {
        let whole = RATES.map(|item| report.counter(item));
        let n = processes.len() as u64;
        let (time, now) = match self.whole {
            Some((before, then)) => {
                let (rates, now) = before.grown(whole, n, at - then);
                self.rates = rates;
                (Some(at - then), now)
            }
            None => (None, Before::first(whole, n)),
        };
        self.whole = Some((now, at));
        self.history.push_back(report.usage);
        while self.history.len() > HISTORY {
            self.history.pop_front();
        }
        self.report = Some(report);
        let before = std::mem::take(&mut self.before);
        let row = |process: Process| {
            let line: [u32; 2] = <[u32; 2]>::from(process.line);
            let now = RATES.map(|item| process.counter(item));
            let (rates, now) = match (before.get(&line), time) {
                (Some(then), Some(time)) => then.grown(now, 1, time),
                _ => ([0.0; 3], Before::first(now, 1)),
            };
            self.before.insert(line, now);
            Row { process, rates }
        };
        self.rows = processes.into_iter().map(row).collect();
        self.order();
    }

    /// Sorts the rows anew.
    pub fn order(&mut self) {
        let of = |n: f64| (n * 1000.0) as u64;
        let sort = self.sort;
        self.rows.sort_by_key(|row| {
            let p = &row.process;
            let key = match sort {
                Sort::Charged => p.charged,
                Sort::Resident => p.resident,
                Sort::Stored => p.swapped,
                Sort::Faults => of(row.rates[0]),
                Sort::SwapIns => of(row.rates[1]),
                Sort::Waits => of(row.rates[2]),
                Sort::Pid => u64::from(u32::MAX - p.pid),
            };
            (Reverse(key), p.pid)
        });
    }

    /// The rows that are looked for.
    pub fn found(&self) -> Vec<&Row> {
        let wanted = |row: &&Row| {
            let p = &row.process;
            p.command.contains(&self.filter) || p.pid.to_string().contains(&self.filter)
        };
        self.rows.iter().filter(wanted).collect()
    }

    /// A letter, or another key's name, was pressed; false: that is the end.
    pub fn key(&mut self, key: Key) -> bool {
        match (key, self.types) {
            (Key::Interrupt, _) | (Key::Letter('q') | Key::Escape, false) => return false,
            (Key::Escape, true) => {
                self.filter.clear();
                self.types = false;
            }
            (Key::Enter, _) => self.types = false,
            (Key::Back, true) => {
                self.filter.pop();
            }
            (Key::Letter(c), true) => self.filter.push(c),
            (Key::Letter('/'), false) => self.types = true,
            (Key::Letter(c), false) => {
                if let Some((_, sort)) = SORTS.iter().find(|(letter, _)| *letter == c) {
                    self.sort = *sort;
                    self.order();
                }
            }
            (Key::Up(n), _) => self.top = self.top.saturating_sub(n),
            (Key::Down(n), _) => self.top = (self.top + n).min(self.rows.len().saturating_sub(1)),
            (Key::Back, false) => {}
        }
        true
    }
}

/// What is pressed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Key {
    /// Ctrl-C.
    Interrupt,
    /// Esc.
    Escape,
    /// Enter.
    Enter,
    /// Backspace.
    Back,
    /// So many rows up.
    Up(usize),
    /// So many down.
    Down(usize),
    /// A letter.
    Letter(char),
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::look::top::draw::screen;
    use deckle_group::{Group, Limits, Name, SwapKind};
    use deckle_mm::Tunables;

    /// A view of three processes, looked at twice, a second apart.
    fn view() -> View {
        let name = format!(
            "test-top-{}-{:?}",
            std::process::id(),
            std::thread::current().id()
        );
        let name = name.to_lowercase().replace(['(', ')'], "");
        let name = Name::new(name.as_bytes()).unwrap();
        let group = Group::create(name, Limits::NONE, &Tunables::default(), SwapKind::Lz4);
        Group::unlink(name);
        let group = group.unwrap();
        let lines = [7, 8, 9].map(|pid| group.join(pid, 0).unwrap());
        let mut view = View::new();
        view.tree = ("web".into(), 4711);
        let start = Instant::now();
        for (second, faults) in [(0, 100), (1, 350)] {
            let of = |i: usize, name, charged, faults| {
                Process::plain(lines[i], 7 + i as u32, name, charged, faults)
            };
            let processes = vec![
                of(0, "small", 1 << 20, faults),
                of(1, "large", 5 << 30, 9),
                of(2, "named \u{4e2d}", 3 << 20, 9),
            ];
            let mut report = Report::gather(&group, "none".into(), Err(Duration::ZERO));
            (report.usage, report.max) = (8 << 20, Some(16 << 20));
            view.see(report, processes, start + Duration::from_secs(second));
        }
        view
    }

    fn text(view: &View, wide: usize, high: usize) -> Vec<String> {
        let line = |parts: Vec<(_, String)>| parts.into_iter().map(|(_, text)| text).collect();
        screen(view, wide, high).into_iter().map(line).collect()
    }

    fn order(view: &View) -> Vec<u32> {
        view.found().iter().map(|row| row.process.pid).collect()
    }

    #[test]
    fn rows_are_sorted_and_looked_for_by_keys() {
        let mut view = view();
        assert_eq!(order(&view), [8, 9, 7]);
        assert_eq!(view.rows[2].rates[0], 250.0, "by the second");
        assert_eq!(view.rows[2].rates[2], 1e6, "no more than all of the time");
        let mut press = |keys: &str| {
            for c in keys.chars() {
                let key = match c {
                    '!' => Key::Escape,
                    '.' => Key::Enter,
                    '<' => Key::Back,
                    c => Key::Letter(c),
                };
                assert!(view.key(key), "{c} ends it");
            }
            order(&view)
        };
        assert_eq!(press("f"), [7, 8, 9]);
        assert_eq!(press("p"), [7, 8, 9]);
        assert_eq!(press("c/med."), [9]);
        assert_eq!(press("/!"), [8, 9, 7], "all again");
        assert_eq!(press("/qx<<8."), [8], "letters go to what is looked for");
        for (key, types) in [(Key::Interrupt, true), (Key::Letter('q'), false)] {
            view.types = types;
            assert!(!view.key(key));
        }
    }

    #[test]
    fn a_screen_has_its_columns_and_rows_whatever_they_are() {
        let mut view = view();
        for (wide, high) in [(80, 24), (120, 50), (80, 8), (20, 3), (1, 1), (0, 0)] {
            let lines = text(&view, wide, high);
            assert!(
                lines.iter().all(|l| l.chars().count() <= wide),
                "{wide} {high}"
            );
        }
        let lines = text(&view, 80, 24);
        assert_eq!(lines.len(), 24);
        assert!(lines[0].starts_with("web  deckle run 4711"), "{lines:#?}");
        assert!(lines[1].contains("charged 8.0M of 16.0M"), "{lines:#?}");
        assert_eq!(lines[4], "\u{2584}\u{2584}", "half of the limit, twice");
        assert!(lines[5].contains(">charged"), "{lines:#?}");
        assert!(
            lines[6].contains("5.0G") && lines[6].ends_with("large"),
            "{lines:#?}"
        );
        assert!(lines[23].contains("q quit"), "{lines:#?}");
        // A narrow one has what it is sorted by, and room for names.
        let lines = text(&view, 40, 24);
        assert!(lines[6].ends_with(" large"), "{lines:#?}");
        assert!(lines[5].contains(">charged"), "{lines:#?}");
        assert!(lines[23].contains("q quit"), "{lines:#?}");
        view.key(Key::Letter('w'));
        let lines = text(&view, 40, 24);
        assert!(
            lines[5].contains(">wait%") && lines[5].contains("command"),
            "{lines:#?}"
        );
        view.key(Key::Letter('c'));
        // The last page is full, and without a tree it says so.
        view.key(Key::Down(50));
        assert!(text(&view, 80, 8)[6].ends_with("small"));
        view.report = None;
        assert_eq!(text(&view, 80, 24)[0], "no tree runs under deckle");
    }
}
