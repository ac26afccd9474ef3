//! Predicts what the kernel frees, has it do so, and compares.
//!
//! The program runs once for each threshold, since the kernel looks at a huge page but once. It is
//! in a cgroup of its own from its start, with huge pages everywhere and khugepaged at rest. When
//! its memory is settled it is looked at, and then all that can be had is requested from the
//! cgroup. The settings of the machine are given back however that ends.

use std::fs;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use deckle_inspect::{Options, Survey, Target, text};
use deckle_lab::host::Guard;
use deckle_lab::host::cgroup::Cgroup;
use deckle_lab::host::thp::{Thp, khugepaged_rests};
use deckle_sys::process::{Start, at_start, effective_user};
use deckle_sys::signal;
use serde_json::{Value, json};

use super::take;
use crate::args::inspect::{InspectArgs, InspectFormat as Format};
use crate::fail::{Fail, plain};
use crate::print;

/// Thresholds that are tried.
const TRIED: [u32; 4] = [64, 255, 409, 490];
/// How far a prediction may be off: two per cent, or what is too little to tell.
const SHARE: f64 = 0.02;
const LITTLE: f64 = 65536.0;
/// How often memory is looked at while it settles.
const STEP: Duration = Duration::from_millis(100);
/// Bytes that come and go in a program that waits.
const MOVES: u64 = 1 << 20;
/// How long it may take to settle.
const PATIENCE: Duration = Duration::from_secs(600);
/// Requests, until two in a row give nothing.
const REQUESTS: u32 = 50;

/// What was predicted and what was freed at a threshold, in bytes.
struct Row {
    threshold: u32,
    huge: u64,
    zeros: f64,
    predicted: f64,
    freed: f64,
}

impl Row {
    fn off(&self) -> f64 {
        (self.freed - self.predicted).abs()
    }

    fn share(&self) -> f64 {
        self.off() / self.predicted.max(self.freed).max(1.0)
    }

    fn holds(&self) -> bool {
        self.share() <= SHARE || self.off() <= LITTLE
    }
}

/// How long memory is to be unchanged, at least and at most, in seconds.
const SETTLE: RangeInclusive<f64> = 0.1..=600.0;

/// Runs the program and compares; status 1 if a prediction is off.
pub fn verify(args: &InspectArgs, options: Options) -> Result<i32, Fail> {
    if !SETTLE.contains(&args.settle) {
        let (settle, least, most) = (args.settle, SETTLE.start(), SETTLE.end());
        let text = format!("--settle: {settle}: give {least} to {most} seconds");
        return Err(Fail::own(text));
    }
    if effective_user() != 0 {
        let text = "inspect --verify: needs root, to set huge pages and to make a cgroup: run it \
                    as root, or without --verify";
        return Err(Fail::own(text));
    }
    let own = std::env::current_exe().map_err(|e| Fail::own(plain(&e)))?;
    let lab = [own.into(), "lab".into(), "program".into()];
    let mut guard = Guard::new(&lab).map_err(failed)?;
    let rows: Result<Vec<Row>, Fail> = TRIED
        .into_iter()
        .map(|threshold| row(&mut guard, args, options, threshold))
        .collect();
    let restored = guard.finish().map_err(failed);
    let rows = rows?;
    restored?;
    print(&match args.format {
        Format::Json => format!("{:#}", to_json(&rows)),
        _ => to_text(&rows),
    })?;
    Ok(i32::from(!rows.iter().all(Row::holds)))
}

fn failed(e: deckle_lab::LabError) -> Fail {
    Fail::own(format!("inspect --verify: {e}"))
}

fn row(guard: &mut Guard, args: &InspectArgs, options: Options, at: u32) -> Result<Row, Fail> {
    let thp = Thp {
        max_ptes_none: at,
        shrink_underused: true,
    };
    thp.set(guard, "always").map_err(failed)?;
    khugepaged_rests(guard).map_err(failed)?;
    let group = Cgroup::new(guard, &format!("verify-{at}")).map_err(failed)?;
    let target = Target::Cgroup(group.dir().to_owned());
    let mut child = Ended(start(args, &group)?, group.dir().join("cgroup.procs"));
    let still = Duration::from_secs_f64(args.settle);
    let survey = loop {
        let was = settle(&mut child.0, &group, still)?;
        let survey = take(&target, options, None)?;
        // Otherwise it had but paused.
        if group.anon().map_err(failed)?.abs_diff(was) <= MOVES {
            break survey;
        }
    };
    let held = |survey: &Survey| -> Result<f64, Fail> {
        let unmapped: u64 = survey.looked.iter().map(|one| one.unmapped).sum();
        Ok((group.anon().map_err(failed)? + unmapped) as f64)
    };
    let before = held(&survey)?;
    request(&group)?;
    guard.undisturbed().map_err(failed)?;
    let after = held(&take(&target, options, None)?)?;
    Ok(Row {
        threshold: at,
        huge: survey.huge(),
        zeros: survey.zeros().value,
        predicted: survey.freed_at(at).value,
        freed: before - after,
    })
}

