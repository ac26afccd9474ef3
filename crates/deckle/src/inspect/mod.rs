//! `deckle inspect`: which process wastes memory in huge pages, and which setting gives it back.

mod apply;
mod verify;

use std::time::Instant;

use deckle_inspect::budget::{Change, smallest};
use deckle_inspect::survey::Progress;
use deckle_inspect::text::Shown;
use deckle_inspect::{InspectError, Knobs, Options, Survey, Target, json, lines, text};
use deckle_mm::memparse;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::args::inspect::{InspectArgs, InspectFormat as Format};
use crate::fail::Fail;
use crate::look::{self, stat};
use crate::{print, procfs};

/// Looks, and says what it has seen; the exit status of `deckle`.
pub fn inspect(args: &InspectArgs) -> Result<i32, Fail> {
    let options = options(args)?;
    let budget = args.budget.as_deref().map(memparse).transpose();
    let budget = budget.map_err(|e| Fail::own(format!("--budget: {e}")))?;
    if args.verify {
        return verify::verify(args, options);
    }
    let interval = args.interval.map(stat::time).transpose()?;
    procfs::check().map_err(|why| Fail::own(format!("inspect: {why}")))?;
    let mut before: Option<Knobs> = None;
    let mut next = Instant::now();
    for n in 0.. {
        let (target, seed) = (target(args)?, options.seed.wrapping_add(n));
        let survey = take(&target, Options { seed, ..options }, before.as_ref())?;
        let change = budget.map(|budget| (budget, smallest(&survey, budget)));
        say(args, &survey, change.as_ref(), n == 0)?;
        if let (true, Some((_, change))) = (args.apply, &change) {
            return apply::apply(&survey, change, args.dry_run);
        }
        let Some(interval) = interval.filter(|_| args.count.is_none_or(|all| n + 1 < all)) else {
            break;
        };
        before = Some(survey.knobs);
        next += interval;
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
    }
    Ok(0)
}

/// Who is meant now: a tree's processes come and go.
fn target(args: &InspectArgs) -> Result<Target, Fail> {
    let Some(text) = args.target.as_ref().filter(|_| !args.all) else {
        return Ok(Target::All);
    };
    match look::named(text)? {
        Some(tree) => Ok(Target::Pids(tree.pids()?)),
        None => Ok(Target::parse(text)),
    }
}

fn options(args: &InspectArgs) -> Result<Options, Fail> {
    if !(args.sample > 0.0 && args.sample <= 100.0) {
        let text = format!(
            "--sample: {}: give more than 0 and at most 100 per cent",
            args.sample
        );
        return Err(Fail::own(text));
    }
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    Ok(Options {
        sample: args.sample,
        cpu: args.cpu,
        seed: now.map_or(0, |now| now.as_nanos() as u64),
    })
}

/// A survey, with a bar of progress where somebody looks at a terminal.
fn take(target: &Target, options: Options, before: Option<&Knobs>) -> Result<Survey, Fail> {
    // Nothing is drawn where standard error is no terminal.
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
    if let Ok(style) = ProgressStyle::with_template("reading huge pages {wide_bar} {pos} of {len}")
    {
        bar.set_style(style);
    }
    let survey = Survey::take(target, options, before, &mut |Progress { all, done }| {
        bar.set_length(all);
        bar.set_position(done);
    });
    bar.finish_and_clear();
    survey.map_err(|e| failed(&e))
}

fn failed(e: &InspectError) -> Fail {
    Fail::own(format!("inspect: {e}"))
}

fn say(
    args: &InspectArgs,
    survey: &Survey,
    change: Option<&(u64, Change)>,
    first: bool,
) -> Result<(), Fail> {
    let change = change.map(|(budget, change)| (*budget, change));
    let text = match args.format {
        Format::Text => {
            let (top, vmas) = (args.top, args.vmas);
            let text = text::text(survey, change, Shown { top, vmas });
            if first { text } else { format!("\n{text}") }
        }
        Format::Json => {
            let json = json::json(survey, change, args.top, args.vmas);
            match args.interval {
                None => format!("{json:#}"),
                Some(_) => json.to_string(),
            }
        }
        Format::Csv => {
            let head = if first {
                lines::csv_head()
            } else {
                String::new()
            };
            head + &lines::csv(survey, args.top)
        }
        Format::Openmetrics => lines::openmetrics(survey, args.top),
    };
    print(text.trim_end_matches('\n'))
}
