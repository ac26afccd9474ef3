//! The workspace's own files, for tests that read them.

use std::path::{Path, PathBuf};

/// A text file of the workspace.
pub struct File {
    /// Its path, from the workspace's root.
    pub path: String,
    pub text: String,
}

impl File {
    /// The crate it belongs to; none outside of `crates/`.
    pub fn of_crate(&self) -> Option<&str> {
        self.path.strip_prefix("crates/")?.split('/').next()
    }
}

pub fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let root = here.join("../..").canonicalize().unwrap();
    assert!(root.join("Cargo.lock").exists(), "{root:?}");
    root
}

/// All files below `crates/` that end in `.ext`, by ascending path.
pub fn files(ext: &str) -> Vec<File> {
    let root = root();
    let mut paths = Vec::new();
    walk(&root.join("crates"), ext, &mut paths);
    paths.sort();
    let files = paths.into_iter().map(|path| File {
        text: std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path:?}: {e}")),
        path: path.strip_prefix(&root).unwrap().to_str().unwrap().into(),
    });
    files.collect()
}

fn walk(dir: &Path, ext: &str, paths: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            // What cargo and version control keep there is not source.
            let name = path.file_name().unwrap().to_str().unwrap();
            if name != "target" && !name.starts_with('.') {
                walk(&path, ext, paths);
            }
        } else if path.extension().is_some_and(|e| e == ext) {
            paths.push(path);
        }
    }
}

/// The names of a file's tests: functions marked `#[test]`, also inside of macros, and names in
/// `tests! { ... }`, which makes one such function of each.
pub fn tests(text: &str) -> Vec<String> {
    let mut names = Vec::new();
    let (mut marked, mut listed) = (false, false);
    for line in text.lines().map(str::trim) {
        if line == "tests! {" {
            listed = true;
        } else if listed && line.starts_with('}') {
            listed = false;
        } else if listed {
            names.extend(name_at(line));
        } else if let Some(rest) = line.strip_prefix("#[test]") {
            let name = rest.trim().strip_prefix("fn ").and_then(name_at);
            marked = name.is_none() && rest.is_empty();
            names.extend(name);
        } else if marked && !line.starts_with('#') && !line.starts_with("//") {
            names.extend(line.strip_prefix("fn ").and_then(name_at));
            marked = false;
        }
    }
    names
}

fn name_at(text: &str) -> Option<String> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let end = text.find(|c| !is_part(c)).unwrap_or(text.len());
    (end > 0).then(|| text[..end].to_owned())
}
