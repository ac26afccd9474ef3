//! The command line of what looks at running trees and changes them.

use clap::{Args, ValueEnum};

const STAT_HELP: &str = "\
Examples:
  deckle stat                                    every tree that runs, a line each
  deckle stat web                                that of `deckle run --name web`, by process
  deckle stat 4711 --interval 1                  the one of process 4711, every second, with rates
  deckle stat web --format json | jq .trees[0].current.memory_bytes
  deckle stat --format openmetrics               for Prometheus; see also deckle run --metrics

What the columns say:
  charged   what the limit is held against: resident pages, compressed ones, deckle's own tables.
  resident  pages of the program that are in memory.
  stored    pages that are compressed or in a file, as the program counts them; `in` is what they
            take of memory, and `ratio` how many times less that is.
  zeros     pages of zeros that were dropped, and cost nothing.
  huge      huge pages of 2 MiB.
  faults    page faults; `swap-ins` pages that were read back. By the second with --interval.
  pressure  of the time since the last line, or since the start, the part in which somebody waited
            for memory. Each process has a clock of its own: of several it may be above 100 %.

Processes tell their numbers ten times a second. JSON has them all, and with --interval a line each
time; OpenMetrics has those of whole trees. Exit status 0, also where nothing runs.

Who may look: the user whose tree it is, and root.";

const SET_HELP: &str = "\
Examples:
  deckle set web memory.max=1G                   as deckle run --memory-max, while it runs
  deckle set web memory.max=512M memory.high=480M vm.page-cluster=3
  deckle set 4711 transparent_hugepage.enabled=never

All that is given changes at once, or nothing; what it was is printed. With memory.max alone,
memory.high follows if it is what it would be by default. A smaller memory.max holds in a moment:
the processes that have most give back what is too much, and where nothing can be given back the one
that holds most is killed, as at the limit. This command waits for it, two seconds at most.

What may be changed: memory.max, memory.high, memory.swap.max, and what `deckle run --help` lists,
but for profile, swap, strict, zswap.max_pool_percent and transparent_hugepage.align_mappings, which
are decided when the tree starts. Who may: the user whose tree it is, and root.";

const RECLAIM_HELP: &str = "\
Examples:
  deckle reclaim web 256M                        evicts so much, of what is coldest first
  deckle reclaim 4711 max                        all that can go

As memory.reclaim of a cgroup: the limit stays as it is, and what is wanted again comes back by a
fault. Exit status 0 if as much was reclaimed, 1 if it was less.";

/// Options of `deckle stat`.
#[derive(Args)]
#[command(after_help = STAT_HELP)]
pub struct StatArgs {
    /// Which tree: its name, or the pid of its `deckle run` or of any process in it. Default: all.
    #[arg(value_name = "NAME|PID")]
    pub tree: Option<String>,
    /// How the result is written.
    #[arg(long, value_enum, default_value = "text")]
    pub format: Format,
    /// Again every so many seconds, until the tree ends.
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true)]
    pub interval: Option<f64>,
    /// So many times.
    #[arg(long, value_name = "N", requires = "interval",
          value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,
}

/// How statistics are written.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people.
    Text,
    /// For programs: raw integers and a schema number.
    Json,
    /// For Prometheus.
    Openmetrics,
}

const TOP_HELP: &str = "\
Keys: p c r s f i w sort by the columns of these letters (pid, charged, resident, stored, faults,
swap-ins, waits); / looks for a name or a pid, Esc shows all again; arrows and Page keys scroll; Tab
shows the next tree; q, Esc and Ctrl-C end it, Ctrl-Z stops it.

The line of bars is what was charged at each look, of memory.max. Where there is no terminal use
`deckle stat --interval 1`. Who may look: the user whose tree it is, and root.";

/// Options of `deckle top`.
#[derive(Args)]
#[command(after_help = TOP_HELP)]
pub struct TopArgs {
    /// Which tree: its name, or the pid of its `deckle run` or of any process in it. Default: the
    /// oldest, and Tab for the others.
    #[arg(value_name = "NAME|PID")]
    pub tree: Option<String>,
    /// Seconds between two looks.
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 1.0,
        allow_negative_numbers = true
    )]
    pub interval: f64,
}

/// Options of `deckle set`.
#[derive(Args)]
#[command(after_help = SET_HELP)]
pub struct SetArgs {
    /// Which tree: its name, or the pid of its `deckle run` or of any process in it.
    #[arg(value_name = "NAME|PID")]
    pub tree: String,
    /// What to change.
    #[arg(value_name = "KEY=VALUE", required = true)]
    pub settings: Vec<String>,
}

/// Options of `deckle reclaim`.
#[derive(Args)]
#[command(after_help = RECLAIM_HELP)]
pub struct ReclaimArgs {
    /// Which tree: its name, or the pid of its `deckle run` or of any process in it.
    #[arg(value_name = "NAME|PID")]
    pub tree: String,
    /// How much.
    #[arg(value_name = "SIZE|max")]
    pub size: String,
}
