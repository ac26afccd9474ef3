//! The command line of the experiments.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use super::Format;

/// Options of `deckle lab`.
#[derive(Args)]
#[command(after_help = "The workloads of the experiments can be run alone: \
        deckle lab program NAME ARGS,\n\
        where NAME is anon, faults, fill, pageout, oom-sparse, readzero-then-write, torture,\n\
        underused or walk.")]
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
    Pageout(PageoutArgs),
    /// Underused huge pages at a small limit: who survives, under which max_ptes_none.
    #[command(after_help = "Example:\n  deckle lab oom --on live,kernel,model")]
    Oom(OomArgs),
    /// Large blocks while others take small pages, with page capture and without, on the model.
    #[command(after_help = CAPTURE_HELP)]
    Capture(CaptureArgs),
    /// Larger folios for anonymous memory: base pages, 64 KiB, adaptive, 2 MiB; speed, faults,
    /// memory.
    #[command(after_help = ANON_HELP)]
    AnonFolio(AnonArgs),
    /// Huge pages everywhere, with those split under pressure that are mostly zeros: what is
    /// gained and what is kept.
    #[command(after_help = UNDERUSED_HELP)]
    Underused(UnderusedArgs),
    /// A working set larger than memory: the pager beside the kernel with zram, at equal RAM.
    #[command(after_help = OVERCOMMIT_HELP)]
    Overcommit(OvercommitArgs),
    /// What a fault and an eviction cost where memory is short, stage by stage.
    #[command(after_help = FAULTS_HELP)]
    Faults(FaultsArgs),
}

const FAULTS_HELP: &str = "\
Examples:
  deckle lab faults
      Uniform accesses with 1 and 2 threads, half a minute.
  deckle lab faults --pattern zipf,sequential --threads 2 --runs 5 --format json

Of each fault: how long until it is served (delivery), until the page is installed (service), and
until the thread goes on. Of each stage: time, CPU time, what is left of it (waiting, for a CPU
too), and its share of all CPU time. docs/overcommit-experiment.md tells what is in each.";

/// Options of `deckle lab faults`.
#[derive(Args)]
pub struct FaultsArgs {
    /// Memory, as a part of the working set: 0.39 to 1.
    #[arg(long, default_value_t = 0.5, value_name = "R")]
    pub ratio: f64,
    /// Size of the working set, 32M or more.
    #[arg(long, default_value = "512M", value_name = "SIZE")]
    pub size: String,
    /// In which order it is accessed, separated by commas: uniform, zipf, sequential, loop, phases.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "uniform",
        value_name = "LIST"
    )]
    pub pattern: Vec<String>,
    /// By how many threads, several separated by commas.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "1,2",
        value_name = "LIST"
    )]
    pub threads: Vec<usize>,
    /// For how long accesses are counted in a run.
    #[arg(long, default_value_t = 2.0, value_name = "SECONDS")]
    pub seconds: f64,
    /// Timed runs of each row, of which the one in the middle is told.
    #[arg(
        long,
        default_value_t = 3,
        value_name = "N",
        value_parser = clap::value_parser!(u32).range(1..=100)
    )]
    pub runs: u32,
    /// How the result is written.
    #[arg(long, value_enum, default_value = "text")]
    pub format: Format,
}

const OVERCOMMIT_HELP: &str = "\
Examples:
  deckle lab overcommit --plot overcommit.svg
      All patterns with 1, 2 and as many threads as CPUs, about half an hour, and a picture.
      docs/overcommit-experiment.md has what is run and how RAM is made equal.
  deckle lab overcommit --size 256M --pattern uniform,zipf --threads 2 --record 4096 --runs 3
  deckle lab overcommit --on model
      How often a page has to be read back, beside FIFO, LRU and MIN. Two minutes, any user.

The kernel's rows need root, zram and a memory cgroup, and a host without swap; all is given back.";

