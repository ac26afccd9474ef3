//! `deckle pages`: manual pages, and completions for shells, made of the command's definition.

use std::fs;
use std::io::{self, Write};
use std::path::Path;

use clap::{Command, CommandFactory};
use clap_complete::Shell;
use clap_mangen::Man;

use crate::args::Cli;
use crate::args::setup::PagesArgs;
use crate::fail::{Fail, plain};

/// Where each shell looks, below `share`.
const COMPLETIONS: [(Shell, &str); 3] = [
    (Shell::Bash, "bash-completion/completions/deckle"),
    (Shell::Zsh, "zsh/vendor-completions/_deckle"),
    (Shell::Fish, "fish/vendor_completions.d/deckle.fish"),
];

/// Writes them; the exit status of `deckle`.
pub fn pages(args: &PagesArgs) -> Result<i32, Fail> {
    let fail = |e: io::Error| Fail::own(format!("{}: {}", args.dir.display(), plain(&e)));
    manual(&args.dir.join("man/man1")).map_err(fail)?;
    for (shell, file) in COMPLETIONS {
        completion(shell, &args.dir.join(file)).map_err(fail)?;
    }
    Ok(0)
}

/// The command without the verbs that are not for people.
fn command() -> Command {
    let all = Cli::command();
    let verbs = all.get_subcommands().filter(|verb| !verb.is_hide_set());
    let mut command = Command::new("deckle")
        .version(env!("CARGO_PKG_VERSION"))
        .about(all.get_about().cloned().unwrap_or_default())
        .after_help(all.get_after_help().cloned().unwrap_or_default())
        .subcommand_required(true)
        .disable_help_subcommand(true)
        .subcommands(verbs.cloned());
    command.build();
    command
}

fn completion(shell: Shell, file: &Path) -> io::Result<()> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut command(), "deckle", &mut text);
    write(file, &text)
}

/// A page for the command and for each of its verbs.
fn manual(dir: &Path) -> io::Result<()> {
    let mut pages = vec![command()];
    while let Some(page) = pages.pop() {
        let name = page_name(&page);
        write(&dir.join(format!("{name}.1")), &page_of(&page, &name)?)?;
        pages.extend(
            page.get_subcommands()
                .filter(|v| v.get_name() != "help")
                .cloned(),
        );
    }
    Ok(())
}

/// `deckle-lab-oom`.
fn page_name(command: &Command) -> String {
    let name = command.get_bin_name().unwrap_or_else(|| command.get_name());
    name.replace(' ', "-")
}

fn page_of(command: &Command, name: &str) -> io::Result<Vec<u8>> {
    let title = name.to_uppercase();
    let version = env!("CARGO_PKG_VERSION");
    // No date: the same sources make the same page.
    let mut page =
        format!(".TH {title} 1 \"\" \"deckle {version}\" \"User Commands\"\n").into_bytes();
    let man = Man::new(command.clone());
    man.render_name_section(&mut page)?;
    let usage = command.clone().render_usage().to_string();
    let usage = usage.trim_start_matches("Usage: ").to_owned();
    section(&mut page, "SYNOPSIS", &usage)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    if command.has_subcommands() {
        man.render_subcommands_section(&mut page)?;
    }
    if let Some(more) = command.get_after_help() {
        section(&mut page, "MORE", &more.to_string())?;
    }
    Ok(page)
}

/// A section whose lines stay as they are: it has tables and examples.
fn section(page: &mut Vec<u8>, title: &str, text: &str) -> io::Result<()> {
    writeln!(page, ".SH {title}\n.nf")?;
    for line in text.lines() {
        let line = line
            .replace('\\', "\\e")
            .replace('-', "\\-")
            .replace('\'', "\\(aq");
        // A dot at the beginning would be a request.
        let guard = if line.starts_with('.') { "\\&" } else { "" };
        writeln!(page, "{guard}{line}")?;
    }
    writeln!(page, ".fi")
}

fn write(file: &Path, bytes: &[u8]) -> io::Result<()> {
    if let Some(dir) = file.parent() {
        fs::create_dir_all(dir)?;
    }
    fs::write(file, bytes)
}
