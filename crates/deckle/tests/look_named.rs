//! Names of trees, where a process is meant: `deckle fit`, `inspect` and `fetch`.

use crate::common::*;
use crate::look::*;

#[test]
fn what_takes_a_process_takes_the_name_of_a_tree() {
    let name = unique("named");
    let deckle = env!("CARGO_BIN_EXE_deckle");
    let program = format!("{deckle} lab program walk 48 uniform 1 --seconds 60");
    let words: Vec<&str> = program.split(' ').collect();
    let run = start(&name, "--memory-max 256M", &words);
    until("the tree runs", || output(&["stat", &name]).0 == 0);
    until("memory is in use", || charged(&name) > 48 * MIB);
    let pid = number(&stat(&name), "/processes/0/pid");
    let fit = json(&["fit", &name, "--format", "json"]);
    assert!(number(&fit, "/bytes") >= 40 * MIB, "{fit}");
    let inspected = json(&["inspect", &name, "--format", "json"]);
    for process in inspected["processes"].as_array().unwrap() {
        assert_eq!(number(process, "/pid"), pid, "{inspected}");
    }
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let start_of_first = format!("0x{}", maps.split('-').next().unwrap());
    let (code, out, err) = output(&["fetch", &name, &start_of_first]);
    assert_eq!((code, err.as_str()), (0, ""));
    assert!(
        out.contains(&format!("of process {pid} are in memory")),
        "{out}"
    );
    run.signal(libc::SIGTERM);
    run.end();
    let none = format!("no tree that runs is called `{name}`");
    fails(&["fetch", &name, "0x1000"], &[&none]);
    fails(
        &["fit", &name],
        &["no such file", "no tree that runs is called so"],
    );
    fails(&["inspect", &name], &[&name]);
}

#[test]
fn of_several_processes_of_a_tree_one_must_be_named_where_one_is_meant() {
    let name = unique("several");
    let deckle = env!("CARGO_BIN_EXE_deckle");
    let walk = format!("{deckle} lab program walk 16 uniform 1 --seconds 60");
    let script = format!("{walk} & {walk} & wait");
    let run = start(&name, "--memory-max 256M", &["sh", "-c", &script]);
    until("the tree runs", || output(&["stat", &name]).0 == 0);
    until("both are in use", || charged(&name) > 32 * MIB);
    let processes = stat(&name)["processes"].as_array().unwrap().len();
    assert!(processes >= 2);
    fails(
        &["fetch", &name, "0x1000"],
        &["several processes: give the pid of one: "],
    );
    let fit = json(&["fit", &name, "--format", "json"]);
    assert!(number(&fit, "/bytes") >= 28 * MIB, "{fit}");
    drop(run);
}
