//! The command line.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

mod help;
pub mod inspect;
pub mod lab;
pub mod look;
pub mod setup;

use crate::config::{self, Setting};
use crate::fail::Fail;
use lab::LabArgs;
use look::{ReclaimArgs, SetArgs, StatArgs, TopArgs};
use setup::{PagesArgs, SetupArgs};

/// Run programs inside a memory limit, with huge pages where they pay and none of their waste.
#[derive(Parser)]
#[command(
    name = "deckle",
    version,
    after_help = "Begin with:\n  \
        deckle doctor                                    what this system allows\n  \
        deckle run --memory-max 256M -- python3 job.py   a program inside 256 MiB\n\n\
        No root, no swap device and no kernel setting is needed where the system lets a\n\
        process use userfaultfd; `deckle doctor` says whether it does, and what to change."
)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// Verbs.
#[derive(Subcommand)]
pub enum Command {
    /// Run a program and its children inside one memory limit.
    Run(Box<RunArgs>),
    /// Show what runs under deckle, and what its memory is.
    Stat(StatArgs),
    /// Show a tree that runs on the terminal, process by process.
    Top(TopArgs),
    /// Change the limits and other settings of what runs.
    Set(SetArgs),
    /// Have memory of what runs reclaimed now.
    Reclaim(ReclaimArgs),
    /// Reproduce published memory-management experiments.
    Lab(LabArgs),
    /// Say what this system allows, and the remedy for what is missing.
    Doctor(DoctorArgs),
    /// Show a record that `deckle run --record` has made, as a page or a picture.
    Plot(crate::plot::PlotArgs),
    /// Say which limit a working set fits in, by what its pages compress to.
    Fit(crate::fit::FitArgs),
    /// Say which process wastes memory in huge pages, and which setting gives it back.
    Inspect(Box<inspect::InspectArgs>),
    /// Bring evicted memory of a process back, for a debugger that cannot wait for it.
    Fetch(FetchArgs),
    /// Let ordinary users use deckle here: a group that has /dev/userfaultfd.
    Setup(SetupArgs),
    /// Write the manual pages and the completions of shells, for who makes a package.
    #[command(hide = true)]
    Pages(PagesArgs),
}

const FETCH_HELP: &str = "\
Debuggers read by ptrace, which cannot wait for memory that deckle keeps compressed: they get an
input/output error. What was fetched they read like any other; the process may be stopped. It
counts against the limit, and may be evicted again once the process or others go on.

In gdb:
  (gdb) shell deckle fetch 4711 0x7f0012345000 64K
or, as a command of gdb's own, in ~/.gdbinit:
  define fetch
    python gdb.execute('shell deckle fetch %d %d %d' % (gdb.selected_inferior().pid, \
int(gdb.parse_and_eval('$arg0')), int(gdb.parse_and_eval('$arg1'))))
  end
  (gdb) fetch &table[100] sizeof(table[100])

Harmless where nothing is evicted, and to a process that is not under deckle. A core dump has no
bytes of evicted pages, and says how many: `strings core | grep ^deckle:`.";

/// Options of `deckle fetch`.
#[derive(Args)]
#[command(after_help = FETCH_HELP)]
pub struct FetchArgs {
    /// The process, or the name of a tree that has only one.
    #[arg(value_name = "PID|NAME")]
    pub process: String,
    /// The first byte, as 0x7f0012345000.
    #[arg(value_name = "ADDRESS")]
    pub address: String,
    /// How many bytes, as 100, 0x40, 64K or 1M.
    #[arg(default_value = "4K", value_name = "LENGTH")]
    pub length: String,
}

