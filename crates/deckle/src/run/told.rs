//! What is told of the tree in files, while it runs and at its end.

use std::path::Path;
use std::time::Instant;

use deckle_group::Name;

use super::report::Report;
use super::stats_file::StatsFile;
use crate::args::RunArgs;
use crate::fail::{Fail, plain};
use crate::look::openmetrics;

/// The files.
pub struct Told {
    /// JSON.
    stats: Option<StatsFile>,
    /// OpenMetrics text.
    metrics: Option<StatsFile>,
    /// What the tree is called there.
    tree: String,
}

impl Told {
    /// Opens what `args` name.
    ///
    /// # Errors
    /// One cannot be written.
    pub fn create(args: &RunArgs, name: Name, tree: String) -> Result<Told, Fail> {
        let open = |path: &Option<_>, option: &str| {
            let path: Option<&Path> = path.as_ref().map(std::path::PathBuf::as_path);
            let file = path.map(|path| {
                let unique = format!("{}.{option}", name.as_str());
                StatsFile::create(path, &unique).map_err(|e| {
                    let (file, why) = (path.display(), plain(&e));
                    Fail::own(format!("--{option}: {file}: cannot be written: {why}"))
                })
            });
            file.transpose()
        };
        Ok(Told {
            stats: open(&args.stats, "stats")?,
            metrics: open(&args.metrics, "metrics")?,
            tree,
        })
    }

    fn json(report: &Report) -> Vec<u8> {
        let mut text = format!("{:#}", report.json()).into_bytes();
        text.push(b'\n');
        text
    }

    fn openmetrics(&self, report: &Report) -> Vec<u8> {
        openmetrics::text(&[(&self.tree, report)]).into_bytes()
    }

    /// Writes what is to be written of what `now` says; when there is something again.
    pub fn work(&mut self, now: impl Fn() -> Report) -> Option<Instant> {
        let tree = &self.tree;
        if let Some(file) = &mut self.stats {
            file.work(|| Told::json(&now()));
        }
        if let Some(file) = &mut self.metrics {
            file.work(|| openmetrics::text(&[(tree, &now())]).into_bytes());
        }
        let files = [&self.stats, &self.metrics].into_iter().flatten();
        files.filter_map(StatsFile::deadline).min()
    }

    /// Writes the last ones.
    ///
    /// # Errors
    /// One cannot be written.
    pub fn end(self, args: &RunArgs, report: &Report) -> Result<(), Fail> {
        let metrics = self.openmetrics(report);
        for (file, path, option, text) in [
            (self.stats, &args.stats, "stats", Told::json(report)),
            (self.metrics, &args.metrics, "metrics", metrics),
        ] {
            if let (Some(file), Some(path)) = (file, path) {
                file.end(&text).map_err(|e| {
                    let (file, why) = (path.display(), plain(&e));
                    Fail::own(format!("--{option}: {file}: cannot be written: {why}"))
                })?;
            }
        }
        Ok(())
    }
}
