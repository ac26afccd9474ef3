//! One limit for several processes.

mod accept;
mod common;

use accept::*;

#[test]
fn r150_an_idle_process_makes_room_for_one_that_grows() {
    let _turn = turn();
    let keeper = compile("keeper", &[]);
    let s = common::Scratch::new("group");
    let said = s.0.join("said");
    let script = "
        $0 200 wait >$1 & idle=$!
        until grep -q filled $1; do sleep 0.05; done
        $0 200 check || exit 2
        kill -USR1 $idle
        wait $idle || exit 3
        cat $1";
    let program = ["bash", "-c", script, &keeper, said.to_str().unwrap()];
    let ran = run("--memory-max 256M", &program);
    ran.tell("200M idle, 200M growing, in 256M");
    ran.ended(0);
    assert_eq!(ran.out.matches("all right").count(), 2, "{}", ran.out);
    assert_eq!(ran.stats["oom_kills"], 0);
}

#[test]
fn r150_the_hog_is_killed_and_the_shell_goes_on() {
    let _turn = turn();
    let keeper = compile("keeper", &[]);
    let script = "
        x=$(seq 1000 | sort | tail -1)
        $0 400 check; echo \"hog ended with $?\"
        y=$(seq 1000 | sort | tail -1)
        [ \"$x\" = \"$y\" ] && echo shell goes on";
    let ran = run(
        "--memory-max 96M --swap none",
        &["bash", "-c", script, &keeper],
    );
    ran.tell("a hog beside a shell");
    ran.expect("hog ended with 137");
    ran.expect("shell goes on");
    assert_eq!(ran.stats["oom_kills"], 1);
    assert_eq!(ran.err.matches("deckle: out of memory").count(), 1);
}
