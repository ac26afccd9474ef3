//! The model's rows of `lab oom`, and the figure for what a process costs.

use crate::alone;
use crate::skipped::skipped;
use std::ffi::OsString;

use deckle_lab::child::Running;
use deckle_lab::host::cgroup::Cgroup;
use deckle_lab::host::{Guard, is_root};
use deckle_lab::model::oom as model_oom;
use deckle_lab::oom::{Blocks, CASES, Oom, OomCase, Outcome};
use deckle_lab::{Experiment, Lab, LabError, Side};

const PAGE: u64 = 4096;
/// Pages that a process may take with 471 before it decides: 9 x 512 + 11 x 41 pages and 20 page
/// tables leave so many of 5120.
const LEFT: u64 = 41;
/// How far off the figure may be with 470: so many times as much changes nothing.
const WIDE: u64 = 10;

/// What Linux 6.18 does in each case.
fn on_linux(case: &OomCase) -> Outcome {
    let zeros = match case.blocks {
        Blocks::Sparse => 471,
        Blocks::Zeros => 512,
    };
    // More zeros than the threshold, and 511 turns the test off.
    let split = case.shrink_underused && case.max_ptes_none != 511 && zeros > case.max_ptes_none;
    if split {
        Outcome::Survived
    } else {
        Outcome::Killed
    }
}

#[test]
fn r118_r137_model_rows_of_the_oom_experiment_are_the_kernels() {
    let sides = vec![Side::Model];
    let report = Oom { sides }.run(&Lab::default()).unwrap();
    eprintln!("{}", report.to_text());
    assert_eq!(report.rows.len(), CASES.len());
    for (row, case) in report.rows.iter().zip(&CASES) {
        assert_eq!(row.outcome, on_linux(case), "{row:?}");
    }
}

#[test]
fn r137_what_the_process_costs_decides_from_471_on() {
    let case = CASES.iter().find(|case| case.max_ptes_none == 471).unwrap();
    for (process, want) in [
        (1, Outcome::Survived),
        (LEFT, Outcome::Survived),
        (LEFT + 1, Outcome::Killed),
        (model_oom::PROCESS_PAGES, Outcome::Killed),
    ] {
        assert_eq!(
            model_oom::run(case, process).unwrap(),
            want,
            "{process} pages"
        );
    }
    // Below, the margin is wide.
    let case = CASES.iter().find(|case| case.max_ptes_none == 470).unwrap();
    let process = WIDE * model_oom::PROCESS_PAGES;
    assert_eq!(model_oom::run(case, process).unwrap(), Outcome::Survived);
}

/// What the kernel charges for a program that does next to nothing on this host, whose libraries
/// may differ, lies where the figure does: beyond what is left with 471, and within what changes
/// nothing with 470. So the model's rows are those that this process would get.
#[test]
fn r137_process_pages_are_what_the_kernel_charges() {
    let _alone = alone();
    match idle_pages() {
        Ok((anon, kernel)) => {
            eprintln!("an idle program: {anon} anonymous pages, {kernel} of kernel memory");
            let (all, figure) = (anon + kernel, model_oom::PROCESS_PAGES);
            let same = LEFT + 1..=WIDE * figure;
            assert!(
                same.contains(&all) && same.contains(&figure),
                "{all} pages, not {same:?}"
            );
        }
        Err(LabError::Host { what, remedy }) => {
            skipped(format_args!("{what}; {remedy}"));
        }
        Err(e) => panic!("{e}"),
    }
}

/// Anonymous and kernel memory of the workload program over one page, in pages.
fn idle_pages() -> Result<(u64, u64), LabError> {
    if !is_root() {
        return Err(LabError::Host {
            what: "a cgroup needs root".into(),
            remedy: "run as root".into(),
        });
    }
    let program = OsString::from(env!("CARGO_BIN_EXE_lab-program"));
    let mut guard = Guard::new(std::slice::from_ref(&program))?;
    let cgroup = Cgroup::new(&mut guard, "idle")?;
    let mut command = vec![program];
    command.extend(["pageout", "2", "0", "0", "--check"].map(OsString::from));
    let before = cgroup.kernel_memory()?;
    let mut run = Running::start("idle program", &command, cgroup.doors()?)?;
    assert!(run.wait_for("paged out")?, "the program ended early");
    let pages = (
        cgroup.anon()? / PAGE,
        cgroup.kernel_memory()?.saturating_sub(before) / PAGE,
    );
    run.go_on()?;
    let end = run.finish()?;
    assert!(end.status.success(), "{}", end.stderr);
    guard.finish()?;
    Ok(pages)
}
