//! `deckle lab`: the command line of the experiments.

use std::fs::File;
use std::io::Write;
use std::path::PathBuf;

use deckle_lab::{Experiment, Lab};

use crate::args::Format;
use crate::args::lab::{Drawn, Experiment as Which, LabArgs, Told};
use crate::fail::{Fail, plain};
use crate::print;

/// Runs an experiment. Status 1: it ran, and the result is not as it must be (a row failed, the
/// sides disagree, or a target is missed).
pub fn lab(args: LabArgs) -> Result<i32, Fail> {
    match args.experiment {
        Which::Pageout(told) => run(told, None),
        Which::Oom(told) => run(told, None),
        Which::Faults(told) => run(told, None),
        Which::Oracle(told) => run(told, None),
        Which::Capture(Drawn { told, plot }) => run(told, plot),
        Which::AnonFolio(Drawn { told, plot }) => run(told, plot),
        Which::Underused(Drawn { told, plot }) => run(told, plot),
        Which::Overcommit(Drawn { told, plot }) => run(told, plot),
    }
}

fn run<E: Experiment + clap::Args>(told: Told<E>, plot: Option<PathBuf>) -> Result<i32, Fail> {
    let failed = |e| Fail::own(format!("lab {}: {e}", E::NAME));
    let no_plot = |path: &PathBuf, e: std::io::Error| {
        Fail::own(format!("--plot {}: {}", path.display(), plain(&e)))
    };
    // Opened before the minutes that the runs take, not after.
    let mut picture = None;
    if let Some(path) = &plot {
        told.experiment
            .may_plot()
            .map_err(|e| Fail::own(e.to_string()))?;
        // An older picture stays until there is another.
        let mut open = File::options();
        let file = open.write(true).create(true).truncate(false).open(path);
        picture = Some((file.map_err(|e| no_plot(path, e))?, path));
    }
    let report = told.experiment.run(&own_command()?).map_err(failed)?;
    let text = match told.format {
        Format::Text => report.to_text(),
        Format::Json => report.to_json(),
    };
    let printed = print(text.trim_end_matches('\n'));
    if let Some((mut file, path)) = picture {
        let svg = report.to_svg().unwrap_or_default();
        let _ = file.set_len(0);
        file.write_all(svg.as_bytes())
            .map_err(|e| no_plot(path, e))?;
    }
    printed?;
    Ok(i32::from(report.failed() || report.misses()))
}

/// This program, and the command that turns it into a workload: every side runs the same binary.
fn own_command() -> Result<Lab, Fail> {
    let deckle = std::env::current_exe()
        .map_err(|e| Fail::own(format!("cannot find my own path: {}", plain(&e))))?;
    let program_cmd = vec![deckle.clone().into(), "lab".into(), "program".into()];
    Ok(Lab {
        deckle,
        program_cmd,
    })
}
