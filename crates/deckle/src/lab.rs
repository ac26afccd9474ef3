//! `deckle lab`: the command line of the experiments.

use std::ffi::OsString;
use std::fs::File;
use std::io::Write;
use std::path::PathBuf;

use deckle_lab::model::SoftwareMachine;
use deckle_lab::program::anon::Workload;
use deckle_lab::program::underused::Program;
use deckle_lab::program::walk::{LENGTHS, Pattern};
use deckle_lab::underused::Setting;
use deckle_lab::{LabError, Side, anon, capture, faults, oom, overcommit, pageout, underused};

use crate::args::Format;
use crate::args::lab::{
    AnonArgs, CaptureArgs, CaptureWord, Case, Experiment, FaultsArgs, LabArgs, OomArgs,
    OvercommitArgs, PageoutArgs, Place, UnderusedArgs,
};
use crate::fail::{Fail, plain};
use crate::{print, size};

/// Bytes of a huge page.
const BLOCK: u64 = 2 << 20;

/// Runs an experiment. Status 1: it ran, and the result is not as it must be (a row failed, or
/// the sides disagree).
pub fn lab(args: &LabArgs) -> Result<i32, Fail> {
    match &args.experiment {
        Experiment::Pageout(a) => run_pageout(a),
        Experiment::Oom(a) => run_oom(a),
        Experiment::Capture(a) => run_capture(a),
        Experiment::AnonFolio(a) => run_anon(a),
        Experiment::Underused(a) => run_underused(a),
        Experiment::Overcommit(a) => run_overcommit(a),
        Experiment::Faults(a) => run_faults(a),
    }
}

fn run_pageout(a: &PageoutArgs) -> Result<i32, Fail> {
    let bytes = size::parse(&a.size).map_err(|e| Fail::own(format!("--size: {e}")))?;
    if bytes % BLOCK != 0 {
        return Err(Fail::own(
            "--size: must be a multiple of 2M, the size of a huge page",
        ));
    }
    let (deckle, program_cmd) = own_command()?;
    let cases = match a.case {
        Case::Best => vec![pageout::Case::Best],
        Case::Worst => vec![pageout::Case::Worst],
        Case::Middle => vec![pageout::Case::Middle],
        Case::Text => vec![pageout::Case::Text],
        Case::All => pageout::Case::ALL.to_vec(),
    };
    let report = pageout::run(pageout::PageoutOptions {
        size: bytes as usize,
        cases,
        sides: sides(&a.on)?,
        runs: a.runs as usize,
        deckle,
        program_cmd,
        model: Some(&mut SoftwareMachine),
    })
    .map_err(|e| failed("pageout", &e))?;
    show(a.format, || report.to_text(), || report.to_json())?;
    Ok(i32::from(report.failed()))
}

fn run_oom(a: &OomArgs) -> Result<i32, Fail> {
    let (deckle, program_cmd) = own_command()?;
    let report = oom::run(oom::OomOptions {
        sides: sides(&a.on)?,
        deckle,
        program_cmd,
        model: Some(&mut SoftwareMachine),
    })
    .map_err(|e| failed("oom", &e))?;
    show(a.format, || report.to_text(), || report.to_json())?;
    Ok(i32::from(!report.agree()))
}

fn run_capture(a: &CaptureArgs) -> Result<i32, Fail> {
    let memory = size::parse(&a.memory).map_err(|e| Fail::own(format!("--memory: {e}")))?;
    let options = capture::CaptureOptions {
        threads: a.threads.clone(),
        memory,
        order: a.order,
        variants: a.capture.iter().map(|w| variant(*w)).collect(),
        seed: a.seed,
        seeds: a.seeds,
    };
    let plot = Plot::open(a.plot.as_ref())?;
    let report = capture::run(&options).map_err(|e| failed("capture", &e))?;
    plot.write(|| Ok(report.to_svg().unwrap_or_default()))?;
    show(a.format, || report.to_text(), || report.to_json())?;
    Ok(i32::from(report.holds() == Some(false)))
}

fn run_anon(a: &AnonArgs) -> Result<i32, Fail> {
    let (deckle, program_cmd) = own_command()?;
    let refused = |e: LabError| failed("anon-folio", &e);
    let options = anon::AnonOptions {
        workloads: all_or(&a.workload, &Workload::ALL, Workload::parse).map_err(refused)?,
        policies: all_or(&a.policy, &anon::Policy::ALL, anon::Policy::parse).map_err(refused)?,
        sides: sides(&a.on)?,
        runs: a.runs as usize,
        deckle,
        program_cmd,
        model: Some(&mut SoftwareMachine),
    };
    let plot = Plot::open(a.plot.as_ref())?;
    let report = anon::run(options).map_err(refused)?;
    plot.write(|| report.to_svg().map_err(refused))?;
    show(a.format, || report.to_text(), || report.to_json())?;
    Ok(0)
}

fn run_underused(a: &UnderusedArgs) -> Result<i32, Fail> {
    let (deckle, program_cmd) = own_command()?;
    let refused = |e: LabError| failed("underused", &e);
    let options = underused::UnderusedOptions {
        programs: all_or(&a.program, &Program::ALL, Program::parse).map_err(refused)?,
        settings: all_or(&a.setting, &Setting::ALL, Setting::parse).map_err(refused)?,
        sides: sides(&a.on)?,
        runs: a.runs as usize,
        deckle,
        program_cmd,
        model: Some(&mut SoftwareMachine),
    };
    let plot = Plot::open(a.plot.as_ref())?;
    let report = underused::run(options).map_err(refused)?;
    plot.write(|| report.to_svg().map_err(refused))?;
    show(a.format, || report.to_text(), || report.to_json())?;
    Ok(0)
}

