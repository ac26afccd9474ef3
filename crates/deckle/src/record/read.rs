//! Reading a record.

use std::path::Path;

use serde_json::Value;

use super::{FORMAT, KEY, SAMPLES};
use crate::fail::{Fail, plain, read_named};

/// Most bytes that are read: several times what is ever written.
const BYTES: u64 = 64 << 20;

/// Something that happened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mark {
    /// When, milliseconds since the start.
    pub t_ms: u64,
    /// What sort of thing: start, exit, kill, set, reclaim, end.
    pub sort: String,
    /// To whom, or how.
    pub what: String,
}

/// A record.
#[derive(Debug)]
pub struct Record {
    /// The head.
    pub head: Value,
    columns: Vec<String>,
    /// All samples, in the order of time.
    pub samples: Vec<Vec<u64>>,
    /// All marks, in the order of time.
    pub marks: Vec<Mark>,
}

impl Record {
    /// Reads it.
    ///
    /// # Errors
    /// If it cannot be read, is no record, or one that a newer deckle has made.
    pub fn read(path: &Path) -> Result<Record, Fail> {
        let fail = |why: &str| Fail::own(format!("{}: {why}", path.display()));
        let text = read_named(path, BYTES).map_err(|e| fail(&plain(&e)))?;
        Record::parse(&String::from_utf8_lossy(&text)).map_err(|why| fail(&why))
    }

    pub(crate) fn parse(text: &str) -> Result<Record, String> {
        let none = "no record: make one with `deckle run --record FILE -- PROGRAM`";
        let mut lines = text.lines();
        let head: Value = (lines.next())
            .and_then(|line| serde_json::from_str(line).ok())
            .filter(|head: &Value| head[KEY].is_u64())
            .ok_or(none)?;
        if head[KEY] != FORMAT {
            return Err(format!(
                "a record of format {}, and this deckle reads {FORMAT}: use the one that made it",
                head[KEY]
            ));
        }
        let columns = head["columns"].as_array().ok_or("no columns")?;
        let columns: Vec<String> = (columns.iter())
            .map(|name| name.as_str().unwrap_or("").to_owned())
            .collect();
        let mut record = Record {
            head,
            columns,
            samples: Vec::new(),
            marks: Vec::new(),
        };
        for line in lines {
            // The last line of a run that was killed may be a half one.
            let Ok(value) = serde_json::from_str::<Value>(line) else {
                break;
            };
            record.take(&value);
        }
        record.samples.sort_by_key(|row| row[0]);
        record.marks.sort_by_key(|mark| mark.t_ms);
        if record.samples.is_empty() {
            return Err("a record without a sample".into());
        }
        Ok(record)
    }

    fn take(&mut self, value: &Value) {
        if let Some(row) = value.as_array() {
            let row: Vec<u64> = row.iter().map(|n| n.as_u64().unwrap_or(0)).collect();
            if row.len() == self.columns.len() && !row.is_empty() && self.samples.len() <= SAMPLES {
                self.samples.push(row);
            }
        } else if let Some(sort) = value["mark"].as_str() {
            let word = |key: &str| value[key].as_str().unwrap_or("").to_owned();
            let what = match (sort, value["signal"].as_i64()) {
                ("end", Some(signal)) => format!("signal {signal}"),
                ("end", None) => format!("exit status {}", value["exit_status"]),
                ("kill", _) => match value["processes"].as_u64() {
                    Some(2..) => format!("{} processes at the limit", value["processes"]),
                    _ => "one process at the limit".into(),
                },
                ("set" | "reclaim", _) => word("what"),
                _ => format!("{} {}", word("what"), value["pid"]),
            };
            self.marks.push(Mark {
                t_ms: value["t_ms"].as_u64().unwrap_or(0),
                sort: sort.into(),
                what,
            });
        }
    }

    /// The numbers of a column; none if the record has no such.
    pub fn column(&self, name: &str) -> Option<Vec<u64>> {
        let i = self.columns.iter().position(|c| c == name)?;
        Some(self.samples.iter().map(|row| row[i]).collect())
    }

    /// `memory.max` at each sample, 0 for none: as it changed, or as it began where the record does
    /// not say more.
    pub fn limits(&self) -> Vec<u64> {
        let began = self.head["memory_max_bytes"].as_u64().unwrap_or(0);
        let column = self.column("memory_max_bytes");
        column.unwrap_or_else(|| vec![began; self.samples.len()])
    }

    /// The command, as it was given.
    pub fn command(&self) -> String {
        let words = self.head["command"].as_array();
        let words = words.into_iter().flatten().filter_map(Value::as_str);
        words.collect::<Vec<_>>().join(" ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = r#"{"deckle_record":1,"command":["a","b"],"columns":["t_ms","x"]}"#;

    #[test]
    fn a_record_that_was_cut_off_is_read_up_to_there() {
        let text = format!(
            "{HEAD}\n[0,5]\n{{\"mark\":\"start\",\"t_ms\":3,\"pid\":7,\"what\":\"sh\"}}\n[9,6]\n[1"
        );
        for cut in HEAD.len() + 7..=text.len() {
            let record = Record::parse(&text[..cut]).unwrap();
            assert_eq!(record.samples[0], [0, 5], "{cut}");
        }
        let record = Record::parse(&text).unwrap();
        assert_eq!(record.column("x"), Some(vec![5, 6]));
        assert_eq!(record.column("y"), None);
        assert_eq!(record.marks[0].what, "sh 7");
        assert_eq!(record.command(), "a b");
    }

    #[test]
    fn what_is_no_record_is_refused_with_what_to_do() {
        let newer = HEAD.replace(":1,", ":2,");
        for (text, why) in [
            ("", "no record: make one"),
            ("{}\n[1]", "no record: make one"),
            ("[1,2]", "no record: make one"),
            (HEAD, "without a sample"),
            (&newer, "a record of format 2"),
        ] {
            let error = Record::parse(text).unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
        // Rows of another width, and numbers that are none, do no harm.
        let odd = format!("{HEAD}\n[1]\n[3,-4]\n[2,\"x\"]\n7\nnull\n{{\"mark\":5}}\n");
        let record = Record::parse(&odd).unwrap();
        assert_eq!(record.samples, [[2, 0], [3, 0]]);
    }
}
