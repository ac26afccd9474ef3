//! How `deckle top` looks: 80 columns are enough, more give the names room.

use deckle_mm::Item;

use super::view::{Row, Sort, View};
use crate::look::table::{clock, count, ratio, short};
use crate::run::report::Report;

/// How a part of a line is shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Style {
    Plain,
    Bold,
    /// The names of the columns.
    Title,
}

/// Parts of a line, from the left.
pub type Line = Vec<(Style, String)>;

/// The columns: their names, how wide they are, what sorts by them.
const COLUMNS: [(&str, usize, Option<Sort>); 10] = [
    ("pid", 7, Some(Sort::Pid)),
    ("charged", 8, Some(Sort::Charged)),
    ("resid.", 7, Some(Sort::Resident)),
    ("stored", 7, Some(Sort::Stored)),
    ("ratio", 5, None),
    ("zeros", 6, None),
    ("huge", 4, None),
    ("flt/s", 6, Some(Sort::Faults)),
    ("in/s", 6, Some(Sort::SwapIns)),
    ("wait%", 6, Some(Sort::Waits)),
];

const KEYS: &str =
    " q quit   / filter   tab next tree   \u{2191}\u{2193} scroll   sort: p c r s f i w";
/// What a narrow screen leaves to the names of programs.
const NAMES: usize = 12;
/// Bars of the history, from the lowest.
const BARS: [char; 8] = [
    '\u{2581}', '\u{2582}', '\u{2583}', '\u{2584}', '\u{2585}', '\u{2586}', '\u{2587}', '\u{2588}',
];

/// The lines of a screen of so many columns and rows.
pub fn screen(view: &View, wide: usize, high: usize) -> Vec<Line> {
    let plain = |text: String| vec![(Style::Plain, text)];
    let Some(r) = &view.report else {
        let mut lines = vec![plain("no tree runs under deckle".into())];
        lines.resize(high.saturating_sub(1).max(1), Vec::new());
        lines.push(plain(KEYS.into()));
        return lines.into_iter().map(|line| cut(line, wide)).collect();
    };
    let mut lines = summary(view, r);
    lines.push(plain(history(view, r, wide)));
    lines.push(header(view, wide));
    let room = high.saturating_sub(lines.len() + 1);
    let found = view.found();
    // The last page is never empty.
    let top = view.top.min(found.len().saturating_sub(room));
    let rows = found.iter().skip(top).take(room);
    let columns = columns(view, wide);
    lines.extend(rows.map(|row| plain(cells(row, &columns))));
    lines.resize(high.saturating_sub(1).max(lines.len()), Vec::new());
    lines.push(plain(footer(view)));
    lines.into_iter().map(|line| cut(line, wide)).collect()
}

/// What of a line fits.
fn cut(line: Line, wide: usize) -> Line {
    let mut left = wide;
    let mut fits = |text: &str| -> String {
        let part: String = text.chars().take(left).collect();
        left -= part.chars().count();
        part
    };
    line.iter()
        .map(|(style, text)| (*style, fits(text)))
        .collect()
}

fn summary(view: &View, r: &Report) -> Vec<Line> {
    let (called, pid) = &view.tree;
    let limit = |bytes: Option<u64>| bytes.map_or("no limit".to_owned(), short);
    let stalled = |item| r.counter(item) as f64 / 1e6;
    let (n, age) = (r.processes, clock(r.wall_s));
    let [some, full] = [Item::PressureSome, Item::PressureFull].map(stalled);
    let zeros = short(r.counter(Item::NrZero).saturating_mul(4096));
    let texts = [
        format!(
            "charged {} of {}, peak {}; high {}",
            short(r.usage),
            limit(r.max),
            short(r.peak),
            limit(r.high)
        ),
        format!(
            "resident {}; stored {} in {} ({}:1); zeros {zeros}; huge pages {}; killed {}",
            short(r.resident),
            short(r.swapped),
            short(r.store),
            ratio(r.swapped, r.store),
            r.counter(Item::NrThp),
            r.killed
        ),
        format!(
            "faults {}/s; swap-ins {}/s; pressure {:.1} % (some {some:.1} s, full {full:.1} s)",
            count(view.rates[0]),
            count(view.rates[1]),
            view.rates[2] / 1e4
        ),
    ];
    let title = format!("  deckle run {pid}, {n} processes, for {age}");
    let mut lines = vec![vec![(Style::Bold, called.clone()), (Style::Plain, title)]];
    lines.extend(texts.map(|text| vec![(Style::Plain, text)]));
    lines
}

/// What was charged at the last looks, of the limit or the most of them.
fn history(view: &View, r: &Report, wide: usize) -> String {
    let past = view.history.len().saturating_sub(wide);
    let shown = || view.history.iter().skip(past).copied();
    let most = r.max.or_else(|| shown().max()).unwrap_or(0).max(1);
    let bar = |n: u64| {
        let high = u128::from(n) * (BARS.len() as u128 - 1) / u128::from(most);
        BARS[(high as usize).min(BARS.len() - 1)]
    };
    shown().map(bar).collect()
}

/// Which columns there is room for: all at 80; else the first ones, and what it is sorted by.
fn columns(view: &View, wide: usize) -> Vec<usize> {
    let all = || 0..COLUMNS.len();
    if wide >= 80 {
        return all().collect();
    }
    let mut left = wide.saturating_sub(NAMES);
    let mut take = |nth: &usize| {
        let fits = COLUMNS[*nth].1 < left;
        left -= if fits { COLUMNS[*nth].1 + 1 } else { 0 };
        fits
    };
    let is_sorted_by = |nth: &usize| COLUMNS[*nth].2 == Some(view.sort);
    let (first, others): (Vec<usize>, Vec<usize>) = all().partition(is_sorted_by);
    let mut taken: Vec<usize> = first.into_iter().chain(others).filter(&mut take).collect();
    taken.sort_unstable();
    taken
}

fn header(view: &View, wide: usize) -> Line {
    let mut line = Vec::new();
    let mut used = 0;
    for (name, columns, sort) in columns(view, wide).into_iter().map(|nth| COLUMNS[nth]) {
        used += columns + 1;
        // What it is sorted by is told by a mark.
        let mark = if sort == Some(view.sort) { ">" } else { "" };
        line.push((
            Style::Title,
            format!("{:>columns$} ", format!("{mark}{name}")),
        ));
    }
    let rest = wide.saturating_sub(used);
    line.push((Style::Title, format!("{:<rest$}", "command")));
    line
}

fn cells(row: &Row, columns: &[usize]) -> String {
    let p = &row.process;
    let cells = [
        p.pid.to_string(),
        short(p.charged),
        short(p.resident),
        short(p.swapped),
        ratio(p.swapped, p.store),
        short(p.counter(Item::NrZero).saturating_mul(4096)),
        p.counter(Item::NrThp).to_string(),
        count(row.rates[0]),
        count(row.rates[1]),
        format!("{:.1}", row.rates[2] / 1e4),
    ];
    let cell = |nth: &usize| format!("{:>1$} ", cells[*nth], COLUMNS[*nth].1);
    let line: String = columns.iter().map(cell).collect();
    line + &p.command
}

fn footer(view: &View) -> String {
    match (view.types, view.filter.as_str()) {
        (true, text) => format!("/{text}_"),
        (false, "") => KEYS.to_owned(),
        (false, text) => format!(" only `{text}`; / and Esc: all again   q quit"),
    }
}
