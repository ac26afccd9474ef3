//! A strict reader of OpenMetrics text, and its tests: a file that breaks a rule of the format is
//! refused.

use crate::common::output;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

/// What was read: samples by name and labels.
pub struct Metrics(BTreeMap<(String, String), f64>);

impl Metrics {
    /// The sample of this name of a tree, that has no other label.
    pub fn get(&self, name: &str, tree: &str) -> Option<f64> {
        let key = (name.to_owned(), format!("tree=\"{tree}\""));
        self.0.get(&key).copied()
    }
}

/// Units that the format has, of those that are used here.
const UNITS: [&str; 2] = ["bytes", "seconds"];

fn is_name(name: &str) -> bool {
    let may = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | ':');
    name.chars().all(may) && name.chars().next().is_some_and(|c| !c.is_ascii_digit())
}

/// A family while its lines are read.
#[derive(Default)]
struct Family {
    name: String,
    kind: String,
    unit: String,
    help: bool,
    samples: usize,
}

impl Family {
    fn begin(name: &str) -> Family {
        Family {
            name: name.to_owned(),
            ..Family::default()
        }
    }

    fn is_right(&self) -> Result<(), String> {
        let Family {
            name,
            kind,
            unit,
            help,
            ..
        } = self;
        let ends = |of: &str| name.ends_with(of);
        let why = match () {
            () if name.is_empty() => return Ok(()),
            () if !is_name(name) => "no name",
            () if !matches!(kind.as_str(), "gauge" | "counter") => "without a type",
            () if !help => "without help",
            () if !unit.is_empty() && !ends(&format!("_{unit}")) => "does not end in its unit",
            () if UNITS.iter().any(|unit| ends(&format!("_{unit}"))) && unit.is_empty() => {
                "does not say its unit"
            }
            () if ends("_total") || ends("_created") || ends("_info") || ends("_count") => {
                "ends as only samples do"
            }
            () if self.samples == 0 => "without a sample",
            () => return Ok(()),
        };
        Err(format!("{name}: {why}"))
    }
}

/// Reads all of it.
///
/// # Errors
/// The first line that breaks a rule.
pub fn parse(text: &str) -> Result<Metrics, String> {
    let body = text.strip_suffix("# EOF\n").ok_or("no # EOF at the end")?;
    let (mut metrics, mut families) = (BTreeMap::new(), BTreeSet::new());
    let mut family = Family::default();
    for line in body.lines() {
        if let Some(meta) = line.strip_prefix("# ") {
            let (word, rest) = meta.split_once(' ').ok_or(line)?;
            let (name, value) = rest.split_once(' ').ok_or(line)?;
            if name != family.name {
                family.is_right()?;
                if !families.insert(name.to_owned()) {
                    return Err(format!("{name}: in two places"));
                }
                family = Family::begin(name);
            }
            if family.samples > 0 {
                return Err(format!("{line}: behind samples"));
            }
            match word {
                "TYPE" if family.kind.is_empty() => family.kind = value.to_owned(),
                "UNIT" if UNITS.contains(&value) => family.unit = value.to_owned(),
                "HELP" if !family.help && !value.contains('\\') => family.help = true,
                _ => return Err(format!("{line}: not known, or twice")),
            }
            continue;
        }
        let (name, rest) = line.split_once('{').ok_or(line)?;
        let (labels, value) = rest.rsplit_once("} ").ok_or(line)?;
        let total = if family.kind == "counter" {
            "_total"
        } else {
            ""
        };
        if name != format!("{}{total}", family.name) {
            return Err(format!("{line}: of no family, or with a wrong end"));
        }
        for label in labels.split(',') {
            let (label, text) = label.split_once('=').ok_or(line)?;
            let text = text.strip_prefix('"').and_then(|t| t.strip_suffix('"'));
            if !is_name(label) || text.is_none_or(|t| t.contains(['"', '\\', '\n'])) {
                return Err(format!("{line}: a label"));
            }
        }
        let number = match value {
            "+Inf" if family.kind == "gauge" => f64::INFINITY,
            _ if value.starts_with(|c: char| c.is_ascii_digit()) => {
                value.parse().map_err(|_| line)?
            }
            _ => return Err(format!("{line}: no number")),
        };
        let key = (name.to_owned(), labels.to_owned());
        if metrics.insert(key, number).is_some() {
            return Err(format!("{line}: twice"));
        }
        family.samples += 1;
    }
    family.is_right()?;
    Ok(Metrics(metrics))
}

