//! What is told of the tree in files, while it runs and at its end.

use std::cell::OnceCell;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Instant;

use deckle_group::{Group, Name};
use deckle_mm::PAGE_SIZE;
use serde_json::{Value, json};

use super::report::Report;
use super::stats_file::StatsFile;
use super::supervise::End;
use crate::args::RunArgs;
use crate::fail::{Fail, plain};
use crate::look::openmetrics;
use crate::record::{Recorder, command};
use crate::settings::Settings;

/// The files.
pub struct Told {
    /// JSON.
    stats: Option<StatsFile>,
    /// OpenMetrics text.
    metrics: Option<StatsFile>,
    /// For `deckle plot`.
    record: Option<Recorder>,
    /// What the tree is called there.
    tree: String,
}

impl Told {
    /// Opens what `args` name.
    ///
    /// # Errors
    /// One cannot be written.
    pub fn create(
        args: &RunArgs,
        name: Name,
        tree: String,
        settings: &Settings,
    ) -> Result<Told, Fail> {
        let unique = |option: &str| format!("{}.{option}", name.as_str());
        let open = |path: &Option<PathBuf>, option: &str| {
            let file = path.as_ref().map(|path| {
                let made = StatsFile::create(path, &unique(option));
                made.map_err(|e| unwritten(option, path, &e))
            });
            file.transpose()
        };
        apart(args)?;
        let record = args.record.as_ref().map(|path| {
            let made = Recorder::create(path, &unique("record"), about(args, settings));
            made.map_err(|e| unwritten("record", path, &e))
        });
        Ok(Told {
            stats: open(&args.stats, "stats")?,
            metrics: open(&args.metrics, "metrics")?,
            record: record.transpose()?,
            tree,
        })
    }

    fn json(report: &Report) -> Vec<u8> {
        let mut text = format!("{:#}", report.json()).into_bytes();
        text.push(b'\n');
        text
    }

    /// Writes what is to be written of what `now` says; when there is something again.
    pub fn work(&mut self, group: &Group, now: impl Fn() -> Report) -> Option<Instant> {
        let tree = &self.tree;
        if let Some(record) = &mut self.record {
            record.work(group);
        }
        // Both are due at the same time, and gathered once.
        let seen = OnceCell::new();
        let report = || seen.get_or_init(&now);
        if let Some(file) = &mut self.stats {
            file.work(|| Told::json(report()));
        }
        if let Some(file) = &mut self.metrics {
            file.work(|| openmetrics::text(&[(tree, report())]).into_bytes());
        }
        let files = [&self.stats, &self.metrics].into_iter().flatten();
        let record = self.record.as_ref().and_then(Recorder::deadline);
        files.filter_map(StatsFile::deadline).chain(record).min()
    }

    /// Writes the last ones, each whether or not another can be; why some cannot.
    pub fn end(self, args: &RunArgs, report: &Report, group: &Group, end: &End) -> Vec<Fail> {
        let mut lost = Vec::new();
        if let (Some(record), Some(path)) = (self.record, &args.record)
            && let Err(why) = record.end(group, end.status, end.signal)
        {
            lost.push(Fail::own(format!("--record: {}: {why}", path.display())));
        }
        let metrics = openmetrics::text(&[(&self.tree, report)]).into_bytes();
        for (file, path, option, text) in [
            (self.stats, &args.stats, "stats", Told::json(report)),
            (self.metrics, &args.metrics, "metrics", metrics),
        ] {
            if let (Some(file), Some(path)) = (file, path)
                && let Err(e) = file.end(&text)
            {
                lost.push(unwritten(option, path, &e));
            }
        }
        lost
    }
}

/// Whether no two of the files that are written are one, which would be both and neither.
fn apart(args: &RunArgs) -> Result<(), Fail> {
    let files = [
        ("stats", &args.stats),
        ("metrics", &args.metrics),
        ("record", &args.record),
    ];
    let mut known: Vec<(&str, PathBuf)> = Vec::new();
    for (option, path) in files {
        let Some(path) = path else { continue };
        // What is not there yet is where its directory is; what is no file is written at the end.
        let dir = path
            .parent()
            .and_then(|dir| Path::new(".").join(dir).canonicalize().ok());
        let same = dir.zip(path.file_name()).map(|(dir, name)| dir.join(name));
        let Ok(at) = path.canonicalize().or_else(|e| same.ok_or(e)) else {
            continue;
        };
        if at.exists() && !at.is_file() {
            continue;
        }
        if let Some((other, _)) = known.iter().find(|(_, other)| *other == at) {
            return Err(Fail::own(format!(
                "--{other} and --{option}: both name {}: give each a file of its own",
                path.display()
            )));
        }
        known.push((option, at));
    }
    Ok(())
}

/// The head of a record.
fn about(args: &RunArgs, settings: &Settings) -> Value {
    let bytes = |pages: u64| (pages != u64::MAX).then(|| pages.saturating_mul(PAGE_SIZE as u64));
    let words = args.program.iter().map(|word| word.to_string_lossy());
    json!({
        "command": command(&words.collect::<Vec<_>>()),
        "memory_max_bytes": bytes(settings.limits.max),
        "memory_high_bytes": bytes(settings.limits.high),
        "swap": settings.swap.to_string(),
    })
}

fn unwritten(option: &str, file: &Path, e: &io::Error) -> Fail {
    let (file, why) = (file.display(), plain(e));
    Fail::own(format!("--{option}: {file}: cannot be written: {why}"))
}
