//! Tables of text.

use std::fmt::{Display, Write};

/// A column: its head, and what it shows of a row; words begin on the left, numbers end on the
/// right.
pub(crate) enum Column<R> {
    Left(&'static str, fn(&R) -> String),
    Right(&'static str, fn(&R) -> String),
}

use Column::{Left, Right};

impl<R> Column<R> {
    fn head(&self) -> &'static str {
        let (Left(head, _) | Right(head, _)) = self;
        head
    }

    fn show(&self, row: &R) -> String {
        let (Left(_, show) | Right(_, show)) = self;
        show(row)
    }
}

/// Appends a table, indented by so much, columns as wide as they need. `below` tells what stands
/// below a row.
pub(crate) fn table<'a, R: 'a>(
    text: &mut String,
    indent: usize,
    columns: impl IntoIterator<Item = &'a Column<R>>,
    rows: impl IntoIterator<Item = &'a R>,
    below: impl Fn(&R) -> Option<String>,
) {
    let columns: Vec<&Column<R>> = columns.into_iter().collect();
    let mut lines = vec![(columns.iter().map(|c| c.head().to_owned()).collect(), None)];
    for row in rows {
        let cells: Vec<String> = columns.iter().map(|c| c.show(row)).collect();
        lines.push((cells, below(row)));
    }
    let wide = |n: usize| {
        lines
            .iter()
            .map(|(cells, _)| cells[n].chars().count())
            .max()
    };
    let wide: Vec<usize> = (0..columns.len()).filter_map(wide).collect();
    for (cells, below) in &lines {
        let mut line = " ".repeat(indent);
        for (n, (cell, wide)) in cells.iter().zip(&wide).enumerate() {
            let gap = if n == 0 { "" } else { "  " };
            let _ = match columns[n] {
                Left(..) => write!(line, "{gap}{cell:<wide$}"),
                Right(..) => write!(line, "{gap}{cell:>wide$}"),
            };
        }
        let _ = writeln!(text, "{}", line.trim_end());
        if let Some(below) = below {
            let _ = writeln!(text, "{:indent$}        {below}", "");
        }
    }
}

/// What is there, or a dash.
pub(crate) fn or_dash(value: Option<impl Display>) -> String {
    value.map_or("-".into(), |value| value.to_string())
}

/// A number with so many digits after the point, or a dash.
pub(crate) fn number(value: Option<f64>, digits: usize) -> String {
    or_dash(value.map(|value| format!("{value:.digits$}")))
}

/// A number with its error, where that is known.
pub(crate) fn with_error(value: f64, error: Option<f64>, digits: usize) -> String {
    let error = error.map_or(String::new(), |e| format!(" +- {e:.digits$}"));
    format!("{value:.digits$}{error}")
}
