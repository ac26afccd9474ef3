//! What keeps the budget, written to where it takes effect.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use deckle_inspect::Survey;
use deckle_inspect::budget::Change;
use deckle_inspect::knobs::DIR;

use crate::fail::{Fail, plain};
use crate::print;

/// Something that is written.
struct Step {
    path: PathBuf,
    value: String,
    /// What was there, to be written back by who regrets it; none for a request.
    before: Option<String>,
}

/// Makes the change, or says what it would be.
pub fn apply(survey: &Survey, change: &Change, dry_run: bool) -> Result<i32, Fail> {
    let steps = steps(survey, change);
    if steps.is_empty() {
        let nothing = !matches!(change, Change::TooSmall { .. });
        print(if nothing {
            "nothing to apply"
        } else {
            "nothing that could be applied helps"
        })?;
        return Ok(i32::from(!nothing));
    }
    for Step {
        path,
        value,
        before,
    } in &steps
    {
        let before = before
            .as_ref()
            .map_or(String::new(), |was| format!(" (it was {was})"));
        print(&format!("echo {value} > {}{before}", path.display()))?;
        if dry_run {
            continue;
        }
        match fs::write(path, value) {
            // Less could be had than was requested.
            Err(e) if e.raw_os_error() == Some(libc::EAGAIN) => {}
            Err(e) => {
                let what = format!("inspect --apply: {}: {}", path.display(), plain(&e));
                return Err(Fail::own(format!("{what}: run as root")));
            }
            Ok(()) => {}
        }
    }
    Ok(0)
}

fn steps(survey: &Survey, change: &Change) -> Vec<Step> {
    let Change::Threshold {
        max_ptes_none,
        in_force,
        pids,
        ..
    } = change
    else {
        return Vec::new();
    };
    let knob = |name: &str, value: u32, before: u32| Step {
        path: Path::new("/").join(DIR).join(name),
        value: value.to_string(),
        before: Some(before.to_string()),
    };
    let mut steps = Vec::new();
    if !in_force {
        let knobs = &survey.knobs;
        if knobs.shrink_underused == Some(false) {
            steps.push(knob("shrink_underused", 1, 0));
        }
        if let Some(before) = knobs.max_ptes_none.filter(|before| before != max_ptes_none) {
            steps.push(knob("khugepaged/max_ptes_none", *max_ptes_none, before));
        }
    }
    // Of each cgroup what its processes have.
    let mut groups: BTreeMap<PathBuf, f64> = BTreeMap::new();
    for one in survey
        .looked
        .iter()
        .filter(|one| pids.contains(&one.process.pid))
    {
        if let Some(dir) = one.process.cgroup() {
            let shared = one.first_freed_at(*max_ptes_none).value;
            *groups.entry(dir).or_default() += one.freed_at(*max_ptes_none).value + shared;
        }
    }
    for (dir, bytes) in groups {
        let (two, one) = (dir.join("memory.reclaim"), dir.join("memory.force_empty"));
        let (path, value) = match two.exists() {
            true => (two, bytes.round() as u64),
            false => (one, 0),
        };
        // A group that cannot be asked is reclaimed from when memory is short.
        if path.exists() {
            let (value, before) = (value.to_string(), None);
            steps.push(Step {
                path,
                value,
                before,
            });
        }
    }
    steps
}