/// Ended when dropped, with all that it has started in its cgroup.
struct Ended(Child, PathBuf);

impl Drop for Ended {
    fn drop(&mut self) {
        let pids = fs::read_to_string(&self.1).unwrap_or_default();
        for pid in pids.lines().filter_map(|line| line.parse().ok()) {
            let _ = signal::send(pid, libc::SIGKILL);
        }
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(args: &InspectArgs, group: &Cgroup) -> Result<Child, Fail> {
    let [program, rest @ ..] = &args.program[..] else {
        return Err(Fail::own(
            "inspect --verify: which program? Write it behind --",
        ));
    };
    let mut command = Command::new(program);
    command
        .args(rest)
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    let doors = group.doors().map_err(failed)?;
    at_start(
        &mut command,
        Start {
            doors,
            ..Start::default()
        },
    );
    command.spawn().map_err(|e| {
        let name = program.to_string_lossy();
        Fail::own(format!("inspect --verify: {name}: {}", plain(&e)))
    })
}

/// Waits until the cgroup's memory has not changed for `still` and nobody runs; how much
/// it is.
fn settle(child: &mut Child, group: &Cgroup, still: Duration) -> Result<u64, Fail> {
    let begun = Instant::now();
    let (mut was, mut since) = (0, begun);
    while since.elapsed() < still || is_busy(group) {
        if let Ok(Some(status)) = child.try_wait() {
            return Err(Fail::own(format!(
                "inspect --verify: the program has ended ({status}) before its memory was \
                 unchanged for {} s: give one that waits, or a shorter --settle",
                still.as_secs_f64()
            )));
        }
        if begun.elapsed() > PATIENCE {
            let text = "inspect --verify: the program's memory does not come to rest: give one \
                        that waits, or a shorter --settle";
            return Err(Fail::own(text));
        }
        let now = group.anon().map_err(failed)?;
        if now.abs_diff(was) > MOVES || now == 0 {
            (was, since) = (now, Instant::now());
        }
        std::thread::sleep(STEP);
    }
    Ok(was)
}

/// Whether anybody in the cgroup runs, or wants to.
fn is_busy(group: &Cgroup) -> bool {
    let pids = fs::read_to_string(group.dir().join("cgroup.procs")).unwrap_or_default();
    let tasks = pids
        .lines()
        .flat_map(|pid| fs::read_dir(format!("/proc/{pid}/task")));
    let mut states = tasks.flatten().flatten().filter_map(|task| {
        let stat = fs::read_to_string(task.path().join("stat")).ok()?;
        stat.rsplit_once(") ")?.1.chars().next()
    });
    states.any(|state| matches!(state, 'R' | 'D'))
}

/// Requests all that can be had.
fn request(group: &Cgroup) -> Result<(), Fail> {
    let mut in_vain = 0;
    for _ in 0..REQUESTS {
        let before = group.anon().map_err(failed)?;
        group.reclaim(before.max(1)).map_err(failed)?;
        match group.anon().map_err(failed)? < before {
            true => in_vain = 0,
            false => in_vain += 1,
        }
        if in_vain == 2 {
            break;
        }
    }
    Ok(())
}

fn to_text(rows: &[Row]) -> String {
    let mut out = String::from("max_ptes_none   huge  zeros  predicted  freed  off\n");
    for row in rows {
        let [zeros, predicted, freed] = [row.zeros, row.predicted, row.freed].map(text::short);
        out += &format!(
            "{:>13} {:>6} {zeros:>6} {predicted:>10} {freed:>6}  {:.2} %{}\n",
            row.threshold,
            row.huge,
            row.share() * 100.0,
            if row.holds() { "" } else { "  more than 2 %" }
        );
    }
    out.trim_end().to_owned()
}

fn to_json(rows: &[Row]) -> Value {
    let row = |row: &Row| {
        json!({
            "max_ptes_none": row.threshold, "huge_pages": row.huge,
            "zero_bytes": row.zeros.round() as u64,
            "predicted_bytes": row.predicted.round() as u64,
            "freed_bytes": row.freed.round() as i64,
            "off_percent": row.share() * 100.0, "holds": row.holds(),
        })
    };
    json!({ "schema": 1, "rows": rows.iter().map(row).collect::<Vec<_>>() })
}
