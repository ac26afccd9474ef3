//! Statistics for programs: JSON, with the members of each object in the order of their names.
//!
//! What is told of processes is written as it is read. As values it would be an allocation for each
//! of a hundred names and numbers, of each process at each look.

use std::sync::LazyLock;

use deckle_mm::Item;
use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::{Value, json};

use super::stat::{Process, Seen};

/// Where processes are in what is told of a tree.
const PROCESSES: &str = "processes";

/// Counters and gauges in the order of their names.
static ITEMS: LazyLock<Vec<Item>> = LazyLock::new(|| {
    let mut all = Item::ALL.to_vec();
    all.sort_by_key(|item| item.name());
    all
});

/// What is told of trees.
#[derive(serde::Serialize)]
struct Document<'a> {
    schema: u32,
    trees: &'a [Seen],
}

/// Trees in one line.
pub fn line(trees: &[Seen]) -> String {
    serde_json::to_string(&Document { schema: 1, trees }).unwrap_or_default()
}

/// The same in many lines.
pub fn lines(trees: &[Seen]) -> String {
    serde_json::to_string_pretty(&Document { schema: 1, trees }).unwrap_or_default()
}

impl Serialize for Seen {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut members = self.report.json();
        // How it ends is not known here.
        for none in ["exit_status", "signal", "wall_s"] {
            let _ = members.as_object_mut().map(|all| all.remove(none));
        }
        let unnamed = self.called == self.pid.to_string();
        members["name"] = json!((!unnamed).then_some(&self.called));
        members["pid"] = json!(self.pid);
        members["supervisor_pid"] = json!(self.supervisor);
        members["age_s"] = json!(self.report.wall_s);
        members[PROCESSES] = Value::Null;
        let mut all = to.serialize_map(None)?;
        for (name, value) in members.as_object().into_iter().flatten() {
            match name.as_str() {
                PROCESSES => all.serialize_entry(name, &self.processes)?,
                _ => all.serialize_entry(name, value)?,
            }
        }
        all.end()
    }
}

impl Serialize for Process {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut all = to.serialize_map(None)?;
        all.serialize_entry("command", &self.command)?;
        all.serialize_entry("counters", &Counters(self))?;
        for (name, n) in [
            ("file_bytes", self.filed[1]),
            ("filed_bytes", self.filed[0]),
            ("inactive_bytes", self.inactive),
            ("memory_bytes", self.charged),
            ("pid", self.pid.into()),
            ("resident_bytes", self.resident),
            ("service_pid", self.service.into()),
            ("store_memory_bytes", self.store),
            ("stored_bytes", self.stored),
            ("swapped_bytes", self.swapped),
        ] {
            all.serialize_entry(name, &n)?;
        }
        all.end()
    }
}

struct Counters<'a>(&'a Process);

impl Serialize for Counters<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_map(
            ITEMS
                .iter()
                .map(|item| (item.name(), self.0.counter(*item))),
        )
    }
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
        let read = serde_json::to_value(one).unwrap();
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
