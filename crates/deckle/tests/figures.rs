//! Published tables are what the raw runs under docs/figures say.
//!
//! `scripts/figures` runs an experiment and keeps its report there, with the machine and the
//! commit. A document names the file and one of the [`VIEWS`]; the table below is made from both.

use crate::source::root;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::PathBuf;

/// Begins a table: `<!-- figures FILE VIEW -->`.
const BEGIN: &str = "<!-- figures ";
/// Ends it.
const END: &str = "<!-- end of figures -->\n";
const UPDATE: &str = "DECKLE_UPDATE=1 cargo test -p deckle --test all figures::";

/// What makes a table of a report: its name, and the rows, of which the first is the heading.
type View = (&'static str, fn(&Value) -> Vec<Vec<String>>);

const VIEWS: [View; 4] = [
    ("underused-live", |report| underused(report, "live")),
    ("underused-kernel", |report| underused(report, "kernel")),
    ("underused-sweep", sweep),
    ("pageout", pageout),
];

fn words(all: &[&str]) -> Vec<String> {
    all.iter().map(|word| (*word).into()).collect()
}

fn text<'a>(of: &'a Value, key: &str) -> &'a str {
    of[key].as_str().unwrap_or("")
}

fn number(of: &Value, key: &str) -> f64 {
    of[key]
        .as_f64()
        .unwrap_or_else(|| panic!("no {key} in {of}"))
}

fn list(of: &Value, key: &str) -> Vec<Value> {
    let all = of[key].as_array();
    all.unwrap_or_else(|| panic!("no {key} in {of}")).clone()
}

fn mib(bytes: f64) -> String {
    format!("{:.1} MiB", bytes / f64::from(1 << 20))
}

/// Mean and standard error of the mean, as the lab has them.
fn mean(values: &[f64]) -> (f64, f64) {
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    let squares: f64 = values.iter().map(|v| (v - mean).powi(2)).sum();
    (mean, (squares / (n - 1.0) / n).sqrt())
}

/// The programs of an underused report in the order of its rows.
fn programs(rows: &[Value]) -> Vec<&str> {
    let mut all: Vec<&str> = rows.iter().map(|r| text(r, "program")).collect();
    all.dedup();
    let mut seen = BTreeSet::new();
    all.retain(|program| seen.insert(*program));
    all
}

fn underused(report: &Value, on: &str) -> Vec<Vec<String>> {
    let mut table = vec![words(&[
        "program",
        "setting",
        "time",
        "speed",
        "settled",
        "splits",
        "of the extra memory of `always`",
        "of its gain in speed",
    ])];
    let (mut rows, targets) = (list(report, "rows"), list(report, "targets"));
    rows.retain(|r| text(r, "on") == on && number(r, "time_s") > 0.0);
    for row in &rows {
        let (program, setting) = (text(row, "program"), text(row, "setting"));
        let beside = |r: &&Value| text(r, "program") == program && text(r, "setting") == "madvise";
        let madvise = rows.iter().find(beside).expect("a row to compare with");
        let speed = number(madvise, "time_s") / number(row, "time_s") - 1.0;
        let kept = |what: &str| {
            let of = |t: &&Value| {
                let is = [text(t, "program"), text(t, "setting")] == [program, setting];
                on == "live" && is && text(t, "what").contains(what)
            };
            targets.iter().find(of).map_or(String::new(), |t| {
                format!("{:.2} +- {:.2}", number(t, "found"), number(t, "error"))
            })
        };
        let settled: Vec<f64> = (list(row, "settled_runs_bytes").iter())
            .filter_map(Value::as_f64)
            .collect();
        let (time, error) = (number(row, "time_s"), number(row, "time_error_s"));
        table.push(vec![
            program.into(),
            setting.into(),
            format!("{:.0} +- {:.0} ms", time * 1e3, error * 1e3),
            match setting {
                "madvise" => String::new(),
                _ => format!("{:+.0} %", speed * 1e2),
            },
            mib(mean(&settled).0),
            number(row, "splits").to_string(),
            kept("memory"),
            kept("speed"),
        ]);
    }
    table
}

/// Settled memory and huge pages split, by setting.
fn sweep(report: &Value) -> Vec<Vec<String>> {
    let mut rows = list(report, "rows");
    let sides = ["live", "kernel"];
    rows.retain(|r| sides.contains(&text(r, "on")));
    let programs = programs(&rows);
    let columns = || (programs.iter()).flat_map(|p| sides.map(|on| (*p, on)));
    let mut table = vec![words(&["setting"])];
    table[0].extend(columns().map(|(program, on)| format!("{program} {on}")));
    let mut settings: Vec<&str> = rows.iter().map(|r| text(r, "setting")).collect();
    let mut seen = BTreeSet::new();
    settings.retain(|setting| seen.insert(*setting));
    for setting in settings {
        let cell = |(program, on)| {
            let is = |r: &&Value| {
                [text(r, "program"), text(r, "on"), text(r, "setting")] == [program, on, setting]
            };
            let row = rows.iter().find(is);
            row.map_or(String::new(), |r| {
                let settled = mib(number(r, "settled_bytes"));
                format!("{settled}, {}", number(r, "splits"))
            })
        };
        let mut line = words(&[setting]);
        line.extend(columns().map(cell));
        table.push(line);
    }
    table
}

