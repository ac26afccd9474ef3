//! A real compiler on a generated file.

use std::fmt::Write;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

use super::real::faults;
use super::{Failure, Figures};
use crate::LabError;

/// Functions of the file: the compiler's memory grows with them.
const FUNCTIONS: usize = 250;

/// The file, the same in each run: functions with loops, branches, arrays and calls.
pub(in crate::program) fn source(functions: usize) -> String {
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

pub(super) fn run() -> Result<Figures, Failure> {
    let file = std::env::temp_dir().join(format!("deckle-lab-compile-{}.c", std::process::id()));
    let compiled = compile(&file);
    let _ = fs::remove_file(&file);
    compiled
}

fn compile(file: &PathBuf) -> Result<Figures, Failure> {
    fs::write(file, source(FUNCTIONS)).map_err(|e| LabError::file("writing", file, e))?;
    let before = faults()?;
    let started = Instant::now();
    // -pipe: no file for the assembler's input; nothing is written.
    let end = Command::new("cc")
        .args(["-O1", "-pipe", "-c", "-o", "/dev/null"])
        .arg(file)
        .output();
    let end = end.map_err(|e| LabError::Host {
        what: format!("the compile workload runs cc, which cannot be started ({e})"),
        remedy: "install a C compiler, or leave compile out with --workload".into(),
    })?;
    if !end.status.success() {
        let how = format!("{}: {}", end.status, String::from_utf8_lossy(&end.stderr));
        let what = "cc".into();
        return Err(LabError::Child { what, how }.into());
    }
    Ok(Figures {
        ops: 1,
        seconds: started.elapsed().as_secs_f64(),
        faults: faults()? - before,
        pages: 0,
        used: 0,
        touched: 0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r150_the_compiler_compiles_what_the_lab_generates() {
        let file = std::env::temp_dir().join(format!("deckle-test-{}.c", std::process::id()));
        fs::write(&file, source(3)).unwrap();
        let end = Command::new("cc")
            .args(["-Wall", "-Werror", "-O1", "-c", "-o", "/dev/null"])
            .arg(&file)
            .output();
        let _ = fs::remove_file(&file);
        match end {
            Ok(end) => assert!(end.status.success(), "{end:?}"),
            Err(e) => {
                eprintln!("SKIPPED r150_the_compiler_compiles_what_the_lab_generates: no cc ({e})")
            }
        }
    }
}
