//! The command line of `deckle inspect`.

use std::ffi::OsString;

use clap::{Args, ValueEnum};

const INSPECT_HELP: &str = "\
Examples:
  deckle inspect
      The kernel's settings with a verdict, and what every process wastes in huge pages.
  deckle inspect redis-server --budget 64M
      Which threshold lets it waste no more than 64 MiB, and how many huge mappings that costs.
  deckle inspect /system.slice/db.service --sample 5 --cpu 10 --format csv --interval 60
      A line a minute for each process of a cgroup, from a sample, with a tenth of a CPU.
  deckle inspect --all --format openmetrics > /var/lib/node_exporter/deckle.prom
  deckle inspect --verify -- ./my-program
      Runs it in a cgroup of its own, once for each of four thresholds, predicts what the kernel
      will free, has it do so, and compares. Needs root.
  deckle inspect redis-server --budget 64M --apply --dry-run
      What --apply would write, and where.

Nothing is stopped, brought in or copied: only pages that are there are read. Other users'
processes need root, and so do huge pages that are not mapped as a whole. A huge page with more
zero-filled pages than max_ptes_none is underused: the kernel splits it when memory is short, if
it was made while shrink_underused was on, and looks at each but once.
docs/inspect.md says what each figure means.";

/// Options of `deckle inspect`.
#[derive(Args)]
#[command(after_help = INSPECT_HELP)]
pub struct InspectArgs {
    /// A process, the name of a tree (`deckle run --name`), a name as `ps -e` shows it, or a cgroup
    /// (with a slash). Default: all processes.
    #[arg(value_name = "PID|NAME|COMMAND|CGROUP")]
    pub target: Option<String>,
    /// All processes, which is the default.
    #[arg(long, conflicts_with = "target")]
    pub all: bool,
    /// Say what the smallest change is after which no more than this is wasted.
    #[arg(long, value_name = "SIZE", allow_negative_numbers = true)]
    pub budget: Option<String>,
    /// Read only so many per cent of the huge pages; each figure gets an interval.
    #[arg(
        long,
        value_name = "PCT",
        default_value_t = 100.0,
        allow_negative_numbers = true
    )]
    pub sample: f64,
    /// Use at most so many per cent of one CPU.
    #[arg(long, value_name = "PCT", default_value_t = 100,
        value_parser = clap::value_parser!(u32).range(1..=100))]
    pub cpu: u32,
    /// Show each mapping, too.
    #[arg(long)]
    pub vmas: bool,
    /// How the result is written; json in one line each time with --interval.
    #[arg(long, value_enum, default_value = "text")]
    pub format: InspectFormat,
    /// Look again every so many seconds.
    #[arg(long, value_name = "S", allow_negative_numbers = true)]
    pub interval: Option<f64>,
    /// End after so many looks.
    #[arg(long, value_name = "N", requires = "interval",
        value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,
    /// Show at most so many processes, the most wasteful.
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub top: usize,
    /// Run a program, predict what the kernel frees of it at four thresholds, and compare.
    #[arg(long, requires = "program", conflicts_with_all = ["target", "interval", "apply"])]
    pub verify: bool,
    /// With --verify: how long memory must be unchanged before the program is looked at.
    #[arg(
        long,
        value_name = "S",
        default_value_t = 2.0,
        requires = "verify",
        allow_negative_numbers = true
    )]
    pub settle: f64,
    /// Make the change that keeps the budget: settings, and a request to the processes' cgroups.
    #[arg(long, requires = "budget", conflicts_with = "interval")]
    pub apply: bool,
    /// With --apply: only say what would be written.
    #[arg(long, requires = "apply")]
    pub dry_run: bool,
    /// With --verify: the program and its arguments.
    #[arg(last = true, requires = "verify", value_name = "PROGRAM ARGS")]
    pub program: Vec<OsString>,
}

/// How a survey is written.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum InspectFormat {
    /// For people.
    Text,
    /// For programs: raw integers and a schema number.
    Json,
    /// A line for each process.
    Csv,
    /// OpenMetrics text, for a collector.
    Openmetrics,
}
