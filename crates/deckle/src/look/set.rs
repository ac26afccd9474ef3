//! `deckle set`: limits and knobs of a tree, while it runs.

use std::fmt::Write;
use std::time::{Duration, Instant};

use deckle_group::{AttachError, Group, Limits, Locked};
use deckle_mm::knob::When;
use deckle_mm::{PAGE_SIZE, Profile, Tunables};
use deckle_sys::Errno;

use super::{find, table};
use crate::args::look::SetArgs;
use crate::config::{self, Setting};
use crate::fail::Fail;
use crate::settings::{MEMORY_MAX_LEAST, high_by_default, pages};
use crate::{print, say};

const PAGE: u64 = PAGE_SIZE as u64;
/// Milliseconds that another who changes the same tree is waited for.
const LOCK_TRIES: u32 = 5000;
/// How long a smaller limit is waited for.
const PATIENCE: Duration = Duration::from_secs(2);

/// Limits and knobs of a tree.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Now {
    limits: Limits,
    knobs: Tunables,
}

/// Changes; the exit status of `deckle`.
pub fn set(args: &SetArgs) -> Result<i32, Fail> {
    let given = parse(&args.settings)?;
    let tree = find(&args.tree)?;
    let lock = Locked::take(tree.group().name(), LOCK_TRIES).map_err(|e| match e {
        AttachError::Call("lock", Errno(libc::EAGAIN)) => Fail::own(format!(
            "{}: another deckle set does not end: try again",
            args.tree
        )),
        e => Fail::own(format!("{}: {e}", args.tree)),
    })?;
    let group = lock.group();
    let knobs = group
        .knobs()
        .map_err(|e| Fail::own(format!("{}: {e}", args.tree)))?;
    let before = Now {
        limits: group.limits(),
        knobs,
    };
    let after = before.with(&given)?;
    group.change(after.limits, &after.knobs);
    drop(lock);
    print(after.told(&before, &given).trim_end())?;
    if after.limits.max < before.limits.max {
        come_below(&group, after.limits.max);
    }
    Ok(0)
}

fn parse(settings: &[String]) -> Result<Vec<Setting>, Fail> {
    let mut given: Vec<Setting> = Vec::new();
    for text in settings {
        let (key, value) = config::pair(text).map_err(Fail::own)?;
        let setting = Setting::new(key, value, key.trim().to_owned());
        if given.iter().any(|other| other.key == setting.key) {
            return Err(setting.refuse("is given twice: give it once"));
        }
        given.push(setting);
    }
    Ok(given)
}

/// `memory.high` if nobody says otherwise, pages.
fn default_high(max: u64, profile: Profile) -> u64 {
    let bytes = (max != u64::MAX).then(|| max.saturating_mul(PAGE));
    pages(high_by_default(bytes, profile))
}

impl Now {
    /// Those of a group; `None`: its page holds what no `deckle` wrote.
    pub fn of(group: &Group) -> Option<Now> {
        let (limits, knobs) = (group.limits(), group.knobs().ok()?);
        Some(Now { limits, knobs })
    }

    /// Everything that is otherwise than before, as `deckle set` prints it.
    pub fn changed(&self, before: &Now) -> Vec<String> {
        let limits = |now: &Now| [now.limits.max, now.limits.high, now.limits.swap_max];
        let mut all = Vec::new();
        let mut change = |key: &str, is: String, was: String| {
            if is != was {
                all.push(format!("{key}={is} (was {was})"));
            }
        };
        let keys = ["memory.max", "memory.high", "memory.swap.max"];
        for ((key, is), was) in keys.iter().zip(limits(self)).zip(limits(before)) {
            change(key, exact(is), exact(was));
        }
        for knob in Tunables::KNOBS {
            let [is, was] = [self, before].map(|now| knob.value(&now.knobs).to_string());
            change(knob.key, is, was);
        }
        all
    }

    /// With what is given, checked.
    fn with(&self, given: &[Setting]) -> Result<Now, Fail> {
        let mut now = *self;
        let (mut max, mut high) = (None, None);
        for setting in given {
            match setting.key.as_str() {
                "memory.max" => {
                    let least = MEMORY_MAX_LEAST >> 20;
                    let remedy = format!(" to run anything: give at least {least}M");
                    now.limits.max = pages(setting.bytes(MEMORY_MAX_LEAST, &remedy)?);
                    max = Some(setting);
                }
                "memory.high" => {
                    now.limits.high = pages(setting.bytes(PAGE, ": give at least one page (4K)")?);
                    high = Some(setting);
                }
                "memory.swap.max" => {
                    now.limits.swap_max =
                        pages(setting.bytes(PAGE, ": give at least one page (4K)")?);
                }
                _ => put(setting, &mut now.knobs)?,
            }
        }
        let profile = self.knobs.profile;
        if high.is_none() && self.limits.high == default_high(self.limits.max, profile) {
            now.limits.high = default_high(now.limits.max, profile);
        }
        match (high, max) {
            _ if now.limits.high == u64::MAX || now.limits.high <= now.limits.max => Ok(now),
            (Some(high), _) => Err(high.refuse(format_args!(
                "`{}` is above memory.max, {}: give a smaller size",
                high.text,
                exact(now.limits.max)
            ))),
            (None, Some(max)) => Err(max.refuse(format_args!(
                "`{}` is below memory.high, {}: give memory.high=SIZE, too",
                max.text,
                exact(now.limits.high)
            ))),
            // It was so before.
            (None, None) => Ok(now),
        }
    }