/// Options of `deckle lab overcommit`.
#[derive(Args)]
pub struct OvercommitArgs {
    /// Where to run it, separated by commas. The model has no speed: it tells how often a page has
    /// to be read back, beside FIFO, LRU and MIN on the same accesses.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "live,kernel")]
    pub on: Vec<Place>,
    /// Memory, as a part of the working set: 0.39 to 1.
    #[arg(long, default_value_t = 0.5, value_name = "R")]
    pub ratio: f64,
    /// Size of the working set, 32M or more.
    #[arg(long, default_value = "512M", value_name = "SIZE")]
    pub size: String,
    /// In which order it is accessed, separated by commas: uniform, zipf, sequential, loop, phases.
    /// Default: all.
    #[arg(long, value_delimiter = ',', value_name = "LIST")]
    pub pattern: Vec<String>,
    /// By how many threads, several separated by commas. Default: 1, 2 and as many as CPUs.
    #[arg(long, value_delimiter = ',', value_name = "LIST")]
    pub threads: Vec<usize>,
    /// Bytes of a record, 4096, 200 or both. Default: both.
    #[arg(long, value_delimiter = ',', value_name = "LIST")]
    pub record: Vec<usize>,
    /// For how long accesses are counted in a run.
    #[arg(long, default_value_t = 2.0, value_name = "SECONDS")]
    pub seconds: f64,
    /// Runs of each row; the one in the middle counts.
    #[arg(
        long,
        default_value_t = 5,
        value_name = "N",
        value_parser = clap::value_parser!(u32).range(1..=100)
    )]
    pub runs: u32,
    /// How the result is written.
    #[arg(long, value_enum, default_value = "text")]
    pub format: Format,
    /// Write a picture of the accesses a second, as SVG.
    #[arg(long, value_name = "FILE")]
    pub plot: Option<PathBuf>,
}

const UNDERUSED_HELP: &str = "\
Examples:
  deckle lab underused --plot underused.svg
      All programs and settings on all sides, some minutes, and a picture.
      docs/underused-experiment.md has what is run and set.
  deckle lab underused --on live --program churn --setting madvise,always,shrink-409 --runs 10

The kernel's rows need root and Linux 6.12; the host's knobs are given back.";

/// Options of `deckle lab underused`.
#[derive(Args)]
pub struct UnderusedArgs {
    /// Where to run it, separated by commas.
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "live,kernel,model"
    )]
    pub on: Vec<Place>,
    /// Which programs, separated by commas: sparse, churn, python, compile. Default: all.
    #[arg(long, value_delimiter = ',', value_name = "LIST")]
    pub program: Vec<String>,
    /// Which settings, separated by commas: madvise, always, shrink-N, deckle. Default: all,
    /// with N 0, 64, 255, 409, 450, 470, 490, 511.
    #[arg(long, value_delimiter = ',', value_name = "LIST")]
    pub setting: Vec<String>,
    /// Runs of madvise, always, shrink-409 and deckle; of the others there is one.
    #[arg(
        long,
        default_value_t = 5,
        value_name = "N",
        value_parser = clap::value_parser!(u32).range(1..=100)
    )]
    pub runs: u32,
    /// How the result is written.
    #[arg(long, value_enum, default_value = "text")]
    pub format: Format,
    /// Write a picture of the memory that is left, as SVG.
    #[arg(long, value_name = "FILE")]
    pub plot: Option<PathBuf>,
}

const ANON_HELP: &str = "\
Examples:
  deckle lab anon-folio --plot folios.svg
      All workloads and policies on all sides, and a picture. docs/fault-order.md has them.
  deckle lab anon-folio --on live --workload page_fault1,sparse --policy base,adaptive

The kernel has no adaptive size; its rows need root, and the host's knobs are given back.";

