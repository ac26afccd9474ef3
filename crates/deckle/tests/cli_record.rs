//! `deckle run --record` and `deckle plot`.

use crate::common::*;
use crate::skipped::not_here;
use serde_json::Value;
use std::process::{Command, Stdio};

/// Works on 48 MiB for as many seconds.
fn walk(seconds: &str) -> Vec<&str> {
    let program = "lab program walk 48 uniform 1 --seconds";
    let mut words = vec![env!("CARGO_BIN_EXE_deckle")];
    words.extend(program.split(' '));
    words.push(seconds);
    words
}

fn lines(path: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
    lines.collect()
}

#[test]
fn a_record_agrees_with_the_statistics_of_the_run() {
    let s = Scratch::new("record");
    let [record, stats] = ["a.rec", "a.json"].map(|file| s.path(file));
    let mut args = "run --quiet --memory-max 32M --record"
        .split(' ')
        .collect::<Vec<_>>();
    args.extend([&record, "--stats", &stats, "--"].map(|s: &str| s));
    args.extend(walk("1"));
    let (status, _, err) = output(&args);
    assert_eq!((status, err.as_str()), (0, ""));
    let lines = lines(&record);
    let head = &lines[0];
    assert_eq!(head["deckle_record"], 1);
    assert_eq!(head["memory_max_bytes"], 32 << 20);
    assert_eq!(head["command"][3], "walk");
    let columns: Vec<&str> = (head["columns"].as_array().unwrap().iter())
        .map(|name| name.as_str().unwrap())
        .collect();
    let rows: Vec<&Vec<Value>> = lines.iter().filter_map(Value::as_array).collect();
    assert!(rows.len() >= 8, "{} samples in a second", rows.len());
    let column = |name: &str| -> Vec<u64> {
        let i = columns.iter().position(|c| *c == name).unwrap();
        rows.iter().map(|row| row[i].as_u64().unwrap()).collect()
    };
    let times = column("t_ms");
    assert!(times.is_sorted(), "{times:?}");
    let stats: Value = serde_json::from_slice(&std::fs::read(&stats).unwrap()).unwrap();
    // Counters are those of the end; a level was never above its peak, and came near it.
    for name in ["pgfault", "pgmajfault", "pswpout", "pswpin"] {
        let last = *column(name).last().unwrap();
        assert!(last > 0, "{name}");
        assert_eq!(stats["counters"][name], last, "{name}");
        assert!(column(name).is_sorted(), "{name}");
    }
    let (most, peak) = (
        column("memory_bytes").into_iter().max().unwrap(),
        stats["peak"]["memory_bytes"].as_u64().unwrap(),
    );
    assert!(most <= peak && most > peak / 2, "{most} of {peak}");
    let outside = *column("unmanaged_anon_bytes").last().unwrap();
    assert!(outside > 0, "stacks, at least");
    assert_eq!(stats["peak"]["unmanaged_anon_bytes"], outside);
    let marks: Vec<(&str, &str)> = (lines.iter().filter(|line| line["mark"].is_string()))
        .map(|m| {
            (
                m["mark"].as_str().unwrap(),
                m["what"].as_str().unwrap_or(""),
            )
        })
        .collect();
    assert_eq!(marks[0], ("start", "deckle"));
    assert_eq!(marks.last(), Some(&("end", "")));
    assert_eq!(lines.last().unwrap()["exit_status"], 0);
}

#[test]
fn a_record_is_shown_as_a_page_that_a_browser_reads() {
    let s = Scratch::new("plot");
    let record = s.path("<b>.rec");
    let mut args = "run --quiet --memory-max 32M --record"
        .split(' ')
        .collect::<Vec<_>>();
    args.extend([record.as_str(), "--"]);
    args.extend(walk("0.5"));
    args.push("--steps");
    assert_eq!(output(&args).0, 0);
    let (status, out, err) = output(&["plot", &record]);
    let page = format!("{record}.html");
    assert_eq!((status, out.trim(), err.as_str()), (0, page.as_str(), ""));
    let picture = s.path("a.svg");
    assert_eq!(output(&["plot", &record, "-o", &picture]).0, 0);
    let text = std::fs::read_to_string(&picture).unwrap();
    assert!(
        text.starts_with("<svg ") && text.ends_with("</svg>\n"),
        "{text}"
    );
    assert!(text.contains("limit 32.0 MiB") && !text.contains("NaN"));
    let text = std::fs::read_to_string(&page).unwrap();
    assert!(
        !text.contains("http://") || text.matches("http").count() == 2,
        "{text}"
    );
    let Some(browser) = ["chromium", "chromium-browser", "google-chrome"]
        .into_iter()
        .find(|name| Command::new(name).arg("--version").output().is_ok())
    else {
        return not_here("no chromium to show the page in");
    };
    let profile = format!("--user-data-dir={}", s.path("profile"));
    let shown = Command::new(browser)
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"])
        .args([&profile, &format!("file://{}", page.replace('<', "%3C"))])
        .stderr(Stdio::null())
        .output()
        .unwrap();
    let shown = String::from_utf8(shown.stdout).unwrap();
    // Only its script writes this.
    let (_, readout) = shown.split_once("id=\"readout\">").expect("the page");
    for word in [
        "Memory: huge pages",
        "charged",
        "Faults: all",
        "Pressure: some",
    ] {
        let (readout, _) = readout.split_once("</p>").unwrap();
        assert!(readout.contains(word), "{word}: {readout}");
    }
}

