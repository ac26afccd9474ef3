//! deckle: run programs inside a memory limit, with huge pages where they pay and none of
//! their waste.

#![forbid(unsafe_code)]

mod access;
mod accounts;
mod args;
mod cgroup;
mod config;
mod doctor;
mod fail;
mod fetch;
mod fit;
mod inspect;
mod lab;
mod look;
mod pages;
mod plot;
mod procfs;
mod record;
mod replace;
mod run;
mod settings;
mod setup;
mod size;
mod swap;
mod voice;

use std::fmt;
use std::process::{ExitCode, exit};

use args::{Cli, Command};
use clap::{CommandFactory, Parser};
use fail::Fail;

/// One line on standard error, `deckle: ` in front; red on a terminal that may be coloured.
fn say(text: fmt::Arguments<'_>) {
    use std::io::IsTerminal;
    let err = std::io::stderr();
    let none = std::env::var_os("NO_COLOR").is_some_and(|v| !v.is_empty());
    let colour = err.is_terminal() && !none && !is_dumb();
    let head = if colour {
        "\x1b[1;31mdeckle:\x1b[0m"
    } else {
        "deckle:"
    };
    voice::write(format!("{head} {text}\n").as_bytes());
}

/// Whether the terminal can do nothing but show text, as it says.
fn is_dumb() -> bool {
    std::env::var_os("TERM").is_some_and(|term| term == "dumb")
}

/// Lines on standard output.
fn print(text: &str) -> Result<(), Fail> {
    use std::io::Write;
    writeln!(std::io::stdout(), "{text}").map_err(|e| Fail::output(&e))
}

fn main() -> ExitCode {
    // Workloads are this very binary, and read their arguments themselves.
    let mut words = std::env::args_os().skip(1);
    if words.next().is_some_and(|w| w == "lab") && words.next().is_some_and(|w| w == "program") {
        let rest: Vec<_> = words.collect();
        return deckle_lab::programs_main(&rest);
    }
    let cli = Cli::try_parse().unwrap_or_else(|e| exit(usage(&e)));
    let done = match cli.command {
        Command::Run(args) => run::run(&args),
        Command::Lab(args) => lab::lab(args),
        Command::Doctor(args) => doctor::doctor(&args),
        Command::Plot(args) => plot::plot(&args),
        Command::Fit(args) => fit::fit(&args),
        Command::Inspect(args) => inspect::inspect(&args),
        Command::Fetch(args) => fetch::fetch(&args),
        Command::Setup(args) => setup::setup(&args),
        Command::Pages(args) => pages::pages(&args),
        Command::Stat(args) => look::stat::stat(&args),
        Command::Top(args) => look::top::top(&args),
        Command::Set(args) => look::set::set(&args),
        Command::Reclaim(args) => look::reclaim::reclaim(&args),
    };
    let status = done.unwrap_or_else(|fail| ended(&fail));
    voice::finish();
    exit(status)
}

/// Says why, where there is something to say; the exit status.
fn ended(fail: &Fail) -> i32 {
    if !fail.text.is_empty() {
        say(format_args!("{fail}"));
    }
    fail.status
}

/// Help and version go to standard output; a mistake is one line, and 125 like every failure
/// of deckle's own.
fn usage(e: &clap::Error) -> i32 {
    use clap::error::ErrorKind;
    match e.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => match e.print() {
            Ok(()) => 0,
            Err(e) => ended(&Fail::output(&e)),
        },
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let _ = e.print();
            125
        }
        _ => {
            say(format_args!("{}", mistake(e)));
            125
        }
    }
}

/// A mistake on the command line, in one line with what to do.
fn mistake(e: &clap::Error) -> String {
    use clap::error::{ContextKind, ContextValue, ErrorKind};
    let run = std::env::args_os().nth(1).is_some_and(|verb| verb == "run");
    let argument = match e.get(ContextKind::InvalidArg) {
        Some(ContextValue::String(text)) => text.as_str(),
        _ => "",
    };
    match e.kind() {
        ErrorKind::MissingRequiredArgument if run => {
            return "which program? deckle run [OPTIONS] -- PROGRAM ARGS; see `deckle run --help`"
                .to_owned();
        }
        ErrorKind::UnknownArgument if run && !argument.starts_with('-') => {
            if let Some(option) = without_value() {
                return format!("{option}: a value is missing; see `{} --help`", verbs());
            }
            return format!(
                "`{argument}`: `--` must stand before the program: deckle run [OPTIONS] -- \
                 PROGRAM ARGS"
            );
        }
        _ => {}
    }
    // The library's words for what is no number are about its digits.
    let text = e
        .to_string()
        .replace("invalid digit found in string", "not a whole number")
        .replace("invalid float literal", "not a number");
    let text = text.strip_prefix("error: ").unwrap_or(&text);
    let lines = text.lines().take_while(|l| !l.starts_with("Usage:"));
    // An option that is misspelt is not meant for the program.
    let lines = lines.filter(|l| !l.contains("as a value, use") && !l.contains("try '--help'"));
    let what: Vec<&str> = lines.map(str::trim).filter(|l| !l.is_empty()).collect();
    let what = what.join("; ").replace(":; ", ": ");
    format!("{what}; see `{} --help`", verbs())
}

/// The option of `run` that has taken `--` for its value, since values may begin with a dash.
fn without_value() -> Option<String> {
    let words: Vec<_> = std::env::args_os().skip(1).collect();
    let end = words.iter().position(|word| word == "--")?;
    let option = words[..end].last()?.to_str()?.strip_prefix("--")?;
    let command = Cli::command();
    let mut known = command.find_subcommand("run")?.get_arguments();
    let takes = known.any(|a| a.get_long() == Some(option) && a.get_action().takes_values());
    takes.then(|| format!("--{option}"))
}

/// The verbs of the command line, as far as there are such: `deckle lab pageout`.
fn verbs() -> String {
    let mut command = &Cli::command();
    let mut said = command.get_name().to_owned();
    for word in std::env::args_os().skip(1) {
        let Some(verb) = command.find_subcommand(&word) else {
            break;
        };
        said = format!("{said} {}", verb.get_name());
        command = verb;
    }
    said
}
