//! `deckle top` on a terminal, beside `deckle stat`.

use std::time::Duration;

use serde_json::Value;

use crate::accept::{compile, turn};
use crate::cli_terminal::Terminal;
use crate::common::{kill, state, until};
use crate::look::*;

/// Where a screen begins.
const HOME: &str = "\x1b[1;1H";

/// The lines of what was drawn, without styles.
fn lines(drawn: &str) -> Vec<String> {
    // ESC [ ... letter: an H begins a line, the others are styles, and what clears the rest.
    let mut parts = drawn.split("\x1b[");
    let mut all = vec![parts.next().unwrap_or("").to_owned()];
    for part in parts {
        let end = part.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(0);
        let (letter, text) = part[end..].split_at(1);
        if letter == "H" {
            all.push(String::new());
        }
        *all.last_mut().unwrap() += text;
    }
    all
}

/// Bytes as they are shown, and how far off they may be: half of the last digit of each.
#[derive(Clone, Copy, Default)]
struct Shown {
    bytes: f64,
    off: f64,
}

impl Shown {
    fn read(text: &str) -> Shown {
        let text = text.trim_end_matches([',', ';']);
        let unit = ["K", "M", "G"].iter().position(|u| text.ends_with(*u));
        let (number, unit) = match unit {
            Some(n) => (&text[..text.len() - 1], 1024f64.powi(n as i32 + 1)),
            None => (text, 1.0),
        };
        let digits = number.split_once('.').map_or(0, |(_, part)| part.len());
        let value: f64 = number.parse().unwrap_or_else(|_| panic!("no size: {text}"));
        Shown {
            bytes: value * unit,
            off: unit * 0.5 / 10f64.powi(digits as i32),
        }
    }

    fn add(&mut self, other: Shown) {
        self.bytes += other.bytes;
        self.off += other.off;
    }

    /// Whether both can be of the same number, or nearly.
    fn is_near(self, other: Shown) -> bool {
        const NEARLY: f64 = 0.02;
        let off = NEARLY * other.bytes + self.off + other.off;
        (self.bytes - other.bytes).abs() <= off
    }
}

impl std::fmt::Display for Shown {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:.0} (+-{:.0})", self.bytes, self.off)
    }
}

/// What a screen says: of the tree, and the sums of its rows. Charged, resident, stored.
struct Screen {
    processes: usize,
    whole: [Shown; 3],
    rows: usize,
    sums: [Shown; 3],
}

impl Screen {
    fn read(drawn: &str) -> Screen {
        let lines = lines(drawn);
        let after = |line: &str, word: &str| {
            let (_, rest) = line
                .split_once(word)
                .unwrap_or_else(|| panic!("no `{word}`: {lines:#?}"));
            rest.split_whitespace().next().unwrap().to_owned()
        };
        let processes = after(&lines[0], ", ").parse().unwrap();
        let whole = [
            after(&lines[1], "charged "),
            after(&lines[2], "resident "),
            after(&lines[2], "stored "),
        ];
        let (mut rows, mut sums) = (0, [Shown::default(); 3]);
        assert!(lines[5].contains(">charged"), "{lines:#?}");
        for line in &lines[6..] {
            let cells: Vec<&str> = line.split_whitespace().collect();
            // A row begins with a pid. Who has ended since the look has no name any more.
            let pid = cells.first().is_some_and(|pid| pid.parse::<u32>().is_ok());
            let Some(name) = cells.last().filter(|_| pid) else {
                continue;
            };
            assert!(name.starts_with("forest") || *name == "-", "{line}");
            rows += 1;
            for (sum, cell) in sums.iter_mut().zip(&cells[1..4]) {
                sum.add(Shown::read(cell));
            }
        }
        let whole = whole.map(|text| Shown::read(&text));
        Screen {
            processes,
            whole,
            rows,
            sums,
        }
    }
}

/// The next screen of which all was drawn, and looked at, from now on.
fn next(t: &mut Terminal) -> Screen {
    // What was drawn before waits to be read, and what is being drawn may be of then.
    t.forget();
    for _ in 0..4 {
        t.wait_for(HOME);
    }
    Screen::read(t.wait_for(HOME).strip_suffix(HOME).unwrap())
}

/// Stops all processes of a tree that are managed, whoever of them forks meanwhile; which.
fn stop(name: &str) -> Vec<u32> {
    let mut before = Vec::new();
    loop {
        let all = stat(name)["processes"].clone();
        let pids = all
            .as_array()
            .unwrap()
            .iter()
            .map(|p| number(p, "/pid") as u32);
        let mut pids: Vec<u32> = pids.collect();
        pids.sort_unstable();
        let stopped = pids
            .iter()
            .all(|pid| matches!(state(*pid), 'T' | 'Z' | '-'));
        if stopped && pids == before {
            return pids;
        }
        pids.iter().for_each(|pid| kill(*pid, libc::SIGSTOP));
        // A child that has just begun is listed after a moment, and each tells ten times a second
        // how it is.
        std::thread::sleep(Duration::from_millis(500));
        before = pids;
    }
}

#[test]
fn top_shows_of_fifty_processes_that_fork_and_exit_what_stat_tells() {
    let _turn = turn();
    let forest = compile("forest", &[]);
    let name = unique("many");
    let mut run = start(&name, "--memory-max 180M", &[&forest, "50", "4", "churn"]);
    let pid = filled(&mut run);
    let joined = || number(&stat(&name), "/programs_managed");
    let mut t = Terminal::start();
    t.wait_for("prompt$ ");
    t.type_in("stty cols 100 rows 150\n");
    t.wait_for("prompt$ ");
    let deckle = env!("CARGO_BIN_EXE_deckle");
    t.type_in(&format!(
        "{deckle} top {name} --interval 0.1; echo status-$?-\n"
    ));
    for _ in 0..3 {
        let before = joined();
        // While they fork and exit no look is like the one before it: all on a screen is of one.
        for _ in 0..5 {
            let screen = next(&mut t);
            // One that has just begun is not listed yet.
            let (rows, processes) = (screen.rows, screen.processes);
            assert!(rows == processes && rows > 0, "{rows} of {processes}");
            for (sum, whole) in screen.sums.into_iter().zip(screen.whole) {
                assert!(sum.is_near(whole), "{sum} of {whole}");
            }
        }
        until("some have come", || joined() > before + 5);
        let stopped = stop(&name);
        let screen = next(&mut t);
        let all: Value = stat(&name);
        assert_eq!(screen.rows as u64, number(&all, "/processes_now"));
        for (of, (sum, whole)) in ["memory", "resident", "swapped"]
            .iter()
            .zip(screen.sums.into_iter().zip(screen.whole))
        {
            let told = Shown {
                bytes: number(&all, &format!("/current/{of}_bytes")) as f64,
                off: 0.0,
            };
            eprintln!("{of}: {sum} {whole} {told}");
            assert!(
                sum.is_near(told) && whole.is_near(told),
                "{of}: {sum} {whole} {told}"
            );
        }
        stopped.iter().for_each(|pid| kill(*pid, libc::SIGCONT));
    }
    t.type_in("q");
    t.wait_for("\x1b[?1049l");
    t.wait_for("status-0-");
    end_well(run, pid);
}