/// Has Prometheus' own tool read it: by the rules of its text format, as node_exporter does, and by
/// those of OpenMetrics, for which it wants timestamps.
pub fn promtool(dir: &Path, text: &str) {
    let file = dir.join("with-times");
    let timed = text.lines().map(|line| match line.starts_with('#') {
        true => format!("{line}\n"),
        false => format!("{line} 1700000000\n"),
    });
    std::fs::write(&file, timed.collect::<String>()).unwrap();
    let mut c = Command::new("promtool");
    c.args(["tsdb", "create-blocks-from", "openmetrics"]);
    let done = c.arg(&file).arg(dir.join("blocks")).output().unwrap();
    assert!(
        done.status.success(),
        "{}",
        String::from_utf8_lossy(&done.stderr)
    );
    std::fs::write(&file, text).unwrap();
    let mut c = Command::new("promtool");
    c.args(["check", "metrics"])
        .stdin(std::fs::File::open(&file).unwrap());
    let done = c.output().unwrap();
    let said = String::from_utf8_lossy(&done.stderr);
    // That format has no type for what is named otherwise than its family.
    let other = |line: &&str| !line.ends_with("no help text");
    let faults: Vec<&str> = said.lines().filter(other).collect();
    assert!(faults.is_empty(), "{said}");
}

#[test]
fn each_broken_rule_of_the_format_is_seen() {
    let good = "# TYPE a_bytes gauge\n# UNIT a_bytes bytes\n# HELP a_bytes Of it.\n\
                a_bytes{tree=\"x\"} 12\na_bytes{tree=\"y\"} +Inf\n\
                # TYPE b counter\n# HELP b Of it.\nb_total{tree=\"x\"} 0.5\n# EOF\n";
    let read = parse(good).unwrap();
    assert_eq!(read.get("a_bytes", "x"), Some(12.0));
    assert_eq!(read.get("b_total", "x"), Some(0.5));
    for (from, to) in [
        ("# EOF\n", ""),
        ("# EOF\n", "# EOF"),
        ("# TYPE a_bytes gauge\n", ""),
        ("# HELP b Of it.\n", ""),
        ("# UNIT a_bytes bytes\n", ""),
        ("UNIT a_bytes bytes", "UNIT a_bytes pages"),
        ("UNIT a_bytes bytes", "UNIT a_bytes seconds"),
        ("b_total{", "b{"),
        ("TYPE b counter", "TYPE b gauge"),
        ("TYPE b counter", "TYPE b info"),
        ("tree=\"y\"", "tree=\"x\""),
        ("tree=\"y\"", "tree=y"),
        (" 12\n", " twelve\n"),
        (" 12\n", " -\n"),
        ("b_total{tree=\"x\"} 0.5\n", ""),
        (
            "# HELP a_bytes Of it.\n",
            "# HELP a_bytes Of it.\n# HELP a_bytes Of it.\n",
        ),
    ] {
        assert!(good.contains(from), "{from}");
        assert!(
            parse(&good.replacen(from, to, 1)).is_err(),
            "{from:?} as {to:?}"
        );
    }
    let apart = good.replace("# EOF\n", "# TYPE a_bytes gauge\n# EOF\n");
    assert!(parse(&apart).is_err(), "a family in two places");
}

#[test]
fn the_dashboard_asks_for_metrics_that_there_are() {
    let (status, text, err) = output(&["stat", "--format", "openmetrics"]);
    assert_eq!((status, err.as_str()), (0, ""));
    let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    let there: Vec<String> = types
        .map(|line| match line.split_once(' ').unwrap() {
            (name, "counter") => format!("{name}_total"),
            (name, _) => name.to_owned(),
        })
        .collect();
    let file = crate::source::root().join("packaging/grafana.json");
    let board: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    let mut asked = 0;
    for panel in board["panels"].as_array().unwrap() {
        for target in panel["targets"].as_array().unwrap() {
            let query = target["expr"].as_str().unwrap();
            let words = query.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
            for name in words.filter(|word| word.starts_with("deckle_")) {
                assert!(
                    there.iter().any(|n| n == name),
                    "{query}: there is no {name}"
                );
                asked += 1;
            }
        }
    }
    assert!(asked >= 10, "{asked}");
}