fn pageout(report: &Value) -> Vec<Vec<String>> {
    let mut table = vec![words(&[
        "case",
        "on",
        "time",
        "CPU time",
        "zero pages",
        "stored pages",
        "of the kernel's time",
    ])];
    let rows = list(report, "rows");
    for row in &rows {
        let runs: Vec<f64> = (list(row, "runs_s").iter())
            .filter_map(Value::as_f64)
            .collect();
        let (case, on) = (text(row, "case"), text(row, "on"));
        let ratio = report["ratios"][case]["live_to_kernel"].as_f64();
        table.push(vec![
            case.into(),
            on.into(),
            format!("{:.3} +- {:.3} s", number(row, "median_s"), mean(&runs).1),
            format!("{:.3} s", number(row, "cpu_s")),
            number(row, "zero_pages").to_string(),
            number(row, "stored_pages").to_string(),
            match (on, ratio) {
                ("live", Some(ratio)) => format!("{ratio:.2}"),
                _ => String::new(),
            },
        ]);
    }
    table
}

/// The table of a view, in Markdown.
fn made(report: &Value, view: &str) -> String {
    let make = VIEWS.iter().find(|(name, _)| *name == view);
    let (_, make) = make.unwrap_or_else(|| panic!("no view is called {view}"));
    let mut markdown = String::new();
    for (i, line) in make(report).iter().enumerate() {
        let _ = writeln!(markdown, "| {} |", line.join(" | "));
        if i == 0 {
            let _ = writeln!(markdown, "{}|", "|---".repeat(line.len()));
        }
    }
    markdown
}

/// A document with its tables made anew, and the files that it names. The place of a table is
/// kept, whatever is in it.
fn renewed(document: &str, read: &dyn Fn(&str) -> Value) -> (String, Vec<String>) {
    let (mut new, mut files, mut rest) = (String::new(), Vec::new(), document);
    while let Some(at) = rest.find(BEGIN) {
        let (marker, after) = rest[at..].split_once('\n').expect("a line");
        let names = marker
            .strip_prefix(BEGIN)
            .and_then(|m| m.strip_suffix(" -->"));
        let (file, view) = (names.and_then(|m| m.split_once(' ')))
            .unwrap_or_else(|| panic!("{marker}: not a file and a view"));
        let end = after
            .find(END)
            .unwrap_or_else(|| panic!("{marker}: no end"));
        let _ = writeln!(new, "{}{marker}", &rest[..at]);
        new += &made(&read(file)["report"], view);
        new += END;
        files.push(file.to_owned());
        rest = &after[end + END.len()..];
    }
    (new + rest, files)
}

fn in_folder(folder: &str, ending: &str) -> Vec<PathBuf> {
    let all = std::fs::read_dir(root().join(folder)).unwrap();
    let mut all: Vec<PathBuf> = all.map(|entry| entry.unwrap().path()).collect();
    all.retain(|path| path.extension().is_some_and(|e| e == ending));
    all.sort();
    all
}

#[test]
fn published_tables_are_what_the_raw_runs_say() {
    let mut used = BTreeSet::new();
    let read = |file: &str| {
        let path = root().join("docs/figures").join(file);
        let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{file}: {e}"));
        let raw: Value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{file}: {e}"));
        for key in ["command", "kernel", "commit", "date"] {
            assert_ne!(self::text(&raw, key), "", "{file}: {key}");
        }
        assert!(number(&raw, "cpus") >= 1.0, "{file}");
        raw
    };
    for path in in_folder("docs", "md") {
        let text = std::fs::read_to_string(&path).unwrap();
        let (new, files) = renewed(&text, &read);
        used.extend(files);
        if new == text {
            continue;
        }
        if std::env::var_os("DECKLE_UPDATE").is_some() {
            std::fs::write(&path, new).unwrap();
            continue;
        }
        let differs = text.lines().zip(new.lines()).find(|(is, want)| is != want);
        let path = path.display();
        panic!("{path}: run\n  {UPDATE}\nfirst difference (is, should be): {differs:?}");
    }
    let raw = in_folder("docs/figures", "json");
    let kept: BTreeSet<String> = raw
        .iter()
        .map(|path| path.file_name().unwrap().to_str().unwrap().into())
        .collect();
    assert_eq!(kept, used, "kept, and named by a table");
}

#[test]
fn a_table_that_is_not_of_the_raw_runs_is_found() {
    let report = r#"{"report": {"ratios": {"best": {"live_to_kernel": 0.25}}, "rows": [
        {"case": "best", "on": "live", "median_s": 0.5, "runs_s": [0.4, 0.5, 0.6], "cpu_s": 0.75,
         "zero_pages": 511, "stored_pages": 1}]}}"#;
    let read = |file: &str| {
        assert_eq!(file, "a.json");
        serde_json::from_str(report).unwrap()
    };
    let good = "Before\n<!-- figures a.json pageout -->\n\
        | case | on | time | CPU time | zero pages | stored pages | of the kernel's time |\n\
        |---|---|---|---|---|---|---|\n\
        | best | live | 0.500 +- 0.058 s | 0.750 s | 511 | 1 | 0.25 |\n\
        <!-- end of figures -->\nafter\n";
    assert_eq!(renewed(good, &read), (good.into(), vec!["a.json".into()]));
    let false_one = good.replace("0.500", "0.400");
    assert_eq!(renewed(&false_one, &read).0, good);
}
