//! Where unsafe code is: in the rim to the kernel and in what runs in programs; elsewhere the
//! compiler refuses it, but for what is listed here.

use crate::source::{File, files};

/// Crates that may have it, and why.
const CRATES: [(&str, &str); 6] = [
    ("sys", "the rim itself"),
    ("uffd", "moves the pages of memory that its caller names"),
    ("live", "manages the program's memory, and is in it"),
    ("door", "is shared by two programs in one memory"),
    ("preload", "enters programs, by C's ways"),
    ("service", "runs in a memory that is another program's"),
];

/// Files of other crates that have it, and why it cannot be in the rim.
const FILES: [(&str, &str); 4] = [
    (
        "mm/src/frame/table.rs",
        "a table that grows while it is read",
    ),
    ("mm/src/sync.rs", "a lock whose waiting is the machine's"),
    (
        "lab/src/program/mod.rs",
        "forks beside other threads: only what the child then does makes that right",
    ),
    (
        "lab/src/program/oracle/arena.rs",
        "a memory on which every call is made, those that are wrong too",
    ),
];

/// Whether a line of code has the word.
fn is_unsafe(line: &str) -> bool {
    let code = line.split("//").next().unwrap_or("");
    let is_name = |c: char| c.is_alphanumeric() || c == '_';
    code.split(|c| !is_name(c)).any(|word| word == "unsafe")
}

/// Sources of crates that may not have it anywhere, by their paths in `crates`.
fn sources() -> Vec<File> {
    let mut all = files("rs");
    all.retain_mut(|file| {
        let path = file.path.strip_prefix("crates/").unwrap_or("").to_owned();
        let of = path.split_once("/src/").map(|(of, _)| of.to_owned());
        file.path = path;
        of.is_some_and(|of| CRATES.iter().all(|(may, _)| *may != of))
    });
    all
}

#[test]
fn unsafe_code_is_where_it_has_to_be() {
    let mut faults = Vec::new();
    let all = sources();
    assert!(all.len() > 300, "only {} files", all.len());
    for File { path, text } in &all {
        let has = text.lines().any(is_unsafe);
        let may = FILES.iter().any(|(file, _)| file == path);
        match (has, may) {
            (true, false) => faults.push(format!(
                "{path}: unsafe code: put it into crates/sys, as something that is safe to call"
            )),
            (false, true) => {
                faults.push(format!("{path}: has none any more: take it off the list"))
            }
            _ => {}
        }
        // Files that are in a list allow it where they have it.
        let is_root = path.ends_with("/src/lib.rs") || path.ends_with("/src/main.rs");
        let of = path.split('/').next().unwrap_or("");
        let listed = FILES
            .iter()
            .any(|(file, _)| file.starts_with(&format!("{of}/")));
        let lint = if listed { "deny" } else { "forbid" };
        if is_root && !text.contains(&format!("#![{lint}(unsafe_code)]")) {
            faults.push(format!("{path}: without #![{lint}(unsafe_code)]"));
        }
    }
    for (file, _) in FILES {
        if all.iter().all(|f| f.path != file) {
            faults.push(format!("{file}: is not there: take it off the list"));
        }
    }
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
}

#[test]
fn unsafe_code_is_told_from_its_name() {
    for line in [
        "unsafe { x }",
        "    pub unsafe fn f()",
        "let a = unsafe{1};",
    ] {
        assert!(is_unsafe(line), "{line}");
    }
    for line in [
        "// unsafe",
        "#![forbid(unsafe_code)]",
        "let x = 1; // unsafe {",
    ] {
        assert!(!is_unsafe(line), "{line}");
    }
}
