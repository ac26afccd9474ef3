//! The book's commands are run, and come to what it shows; its links lead somewhere.
//!
//! In a block marked `console` each line that begins with `$ ` is a command, with `# status N`
//! behind it if it does not succeed, and the lines below it are beginnings of lines that it prints,
//! whatever the numbers and units are. A block of Python that begins with `# NAME` is a file that
//! the commands find. What cannot be run everywhere is in a block marked `sh`.

use crate::common::*;
use crate::skipped::{not_here, skipped};
use crate::source::root;
use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Stdio};

const BOOK: &str = "docs/book/src";

/// A fenced block: what it is marked with, and its lines.
struct Block<'a> {
    mark: &'a str,
    lines: Vec<&'a str>,
}

fn blocks(text: &str) -> Vec<Block<'_>> {
    let mut blocks = Vec::new();
    let mut open: Option<Block<'_>> = None;
    for line in text.lines() {
        match (line.strip_prefix("```"), &mut open) {
            (Some(_), Some(_)) => blocks.extend(open.take()),
            (Some(mark), None) => {
                let lines = Vec::new();
                open = Some(Block { mark, lines });
            }
            (None, Some(block)) => block.lines.push(line),
            (None, None) => {}
        }
    }
    assert!(open.is_none(), "a block without an end");
    blocks
}

/// A command, its status, and beginnings of lines that it prints.
#[derive(Debug, PartialEq, Eq)]
struct Shown<'a> {
    command: &'a str,
    status: i32,
    lines: Vec<&'a str>,
}

fn commands<'a>(block: &Block<'a>) -> Vec<Shown<'a>> {
    let mut all: Vec<Shown<'a>> = Vec::new();
    for &line in &block.lines {
        match (line.strip_prefix("$ "), all.last_mut()) {
            (Some(line), _) => {
                let (command, status) = line.split_once("  # status ").unwrap_or((line, "0"));
                all.push(Shown {
                    command,
                    status: status
                        .parse()
                        .unwrap_or_else(|_| panic!("{line}: no status")),
                    lines: Vec::new(),
                });
            }
            (None, Some(last)) => last.lines.push(line),
            (None, None) => panic!("{line}: of which command?"),
        }
    }
    all
}

/// A line without what differs from run to run: numbers, and units of amounts.
fn plain(line: &str) -> String {
    let mut plain = String::new();
    for word in line.split_whitespace() {
        let inner = word.trim_matches(|c: char| !c.is_alphanumeric());
        if matches!(inner, "B" | "KiB" | "MiB" | "GiB" | "us" | "ms" | "s") {
            plain += &word.replace(inner, "UNIT");
        } else {
            let mut before = ' ';
            for c in word.chars() {
                let number = c.is_ascii_digit() || c == '.' && before == '0';
                let c = if number { '0' } else { c };
                if !(number && before == '0') {
                    plain.push(c);
                }
                before = c;
            }
        }
        plain.push(' ');
    }
    plain.trim_end().to_owned()
}

/// Whether all that is shown was printed.
fn missing<'a>(shown: &'a Shown<'_>, printed: &str) -> Option<&'a str> {
    let printed: Vec<String> = printed.lines().map(plain).collect();
    let is_there = |line: &str| printed.iter().any(|p| p.starts_with(&plain(line)));
    shown.lines.iter().copied().find(|line| !is_there(line))
}

fn run(shown: &Shown<'_>, dir: &Path) {
    let deckle = Path::new(env!("CARGO_BIN_EXE_deckle")).parent().unwrap();
    let path = std::env::var("PATH").unwrap_or_default();
    let done = Command::new("sh")
        .args(["-c", &format!("{} 2>&1", shown.command)])
        .current_dir(dir)
        .env("PATH", format!("{}:{path}", deckle.display()))
        .env_remove("LD_PRELOAD")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let printed = String::from_utf8_lossy(&done.stdout);
    let command = shown.command;
    assert_eq!(
        done.status.code(),
        Some(shown.status),
        "{command}\n{printed}"
    );
    if let Some(line) = missing(shown, &printed) {
        panic!("{command}\ndoes not print\n{line}\nbut\n{printed}");
    }
}

fn chapter(name: &str) -> String {
    let path = root().join(BOOK).join(name);
    std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{name}: {e}"))
}

/// Files that a text links to, without places in them.
fn links(text: &str) -> impl Iterator<Item = &str> {
    let ends = text.split("](").skip(1);
    let targets = ends.filter_map(|rest| rest.split_once(')'));
    targets.map(|(target, _)| target.split('#').next().unwrap_or_default())
}

#[test]
fn the_commands_of_the_book_come_to_what_it_shows() {
    drop(host::guard());
    let has = |program: &str| Command::new(program).arg("--version").output().is_ok();
    if !has("python3") {
        return not_here("no python3, which most commands of the book need");
    }
    if !output(&["doctor"]).1.contains("here: full") {
        return skipped("nothing can be managed here");
    }
    let (dir, summary) = (Scratch::new("book"), chapter("SUMMARY.md"));
    let chapters: Vec<String> = links(&summary).map(chapter).collect();
    let of = |mark: &'static str| {
        let all = chapters.iter().flat_map(|text| blocks(text));
        all.filter(move |block| block.mark == mark)
    };
    for block in of("python") {
        let file = block.lines[0].strip_prefix("# ");
        let file = file.expect("the name of a file");
        std::fs::write(dir.0.join(file), block.lines.join("\n") + "\n").unwrap();
    }
    let mut run_here = 0;
    for block in of("console") {
        for shown in commands(&block) {
            run(&shown, &dir.0);
            run_here += 1;
        }
    }
    assert!(run_here > 10, "{run_here}");
}

#[test]
fn every_chapter_is_in_the_summary_and_every_link_leads_somewhere() {
    let summary = chapter("SUMMARY.md");
    let named: BTreeSet<&str> = links(&summary).collect();
    let mut there = BTreeSet::new();
    for entry in std::fs::read_dir(root().join(BOOK)).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        for link in links(&chapter(&name)).filter(|link| !link.is_empty()) {
            assert!(
                !link.contains("://"),
                "{name}: {link}: the book needs no network"
            );
            assert!(root().join(BOOK).join(link).is_file(), "{name}: {link}");
        }
        for block in blocks(&chapter(&name)) {
            assert!(
                ["console", "python", "sh"].contains(&block.mark),
                "{name}: {}",
                block.mark
            );
        }
        there.insert(name);
    }
    there.remove("SUMMARY.md");
    assert_eq!(
        there.iter().map(String::as_str).collect::<BTreeSet<_>>(),
        named
    );
}

#[test]
fn what_a_command_prints_is_compared_but_for_its_numbers() {
    let text = "```console\n$ a b\nx 12.5 MiB (2.0:1)\n$ c  # status 3\n```\n";
    let blocks = blocks(text);
    let shown = commands(&blocks[0]);
    assert_eq!(
        shown[1],
        Shown {
            command: "c",
            status: 3,
            lines: Vec::new()
        }
    );
    assert_eq!(shown[0].command, "a b");
    for (printed, ok) in [
        ("y\nx 7 KiB (18.0:1) and more", true),
        ("x 12.5 MiB", false),
        ("z 12.5 MiB (2.0:1)", false),
        ("", false),
    ] {
        assert_eq!(missing(&shown[0], printed).is_none(), ok, "{printed}");
    }
    assert_eq!(plain("peak 96.4 MiB, 1.2 us"), "peak 0 UNIT, 0 UNIT");
}
