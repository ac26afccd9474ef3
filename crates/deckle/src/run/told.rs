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
use crate::record::Recorder;
use crate::say;
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

    /// Writes the last ones.
    ///
    /// # Errors
    /// One cannot be written.
    pub fn end(
        self,
        args: &RunArgs,
        report: &Report,
        group: &Group,
        end: &End,
    ) -> Result<(), Fail> {
        if let (Some(record), Some(path)) = (self.record, &args.record)
            && let Err(why) = record.end(group, end.status, end.signal)
        {
            say(format_args!("--record: {}: {why}", path.display()));
        }
        let metrics = openmetrics::text(&[(&self.tree, report)]).into_bytes();
        for (file, path, option, text) in [
            (self.stats, &args.stats, "stats", Told::json(report)),
            (self.metrics, &args.metrics, "metrics", metrics),
        ] {
            if let (Some(file), Some(path)) = (file, path) {
                file.end(&text).map_err(|e| unwritten(option, path, &e))?;
            }
        }
        Ok(())
    }
}

/// The head of a record.
fn about(args: &RunArgs, settings: &Settings) -> Value {
    let bytes = |pages: u64| (pages != u64::MAX).then(|| pages.saturating_mul(PAGE_SIZE as u64));
    let command = args.program.iter().map(|word| word.to_string_lossy());
    json!({
        "command": command.collect::<Vec<_>>(),
        "memory_max_bytes": bytes(settings.limits.max),
        "memory_high_bytes": bytes(settings.limits.high),
        "swap": settings.swap.to_string(),
    })
}

fn unwritten(option: &str, file: &Path, e: &io::Error) -> Fail {
    let (file, why) = (file.display(), plain(e));
    Fail::own(format!("--{option}: {file}: cannot be written: {why}"))
}
