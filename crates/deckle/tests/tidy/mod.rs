//! Rules of the sources that no compiler looks after.

mod rim;
mod rooms;

use std::path::Path;

use crate::source::{File, files, root};

/// Columns of a line, as rustfmt.toml has it; it leaves strings and comments alone.
const COLUMNS: usize = 100;
/// Lines of a file: what is longer holds more than one idea.
const LINES: usize = 500;

/// Lines of a function of the core, from its name to its closing brace.
const FUNCTION: usize = 70;

/// What must not stand in a source. Put together here, so that this file does not break its
/// own rule.
fn unfinished() -> [String; 3] {
    [
        format!("{}!(", "todo"),
        format!("{}!(", "unimplemented"),
        format!("#[{}", "ignore"),
    ]
}

/// What is wrong with a file, one line each.
fn faults(file: &File) -> Vec<String> {
    let mut faults = Vec::new();
    let path = &file.path;
    let lines = file.text.lines().count();
    if lines > LINES {
        faults.push(format!("{path}: {lines} lines, at most {LINES} are wanted"));
    }
    for (n, line) in file.text.lines().enumerate() {
        let mut fault = |what: &str| faults.push(format!("{path}:{}: {what}", n + 1));
        if !line.is_ascii() || line.contains('\t') {
            fault("a character that is not plain ASCII text");
        }
        let columns = line.chars().count();
        // A manifest's inline tables cannot be broken into lines.
        if columns > COLUMNS && path.ends_with(".rs") {
            fault(&format!("{columns} columns, at most {COLUMNS} are wanted"));
        }
        for word in unfinished().iter().filter(|word| line.contains(*word)) {
            fault(&format!("unfinished: {word}"));
        }
    }
    faults
}

#[test]
fn sources_are_plain_short_and_finished() {
    let all: Vec<File> = files("rs").into_iter().chain(files("toml")).collect();
    assert!(all.len() > 100, "only {} files found", all.len());
    let faults: Vec<String> = all.iter().flat_map(faults).collect();
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
}

/// The functions of a file that are too long, one line each; rustfmt has put the braces.
fn long_functions(file: &File) -> Vec<String> {
    let lines: Vec<&str> = file.text.lines().collect();
    let indent = |line: &str| line.len() - line.trim_start().len();
    let begins = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().take(6).collect();
        !line.trim_start().starts_with("//") && words.contains(&"fn") && !line.ends_with(';')
    };
    let length = |at: usize| {
        let margin = " ".repeat(indent(lines[at]));
        let (body, declared) = (format!("{margin}}}"), format!("{margin})"));
        let is_end = |line: &&str| {
            line.starts_with(&body) || line.starts_with(&declared) && line.ends_with(';')
        };
        lines[at..].iter().position(is_end).map(|n| n + 1)
    };
    let long = |at: usize| {
        let n = length(at).filter(|&n| n > FUNCTION)?;
        let what = format!("{}:{}: a function of {n} lines", file.path, at + 1);
        Some(format!("{what}, at most {FUNCTION} are wanted"))
    };
    (0..lines.len())
        .filter(|&at| begins(lines[at]))
        .filter_map(long)
        .collect()
}

#[test]
fn functions_are_short() {
    let is_source = |path: &str| {
        path.starts_with("crates/") && path.contains("/src/") && !path.contains("tests")
    };
    let sources: Vec<File> = files("rs")
        .into_iter()
        .filter(|f| is_source(&f.path))
        .collect();
    assert!(sources.len() > 300, "only {} files", sources.len());
    let long: Vec<String> = sources.iter().flat_map(long_functions).collect();
    assert!(long.is_empty(), "\n{}", long.join("\n"));
}

#[test]
fn every_crate_says_what_it_is() {
    let mut missing = Vec::new();
    for entry in std::fs::read_dir(root().join("crates")).unwrap() {
        let dir = entry.unwrap().path();
        if !dir.join("Cargo.toml").exists() {
            continue;
        }
        let says = |name: &str| {
            let text = std::fs::read_to_string(dir.join("src").join(name));
            text.ok().map(|t| t.starts_with("//! "))
        };
        let root_file = says("lib.rs").or_else(|| says("main.rs"));
        if root_file != Some(true) {
            missing.push(name(&dir));
        }
        let manifest = std::fs::read_to_string(dir.join("Cargo.toml")).unwrap();
        if !manifest.contains("\ndescription = \"")
            || !manifest.contains("[lints]\nworkspace = true")
        {
            missing.push(format!(
                "{}: description or lints in Cargo.toml",
                name(&dir)
            ));
        }
    }
    assert!(missing.is_empty(), "crate docs are missing: {missing:?}");
}

