//! What looking costs.

use std::fs::File;
use std::process::Stdio;
use std::time::Duration;

use crate::accept::{compile, turn};
use crate::common::*;
use crate::look::*;
use crate::skipped::not_here;

/// What is promised, in parts of a CPU, at one look a second.
const MOST: f64 = 0.001;

/// What the process has used of CPUs; none: nobody counts it.
fn used(pid: u32) -> Option<Duration> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/schedstat")).ok()?;
    let nanos = text.split(' ').next()?.parse().ok()?;
    (nanos > 0).then(|| Duration::from_nanos(nanos))
}

/// Parts of a CPU that looks in each format take. They begin at once, and one a second follows:
/// between two readings in the middle of a second there are as many looks as seconds.
fn costs(name: &str, formats: &[&str], s: &Scratch) -> Option<Vec<f64>> {
    const SECONDS: u32 = 5;
    let begin = |format: &&str| {
        let mut c = deckle(&["stat", name, "--interval", "1", "--format", format]);
        let file = File::create(s.0.join(format)).unwrap();
        Running(c.stdout(file).stderr(Stdio::null()).spawn().unwrap())
    };
    let looks: Vec<Running> = formats.iter().map(begin).collect();
    let all = || -> Option<Vec<Duration>> { looks.iter().map(|look| used(look.pid())).collect() };
    std::thread::sleep(Duration::from_millis(500));
    let before = all()?;
    std::thread::sleep(Duration::from_secs(SECONDS.into()));
    let after = all()?;
    let cost = |(after, before): (Duration, &Duration)| {
        (after - *before).as_secs_f64() / f64::from(SECONDS)
    };
    Some(after.into_iter().zip(&before).map(cost).collect())
}

#[test]
fn a_look_at_fifty_processes_each_second_takes_less_than_a_thousandth_of_a_cpu() {
    let _turn = turn();
    let forest = compile("forest", &[]);
    let name = unique("cost");
    let mut run = start(&name, "--memory-max 256M", &[&forest, "50", "2", "hold"]);
    let pid = filled(&mut run);
    let s = Scratch::new("cost");
    let formats = ["json", "openmetrics", "text"];
    // Other work on the machine takes their caches, and so makes looks dearer, never cheaper: the
    // least of some is what they cost.
    let mut least = [f64::INFINITY; 3];
    for _ in 0..4 {
        let Some(now) = costs(&name, &formats, &s) else {
            return not_here("no /proc/PID/schedstat");
        };
        for (least, now) in least.iter_mut().zip(now) {
            *least = least.min(now);
        }
        if least.iter().all(|cost| *cost < MOST) {
            break;
        }
    }
    eprintln!("parts of a CPU: {formats:?}: {least:.5?}");
    assert_eq!(number(&stat(&name), "/processes_now"), 50);
    for (format, cost) in formats.iter().zip(least) {
        assert!(cost > 0.0 && cost < MOST, "{format}: {cost:.5} of a CPU");
    }
    end_well(run, pid);
}
