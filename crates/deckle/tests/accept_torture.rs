//! Threads, advice and forks under pressure: no byte is lost.

use crate::accept::*;
use crate::common::{self, Scratch};
use std::sync::atomic::Ordering::Relaxed;

#[test]
fn r98_torture_of_threads_loses_no_byte() {
    let _turn = turn();
    let ran = lab(
        "--memory-max 128M",
        "torture 512M --threads 4 --seconds 8 --no-fork",
    );
    ran.tell("torture, 512M in 128M");
    eprint!("{}", ran.out);
    ran.ended(0);
    assert!(ran.out.contains("every page right"));
}

#[test]
fn r98_p20_torture_of_forks_loses_no_byte() {
    let _turn = turn();
    let ran = lab("--memory-max 128M", "torture 512M --threads 4 --seconds 8");
    ran.tell("torture with forks, 512M in 128M");
    eprint!("{}", ran.out);
    ran.ended(0);
    assert!(ran.out.contains("every page right"));
    assert!(!ran.out.contains(" 0 forks"), "{}", ran.out);
}

/// Every few milliseconds, in each process, a huge page is made or taken apart by force.
#[test]
fn r93_r98_r141_r148_torture_with_forced_splits_and_collapses_loses_no_byte() {
    let test = "r93_r98_r141_r148_torture_with_forced_splits_and_collapses_loses_no_byte";
    let torture = "torture 512M --threads 4 --seconds 40 --seed 11 --rest 3";
    forced(test, "torture", torture);
}

/// Where no child shares them, the kernel gives back what goes of huge pages that were split.
#[test]
fn r93_r142_torture_with_forced_splits_leaves_nothing_behind_in_the_kernel() {
    let test = "r93_r142_torture_with_forced_splits_leaves_nothing_behind_in_the_kernel";
    let torture = "torture 512M --threads 4 --seconds 40 --seed 12 --rest 3 --no-fork";
    forced(test, "torture-alone", torture);
}

/// A torture with force in 320M, in a cgroup of this name, and looks at it while it rests.
fn forced(test: &str, name: &str, torture: &str) {
    let _turn = turn();
    if !root(test) {
        return;
    }
    let s = Scratch::new(name);
    let said = s.0.join("said");
    let words = [deckle_path(), "lab", "program"];
    let program: Vec<&str> = words.into_iter().chain(torture.split(' ')).collect();
    let (ran, looks) = gauges::at_rest(name, &said, "at rest", |enter, root| {
        run_with(
            "--memory-max 320M",
            &program,
            |c| {
                enter(c);
                c.env("DECKLE_FAULT", "force:11:3");
                c.stdout(std::fs::File::create(&said).unwrap());
            },
            |pid| root.store(pid, Relaxed),
        )
    });
    ran.tell("torture with force, 512M in 320M");
    let out = std::fs::read_to_string(&said).unwrap();
    eprint!("{out}");
    ran.ended(0);
    assert!(out.contains("every page right"), "{out}");
    let forced = ["thp_split_page", "thp_collapse_alloc", "thp_split_free"];
    for what in forced {
        eprintln!("{what} {}", ran.counter(what));
        assert!(ran.counter(what) > 100, "{what}");
    }
    // What is charged is what there is.
    assert_eq!(looks.len(), 5, "{out}");
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    // Where the host's setting is `always`, the kernel makes huge pages of other memory, too, and
    // holds them whole. Only scripts/test-thp asks there.
    let thp = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").unwrap();
    let held = !thp.contains("[always]");
    assert!(held || common::host::is_set(), "{thp}");
    let off = |m: &gauges::Moment| {
        let held = if held { m.cgroup_held } else { m.charged };
        [m.cgroup_anon, held, m.pss_anon].map(|g| mib(g) / mib(m.charged) - 1.0)
    };
    for m in &looks {
        eprintln!(
            "at rest: charged {:.1} MiB, cgroup {:.1} ({:.1} held), Pss_Anon {:.1}: {:+.2?}",
            mib(m.charged),
            mib(m.cgroup_anon),
            mib(m.cgroup_held),
            mib(m.pss_anon),
            off(m).map(|share| share * 100.0)
        );
    }
    let close = |m: &gauges::Moment| off(m).iter().all(|share| share.abs() <= 0.02);
    assert!(looks.iter().all(close), "2 % at each moment of rest");
}

#[test]
fn p10_p21_r98_coroutines_and_a_signal_handler_in_managed_memory() {
    let _turn = turn();
    let program = compile("coroutines", &[]);
    let ran = run("--memory-max 192M", &[&program, "10"]);
    ran.tell("coroutines, sigaltstack and a 1 kHz timer");
    eprint!("{}", ran.out);
    ran.ended(0);
    assert!(ran.out.contains("all right"), "{}", ran.out);
}

#[test]
fn p30_closing_all_descriptors_loses_no_byte() {
    let _turn = turn();
    let program = compile("closefrom", &[]);
    for how in ["closefrom", "close_range", "loop"] {
        let ran = run("--memory-max 64M", &[&program, how]);
        ran.expect("all right");
        assert!(ran.peak("swapped_bytes") > 100 << 20, "{how}");
    }
}
