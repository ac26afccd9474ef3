//! `deckle doctor`: what this system allows, which mode `run` would use, and the remedies.

mod facts;
mod hugepages;
mod selftest;

use serde_json::{Value, json};

use crate::access::Facts;
use crate::args::{DoctorArgs, Format};
use crate::fail::Fail;
use crate::print;

/// How a finding is meant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// Good, or a plain fact.
    Ok,
    /// Works, but not as well as it could.
    Note,
    /// Something is missing.
    Missing,
}

/// One finding.
#[derive(Debug)]
struct Finding {
    section: &'static str,
    name: &'static str,
    text: String,
    value: Value,
    state: State,
    remedy: Option<String>,
}

impl Finding {
    fn fact(section: &'static str, name: &'static str, text: impl Into<String>) -> Finding {
        let text = text.into();
        Finding {
            section,
            name,
            value: json!(text),
            text,
            state: State::Ok,
            remedy: None,
        }
    }
    fn value(mut self, value: Value) -> Finding {
        self.value = value;
        self
    }
    /// If `good` does not hold, it is meant as `state`.
    fn unless(self, good: bool, state: State, remedy: impl Into<String>) -> Finding {
        match good {
            true => self,
            false => self.state(state, remedy),
        }
    }
    fn state(mut self, state: State, remedy: impl Into<String>) -> Finding {
        self.state = state;
        self.remedy = Some(remedy.into());
        self
    }
}

/// The mode that `deckle run` would use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mode {
    /// Everything.
    Full,
    /// Not at all.
    None,
}

impl Mode {
    fn of(access: &Facts, shared_memory: &Finding) -> Mode {
        match access.way() {
            Some(_) if shared_memory.state == State::Ok => Mode::Full,
            _ => Mode::None,
        }
    }
    fn name(self) -> &'static str {
        match self {
            Mode::Full => "full",
            Mode::None => "none",
        }
    }
    fn text(self) -> &'static str {
        match self {
            Mode::Full => "full: any 64-bit program, static ones too, its threads, forks and execs",
            Mode::None => "none: `deckle run` cannot manage a program here",
        }
    }
}

/// How a container gets what it needs, for programs that read this.
const CONTAINERS: [(&str, &str); 3] = [
    ("docker", "docker run --device /dev/userfaultfd IMAGE"),
    ("podman", "podman run --device /dev/userfaultfd IMAGE"),
    (
        "kubernetes",
        "a device plugin that offers /dev/userfaultfd, as for other devices of the host",
    ),
];

/// Looks at the system and prints what it found. Status 1: `deckle run` can manage nothing here.
pub fn doctor(args: &DoctorArgs) -> Result<i32, Fail> {
    let access = Facts::gather();
    let shared_memory = facts::shared_memory();
    let mode = Mode::of(&access, &shared_memory);
    let mut findings = facts::userfaultfd(&access);
    findings.extend(selftest::findings(access.way().is_some()));
    findings.extend(hugepages::findings());
    findings.extend(facts::limits());
    findings.push(shared_memory);
    let text = match args.format {
        Format::Text => text(mode, &findings),
        Format::Json => format!("{:#}", json(mode, &findings)),
    };
    print(text.trim_end())?;
    Ok(i32::from(mode == Mode::None))
}

fn json(mode: Mode, findings: &[Finding]) -> Value {
    let list: Vec<Value> = findings
        .iter()
        .map(|f| {
            let state = match f.state {
                State::Ok => "ok",
                State::Note => "note",
                State::Missing => "missing",
            };
            json!({
                "section": f.section, "name": f.name, "value": f.value,
                "state": state, "remedy": f.remedy,
            })
        })
        .collect();
    let containers: serde_json::Map<String, Value> = CONTAINERS
        .iter()
        .map(|(k, v)| ((*k).to_owned(), json!(v)))
        .collect();
    json!({ "schema": 1, "mode": mode.name(), "findings": list, "containers": containers })
}

fn text(mode: Mode, findings: &[Finding]) -> String {
    let mut out = format!("mode of `deckle run` here: {}\n", mode.text());
    let mut section = "";
    for f in findings {
        if f.section != section {
            section = f.section;
            out.push_str(&format!("\n{section}\n"));
        }
        let mark = match f.state {
            State::Ok => ' ',
            State::Note => '-',
            State::Missing => '!',
        };
        out.push_str(&format!(" {mark} {:<26} {}\n", f.name, f.text));
        if let Some(remedy) = &f.remedy {
            out.push_str(&format!("   {:<26} -> {remedy}\n", ""));
        }
    }
    out
}
