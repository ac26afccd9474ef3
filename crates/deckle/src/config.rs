//! Settings as they are given: by an option, by `--set`, by a line of the settings file, which is
//! TOML.

use std::fmt::Display;
use std::path::Path;

use deckle_mm::Tunables;
use deckle_mm::knob::{Kind, Knob, When};
use strsim::jaro;
use toml::de::{DeTable, DeValue};

use crate::fail::{Fail, read_text};

/// What may be given besides knobs.
const BESIDES: [(&str, When); 7] = [
    ("memory.max", When::Live),
    ("memory.high", When::Live),
    ("memory.swap.max", When::Live),
    ("swap", When::Start),
    ("zswap.max_pool_percent", When::Start),
    ("strict", When::Start),
    ("transparent_hugepage.align_mappings", When::Start),
];
/// How near to each other two keys are of which one may be meant by the other, from 0 to 1.
const ALIKE: f64 = 0.8;

/// All that may be given, and when it may change.
pub fn all() -> impl Iterator<Item = (&'static str, When)> {
    let knobs = Tunables::KNOBS.iter().map(|knob| (knob.key, knob.when));
    knobs.chain(BESIDES)
}

/// Key and value of KEY=VALUE.
///
/// # Errors
/// One of them is missing.
pub fn pair(text: &str) -> Result<(&str, &str), String> {
    match text.split_once('=') {
        Some((key, _)) if key.trim().is_empty() => Err(format!(
            "`{text}` has no name: write KEY=VALUE, such as vm.page-cluster=3"
        )),
        Some(pair) => Ok(pair),
        None => Err(format!(
            "`{text}` has no value: write KEY=VALUE, such as vm.page-cluster=3"
        )),
    }
}

/// A setting that is given.
pub struct Setting {
    /// Its name: the kernel's, with dots.
    pub key: String,
    /// What it shall be.
    pub text: String,
    /// Where that is said, for errors.
    pub place: String,
}

impl Setting {
    /// The setting `key`.
    pub fn new(key: &str, text: &str, place: String) -> Setting {
        Setting {
            key: key.trim().to_owned(),
            text: text.trim().to_owned(),
            place,
        }
    }

    /// The failure that it cannot be that.
    pub fn refuse(&self, why: impl Display) -> Fail {
        Fail::own(format!("{}: {why}", self.place))
    }

    /// What it is as `kind`.
    pub fn value(&self, kind: Kind) -> Result<u64, Fail> {
        kind.parse(&self.text).map_err(|why| self.refuse(why))
    }

    /// When it may change; `None`: there is no such setting.
    pub fn when(&self) -> Option<When> {
        all()
            .find(|(key, _)| *key == self.key)
            .map(|(_, when)| when)
    }

    /// Sets the knob of this name.
    pub fn put(&self, t: &mut Tunables) -> Result<(), Fail> {
        if self.key.is_empty() {
            return Err(self.refuse("a setting has a name, such as vm.page-cluster"));
        }
        t.set(&self.key, &self.text).map(|_| ()).map_err(|e| {
            let told = self.when().is_some() || Knob::like(&self.key).is_some();
            let hint = if told { String::new() } else { self.alike() };
            self.refuse(e.why + &hint)
        })
    }

    /// What else is written much as this key, or where to look.
    fn alike(&self) -> String {
        let all = all().map(|(key, _)| (jaro(&self.key, key), key));
        match all.max_by(|a, b| a.0.total_cmp(&b.0)) {
            Some((near, key)) if near > ALIKE => format!(": did you mean `{key}`?"),
            _ => "; `deckle run --help` lists them all".to_owned(),
        }
    }

    /// The same, if it is a size or a word for one, also if it is overruled.
    pub fn sized(&self) -> Result<&Setting, Fail> {
        match self.text.as_str() {
            "auto" => Ok(self),
            _ => self.value(Kind::Limit).map(|_| self),
        }
    }

    /// Bytes, if there is a limit. What is below `least` is too small, and `remedy` says what to
    /// do.
    pub fn bytes(&self, least: u64, remedy: &str) -> Result<Option<u64>, Fail> {
        match self.value(Kind::Limit)? {
            u64::MAX => Ok(None),
            n if n < least => {
                Err(self.refuse(format_args!("`{}` is too small{remedy}", self.text)))
            }
            n => Ok(Some(n)),
        }
    }
}

/// Most bytes of a settings file: a hundred times what all settings take.
const BYTES: u64 = 1 << 20;

/// Reads `path`.
///
/// # Errors
/// It cannot be read, or is no TOML; the error names the line.
pub fn read(path: &Path) -> Result<Vec<Setting>, Fail> {
    let shown = path.display();
    let text = read_text(path, BYTES).map_err(|e| {
        Fail::own(format!(
            "{shown}: cannot be read: {}",
            crate::fail::plain(&e)
        ))
    })?;
    let place = |at: usize| {
        let line = 1 + text[..at.min(text.len())].matches('\n').count();
        format!("{shown}: line {line}")
    };
    let table = DeTable::parse(&text).map_err(|e| {
        let message = e.message().lines().collect::<Vec<_>>().join(" ");
        Fail::own(format!(
            "{}: {message}",
            place(e.span().map_or(0, |s| s.start))
        ))
    })?;
    let mut found = Vec::new();
    walk("", table.get_ref(), &mut |key, text, at| {
        found.push(Setting::new(key, text, format!("{}: {key}", place(at))));
    });
    Ok(found)
}

/// Every value below `path`: its key, its text, where it is.
fn walk(path: &str, table: &DeTable<'_>, found: &mut impl FnMut(&str, &str, usize)) {
    for (name, value) in table {
        let key = format!("{path}{}", name.get_ref());
        let text = match value.get_ref() {
            DeValue::Table(below) => {
                walk(&format!("{key}."), below, found);
                continue;
            }
            DeValue::String(text) => text.to_string(),
            DeValue::Integer(n) => i64::from_str_radix(n.as_str(), n.radix())
                .map_or_else(|_| n.to_string(), |n| n.to_string()),
            DeValue::Boolean(on) => on.to_string(),
            DeValue::Float(n) => n.as_str().to_owned(),
            other => format!("a TOML {}", other.type_str()),
        };
        found(&key, &text, value.span().start);
    }
}
