//! Programs that use a page here and there: what deckle's own tables take is in the limit.

use crate::accept::*;

/// What may pass the limit.
const SLACK: u64 = 16 << 20;

/// Runs the program in a limit of so many MiB; its largest anonymous memory, tables included.
fn peak(mode: &str, places: u64, stretch: u64, limit: u64) -> (Ran, u64) {
    let program = compile("sparse", &[]);
    let (places, stretch) = (places.to_string(), stretch.to_string());
    let (ran, peaks) = gauges::measure("accept", |enter, _| {
        let options = format!("--memory-max {limit}M");
        let program = [&program, mode, &places, &stretch];
        run_with(&options, &program, |c| enter(c), |_| ())
    });
    let mib = peaks.cgroup_anon >> 20;
    ran.tell(&format!(
        "{places} places, mode {mode}, {limit}M: {mib} MiB"
    ));
    assert!(peaks.samples > 10);
    (ran, peaks.cgroup_anon)
}

#[test]
fn tables_of_a_program_that_reads_here_and_there_stay_in_the_limit() {
    let _turn = turn();
    if !root("tables_of_a_program_that_reads_here_and_there_stay_in_the_limit") {
        return;
    }
    // 4 KiB each would be 10 times the limit, and what they take is twice it.
    let (ran, peak) = peak("r", 40_000, 2, 8);
    ran.expect("right");
    assert!(peak <= (8 << 20) + SLACK, "{peak} bytes");
}

#[test]
fn a_page_here_and_there_costs_less_than_a_page_of_tables() {
    let _turn = turn();
    if !root("a_page_here_and_there_costs_less_than_a_page_of_tables") {
        return;
    }
    const PLACES: u64 = 8_000;
    let (ran, peak) = peak("k", PLACES, 512, 256);
    ran.expect("right");
    assert!(peak <= PLACES * (4096 + 4096) + SLACK, "{peak} bytes");
}

#[test]
fn tables_of_what_is_unmapped_or_discarded_are_not_kept() {
    let _turn = turn();
    if !root("tables_of_what_is_unmapped_or_discarded_are_not_kept") {
        return;
    }
    for mode in ["u", "d"] {
        let (ran, peak) = peak(mode, 8_000, 512, 64);
        ran.expect("right");
        // Of what is discarded and read again the table of its zeros is there.
        assert!(peak <= 2 * SLACK, "{peak} bytes, mode {mode}");
    }
}
