//! Files of /proc.

use super::*;

#[test]
fn stat_is_read_past_a_name_with_spaces_and_brackets() {
    let text = b"42 (a) b (c)) S 7 42 42 0 -1 4194560 1 0 0 0 25 75 8 9 20 0 3 0 98765 1 2\n";
    let got = parse_stat(text).unwrap();
    assert_eq!(
        got,
        ProcStat {
            state: b'S',
            parent: 7,
            exiting: false,
            cpu: 100,
            threads: 3,
            start: 98765,
            memory: 1,
        }
    );
    let ends = b"7 (a) R (b) S 1 7 7 0 -1 4194308 0 0 0 0 25 75 0 0 39 19 3 0 99 0\n";
    assert!(parse_stat(ends).unwrap().exiting);
    for cut in [
        "42 (cut",
        "42 (cut) S 1 2",
        "42 (cut) S 7 42 42 0 -1 4194560 1 0 0 0 25",
    ] {
        assert_eq!(parse_stat(cut.as_bytes()), None);
    }
}

#[test]
fn own_stat_can_be_read_and_an_absent_pid_cannot() {
    let pid = std::process::id();
    let me = proc_stat(pid).unwrap();
    assert!(me.start > 0 && me.threads > 0 && !me.exiting);
    let own = std::fs::read_link("/proc/thread-self").unwrap();
    let tid = own.file_name().unwrap().to_str().unwrap().parse().unwrap();
    let task = task_stat(pid, tid).unwrap();
    // The task that asks runs.
    assert_eq!((task.state, task.exiting), (b'R', false));
    assert_eq!(task.parent, me.parent);
    // The longest path there is.
    for absent in [proc_stat(u32::MAX), task_stat(u32::MAX, u32::MAX)] {
        assert_eq!(absent, Err(Errno(libc::ENOENT)));
    }
}
