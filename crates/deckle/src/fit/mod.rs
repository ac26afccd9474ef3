//! `deckle fit`: which limit a working set fits in, by what its pages compress to.

mod content;
mod pages;

use deckle_mm::memparse;
use serde_json::{Value, json};

use self::content::{Content, Packed};
use crate::args::Format;
use crate::fail::Fail;
use crate::settings::MEMORY_MAX_LEAST;
use crate::size::show;

/// Shares of what is not zero that are in use at a time, in percent.
const SHARES: [u64; 5] = [0, 10, 25, 50, 100];

const HELP: &str = "\
Examples:
  deckle fit data.bin --memory-max 256M
      How much of a program's data stays resident in 256 MiB, if it is like this file.
  deckle fit 4711
      The memory of a process, as far as it is resident and no file's: the least limit for it,
      by how much of it is in use at a time.

Of N bytes that are not zero, r stay resident in a limit of M if the rest, at a ratio of c, is
kept in what is left: r + (N - r) / c <= M, less 4M that must be free, and a thirteenth of the
store that is not filled. If less is resident than the program uses at a time, it waits for
compressed pages most of the time. Pages are tried at random places; nothing is written.";

/// Options of `deckle fit`.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub struct FitArgs {
    /// A file that is like what the program has in memory, the number of a process, or the name of
    /// a tree that runs, all of whose processes are meant.
    #[arg(value_name = "FILE|PID|NAME")]
    pub of: String,
    /// Tell what this limit leaves resident.
    #[arg(long, value_name = "SIZE")]
    pub memory_max: Option<String>,
    /// Pages tried at most.
    #[arg(long, value_name = "N", default_value_t = 8192)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=1 << 24))]
    pub sample: u64,
    /// How the result is written.
    #[arg(long, value_enum, default_value = "text")]
    pub format: Format,
}

/// Tells it; the exit status.
pub fn fit(args: &FitArgs) -> Result<i32, Fail> {
    let max = args.memory_max.as_deref().map(limit).transpose()?;
    let content = Content::of(&args.of, args.sample)?;
    let told = match args.format {
        Format::Text => text(&args.of, &content, max),
        Format::Json => json(&content, max).to_string(),
    };
    crate::print(&told)?;
    Ok(0)
}

/// A limit that `deckle run` would take, too.
fn limit(text: &str) -> Result<u64, Fail> {
    let refuse = |why: String| Fail::own(format!("--memory-max: {why}"));
    match memparse(text).map_err(refuse)? {
        bytes if bytes < MEMORY_MAX_LEAST => Err(refuse(format!(
            "`{text}` is too small to run anything: give at least {}M",
            MEMORY_MAX_LEAST >> 20
        ))),
        bytes => Ok(bytes),
    }
}

fn text(of: &str, content: &Content, max: Option<u64>) -> String {
    let (all, zeros) = (
        show(content.bytes()),
        show(content.bytes() - content.filled()),
    );
    let (tried, pages) = (content.tried, content.pages);
    let mut text = format!(
        "{of}: {all}, {tried} of {pages} pages tried\n  zeros {:>5.1} %  ({zeros}): they cost \
         nothing\n",
        content.zero_share() * 100.0
    );
    for packed in &content.packed {
        let (name, ratio) = (packed.name, packed.ratio());
        text += &format!(
            "  {name:<5} {ratio:>5.2} : 1  of the other {}\n",
            show(content.filled())
        );
    }
    text += &format!(
        "\nleast --memory-max, if so much of it is in use at a time\n{:8}",
        ""
    );
    for packed in &content.packed {
        text += &format!("{:>14}", packed.name);
    }
    for share in SHARES {
        text += &format!("\n  {share:>3} % ");
        for packed in &content.packed {
            let least = content.least(packed, content.filled() / 100 * share);
            text += &format!("{:>14}", format!("{}M", least.div_ceil(1 << 20)));
        }
    }
    if let Some(max) = max {
        text += &format!("\n\nin {}", show(max));
        for packed in &content.packed {
            text += &format!("\n  {:<5} {}", packed.name, resident(content, packed, max));
        }
    }
    text
}

fn resident(content: &Content, packed: &Packed, max: u64) -> String {
    match content.resident(packed, max) {
        Some(bytes) => format!(
            "{} stay resident, {:.0} % of what is not zero",
            show(bytes),
            bytes as f64 * 100.0 / content.filled().max(1) as f64
        ),
        None => format!(
            "does not fit: give at least {}M",
            content.least(packed, 0).div_ceil(1 << 20)
        ),
    }
}

/// Raw integers, in bytes.
fn json(content: &Content, max: Option<u64>) -> Value {
    let of = |packed: &Packed| {
        let least: Vec<Value> = (SHARES.iter())
            .map(|share| {
                let bytes = content.least(packed, content.filled() / 100 * share);
                json!({ "in_use_percent": share, "memory_max_bytes": bytes })
            })
            .collect();
        json!({
            "swap": packed.name,
            "page_bytes": packed.page_bytes,
            "least": least,
            "resident_bytes": max.map(|max| content.resident(packed, max)),
        })
    };
    json!({
        "schema": 1,
        "bytes": content.bytes(),
        "zero_bytes": content.bytes() - content.filled(),
        "pages_tried": content.tried,
        "memory_max_bytes": max,
        "swaps": content.packed.iter().map(of).collect::<Vec<_>>(),
    })
}