    /// What has changed, a line each: what it is, and what it was.
    fn told(&self, before: &Now, given: &[Setting]) -> String {
        let mut out = String::new();
        let mut line = |key: &str, is: String, was: String, why: &str| {
            let _ = writeln!(out, "{key}={is} (was {was}){why}");
        };
        let mut follows = self.limits.high != before.limits.high;
        for setting in given {
            let key = setting.key.as_str();
            let limit = match key {
                "memory.max" => Some([self, before].map(|now| now.limits.max)),
                "memory.high" => Some([self, before].map(|now| now.limits.high)),
                "memory.swap.max" => Some([self, before].map(|now| now.limits.swap_max)),
                _ => None,
            };
            follows &= key != "memory.high";
            match (limit, Tunables::KNOBS.iter().find(|knob| knob.key == key)) {
                (Some([is, was]), _) => line(key, exact(is), exact(was), ""),
                (None, Some(knob)) => {
                    let [is, was] = [self, before].map(|now| knob.value(&now.knobs).to_string());
                    line(key, is, was, "");
                }
                (None, None) => {}
            }
        }
        if follows {
            let [is, was] = [self, before].map(|now| exact(now.limits.high));
            line("memory.high", is, was, ", as by default");
        }
        out
    }
}

/// Sets a knob, if it may change now.
fn put(setting: &Setting, knobs: &mut Tunables) -> Result<(), Fail> {
    if setting.when() == Some(When::Start) {
        return Err(setting.refuse(format_args!(
            "cannot change while the tree runs, since what it has done so far would be wrong: \
             start it anew with `deckle run --set {}={}`",
            setting.key, setting.text
        )));
    }
    setting.put(knobs)
}

/// A limit of so many pages, as it can be given.
fn exact(pages: u64) -> String {
    if pages == u64::MAX {
        return "max".to_owned();
    }
    let bytes = pages.saturating_mul(PAGE);
    match bytes.trailing_zeros() {
        30.. => format!("{}G", bytes >> 30),
        20.. => format!("{}M", bytes >> 20),
        _ => format!("{}K", bytes >> 10),
    }
}

/// Waits until usage is at most `max` pages. Every process works on it by itself: this only has
/// them begin at once.
fn come_below(group: &Group, max: u64) {
    if !group.is_lowered() {
        return;
    }
    for process in group.processes() {
        let _ = group.ask_below_max(process.line);
    }
    let from = Instant::now();
    while group.usage() > max && from.elapsed() < PATIENCE && group.limits().max == max {
        std::thread::sleep(Duration::from_millis(5));
    }
    let usage = group.usage();
    if group.is_lowered() && group.limits().max == max {
        say(format_args!(
            "{} is charged still: processes go on giving back, and grow no more until it is less",
            table::short(usage.saturating_mul(PAGE))
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now(max: u64, high: u64) -> Now {
        Now {
            limits: Limits {
                max: max << 8,
                high: high << 8,
                swap_max: u64::MAX,
            },
            knobs: Tunables::default(),
        }
    }

    fn with(before: &Now, given: &[&str]) -> Result<(Now, String), String> {
        let given: Vec<String> = given.iter().map(|text| (*text).to_owned()).collect();
        let given = parse(&given).map_err(|e| e.text)?;
        let after = before.with(&given).map_err(|e| e.text)?;
        Ok((after, after.told(before, &given)))
    }

    #[test]
    fn all_is_changed_or_nothing_and_what_it_was_is_told() {
        let before = now(256, 252);
        let (after, told) = with(&before, &["memory.max=1G", "vm.page-cluster=2"]).unwrap();
        assert_eq!((after.limits.max, after.limits.high), (1 << 18, 1008 << 8));
        assert_eq!(after.knobs.page_cluster, 2);
        let lines = [
            "memory.max=1G (was 256M)",
            "vm.page-cluster=2 (was 6)",
            "memory.high=1008M (was 252M), as by default",
        ];
        assert_eq!(told.lines().collect::<Vec<_>>(), lines);
        // What somebody has chosen stays.
        let (after, told) = with(&now(256, 100), &["memory.max=512M"]).unwrap();
        assert_eq!(after.limits.high, 100 << 8);
        assert_eq!(told, "memory.max=512M (was 256M)\n");
        let (after, _) = with(&before, &["memory.max=max"]).unwrap();
        assert_eq!((after.limits.max, after.limits.high), (u64::MAX, u64::MAX));
        let (after, told) = with(&before, &["memory.high=max", "memory.swap.max=5000K"]).unwrap();
        assert_eq!((after.limits.high, after.limits.swap_max), (u64::MAX, 1250));
        assert_eq!(
            told,
            "memory.high=max (was 252M)\nmemory.swap.max=5000K (was max)\n"
        );
    }

    #[test]
    fn what_cannot_be_is_refused_with_what_to_do() {
        for (given, part) in [
            (&["memory.max"][..], "write KEY=VALUE"),
            (&["memory.max=1G", "memory.max=2G"], "given twice"),
            (
                &["memory.max=1K"],
                "too small to run anything: give at least 4M",
            ),
            (&["memory.max=much"], "is not a size"),
            (&["memory.high=1K"], "at least one page"),
            (&["memory.high=300M"], "above memory.max, 256M"),
            (
                &["memory.max=100M", "memory.high=200M"],
                "above memory.max, 100M",
            ),
            (&["profile=linux"], "deckle run --set profile=linux"),
            (&["swap=none"], "cannot change while the tree runs"),
            (&["strict=on"], "cannot change while"),
            (&["vm.page-cluster=12"], "in 0 to 8"),
            (&["page-cluster=1"], "did you mean `vm.page-cluster`"),
        ] {
            let error = with(&now(256, 252), given).unwrap_err();
            assert!(error.contains(part), "{given:?}: {error}");
        }
        let error = with(&now(256, 200), &["memory.max=100M"]).unwrap_err();
        assert!(
            error.contains("is below memory.high, 200M: give memory.high"),
            "{error}"
        );
    }
}
