//! `deckle fit`: what it says of a working set holds when that runs.

use crate::common::*;
use serde_json::Value;
use std::time::Instant;

const WALK: &str = "lab program walk 48 uniform 1 --seconds";

fn told(of: &str) -> Value {
    let (status, out, err) = output(&["fit", of, "--format", "json"]);
    assert_eq!((status, err.as_str()), (0, ""), "{of}");
    serde_json::from_str(&out).unwrap()
}

#[test]
fn the_least_limit_is_enough_and_three_quarters_of_it_are_not() {
    let args = format!("{WALK} 60");
    let natively = Running::start(&args.split(' ').collect::<Vec<_>>());
    let begun = Instant::now();
    // Until it has filled its memory.
    let said = loop {
        let said = told(&natively.pid().to_string());
        if said["bytes"].as_u64().unwrap() >= 48 << 20 {
            break said;
        }
        assert!(begun.elapsed() < PATIENCE, "{said}");
    };
    drop(natively);
    assert_eq!(said["swaps"][0]["swap"], "lz4");
    let least = &said["swaps"][0]["least"][0];
    assert_eq!(least["in_use_percent"], 0);
    let least = least["memory_max_bytes"].as_u64().unwrap();
    for (limit, status) in [(least, 0), (least / 4 * 3, 137)] {
        let limit = limit.to_string();
        let mut args = vec!["run", "--quiet", "--memory-max", &limit, "--"];
        args.push(env!("CARGO_BIN_EXE_deckle"));
        args.extend(WALK.split(' '));
        args.push("0.2");
        let got = output(&args);
        assert_eq!(got.0, status, "{limit} of {said}: {}", got.2);
    }
}

#[test]
fn a_file_is_told_of_as_it_is() {
    let s = Scratch::new("fit");
    let mut bytes = vec![0; 8 << 20];
    let mut random = 1_u64;
    for byte in &mut bytes[4 << 20..] {
        random = random.wrapping_mul(0xd134_2543_de82_ef95).wrapping_add(1);
        *byte = (random >> 56) as u8;
    }
    let file = s.file("half", &bytes, 0o600);
    let said = told(&file);
    assert_eq!(said["bytes"], 8 << 20);
    assert_eq!(said["zero_bytes"], 4 << 20);
    assert_eq!(
        said["swaps"][1]["page_bytes"], 4096,
        "no noise is compressed"
    );
    let (status, out, _) = output(&["fit", &file, "--memory-max", "6M"]);
    assert_eq!(status, 0);
    assert!(out.contains("zeros  50.0 %"), "{out}");
    assert!(out.contains("does not fit: give at least 8M"), "{out}");
    let (_, out, _) = output(&["fit", &file, "--memory-max", "8M"]);
    assert!(out.contains("4.0 MiB stay resident, 100 %"), "{out}");
}

#[test]
fn what_cannot_be_read_is_told_with_what_to_do() {
    for (args, why) in [
        (
            ["fit", "/dev/null", "--sample", "9"],
            "no regular file: give one",
        ),
        (
            ["fit", "4194303", "--sample", "9"],
            "there is no process 4194303",
        ),
        (
            ["fit", "/none", "--sample", "9"],
            "/none: no such file or directory",
        ),
        (["fit", "/none", "--memory-max", "x"], "--memory-max: "),
        (
            ["fit", "/none", "--memory-max", "3M"],
            "--memory-max: `3M` is too small to run anything: give at least 4M",
        ),
    ] {
        let (status, out, err) = output(&args);
        assert_eq!((status, out.as_str()), (125, ""), "{args:?}");
        assert!(
            err.contains(why) && err.lines().count() == 1,
            "{args:?}: {err}"
        );
    }
}
