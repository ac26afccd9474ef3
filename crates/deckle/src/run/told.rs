//! What is told of the tree in files, while it runs and at its end.
//!
//! A thread for each file writes it: a file system that is slow or gone, or a pipe that no process
//! reads, holds up that thread and nothing else.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

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

/// How long the last state of the files may take to be written after the end of the tree.
const PATIENCE: Duration = Duration::from_secs(5);

/// What a file tells.
enum Output {
    /// JSON.
    Stats(StatsFile),
    /// OpenMetrics text.
    Metrics(StatsFile),
    /// For `deckle plot`.
    Record(Box<Recorder>),
}

/// The files, opened before the tree runs.
pub struct Told {
    files: Vec<(&'static str, PathBuf, Output)>,
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
        apart(args)?;
        let open = |option: &str, path: &Path| -> io::Result<Output> {
            let unique = format!("{}.{option}", name.as_str());
            Ok(match option {
                "stats" => Output::Stats(StatsFile::create(path, &unique)?),
                "metrics" => Output::Metrics(StatsFile::create(path, &unique)?),
                _ => {
                    let record = Recorder::create(path, &unique, about(args, settings))?;
                    Output::Record(Box::new(record))
                }
            })
        };
        let mut files = Vec::new();
        for (option, path) in named(args) {
            if let Some(path) = path {
                let file = open(option, path).map_err(|e| lost(option, path, &unwritten(&e)))?;
                files.push((option, path.clone(), file));
            }
        }
        Ok(Told { files, tree })
    }

    /// Has threads write of the tree from now on.
    ///
    /// # Errors
    /// There is no thread to be had.
    pub fn start(self, group: Group, swap: String) -> Result<Telling, Fail> {
        let tree = Arc::new(Tree {
            group,
            swap,
            name: self.tree,
            start: Instant::now(),
        });
        let start = |(option, path, file): (&'static str, PathBuf, Output)| {
            let ((end, ended), (tell, told)) = (channel(), channel());
            let tree = tree.clone();
            let thread = thread::Builder::new().name(format!("--{option}"));
            let thread = thread.spawn(move || {
                if let Some(done) = file.tell(&tree, &ended) {
                    // Without a receiver it has taken too long.
                    let _ = tell.send(done);
                }
            });
            thread.map_err(|e| lost(option, &path, &format!("no thread: {}", plain(&e))))?;
            Ok(Teller {
                option,
                path,
                end,
                told,
            })
        };
        let tellers = self.files.into_iter().map(start);
        Ok(Telling(tellers.collect::<Result<_, Fail>>()?))
    }
}

/// The tree as the files tell of it.
struct Tree {
    group: Group,
    swap: String,
    name: String,
    start: Instant,
}

impl Tree {
    fn report(&self, end: Option<&End>) -> Report {
        let end = end.ok_or_else(|| self.start.elapsed());
        Report::gather(&self.group, self.swap.clone(), end)
    }

    fn json(&self, end: Option<&End>) -> Vec<u8> {
        format!("{:#}\n", self.report(end).json()).into_bytes()
    }

    fn metrics(&self, end: Option<&End>) -> Vec<u8> {
        openmetrics::text(&[(&self.name, &self.report(end))]).into_bytes()
    }
}

impl Output {
    /// Writes of the tree until it has ended, and then once more: whether that could be, or why
    /// not. `None`: the end is not to be told.
    fn tell(mut self, tree: &Tree, ended: &Receiver<End>) -> Option<Result<(), String>> {
        loop {
            let next = self.work(tree);
            let end = match next {
                Some(at) => ended.recv_timeout(at.saturating_duration_since(Instant::now())),
                None => ended.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            match end {
                Ok(end) => return Some(self.end(tree, &end)),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return None,
            }
        }
    }

    /// Writes what is to be written now; when there is something again.
    fn work(&mut self, tree: &Tree) -> Option<Instant> {
        match self {
            Output::Stats(file) => {
                file.work(|| tree.json(None));
                file.deadline()
            }
            Output::Metrics(file) => {
                file.work(|| tree.metrics(None));
                file.deadline()
            }
            Output::Record(record) => {
                record.work(&tree.group);
                record.deadline()
            }
        }
    }

    fn end(self, tree: &Tree, end: &End) -> Result<(), String> {
        let done = match self {
            Output::Stats(file) => file.end(&tree.json(Some(end))),
            Output::Metrics(file) => file.end(&tree.metrics(Some(end))),
            Output::Record(record) => return record.end(&tree.group, end.status, end.signal),
        };
        done.map_err(|e| unwritten(&e))
    }
}

/// A thread that writes a file.
struct Teller {
    option: &'static str,
    path: PathBuf,
    end: Sender<End>,
    told: Receiver<Result<(), String>>,
}

/// The threads that write the files.
pub struct Telling(Vec<Teller>);

impl Telling {
    /// Has the last ones written, each whether or not another can be; why some cannot.
    pub fn end(self, end: &End) -> Vec<Fail> {
        for teller in &self.0 {
            // A thread that is not there any more is heard of below.
            let _ = teller.end.send(*end);
        }
        let until = Instant::now() + PATIENCE;
        let why = |teller: &Teller| {
            let rest = until.saturating_duration_since(Instant::now());
            match teller.told.recv_timeout(rest) {
                Ok(done) => done.err(),
                Err(RecvTimeoutError::Timeout) => {
                    let for_s = PATIENCE.as_secs();
                    Some(format!(
                        "takes no data for {for_s} s: its last state is lost"
                    ))
                }
                Err(RecvTimeoutError::Disconnected) => Some("its thread has failed".into()),
            }
        };
        let fail = |teller: &Teller| Some(lost(teller.option, &teller.path, &why(teller)?));
        self.0.iter().filter_map(fail).collect()
    }
}

/// The options that name files, in the order in which failures are told.
fn named(args: &RunArgs) -> [(&'static str, &Option<PathBuf>); 3] {
    [
        ("record", &args.record),
        ("stats", &args.stats),
        ("metrics", &args.metrics),
    ]
}

/// Whether no two of the files that are written are one, which would be both and neither.
fn apart(args: &RunArgs) -> Result<(), Fail> {
    let [record, stats, metrics] = named(args);
    let files = [stats, metrics, record];
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

fn unwritten(e: &io::Error) -> String {
    format!("cannot be written: {}", plain(e))
}

fn lost(option: &str, file: &Path, why: &str) -> Fail {
    Fail::own(format!("--{option}: {}: {why}", file.display()))
}