/// Options of `deckle run`.
#[derive(Args)]
#[command(after_help = help::run_help())]
pub struct RunArgs {
    /// Most memory the program and its children may use together, or `auto`: the container's
    /// limit minus headroom; `max`: no limit. Default: auto in a container that has a limit,
    /// else no limit.
    #[arg(long, value_name = "SIZE|auto|max", allow_hyphen_values = true)]
    pub memory_max: Option<String>,
    /// Reclaim in the background above this, and make who grows far above it wait; `max`: never.
    /// Default: the maximum minus 1/64 of it or 4M, whichever is more; with --profile linux none.
    #[arg(long, value_name = "SIZE|max", allow_hyphen_values = true)]
    pub memory_high: Option<String>,
    /// Where cold pages go: compressed memory, or nowhere; with `,file:DIR` what is oldest or does
    /// not compress goes on to files in DIR, of SIZE together at most, and with `file:DIR` alone
    /// all does. Behind that `,encrypt` encrypts the files, by keys that nobody keeps, and
    /// `,wbps=SIZE` is the most that is written in a second. Default: zram:lz4, which zram alone
    /// means too.
    #[arg(
        long,
        value_name = "none|zram|zram:lz4|zram:zstd[,file:DIR[:SIZE][,encrypt][,wbps=SIZE]]"
    )]
    pub swap: Option<String>,
    /// Most memory, as the program counts it, that may be in swap; `max`: no limit, the default.
    #[arg(long, value_name = "SIZE|max", allow_hyphen_values = true)]
    pub swap_max: Option<String>,
    /// Where page faults get huge pages. Default: always.
    #[arg(long, value_name = "always|madvise|never")]
    pub thp: Option<String>,
    /// A huge page with more zero-filled subpages than this, 0 to 511, is split under pressure.
    /// Default: 409; with --profile linux 511, as there. khugepaged fills blocks with as many
    /// holes, but, while fault_order is auto, with 64 at most.
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    pub max_ptes_none: Option<String>,
    /// Whether huge pages that are mostly zeros are split under pressure. Default: on.
    #[arg(long, value_name = "on|off")]
    pub shrink_underused: Option<String>,
    /// Whose decisions: deckle's own, the default, or those of Linux 6.18.
    #[arg(long, value_name = "deckle|linux")]
    pub profile: Option<String>,
    /// Read settings from a TOML file (see below).
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Set any setting of that file, such as vm.page-cluster=3. Can be repeated.
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// Write all counters, those of each size of folio too, and the settings in force to FILE as
    /// JSON: at the end, and before that anew every second.
    #[arg(long, value_name = "FILE")]
    pub stats: Option<PathBuf>,
    /// Record to FILE what becomes of memory and processes, ten times a second at first, for
    /// `deckle plot`. At most some 2 MiB: the longer it runs, the fewer samples are kept of each
    /// second.
    #[arg(long, value_name = "FILE")]
    pub record: Option<PathBuf>,
    /// Write the counters of the whole tree to FILE as OpenMetrics text, at the end and every
    /// second before, each time a whole file: for the textfile collector of node_exporter.
    #[arg(long, value_name = "FILE")]
    pub metrics: Option<PathBuf>,
    /// What `deckle stat` and the others call it: up to 32 letters, digits, dots, dashes and
    /// underscores, and no other's name that runs. Without one it is called by its pid.
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// Refuse programs that cannot be managed (setuid ones, those of 32 bits) instead of running
    /// them outside the limit.
    #[arg(long)]
    pub strict: bool,
    /// Do not print the summary at the end.
    #[arg(long)]
    pub quiet: bool,
    /// Run the program without managing its memory, for comparison.
    #[arg(long, conflicts_with = "strict")]
    pub unmanaged: bool,
    /// The program and its arguments.
    #[arg(last = true, required = true, value_name = "PROGRAM ARGS")]
    pub program: Vec<OsString>,
}

impl RunArgs {
    /// The settings: those of `--set`, and behind them those that have an option of their own.
    pub fn settings(&self) -> Result<Vec<Setting>, Fail> {
        let pair = |text: &String| match config::pair(text) {
            Ok((key, value)) => Ok(Setting::new(key, value, format!("--set {key}"))),
            Err(why) => Err(Fail::own(format!("--set: {why}"))),
        };
        let mut all: Vec<Setting> = self.set.iter().map(pair).collect::<Result<_, _>>()?;
        let thp = |key| format!("transparent_hugepage.{key}");
        for (option, key, text) in [
            ("profile", "profile".into(), &self.profile),
            ("swap", "swap".into(), &self.swap),
            ("memory-max", "memory.max".into(), &self.memory_max),
            ("memory-high", "memory.high".into(), &self.memory_high),
            ("swap-max", "memory.swap.max".into(), &self.swap_max),
            ("thp", thp("enabled"), &self.thp),
            (
                "max-ptes-none",
                thp("khugepaged.max_ptes_none"),
                &self.max_ptes_none,
            ),
            (
                "shrink-underused",
                thp("shrink_underused"),
                &self.shrink_underused,
            ),
        ] {
            let place = format!("--{option}");
            all.extend(
                text.iter()
                    .map(|text| Setting::new(&key, text, place.clone())),
            );
        }
        Ok(all)
    }
}

/// How results are written.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people.
    Text,
    /// For programs: raw integers and a schema number.
    Json,
}

/// Options of `deckle doctor`.
#[derive(Args)]
#[command(after_help = "Exit status: 0 if `deckle run` can manage programs here, 1 if it cannot.")]
pub struct DoctorArgs {
    /// How the result is written.
    #[arg(long, value_enum, default_value = "text")]
    pub format: Format,
}
