//! `deckle lab`: the command line of the experiments.

use crate::args::{Experiment, LabArgs};
use crate::fail::Fail;
use crate::size;

/// Runs an experiment.
pub fn lab(args: &LabArgs) -> Result<i32, Fail> {
    match &args.experiment {
        Experiment::Pageout(a) => {
            let bytes = size::parse(&a.size).map_err(|e| Fail::own(format!("--size: {e}")))?;
            if bytes % (2 << 20) != 0 {
                return Err(Fail::own(
                    "--size: must be a multiple of 2M, the size of a huge page",
                ));
            }
            Err(absent("pageout"))
        }
        Experiment::Oom(_) => Err(absent("oom")),
    }
}

fn absent(what: &str) -> Fail {
    Fail::own(format!(
        "lab {what}: this build has no experiments: build with the crate deckle-lab"
    ))
}
