//! Memory that programs map by instructions of their own, or by their own allocator, is found, and
//! managed where it is.

use crate::common::{Ran, compile, expect, figure, is_about_the_first, mebibytes, run};

const LIMIT: [&str; 2] = ["--memory-max", "96M"];

/// Of a program that is ended for what it has moved.
const MOVED: &str = "the program has moved it here by a system call that was not seen; killed";

/// Two thirds of what it touches do not fit; it would be outside the limit for good without that.
#[test]
fn memory_mapped_by_instructions_is_managed_and_right() {
    let program = compile("adopted", &[]);
    let ran = run(&LIMIT, &[program.to_str().expect("path"), "96"]);
    expect(&ran, "adopted right");
}

/// Whose page was taken out at the place where another came at that moment cannot be told: then the
/// program is ended, which is seldom, and never goes on with wrong bytes.
#[test]
fn what_is_moved_over_managed_memory_is_right_or_the_program_ends() {
    let program = compile("moved_over", &[]);
    let ran = run(&LIMIT, &[program.to_str().expect("path")]);
    if !ran.err.contains(MOVED) {
        expect(&ran, "moved over right");
        assert!(figure(&ran.err, "rounds: ") > 20, "{}", ran.err);
    }
}

/// While another thread moved memory unseen it was not looked whether evicted pages had been
/// discarded, and their old bytes came back, 3 in each round; pages of zeros that were moved before
/// they were protected were dropped with what the program wrote there, in one of 4 rounds.
#[test]
fn what_is_done_beside_moves_is_right() {
    let program = compile("moved_beside", &[]);
    for what in ["discarded", "zeros"] {
        let limit = ["--memory-max", "64M"];
        let ran = run(&limit, &[program.to_str().expect("path"), what]);
        expect(&ran, "moved beside right");
        assert!(figure(&ran.err, "rounds: ") > 50, "{}", ran.err);
    }
}

#[test]
fn forks_are_made_beside_a_thread_that_maps_and_unmaps_by_instructions() {
    let program = compile("mapped_beside_forks", &[]);
    let ran = run(&LIMIT, &[program.to_str().expect("path")]);
    expect(&ran, "mapped right");
    for what in ["rounds: ", "forks: "] {
        assert!(figure(&ran.err, what) > 20, "{}", ran.err);
    }
}

/// Runs keeps.c with a limit, behind `words` (a program that runs it, say).
fn run_keeps_behind(words: &[&str], max: &str, args: &[&str]) -> Ran {
    let program = compile("keeps", &[]);
    let program = [program.to_str().expect("path")];
    let limit = ["--memory-max", max];
    run(&limit, &[words, &program, args].concat())
}

/// The same alone.
fn run_keeps(max: &str, args: &[&str]) -> Ran {
    run_keeps_behind(&[], max, args)
}

/// The same, and that it is right.
fn keeps(max: &str, args: &[&str]) -> Ran {
    let ran = run_keeps(max, args);
    expect(&ran, "keeps right");
    ran
}

/// malloc was another than the program's: libraries that bind to libc before what is preloaded had
/// blocks that they could not free, settings and hooks of libc's had no effect.
#[test]
fn a_program_keeps_its_own_allocator() {
    if is_about_the_first() {
        return;
    }
    let (program, library) = (
        compile("keeps", &[]),
        compile("keeps_lib", &["-shared", "-fPIC"]),
    );
    let program = program.to_str().expect("path");
    for how in [
        &["env", program, "calls"][..],
        &["env", "MALLOC_PERTURB_=165", program, "calls"],
        &["env", program, "deep", library.to_str().expect("path")],
    ] {
        expect(&run(&LIMIT, how), "keeps right");
    }
}

/// Constructors of the program's libraries run before that of the one that is preloaded, if they
/// ask for that (`initfirst`). A thread of such a constructor was taken for the main thread, with
/// whose end the program was.
#[test]
fn blocks_of_the_time_before_the_start_are_the_allocators_as_well() {
    if is_about_the_first() {
        return;
    }
    let shared = ["-shared", "-fPIC", "-Wl,-z,initfirst"];
    for threads in [&[][..], &["-DTHREADS"]] {
        let library = compile("early_lib", &[&shared, threads].concat());
        let library = library.to_str().expect("path");
        let program = compile("keeps", &["-DEARLY", library]);
        let program = [program.to_str().expect("path"), "early"];
        expect(&run(&LIMIT, &program), "keeps right");
    }
}

