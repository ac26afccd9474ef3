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
