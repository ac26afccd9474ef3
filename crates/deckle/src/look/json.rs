//! Statistics for programs: JSON, with the members of each object in the order of their names.
//!
//! What is told of processes is written as it is read. As values it would be an allocation for each
//! of a hundred names and numbers, of each process at each look, and a serializer looks at each
//! byte of each name, whether it must be escaped.

use std::fmt::Write;
use std::sync::LazyLock;

use deckle_mm::Item;
use itoa::Buffer;
use serde_json::{Value, json};

use super::stat::{Process, Seen};

/// Counters and gauges in the order of their names, each with the text in front of its value.
static ITEMS: LazyLock<Vec<(Item, String)>> = LazyLock::new(|| {
    let mut all = Item::ALL.to_vec();
    all.sort_by_key(|item| item.name());
    let key = |(i, item): (usize, &Item)| {
        let comma = if i == 0 { "" } else { "," };
        (*item, format!("{comma}{}:", json!(item.name())))
    };
    all.iter().enumerate().map(key).collect()
});

/// Trees in one line.
pub fn line(trees: &[Seen]) -> String {
    // Of a hundred counters of a process hardly one is short of this.
    let processes: usize = trees.iter().map(|tree| tree.processes.len()).sum();
    let mut out = String::with_capacity((processes * 20 + trees.len() * 200) * Item::COUNT);
    out.push_str("{\"schema\":1,\"trees\":[");
    separated(&mut out, trees, tree);
    out.push_str("]}");
    out
}

/// The same in many lines.
pub fn lines(trees: &[Seen]) -> String {
    let all: Result<Value, _> = serde_json::from_str(&line(trees));
    all.map_or_else(|_| String::new(), |all| format!("{all:#}"))
}

/// Each of them, with commas between.
fn separated<T>(out: &mut String, all: &[T], write: fn(&mut String, &T)) {
    for (i, one) in all.iter().enumerate() {
        if i > 0 {
            out.push(',');
        }
        write(out, one);
    }
}

fn tree(out: &mut String, seen: &Seen) {
    let mut members = seen.report.head();
    // How it ends is not known here.
    for none in ["exit_status", "signal", "wall_s"] {
        let _ = members.as_object_mut().map(|all| all.remove(none));
    }
    let unnamed = seen.called == seen.pid.to_string();
    members["name"] = json!((!unnamed).then_some(&seen.called));
    members["pid"] = json!(seen.pid);
    members["supervisor_pid"] = json!(seen.supervisor);
    members["age_s"] = json!(seen.report.wall_s);
    members["processes"] = Value::Null;
    let mut before = '{';
    for (name, value) in members.as_object().into_iter().flatten() {
        let _ = write!(out, "{before}\"{name}\":");
        before = ',';
        let _ = match name.as_str() {
            "counters" => {
                counters(out, |item| seen.report.counter(item));
                Ok(())
            }
            "processes" => {
                out.push('[');
                separated(out, &seen.processes, process);
                out.push(']');
                Ok(())
            }
            "sizes" => write!(out, "{}", seen.report.sizes),
            "knobs" => write!(out, "{}", seen.report.knobs()),
            _ => write!(out, "{value}"),
        };
    }
    out.push('}');
}
fn counters(out: &mut String, of: impl Fn(Item) -> u64) {
    let mut digits = Buffer::new();
    out.push('{');
    for (item, key) in ITEMS.iter() {
        out.push_str(key);
        out.push_str(digits.format(of(*item)));
    }
    out.push('}');
}

fn process(out: &mut String, p: &Process) {
    let _ = write!(out, "{{\"command\":{},\"counters\":", json!(p.command));
    counters(out, |item| p.counter(item));
    let mut digits = Buffer::new();
    for (key, n) in [
        (",\"file_bytes\":", p.filed[1]),
        (",\"filed_bytes\":", p.filed[0]),
        (",\"inactive_bytes\":", p.inactive),
        (",\"memory_bytes\":", p.charged),
        (",\"pid\":", p.pid.into()),
        (",\"resident_bytes\":", p.resident),
        (",\"service_pid\":", p.service.into()),
        (",\"store_memory_bytes\":", p.store),
        (",\"stored_bytes\":", p.stored),
        (",\"swapped_bytes\":", p.swapped),
    ] {
        out.push_str(key);
        out.push_str(digits.format(n));
    }
    out.push('}');
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
        let found = |of: &Value, at: &str| of[at].as_u64();
        let one = Process::plain(deckle_group::LineId::NONE, 7, "web", 5, 9);
        let mut text = String::new();
        process(&mut text, &one);
        let read: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(
            (found(&read, "pid"), found(&read, "memory_bytes")),
            (Some(7), Some(5))
        );
        assert_eq!(read["command"], "web");
        let counters = read["counters"].as_object().unwrap();
        assert_eq!(counters.len(), Item::COUNT);
        for item in Item::ALL {
            let n = match item {
                Item::Pgfault => 9,
                Item::PressureSome => 90_000,
                _ => 0,
            };
            assert_eq!(found(&read["counters"], item.name()), Some(n), "{item:?}");
        }
        assert_eq!(read.as_object().unwrap().len(), 12);
    }
}
