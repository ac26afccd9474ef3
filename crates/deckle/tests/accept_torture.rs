//! Threads, advice and forks under pressure: no byte is lost.

mod accept;
mod common;

use accept::*;

#[test]
fn r98_torture_of_threads_loses_no_byte() {
    let _turn = turn();
    let ran = lab(
        "--memory-max 128M",
        "torture 512M --threads 4 --seconds 10 --no-fork",
    );
    ran.tell("torture, 512M in 128M");
    eprint!("{}", ran.out);
    ran.ended(0);
    assert!(ran.out.contains("every page right"));
}

#[test]
fn r98_p20_torture_of_forks_loses_no_byte() {
    let _turn = turn();
    let ran = lab("--memory-max 128M", "torture 512M --threads 4 --seconds 10");
    ran.tell("torture with forks, 512M in 128M");
    eprint!("{}", ran.out);
    ran.ended(0);
    assert!(ran.out.contains("every page right"));
    assert!(!ran.out.contains(" 0 forks"), "{}", ran.out);
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
