//! `deckle plot`: a record as a picture, or as a page that shows it.

mod chart;
mod page;
mod series;

use std::ffi::OsStr;
use std::path::PathBuf;

use crate::fail::{Fail, plain};
use crate::record::Record;

const HELP: &str = "\
Examples:
  deckle run --memory-max 1G --record build.rec -- make -j4
  deckle plot build.rec
      Writes build.rec.html: memory by kind and its limit, swap, faults, pressure, and what
      started, ended, was killed, set and reclaimed when. It needs no network, and the record
      may be of a run that goes on.
  deckle plot build.rec -o build.svg
      The picture alone.";

/// Options of `deckle plot`.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub struct PlotArgs {
    /// A record that `deckle run --record` has made.
    #[arg(value_name = "RECORD")]
    pub record: PathBuf,
    /// Where to write it: a name that ends in .html or .svg. Default: RECORD.html.
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

/// Draws it; the exit status.
pub fn plot(args: &PlotArgs) -> Result<i32, Fail> {
    let to = args.output.clone().unwrap_or_else(|| {
        let mut name = args.record.clone().into_os_string();
        name.push(".html");
        name.into()
    });
    let ending = to.extension().and_then(OsStr::to_str).unwrap_or("");
    let make: fn(&Record) -> String = match ending {
        "html" => page::page,
        "svg" => chart::svg,
        _ => {
            let to = to.display();
            let what = "neither .html nor .svg at its end: name the file so";
            return Err(Fail::own(format!("--output: {to}: {what}")));
        }
    };
    let text = make(&Record::read(&args.record)?);
    if let (Ok(record), Ok(old)) = (args.record.canonicalize(), to.canonicalize())
        && record == old
    {
        let to = to.display();
        let what = "is the record, which would be lost: give another name";
        return Err(Fail::own(format!("--output: {to}: {what}")));
    }
    std::fs::write(&to, text)
        .map_err(|e| Fail::own(format!("--output: {}: {}", to.display(), plain(&e))))?;
    crate::print(&to.display().to_string())?;
    Ok(0)
}

/// Text in a page or a picture: what would be markup is not.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out += "&amp;",
            '<' => out += "&lt;",
            '>' => out += "&gt;",
            '"' => out += "&quot;",
            '\'' => out += "&#39;",
            c if c.is_control() => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

/// Seconds as people write them.
fn time(ms: u64) -> String {
    let s = ms as f64 / 1e3;
    match ms / 1000 {
        0..=99 => format!("{s:.1} s"),
        100..=5999 => format!("{}:{:02} min", ms / 60_000, ms / 1000 % 60),
        _ => format!("{}:{:02} h", ms / 3_600_000, ms / 60_000 % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_no_markup_and_times_are_short() {
        let text = escaped("<script>alert('a&\"b')\u{1b}[0m");
        let want = "&lt;script&gt;alert(&#39;a&amp;&quot;b&#39;)\u{fffd}[0m";
        assert_eq!(text, want);
        let times = [0, 1250, 99_999, 100_000, 6_000_000].map(time);
        assert_eq!(times, ["0.0 s", "1.2 s", "100.0 s", "1:40 min", "1:40 h"]);
    }
}
