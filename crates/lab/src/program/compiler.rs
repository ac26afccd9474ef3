//! A real compiler, and the file that it compiles.

use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::process::{Command, ExitStatus};

use crate::LabError;

/// A file of so many functions, the same each time: with loops, branches, arrays and calls. The
/// compiler's memory grows with them.
fn source(functions: usize) -> String {
    let mut c = String::from("typedef struct { long key; int left, right; double v[8]; } node;\n");
    for f in 0..functions {
        let _ = write!(
            c,
            "static int g{f}[{n}];\n\
             long f{f}(node *t, int n, long x) {{\n\
             \x20 long a = x, b = {f};\n\
             \x20 for (int i = 0; i < n; i++) {{\n\
             \x20   if (t[i].key < a) {{ a -= t[i].key * {m}; g{f}[i % {n}] += (int)a; }}\n\
             \x20   else if (t[i].left > {f}) {{ b ^= t[t[i].left].key + a; }}\n\
             \x20   else {{ t[i].v[i & 7] += (double)b / (i + {m}); b += g{f}[(i + 1) % {n}]; }}\n\
             \x20   switch (b & 7) {{ case 0: a++; break; case 1: a ^= b; break;\n\
             \x20     case 2: a += i; break; case 5: b -= {f}; break; default: a -= 3; }}\n\
             \x20 }}\n\
             \x20 return a + b{call};\n}}\n",
            n = 16 + f % 48,
            m = 3 + f % 17,
            call = match f {
                0 => String::new(),
                _ => format!(" + f{}(t, n / 2, a)", f - 1),
            },
        );
    }
    c
}

/// Writes a file of so many functions and `end`, and returns the command that compiles it.
pub(super) fn cc(file: &Path, functions: usize, end: &str) -> Result<Command, LabError> {
    let text = source(functions) + end;
    fs::write(file, text).map_err(|e| LabError::file("writing", file, e))?;
    let mut cc = Command::new("cc");
    // -pipe: no file for the assembler's input; nothing is written.
    cc.args(["-O1", "-pipe", "-c", "-o", "/dev/null"]).arg(file);
    Ok(cc)
}

/// A command of the system that a workload runs and that cannot be started.
pub(super) fn none(command: &str, e: &std::io::Error) -> LabError {
    LabError::Host {
        what: format!("the workload runs {command}, which cannot be started ({e})"),
        remedy: "install it, or leave the workload out with --workload or --program".into(),
    }
}

/// A compiler that failed.
pub(super) fn failed(status: ExitStatus, stderr: &[u8]) -> LabError {
    let how = format!("{status}: {}", String::from_utf8_lossy(stderr));
    let what = "cc".into();
    LabError::Child { what, how }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r150_the_compiler_compiles_what_the_lab_generates() {
        let file = std::env::temp_dir().join(format!("deckle-test-{}.c", std::process::id()));
        let end = cc(&file, 3, "")
            .unwrap()
            .args(["-Wall", "-Werror"])
            .output();
        let _ = fs::remove_file(&file);
        let end = end.expect("cc, a C compiler");
        assert!(end.status.success(), "{end:?}");
    }
}