/// Options of `deckle lab anon-folio`.
#[derive(Args)]
pub struct AnonArgs {
    /// Where to run it, separated by commas.
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "live,kernel,model"
    )]
    pub on: Vec<Place>,
    /// Which workloads, separated by commas: page_fault1, malloc1, tlb_flush, fill, sparse,
    /// fork, compile. Default: all.
    #[arg(long, value_delimiter = ',', value_name = "LIST")]
    pub workload: Vec<String>,
    /// Which sizes of folios, separated by commas: base, 64k, adaptive, pmd. Default: all.
    #[arg(long, value_delimiter = ',', value_name = "LIST")]
    pub policy: Vec<String>,
    /// Timed runs of each row; the one in the middle counts.
    #[arg(
        long,
        default_value_t = 3,
        value_name = "N",
        value_parser = clap::value_parser!(u32).range(1..=100)
    )]
    pub runs: u32,
    /// How the result is written.
    #[arg(long, value_enum, default_value = "text")]
    pub format: Format,
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

/// Options of `deckle lab capture`.
#[derive(Args)]
pub struct CaptureArgs {
    /// CPUs that take single pages (1 to 64), several separated by commas.
    #[arg(long, value_delimiter = ',', default_value = "4", value_name = "LIST")]
    pub threads: Vec<usize>,
    /// Size of the zone.
    #[arg(long, default_value = "1G", value_name = "SIZE")]
    pub memory: String,
    /// Order of the blocks that are asked for, 1 to 10.
    #[arg(long, default_value_t = 9, value_name = "N")]
    pub order: u8,
    /// With capture, without, or with a part of it left out, separated by commas.
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "off,on,no-absorption,no-others"
    )]
    pub capture: Vec<CaptureWord>,
    /// The first seed.
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub seed: u64,
    /// How many seeds, one after the other.
    #[arg(
        long,
        default_value_t = 20,
        value_name = "N",
        value_parser = clap::value_parser!(u64).range(1..=1000)
    )]
    pub seeds: u64,
    /// How the result is written.
    #[arg(long, value_enum, default_value = "text")]
    pub format: Format,
    /// Write a picture of success over time, as SVG.
    #[arg(long, value_name = "FILE")]
    pub plot: Option<PathBuf>,
}

/// Variants of `lab capture`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum CaptureWord {
    /// No capture.
    Off,
    /// Capture as designed.
    On,
    /// Without merging with free buddies.
    NoAbsorption,
    /// Without frames that others free.
    NoOthers,
}

/// Options of `deckle lab pageout`.
#[derive(Args)]
pub struct PageoutArgs {
    /// Size of the mapping.
    #[arg(long, default_value = "4G", value_name = "SIZE")]
    pub size: String,
    /// Content of the pages.
    #[arg(long, value_enum, default_value = "all")]
    pub case: Case,
    /// Where to run, separated by commas.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "live,kernel")]
    pub on: Vec<Place>,
    /// Timed runs on each side.
    #[arg(
        long,
        default_value_t = 5,
        value_name = "N",
        value_parser = clap::value_parser!(u32).range(1..=1000)
    )]
    pub runs: u32,
    /// How the result is written.
    #[arg(long, value_enum, default_value = "text")]
    pub format: Format,
}

/// Options of `deckle lab oom`.
#[derive(Args)]
pub struct OomArgs {
    /// Where to run, separated by commas.
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "live,kernel,model"
    )]
    pub on: Vec<Place>,
    /// How the result is written.
    #[arg(long, value_enum, default_value = "text")]
    pub format: Format,
}

/// Content of the pages of `lab pageout`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Case {
    /// One byte in each huge page.
    Best,
    /// The last byte of every page.
    Worst,
    /// One byte in every page, at random in its two middle quarters.
    Middle,
    /// Every page compresses 2.5:1, none is zero.
    Text,
    /// All of these.
    All,
}

/// Where an experiment runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Place {
    /// The pager on real memory.
    Live,
    /// The host kernel.
    Kernel,
    /// The software machine.
    Model,
}
