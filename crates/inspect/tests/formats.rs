//! A survey as text, JSON, CSV and OpenMetrics, and the change that keeps a budget.

use deckle_inspect::budget::{Change, smallest};
use deckle_inspect::text::Shown;
use deckle_inspect::{Options, PAGE, Survey, Target, json, lines, text};

use crate::common::{Subject, blocks};

/// A process of ten huge pages with 500 zero pages, and ten with 100.
fn survey() -> Option<(Subject, Survey)> {
    let zeros: Vec<u32> = [[500; 10], [100; 10]].concat();
    let subject = Subject::new(|| blocks(&zeros))?;
    let target = Target::Pid(subject.pid());
    let survey = Survey::take(&target, Options::default(), None, &mut |_| ()).unwrap();
    Some((subject, survey))
}

#[test]
fn all_ways_to_write_it_agree() {
    let Some((subject, survey)) = survey() else {
        return;
    };
    let pid = subject.pid().to_string();
    let (zeros, frees) = (6000 * PAGE, 5000 * PAGE);
    let json = json::json(&survey, None, 20, true);
    assert_eq!(json["schema"], 1);
    assert_eq!(json["total"]["zero_bytes"]["value"], zeros);
    assert_eq!(
        json["processes"][0]["would_free_bytes"]["409"]["value"],
        frees
    );
    assert_eq!(json["processes"][0]["vmas"][0]["huge_pages"], 20);

    let (head, csv) = (lines::csv_head(), lines::csv(&survey, 20));
    let head: Vec<&str> = head.trim().split(',').collect();
    let row: Vec<&str> = csv.trim().split(',').collect();
    assert_eq!(head.len(), row.len());
    let of = |name: &str| row[head.iter().position(|h| *h == name).unwrap()];
    assert_eq!((of("pid"), of("zero_bytes")), (&*pid, &*zeros.to_string()));
    assert_eq!(of("would_free_409"), frees.to_string());

    let metrics = lines::openmetrics(&survey, 20);
    let line = metrics
        .lines()
        .find(|l| l.contains("max_ptes_none=\"409\""));
    assert!(line.unwrap().ends_with(&format!(" {frees}")), "{line:?}");
    assert!(metrics.ends_with("# EOF\n"));
    let types = metrics.lines().filter_map(|l| l.strip_prefix("# TYPE "));
    let mut names: Vec<&str> = types.map(|l| l.split(' ').next().unwrap()).collect();
    let all = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), all, "a family is there twice");

    let shown = Shown {
        top: 20,
        vmas: true,
    };
    let text = text::text(&survey, None, shown);
    assert!(text.contains(&format!("{pid:>7}  ")), "{text}");
    // What is said in words is broken by the terminal.
    assert!(
        text.lines().all(|l| l.chars().count() <= 110
            || l.starts_with(['!', '-'])
            || l.starts_with("  ->")),
        "{text}"
    );
}

#[test]
fn the_smallest_change_keeps_the_budget_with_the_highest_threshold() {
    let Some((subject, survey)) = survey() else {
        return;
    };
    assert!(matches!(
        smallest(&survey, 6000 * PAGE),
        Change::None { .. }
    ));
    let Change::Threshold {
        max_ptes_none,
        splits,
        leaves,
        of,
        pids,
        ..
    } = smallest(&survey, 1000 * PAGE)
    else {
        panic!("a threshold is enough");
    };
    assert_eq!((max_ptes_none, splits.value as u64, of), (499, 10, 20));
    assert_eq!(
        (leaves.value as u64, pids),
        (1000 * PAGE, vec![subject.pid()])
    );
    let Change::Threshold { max_ptes_none, .. } = smallest(&survey, 999 * PAGE) else {
        panic!("a threshold is enough");
    };
    assert_eq!(max_ptes_none, 99);
}

#[test]
fn what_is_locked_no_threshold_gives_back() {
    let subject = Subject::new(|| {
        let memory = blocks(&[300])?;
        // SAFETY: a call on memory of our own, which changes no byte.
        let done = unsafe { libc::mlock(memory.as_ptr().cast(), memory.len()) };
        (done == 0).then_some(memory)
    });
    let Some(subject) = subject else { return };
    let target = Target::Pid(subject.pid());
    let survey = Survey::take(&target, Options::default(), None, &mut |_| ()).unwrap();
    let Change::TooSmall { leaves, locked } = smallest(&survey, 0) else {
        panic!("locked pages stay");
    };
    assert_eq!(
        (leaves.value as u64, locked.value as u64),
        (300 * PAGE, 300 * PAGE)
    );
}