/// 120 MiB of small and large blocks of two threads, of which a third is given back and taken anew.
#[test]
fn blocks_of_libcs_allocator_are_managed_from_the_start() {
    if is_about_the_first() {
        return;
    }
    let ran = keeps("48M", &["heap", "60"]);
    assert!(
        mebibytes(&ran.err, "resident peak ") <= 48.0 + 16.0,
        "{}",
        ran.err
    );
}

/// The break was set by deckle, and libc's allocator, which notes its own, had the program's part
/// of the heap as well: wrong bytes.
#[test]
fn a_program_may_have_a_part_of_the_main_heap() {
    if is_about_the_first() {
        return;
    }
    for max in ["16M", "1G"] {
        keeps(max, &["breaks"]);
    }
}

/// All tasks that read messages waited for one of them: nobody read of a move, and 9 of 24 runs
/// hung for more than 10 s. And what had been moved twice was taken for lost.
#[test]
fn blocks_that_libc_moves_are_right() {
    let mut ended = 0;
    for _ in 0..10 {
        let ran = run_keeps("24M", &["grows"]);
        if ran.err.contains(MOVED) {
            ended += 1;
        } else {
            expect(&ran, "keeps right");
        }
    }
    // One of some 300 was.
    assert!(ended <= 2, "{ended} of 10 ended");
}

/// Each page or two that a heap of a thread's grew by was a mapping: 36,000 of 180 MiB.
#[test]
fn the_heap_of_a_thread_is_a_few_mappings() {
    if is_about_the_first() {
        return;
    }
    keeps("48M", &["arena", "100"]);
}

/// An allocator that has libc's behind it took the program outside of the limit.
#[test]
fn blocks_of_an_allocator_before_libcs_are_managed_from_the_start() {
    if is_about_the_first() {
        return;
    }
    let wrapper = compile("wrapper_lib", &["-shared", "-fPIC"]);
    let preload = format!("LD_PRELOAD={}", wrapper.display());
    let ran = run_keeps_behind(&["env", &preload], "48M", &["heap", "60"]);
    expect(&ran, "keeps right");
    let peak = mebibytes(&ran.err, "resident peak ");
    let swaps = !ran.err.contains("deckle: swap     0 B out");
    assert!(swaps && peak <= 48.0 + 16.0, "{}", ran.err);
    assert!(ran.err.contains("programs unmanaged 0"), "{}", ran.err);
}

/// A block that is larger than what was left below half of the limit was left to the kernel as a
/// whole: 100 MiB within 64.
#[test]
fn a_block_for_which_there_is_no_room_is_managed_at_once() {
    if is_about_the_first() {
        return;
    }
    let ran = keeps("64M", &["one", "100"]);
    let peak = mebibytes(&ran.err, "resident peak ");
    assert!(peak <= 64.0, "{}", ran.err);
}

/// What mlockall locks was the kernel's for good, and outside the limit.
#[test]
fn blocks_that_are_locked_as_they_come_are_within_the_limit() {
    if is_about_the_first() {
        return;
    }
    for how in ["all", "future", "fault", "block"] {
        let ran = keeps("64M", &["locked", "36", how]);
        if how == "block" {
            // Small, and not touched before.
            keeps("64M", &["locked", "8", how]);
        }
        let none = ran.err.contains("deckle: swap     0 B out");
        assert!(
            none && mebibytes(&ran.err, "resident peak ") >= 36.0,
            "{how}: {}",
            ran.err
        );
        let ran = run_keeps("64M", &["locked", "80", how]);
        match how {
            "block" => assert!(ran.out.contains("no block is locked"), "{}", ran.err),
            _ => assert!(ran.err.contains("out of memory"), "{how}: {}", ran.err),
        }
    }
}
