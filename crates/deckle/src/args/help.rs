//! The help of `deckle run`, to which the table of knobs belongs.

use std::fmt::Write;

use deckle_mm::knob::{Kind, Value};
use deckle_mm::{Profile, Tunables};

use crate::settings::defaults;

const EXAMPLES: &str = "\
Examples:
  deckle run --memory-max 256M -- python3 job.py
      The script and everything it starts share 256 MiB. Cold pages are kept compressed.
  deckle run --memory-max 2G --swap zram:zstd --stats out.json -- make -j4
      Compress harder, and write all counters and settings to out.json.
  deckle run --memory-max 1G --swap none -- ./server
      No compression: zero pages are dropped, nothing else; killed when that is not enough.
  deckle run --memory-max 1G --swap zram:lz4,file:/var/tmp:20G -- ./job
      What does not fit in compressed memory goes on to the disk, 20 GiB at most.
  deckle run --memory-max auto -- ./service
      In a container: what the container may use, minus headroom.

Sizes: bytes, or K, M, G, T (binary), fractions allowed: 256M, 1.5G; max for no limit.

Settings, for the file (--config) or one at a time (--set KEY=VALUE), with the kernel's names; what
the command line says wins over the file, and an option of a setting's own over --set:
  swap = \"zram:lz4\"
  strict = false
  memory.max = \"256M\"
  memory.high = \"240M\"
  memory.swap.max = \"1G\"
  # Compressed memory before it goes on to a file, percent of a process's memory.
  zswap.max_pool_percent = 50
  # Whether each mapping of 2 MiB and more begins at a multiple of that.
  transparent_hugepage.align_mappings = false";

const END: &str = "\
Signals (TERM, INT, HUP, QUIT, USR1, USR2, TSTP, CONT, WINCH) are passed on. deckle run ends
when the program and everything that it started have ended. A program that ignores SIGTERM is
not killed for it: SIGKILL to deckle run ends it within a second, daemons that it started too.

What the summary says, on standard error:
  memory   the largest amount charged against the limit, exactly: pages in use, the compressed
           ones, and (far below the limit) small holes that the kernel fills by itself.
           Resident: without the compressed ones, as the programs told it last.
  swap     what was compressed and what came back; the peak, and the memory it was kept in.
  file     what went on to files and came back from there; the most that was in them.
  zeros    pages that held only zeros: they were dropped, and cost nothing.
  faults   page faults; huge pages of 2 MiB given to them, and how often there was none.
  pressure for how long somebody waited for memory (some), and the part of it in which the
           program did nothing else (full): the kernel's PSI, added up over processes.
  outside  memory that the limit does not hold, sampled every 20 ms at first and every second
           later: each process's RssAnon and RssShmem minus what it has charged.

Exit status: that of the program (128 + N if signal N ended it; 137 when it was killed at
the limit); 125 when deckle itself fails, 126 when the program cannot be executed, 127 when
it is not found.";

/// What stands below the options.
pub fn run_help() -> String {
    format!("{EXAMPLES}\n{}\n{END}", knobs())
}

/// The lines of a settings file that say what holds by default.
fn knobs() -> String {
    let (deckle, linux) = (defaults(Profile::Deckle), defaults(Profile::Linux));
    let written = |value: Value| match value {
        Value::Word(_) | Value::NoLimit => format!("\"{value}\""),
        _ => value.to_string(),
    };
    let (mut lines, mut said) = (String::new(), "");
    for knob in Tunables::KNOBS {
        if knob.about != said {
            for line in knob.about.lines() {
                let _ = writeln!(lines, "  #{line}");
            }
            if let Kind::Word(_) | Kind::Number(..=0xffff, _) = knob.kind {
                let _ = writeln!(lines, "  # {}", knob.kind);
            }
            said = knob.about;
        }
        let [value, theirs] = [&deckle, &linux].map(|t| written(knob.value(t)));
        let _ = write!(lines, "  {} = {value}", knob.key);
        if theirs != value && knob.key != "profile" {
            let _ = write!(lines, "    # profile linux: {theirs}");
        }
        lines.push('\n');
    }
    lines
}