/// Of a file that its crate's test program does not declare nothing would be run.
#[test]
fn every_file_of_tests_is_in_a_test_program() {
    let all = files("rs");
    let programs = all
        .iter()
        .filter(|f| f.path.ends_with("/tests/main.rs"))
        .map(|f| (f.path.trim_end_matches("main.rs"), &f.text));
    let programs: Vec<_> = programs.collect();
    assert!(programs.len() > 5, "only {} programs", programs.len());
    let mut missing = Vec::new();
    for (dir, text) in programs {
        let beside = all.iter().filter_map(|f| f.path.strip_prefix(dir));
        let beside = beside.filter(|file| !file.contains('/') && *file != "main.rs");
        for module in beside.filter_map(|file| file.strip_suffix(".rs")) {
            if !text.lines().any(|line| line == format!("mod {module};")) {
                missing.push(format!("{dir}{module}.rs"));
            }
        }
    }
    assert!(missing.is_empty(), "run by nobody: {missing:?}");
}

/// A test that says so itself is not counted, and does not fail where nothing may be left out.
#[test]
fn what_is_left_out_is_said_in_one_place() {
    let word = ["SKIP", "PED"].concat();
    let says = |f: &File| {
        let is_print = |line: &str| line.contains(&format!("\"{word}"));
        f.path.contains("/tests/") && f.text.lines().any(is_print)
    };
    let all = files("rs").into_iter().filter(says).map(|f| f.path);
    let (one, forwards): (Vec<_>, Vec<_>) = all.partition(|path| path.ends_with("/skipped.rs"));
    assert_eq!(one, ["crates/uffd/tests/common/skipped.rs"]);
    // What programs of their own have said is handed on; it was counted there.
    let known = [
        "live/tests/common/mod.rs",
        "preload/tests/common/mod.rs",
        "uffd/tests/common/mod.rs",
    ];
    assert_eq!(forwards, known.map(|path| format!("crates/{path}")));
}

/// A name in scripts/test that no test has any more would leave out nothing, or what it should not.
#[test]
fn what_the_quick_run_leaves_out_is_there() {
    let script = std::fs::read_to_string(root().join("scripts/test")).unwrap();
    let names = |list: &str| -> Vec<&str> {
        let list = script.split(list).nth(1).expect("a list");
        let list: Vec<&str> = list
            .split('\'')
            .next()
            .unwrap()
            .split_whitespace()
            .collect();
        assert!(list.len() > 5, "{list:?}");
        list
    };
    let list = [names("\nlong='"), names("\nmanaging='")].concat();
    let all = files("rs");
    let is_there = |name: &&str| {
        let (module, test) = name.split_once("::").expect("a module");
        let of_module = |f: &&File| {
            f.path.contains("/tests/")
                && (f.path.ends_with(&format!("/{module}.rs"))
                    || f.path.ends_with(&format!("/{module}/mod.rs")))
        };
        all.iter()
            .filter(of_module)
            .any(|f| test.is_empty() || f.text.contains(&format!("\nfn {test}")))
    };
    let gone: Vec<&&str> = list.iter().filter(|name| !is_there(name)).collect();
    assert!(gone.is_empty(), "no such tests: {gone:?}");
}

fn name(dir: &Path) -> String {
    dir.file_name().unwrap().to_string_lossy().into_owned()
}

#[test]
fn each_fault_is_seen() {
    let file = |text: String| File {
        path: "a.rs".into(),
        text,
    };
    assert!(faults(&file("//! Fine.\n".into())).is_empty());
    for bad in [
        "// caf\u{e9}\n".to_owned(),
        "\tlet x;\n".into(),
        format!("//{}\n", " x".repeat(50)),
        "//\n".repeat(LINES + 1),
        format!("fn f() {{ {}) }}\n", unfinished()[0]),
        format!("{}]\nfn f() {{}}\n", unfinished()[2]),
    ] {
        assert_eq!(faults(&file(bad.clone())).len(), 1, "{bad:?}");
    }
    let body = |n| {
        format!(
            "impl A {{\n    pub fn f(\n    ) {{\n{}    }}\n}}\n",
            "x;\n".repeat(n)
        )
    };
    assert!(long_functions(&file(body(FUNCTION - 3))).is_empty());
    assert_eq!(long_functions(&file(body(FUNCTION - 2))).len(), 1);
}