fn run_overcommit(a: &OvercommitArgs) -> Result<i32, Fail> {
    let size = size::parse(&a.size).map_err(|e| Fail::own(format!("--size: {e}")))?;
    let (deckle, program_cmd) = own_command()?;
    let refused = |e: LabError| failed("overcommit", &e);
    let options = overcommit::OvercommitOptions {
        size,
        ratio: a.ratio,
        patterns: all_or(&a.pattern, &Pattern::ALL, Pattern::parse).map_err(refused)?,
        threads: a.threads.clone(),
        records: match a.record.is_empty() {
            true => LENGTHS.to_vec(),
            false => a.record.clone(),
        },
        sides: sides(&a.on)?,
        runs: a.runs as usize,
        seconds: a.seconds,
        model: Some(&mut SoftwareMachine),
        deckle,
        program_cmd,
    };
    if a.plot.is_some() && options.sides == [Side::Model] {
        let why = "--plot: the model has no speed to draw; add live or kernel to --on";
        return Err(Fail::own(why));
    }
    let plot = Plot::open(a.plot.as_ref())?;
    let report = overcommit::run(options).map_err(refused)?;
    plot.write(|| Ok(report.to_svg().unwrap_or_default()))?;
    show(a.format, || report.to_text(), || report.to_json())?;
    Ok(i32::from(report.failed()))
}

fn run_faults(a: &FaultsArgs) -> Result<i32, Fail> {
    let size = size::parse(&a.size).map_err(|e| Fail::own(format!("--size: {e}")))?;
    let (_, program_cmd) = own_command()?;
    let refused = |e: LabError| failed("faults", &e);
    let options = faults::FaultsOptions {
        size,
        ratio: a.ratio,
        patterns: all_or(&a.pattern, &[Pattern::Uniform], Pattern::parse).map_err(refused)?,
        threads: a.threads.clone(),
        runs: a.runs as usize,
        seconds: a.seconds,
        program_cmd,
    };
    let report = faults::run(&options).map_err(refused)?;
    show(a.format, || report.to_text(), || report.to_json())?;
    Ok(0)
}

/// The file of a picture: opened before the minutes that the runs take, not after.
struct Plot<'a>(Option<(&'a PathBuf, File)>);

impl<'a> Plot<'a> {
    fn open(path: Option<&'a PathBuf>) -> Result<Self, Fail> {
        let open = |path: &'a PathBuf| {
            Ok((
                path,
                File::create(path).map_err(|e| Self::failed(path, &e))?,
            ))
        };
        Ok(Self(path.map(open).transpose()?))
    }

    fn write(self, svg: impl FnOnce() -> Result<String, Fail>) -> Result<(), Fail> {
        let Some((path, mut file)) = self.0 else {
            return Ok(());
        };
        file.write_all(svg()?.as_bytes())
            .map_err(|e| Self::failed(path, &e))
    }

    fn failed(path: &std::path::Path, e: &std::io::Error) -> Fail {
        Fail::own(format!("--plot {}: {}", path.display(), plain(e)))
    }
}

fn variant(word: CaptureWord) -> capture::Variant {
    match word {
        CaptureWord::Off => capture::Variant::Off,
        CaptureWord::On => capture::Variant::On,
        CaptureWord::NoAbsorption => capture::Variant::NoAbsorption,
        CaptureWord::NoOthers => capture::Variant::NoOthers,
    }
}

/// This program, and the command that turns it into a workload: every side runs the same binary.
fn own_command() -> Result<(PathBuf, Vec<OsString>), Fail> {
    let exe = std::env::current_exe()
        .map_err(|e| Fail::own(format!("cannot find my own path: {}", plain(&e))))?;
    let command = vec![exe.clone().into(), "lab".into(), "program".into()];
    Ok((exe, command))
}

fn sides(places: &[Place]) -> Result<Vec<Side>, Fail> {
    let mut all = Vec::new();
    for place in places {
        let side = match place {
            Place::Live => Side::Live,
            Place::Kernel => Side::Kernel,
            Place::Model => Side::Model,
        };
        if all.contains(&side) {
            return Err(Fail::own(format!(
                "--on: {side} is named twice: name each side once"
            )));
        }
        all.push(side);
    }
    Ok(all)
}

fn failed(what: &str, e: &LabError) -> Fail {
    Fail::own(format!("lab {what}: {e}"))
}

/// What `words` name; all there is if there are none.
fn all_or<T: Clone>(
    words: &[String],
    all: &[T],
    parse: impl Fn(&str) -> Result<T, LabError>,
) -> Result<Vec<T>, LabError> {
    match words.is_empty() {
        true => Ok(all.to_vec()),
        false => words.iter().map(|word| parse(word)).collect(),
    }
}

fn show(
    format: Format,
    text: impl FnOnce() -> String,
    json: impl FnOnce() -> String,
) -> Result<(), Fail> {
    let report = match format {
        Format::Text => text(),
        Format::Json => json(),
    };
    print(report.trim_end_matches('\n'))
}
