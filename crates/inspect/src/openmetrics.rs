//! Writing OpenMetrics text.
//!
//! What is written is right by the format's own rules, and by those of Prometheus' older text
//! format, which the textfile collector of node_exporter reads: no type that this does not know,
//! and no timestamp. Names end in their unit, counters in `_total`.

use std::fmt::{Display, Write};

/// A family of samples.
pub struct Family<'a> {
    name: String,
    unit: &'a str,
    is_counter: bool,
    help: &'a str,
}

impl<'a> Family<'a> {
    /// Of levels; the unit, if there is one, becomes the end of the name.
    pub fn gauge(name: &str, unit: &'a str, help: &'a str) -> Self {
        let end = if unit.is_empty() { "" } else { "_" };
        Self {
            name: format!("{name}{end}{unit}"),
            unit,
            is_counter: false,
            help,
        }
    }

    /// The same of what only grows, or not.
    #[must_use]
    pub fn counting(self, is_counter: bool) -> Self {
        Self { is_counter, ..self }
    }
}

/// The text.
#[derive(Default)]
pub struct Text(String);

impl Text {
    /// Begins a family; its samples follow.
    pub fn begin(&mut self, f: &Family<'_>) {
        let kind = if f.is_counter { "counter" } else { "gauge" };
        let _ = writeln!(self.0, "# TYPE {} {kind}", f.name);
        if !f.unit.is_empty() {
            let _ = writeln!(self.0, "# UNIT {} {}", f.name, f.unit);
        }
        let _ = writeln!(self.0, "# HELP {} {}", f.name, f.help);
    }

    /// A sample of a family, with its labels.
    pub fn sample(&mut self, f: &Family<'_>, labels: &[(&str, &str)], value: impl Display) {
        let total = if f.is_counter { "_total" } else { "" };
        let label = |(name, text): &(&str, &str)| format!("{name}=\"{}\"", escaped(text));
        let labels = match labels.iter().map(label).collect::<Vec<_>>().join(",") {
            none if none.is_empty() => none,
            some => format!("{{{some}}}"),
        };
        let _ = writeln!(self.0, "{}{total}{labels} {value}", f.name);
    }

    /// All of it.
    pub fn end(self) -> String {
        self.0 + "# EOF\n"
    }
}

/// A label's value.
fn escaped(text: &str) -> String {
    let text = text.replace('\\', "\\\\").replace('"', "\\\"");
    text.replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_written_by_the_rules_of_the_format() {
        let mut text = Text::default();
        let size = Family::gauge("size", "bytes", "How large.");
        text.begin(&size);
        text.sample(&size, &[], 7);
        text.sample(&size, &[("a", "b\"\\c\nd"), ("e", "")], 8);
        let events = Family::gauge("events", "", "How often.").counting(true);
        text.begin(&events);
        text.sample(&events, &[], 9);
        assert_eq!(
            text.end(),
            "# TYPE size_bytes gauge\n# UNIT size_bytes bytes\n# HELP size_bytes How large.\n\
             size_bytes 7\nsize_bytes{a=\"b\\\"\\\\c\\nd\",e=\"\"} 8\n\
             # TYPE events counter\n# HELP events How often.\nevents_total 9\n# EOF\n"
        );
    }
}
