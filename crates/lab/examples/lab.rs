//! Runs one experiment without the command line of deckle:
//!
//! ```text
//! lab PROGRAM DECKLE oom SIDES
//! lab PROGRAM DECKLE pageout SIDES SIZE CASE RUNS
//! ```
//!
//! PROGRAM is the `lab-program` binary, DECKLE the `deckle` binary (any word where no live side is
//! asked for). Prints the report as text and as JSON.

use std::ffi::OsString;
use std::process::ExitCode;

use deckle_lab::{LabError, Side, oom, pageout, size};

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    match run(&words) {
        Ok(text) => {
            println!("{text}");
            ExitCode::SUCCESS
        }
        Err(e) => {
            eprintln!("lab: {e}");
            ExitCode::FAILURE
        }
    }
}

fn run(words: &[&str]) -> Result<String, LabError> {
    match words {
        [program, deckle, "oom", sides] => {
            let report = oom::run(oom::OomOptions {
                sides: Side::parse_list(sides)?,
                deckle: deckle.into(),
                program_cmd: vec![OsString::from(program)],
                model: None,
            })?;
            Ok(format!("{}\n{}", report.to_text(), report.to_json()))
        }
        [program, deckle, "pageout", sides, bytes, case, runs] => {
            let report = pageout::run(pageout::PageoutOptions {
                size: size::parse(bytes)?,
                cases: pageout::Case::parse(case)?,
                sides: Side::parse_list(sides)?,
                runs: size::parse(runs)?,
                deckle: deckle.into(),
                program_cmd: vec![OsString::from(program)],
                model: None,
            })?;
            Ok(format!("{}\n{}", report.to_text(), report.to_json()))
        }
        _ => Err(LabError::Option(
            "usage: lab PROGRAM DECKLE oom SIDES | pageout SIDES SIZE CASE RUNS".into(),
        )),
    }
}
