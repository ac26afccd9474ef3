//! The command line of the experiments.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use deckle_lab::anon::AnonFolio;
use deckle_lab::capture::Capture;
use deckle_lab::faults::Faults;
use deckle_lab::oom::Oom;
use deckle_lab::oracle::Oracle;
use deckle_lab::overcommit::Overcommit;
use deckle_lab::pageout::Pageout;
use deckle_lab::underused::Underused;

use super::Format;

/// Options of `deckle lab`.
#[derive(Args)]
#[command(after_help = "The workloads of the experiments can be run alone: \
        deckle lab program NAME ARGS,\n\
        where NAME is anon, faults, fill, oracle, pageout, oom-sparse, readzero-then-write,\n\
        torture, underused or walk.")]
pub struct LabArgs {
    /// Which experiment.
    #[command(subcommand)]
    pub experiment: Experiment,
}

/// Experiments.
#[derive(Subcommand)]
pub enum Experiment {
    /// Page out huge pages that are mostly zeros: live pager, host kernel with zram, model.
    #[command(after_help = "Example:\n  deckle lab pageout --size 4G --on live,kernel --runs 5")]
    Pageout(Told<Pageout>),
    /// Underused huge pages at a small limit: who survives, under which max_ptes_none.
    #[command(after_help = "Example:\n  deckle lab oom --on live,kernel,model")]
    Oom(Told<Oom>),
    /// Large blocks while others take small pages, with page capture and without, on the model.
    #[command(after_help = CAPTURE_HELP)]
    Capture(Drawn<Capture>),
    /// Larger folios for anonymous memory: base pages, 64 KiB, adaptive, 2 MiB; speed, faults,
    /// memory.
    #[command(after_help = ANON_HELP)]
    AnonFolio(Drawn<AnonFolio>),
    /// Huge pages everywhere, with those split under pressure that are mostly zeros: what is
    /// gained and what is kept.
    #[command(after_help = UNDERUSED_HELP)]
    Underused(Drawn<Underused>),
    /// A working set larger than memory: the pager beside the kernel with zram, at equal RAM.
    #[command(after_help = OVERCOMMIT_HELP)]
    Overcommit(Drawn<Overcommit>),
    /// What a fault and an eviction cost where memory is short, stage by stage.
    #[command(after_help = FAULTS_HELP)]
    Faults(Told<Faults>),
    /// Generated programs on the host kernel and under profile linux: whether bytes, errors and
    /// decisions on memory agree.
    #[command(after_help = ORACLE_HELP)]
    Oracle(Told<Oracle>),
}

/// An experiment whose result is told.
#[derive(Args)]
pub struct Told<E: Args> {
    /// What to run.
    #[command(flatten)]
    pub experiment: E,
    /// How the result is written.
    #[arg(long, value_enum, default_value = "text")]
    pub format: Format,
}

/// An experiment whose result can be drawn, too.
#[derive(Args)]
pub struct Drawn<E: Args> {
    /// What to run and tell.
    #[command(flatten)]
    pub told: Told<E>,
    /// Write a picture, as SVG.
    #[arg(long, value_name = "FILE")]
    pub plot: Option<PathBuf>,
}

const CAPTURE_HELP: &str = "\
Examples:
  deckle lab capture --plot capture.svg
      The experiment as docs/capture-experiment.md fixes it, about a minute, and a picture.
  deckle lab capture --threads 1,4,8 --memory 256M --capture on,off --seeds 5 --format json

no-absorption leaves out merging with free buddies, no-others the frames that others free.";

const ANON_HELP: &str = "\
Examples:
  deckle lab anon-folio --plot folios.svg
      All workloads and policies on all sides, and a picture. docs/fault-order.md has them.
  deckle lab anon-folio --on live --workload page_fault1,sparse --policy base,adaptive

The kernel has no adaptive size; its rows need root, and the host's knobs are given back.";

const UNDERUSED_HELP: &str = "\
Examples:
  deckle lab underused --plot underused.svg
      All programs and settings on all sides, some minutes, and a picture.
      docs/underused-experiment.md has what is run and set.
  deckle lab underused --on live --program churn --setting madvise,always,shrink-409 --runs 10

The kernel's rows need root and Linux 6.12; the host's knobs are given back.";

const OVERCOMMIT_HELP: &str = "\
Examples:
  deckle lab overcommit --plot overcommit.svg
      All patterns with 1, 2 and as many threads as CPUs, about half an hour, and a picture.
      docs/overcommit-experiment.md has what is run and how RAM is made equal.
  deckle lab overcommit --size 256M --pattern uniform,zipf --threads 2 --record 4096 --runs 3
  deckle lab overcommit --on model
      How often a page has to be read back, beside FIFO, LRU and MIN. Two minutes, any user.

The kernel's rows need root, zram and a memory cgroup, and a host without swap; all is given back.";

const FAULTS_HELP: &str = "\
Examples:
  deckle lab faults
      Uniform accesses with 1 and 2 threads, half a minute.
  deckle lab faults --pattern zipf,sequential --threads 2 --runs 5 --format json

Of each fault: how long until it is served (delivery), until the page is installed (service), and
until the thread goes on. Of each stage: time, CPU time, what is left of it (waiting, for a CPU
too), and its share of all CPU time. docs/overcommit-experiment.md tells what is in each.";

const ORACLE_HELP: &str = "\
Examples:
  deckle lab oracle --seeds 2000
      Some minutes. docs/lab.md has what is compared and how it is counted.
  deckle lab oracle --first 1773 --seeds 1
      One program again; `deckle lab program oracle 1773 --show` says what it does.

Needs root and a memory cgroup: the host's knobs are set to each program's and given back.";