#[test]
fn a_changed_limit_and_what_users_asked_for_are_drawn() {
    let s = Scratch::new("steered");
    let [record, page, picture] = ["a.rec", "a.html", "a.svg"].map(|file| s.path(file));
    let name = format!("steered-{}.t", std::process::id());
    let mut args = "run --quiet --memory-max 64M --record"
        .split(' ')
        .collect::<Vec<_>>();
    args.extend([&record, "--name", &name, "--"].map(|s: &str| s));
    args.extend(walk("60"));
    let run = Running::start(&args);
    let has = |what: &str| {
        let text = std::fs::read_to_string(&record).unwrap_or_default();
        text.lines().any(|line| line.contains(what))
    };
    // A sample of the limit as it was, with memory in use.
    let charged = || {
        let text = std::fs::read_to_string(&record).unwrap_or_default();
        let rows = text
            .lines()
            .filter_map(|line| serde_json::from_str::<Vec<u64>>(line).ok());
        rows.map(|row| row[1]).max().unwrap_or(0)
    };
    until("memory is in use", || charged() > 40 << 20);
    for (verb, what, mark) in [
        ("set", "memory.max=32M", "\"mark\":\"set\""),
        ("reclaim", "1M", "\"mark\":\"reclaim\""),
    ] {
        let (status, _, err) = output(&[verb, &name, what]);
        assert_eq!(status, 0, "{verb}: {err}");
        until(mark, || has(mark));
    }
    let rows = lines(&record).len();
    until("two samples more", || lines(&record).len() > rows + 2);
    run.signal(libc::SIGTERM);
    run.end();
    for file in [&page, &picture] {
        assert_eq!(output(&["plot", &record, "-o", file]).0, 0);
        let text = std::fs::read_to_string(file).unwrap();
        for part in [
            "limit 32.0 MiB",
            " set memory.max=32M (was 64M), memory.high=",
            " reclaim ",
        ] {
            assert!(text.contains(part), "no `{part}` in {file}: {text}");
        }
        // The limit as it was is drawn, too.
        assert!(text.matches("stroke-dasharray").count() >= 2, "{text}");
    }
    let page = std::fs::read_to_string(page).unwrap();
    assert!(
        page.contains("limit 64.0 MiB at first, limit 32.0 MiB at last"),
        "{page}"
    );
}

#[test]
fn a_record_of_a_run_that_was_killed_can_be_shown() {
    let s = Scratch::new("cut");
    let record = s.path("a.rec");
    let args = [
        "run",
        "--quiet",
        "--record",
        &record,
        "--",
        "sh",
        "-c",
        "echo up; sleep 60",
    ];
    let mut run = Running::start(&args);
    run.wait_for("up");
    let begun = std::time::Instant::now();
    while lines(&record).len() < 5 {
        assert!(begun.elapsed() < PATIENCE);
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    run.0.kill().unwrap();
    run.0.wait().unwrap();
    assert_eq!(output(&["plot", &record]).0, 0);
    let page = std::fs::read_to_string(format!("{record}.html")).unwrap();
    assert!(page.contains("goes on, or was cut off"), "{page}");
}

#[test]
fn what_cannot_be_recorded_or_shown_is_told() {
    let s = Scratch::new("norecord");
    let junk = s.file("junk", b"x\n", 0o600);
    let record = |file: &str| output(&["run", "--record", file, "--", "true"]);
    let (status, out, err) = record("/dev/null");
    assert_eq!((status, out.as_str()), (125, ""));
    assert!(
        err.contains("--record: /dev/null: cannot be written: not a regular file"),
        "{err}"
    );
    let (status, _, err) = record(&s.path("none/a"));
    assert!(
        status == 125 && err.contains("none/a: cannot be written: "),
        "{err}"
    );
    for (args, why) in [
        (
            vec!["plot", &junk],
            "no record: make one with `deckle run --record",
        ),
        (vec!["plot", "/none"], "/none: no such file"),
        (vec!["plot", &junk, "-o", "a.png"], "name the file so"),
    ] {
        let (status, _, err) = output(&args);
        assert_eq!(status, 125, "{args:?}");
        assert!(
            err.contains(why) && err.lines().count() == 1,
            "{args:?}: {err}"
        );
    }
}
