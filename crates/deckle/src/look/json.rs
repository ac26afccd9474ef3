//! Statistics for programs: JSON, with the members of each object in the order of their names.
//!
//! What is told of processes is written as it is read. As values it would be an allocation for each
//! of a hundred names and numbers, of each process at each look.

use std::fmt::Write;
use std::sync::LazyLock;

use deckle_mm::Item;
use serde_json::{Value, json};

use super::stat::{Process, Seen};

/// Where processes are in what is told of a tree.
const PROCESSES: &str = "processes";

/// Counters and gauges in the order of their names, which stand before them: `"pgfault":`.
static COUNTERS: LazyLock<Vec<(String, Item)>> = LazyLock::new(|| {
    let named = |item: &Item| (format!("\"{}\":", item.name()), *item);
    let mut all: Vec<_> = Item::ALL.iter().map(named).collect();
    all.sort_by_key(|(_, item)| item.name());
    all
});

/// Trees in one line.
pub fn line(trees: &[Seen]) -> String {
    let mut out = String::from("{\"schema\":1,\"trees\":");
    list(&mut out, trees, tree);
    out.push('}');
    out
}

/// The same in many lines.
pub fn lines(trees: &[Seen]) -> String {
    let whole = |seen: &Seen| {
        let (mut all, mut text) = (members(seen), String::new());
        list(&mut text, &seen.processes, process);
        all[PROCESSES] = serde_json::from_str(&text).unwrap_or_default();
        all
    };
    let trees: Vec<_> = trees.iter().map(whole).collect();
    format!("{:#}", json!({ "schema": 1, "trees": trees }))
}

/// `[A,B]`.
fn list<T>(out: &mut String, all: &[T], write: impl Fn(&mut String, &T)) {
    out.push('[');
    for (i, one) in all.iter().enumerate() {
        if i > 0 {
            out.push(',');
        }
        write(out, one);
    }
    out.push(']');
}

/// What is told of a tree, but for its processes.
fn members(seen: &Seen) -> Value {
    let mut all = seen.report.json();
    // How it ends is not known here.
    for none in ["exit_status", "signal", "wall_s"] {
        let _ = all.as_object_mut().map(|all| all.remove(none));
    }
    let unnamed = seen.called == seen.pid.to_string();
    all["name"] = json!((!unnamed).then_some(&seen.called));
    all["pid"] = json!(seen.pid);
    all["supervisor_pid"] = json!(seen.supervisor);
    all["age_s"] = json!(seen.report.wall_s);
    all[PROCESSES] = Value::Null;
    all
}

fn tree(out: &mut String, seen: &Seen) {
    let all = members(seen);
    let mut before = '{';
    for (name, value) in all.as_object().into_iter().flatten() {
        let _ = write!(out, "{before}\"{name}\":");
        before = ',';
        match name.as_str() {
            PROCESSES => list(out, &seen.processes, process),
            _ => out.push_str(&value.to_string()),
        }
    }
    out.push('}');
}

fn process(out: &mut String, p: &Process) {
    out.push_str("{\"command\":");
    out.push_str(&json!(p.command).to_string());
    let mut before = ",\"counters\":{";
    for (name, item) in COUNTERS.iter() {
        out.push_str(before);
        out.push_str(name);
        number(out, p.counter(*item));
        before = ",";
    }
    before = "},";
    for (name, n) in [
        ("file_bytes", p.filed[1]),
        ("filed_bytes", p.filed[0]),
        ("inactive_bytes", p.inactive),
        ("memory_bytes", p.charged),
        ("pid", p.pid.into()),
        ("resident_bytes", p.resident),
        ("service_pid", p.service.into()),
        ("store_memory_bytes", p.store),
        ("stored_bytes", p.stored),
        ("swapped_bytes", p.swapped),
    ] {
        let _ = write!(out, "{before}\"{name}\":");
        number(out, n);
        before = ",";
    }
    out.push('}');
}

fn number(out: &mut String, n: u64) {
    let _ = write!(out, "{n}");
}

#[cfg(test)]
mod tests {
    use super::*;
    use deckle_group::{Group, Limits, Name, SwapKind};
    use deckle_mm::Tunables;

    #[test]
    fn one_line_and_many_are_the_same_json_whatever_programs_are_called() {
        let name = Name::new(format!("test-json-{}", std::process::id()).as_bytes()).unwrap();
        let group = Group::create(name, Limits::NONE, &Tunables::default(), SwapKind::Lz4);
        Group::unlink(name);
        let group = group.unwrap();
        let line_of = |pid| group.join(pid, 0).unwrap();
        let names = ["plain", "\"quoted\" \\ {", "\u{4e2d}\u{7f}"];
        let all = names.map(|name| Process::plain(line_of(7), 7, name, 5 << 20, 9));
        let none = Seen::plain("4711", &group, Vec::new());
        for trees in [
            vec![Seen::plain("web", &group, all.into())],
            vec![none],
            vec![],
        ] {
            let text = line(&trees);
            let read: Value = serde_json::from_str(&text).unwrap();
            // As values are written: by their names in order, and nothing between.
            assert_eq!(read.to_string(), text);
            assert_eq!(format!("{read:#}"), lines(&trees));
        }
    }

    #[test]
    fn a_process_is_told_with_all_its_members() {
        let (mut text, found) = (String::new(), |of: &Value, at: &str| of[at].as_u64());
        process(
            &mut text,
            &Process::plain(deckle_group::LineId::NONE, 7, "web", 5, 9),
        );
        let read: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(
            (found(&read, "pid"), found(&read, "memory_bytes")),
            (Some(7), Some(5))
        );
        assert_eq!(read["command"], "web");
        let counters = read["counters"].as_object().unwrap();
        assert_eq!(counters.len(), Item::COUNT);
        for item in Item::ALL {
            let n = if *item == Item::Pgfault { 9 } else { 0 };
            assert_eq!(found(&read["counters"], item.name()), Some(n), "{item:?}");
        }
        assert_eq!(read.as_object().unwrap().len(), 12);
    }
}
