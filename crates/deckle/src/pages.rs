//! `deckle pages`: manual pages, and completions for shells, made of the command's definition.

use std::fs;
use std::io::{self, Write};
use std::path::Path;

use clap::{Arg, Command, CommandFactory, ValueHint};
use clap_complete::Shell;
use clap_mangen::Man;
use deckle_mm::Tunables;
use deckle_mm::knob::{Kind, When};

use crate::args::Cli;
use crate::args::setup::PagesArgs;
use crate::config;
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
    let mut command = parts();
    command.build();
    command
}

fn parts() -> Command {
    let all = Cli::command();
    let verbs = all.get_subcommands().filter(|verb| !verb.is_hide_set());
    Command::new("deckle")
        .version(env!("CARGO_PKG_VERSION"))
        .about(all.get_about().cloned().unwrap_or_default())
        .after_help(all.get_after_help().cloned().unwrap_or_default())
        .subcommand_required(true)
        .disable_help_subcommand(true)
        .subcommands(verbs.cloned())
}

/// What bash does besides: behind `--` is another command, and the name of a tree is no file.
const BASH: &str = r#"
_deckle_or_command() {
    local i
    for ((i = 1; i < COMP_CWORD; i++)); do
        [[ ${COMP_WORDS[i]} == -- ]] || continue
        if declare -F _comp_command_offset >/dev/null; then
            _comp_command_offset $((i + 1))
        elif declare -F _command_offset >/dev/null; then
            _command_offset $((i + 1))
        elif ((COMP_CWORD == i + 1)); then
            COMPREPLY=($(compgen -c -- "${COMP_WORDS[COMP_CWORD]}"))
        fi
        return
    done
    _deckle "$@"
    case ${COMP_WORDS[1]} in
        stat | top | set | reclaim) compopt +o default +o bashdefault 2>/dev/null ;;
    esac
}
"#;

fn completion(shell: Shell, file: &Path) -> io::Result<()> {
    let mut text = Vec::new();
    let mut command = hinted(parts());
    clap_complete::generate(shell, &mut command, "deckle", &mut text);
    if shell == Shell::Bash {
        let all = String::from_utf8_lossy(&text).replace("-F _deckle ", "-F _deckle_or_command ");
        text = format!("{all}{BASH}").into_bytes();
    }
    write(file, &text)
}

/// The command with what each argument may be, so that no shell offers files for what is none.
fn hinted(command: Command) -> Command {
    let name = command.get_name().to_owned();
    command
        .mut_args(|arg| hint(&name, arg))
        .mut_subcommands(hinted)
}

/// An argument of a verb with what it may be.
fn hint(verb: &str, arg: Arg) -> Arg {
    let arg = match words(verb, arg.get_id().as_str()) {
        words if words.is_empty() => arg,
        words => return arg.value_parser(words).value_hint(ValueHint::Other),
    };
    let hint = match (verb, arg.get_id().as_str(), arg.get_value_hint()) {
        (_, "program", _) => ValueHint::CommandWithArguments,
        ("fit", "of", _) => ValueHint::FilePath,
        ("setup", "user", _) => ValueHint::Username,
        (_, _, ValueHint::Unknown) => ValueHint::Other,
        (_, _, given) => given,
    };
    match arg.get_action().takes_values() {
        true => arg.value_hint(hint),
        false => arg,
    }
}

/// Words that an argument may be, or begin with.
fn words(verb: &str, arg: &str) -> Vec<&'static str> {
    let own = <[&'static str]>::to_vec;
    let of_knob = |key: &str| {
        let knob = Tunables::KNOBS.iter().find(|knob| knob.key == key);
        match knob.map(|knob| knob.kind) {
            Some(Kind::Word(words)) => own(words),
            Some(Kind::Flag) => own(&["on", "off"]),
            _ => Vec::new(),
        }
    };
    // The library wants words that stay, and this process ends when it has written them.
    let assign = |(key, _): (&str, When)| -> &'static str { format!("{key}=").leak() };
    match (verb, arg) {
        ("run", "thp") => of_knob("transparent_hugepage.enabled"),
        ("run", "shrink_underused") => of_knob("transparent_hugepage.shrink_underused"),
        ("run", "profile") => of_knob("profile"),
        ("run", "swap") => own(&["none", "zram", "zram:lz4", "zram:zstd", "file:"]),
        ("run", "memory_max") => own(&["auto", "max"]),
        ("run", "memory_high" | "swap_max") | ("reclaim", "size") => own(&["max"]),
        ("run", "set") => config::all().map(assign).collect(),
        ("set", "settings") => {
            let live = config::all().filter(|(_, when)| *when == When::Live);
            live.map(assign).collect()
        }
        _ => Vec::new(),
    }
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
