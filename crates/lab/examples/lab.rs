//! Runs one experiment without the command line of deckle: `lab PROGRAM DECKLE EXPERIMENT OPTIONS`.
//!
//! PROGRAM is the `lab-program` binary, DECKLE the `deckle` binary (any word where no live side is
//! asked for), EXPERIMENT `oom`, `oracle` or `pageout`. Prints the report as text and as JSON.

use clap::Parser;
use deckle_lab::{Experiment, Lab, LabError, oom::Oom, oracle::Oracle, pageout::Pageout};

#[derive(Parser)]
struct Options {
    program: String,
    deckle: String,
    #[command(subcommand)]
    experiment: Which,
}

#[derive(clap::Subcommand)]
enum Which {
    Oom(Oom),
    Oracle(Oracle),
    Pageout(Pageout),
}

fn main() -> Result<(), LabError> {
    let options = Options::parse();
    let lab = Lab {
        deckle: options.deckle.into(),
        program_cmd: vec![options.program.into()],
    };
    match options.experiment {
        Which::Oom(experiment) => run(experiment, &lab),
        Which::Oracle(experiment) => run(experiment, &lab),
        Which::Pageout(experiment) => run(experiment, &lab),
    }
}

fn run<E: Experiment>(experiment: E, lab: &Lab) -> Result<(), LabError> {
    let report = experiment.run(lab)?;
    println!("{}\n{}", report.to_text(), report.to_json());
    Ok(())
}
