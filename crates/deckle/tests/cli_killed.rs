//! `deckle run` is killed: nothing of its tree is left.

use crate::accept::{compile, deckle_path, turn};
use crate::common::*;
use std::os::unix::process::CommandExt;
use std::time::{Duration, Instant};

/// What is promised.
const SOON: Duration = Duration::from_secs(1);

/// A `deckle run` whose processes can be told by a word in their environment or arguments.
struct Marked {
    run: Running,
    mark: String,
}

impl Marked {
    /// Starts `script`, in a process group of its own, and waits until there are `processes`
    /// (front, supervisor and services among them).
    fn start(name: &str, script: &str, processes: usize) -> Marked {
        let mark = format!("DECKLE_TEST_MARK={name}-{}", std::process::id());
        let (variable, value) = mark.split_once('=').unwrap();
        deckle_path();
        let mut c = deckle(&["run", "--memory-max", "96M", "--", "sh", "-c", script]);
        c.env(variable, value).process_group(0);
        let run = Running::spawn(&mut c);
        let it = Marked { run, mark };
        let mut before = Vec::new();
        until(&format!("{processes} processes of {name}"), || {
            let now = it.alive();
            let settled = now.len() == processes && (now == before || name.starts_with("hop"));
            before = now;
            std::thread::sleep(Duration::from_millis(20));
            settled
        });
        it
    }

    /// All processes, wherever they hang in the tree.
    fn alive(&self) -> Vec<u32> {
        let all = std::fs::read_dir("/proc").unwrap().flatten();
        let pids = all.filter_map(|e| e.file_name().to_str()?.parse::<u32>().ok());
        pids.filter(|pid| {
            let read = |file| std::fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
            let words = [read("environ"), read("cmdline")].concat();
            words.split(|b| *b == 0).any(|v| v == self.mark.as_bytes())
        })
        .collect()
    }

    /// The only child of the front.
    fn supervisor(&self) -> u32 {
        let of_front =
            |p: &u32| deckle_group::proc::proc_stat(*p).is_ok_and(|s| s.parent == self.run.pid());
        self.alive().into_iter().find(of_front).unwrap()
    }

    /// Measures how long they live on, then looks at what else is left.
    fn gone(&self, what: &str, from: Instant) {
        until("the tree is gone", || self.alive().is_empty());
        let took = from.elapsed();
        eprintln!("{what}: gone after {took:.1?}");
        assert!(took < SOON, "{what}: {took:?}");
        until("the group's page is removed", || {
            group_page(self.run.pid()).is_none()
        });
    }
}

impl Drop for Marked {
    /// Whatever a failed test leaves.
    fn drop(&mut self) {
        self.alive()
            .into_iter()
            .for_each(|pid| kill(pid, libc::SIGKILL));
    }
}

/// Scripts, and how many processes each has together with front and supervisor.
fn trees() -> Vec<(&'static str, String, usize)> {
    let (small, fixed) = (compile("daemon", &[]), compile("daemon", &["-static"]));
    let keeper = compile("keeper", &[]);
    vec![
        ("small", "sleep 1000 & sleep 1000".into(), 2 + 3),
        (
            "static",
            format!("{fixed} wait & {fixed} daemon; wait"),
            2 + 3,
        ),
        ("first-static", format!("exec {fixed} wait"), 2 + 1),
        ("daemon", format!("{small} daemon; exec sleep 1000"), 2 + 2),
        ("daemon-left", format!("{small} daemon; exit 3"), 2 + 1),
        (
            "empty",
            format!(
                "env -i {small} daemon \
                     DECKLE_TEST_MARK=$DECKLE_TEST_MARK; exec sleep 1000"
            ),
            2 + 2,
        ),
        // Two programs with a service each.
        (
            "managed",
            format!("{keeper} 60 loop & {keeper} 60 wait & wait"),
            2 + 1 + 4,
        ),
        (
            "all",
            format!(
                "{keeper} 60 loop & {small} daemon; {fixed} daemon; {small} wait & \
                 {fixed} wait & wait"
            ),
            2 + 1 + 2 + 4,
        ),
    ]
}

#[test]
fn p22_killing_the_front_ends_every_tree() {
    let _turn = turn();
    for (name, script, processes) in trees() {
        let it = Marked::start(&format!("front-{name}"), &script, processes);
        let from = Instant::now();
        it.run.signal(libc::SIGKILL);
        it.gone(&format!("front killed, {name}"), from);
    }
}

#[test]
fn p22_killing_the_supervisor_ends_every_tree_with_one_line() {
    let _turn = turn();
    for (name, script, processes) in trees() {
        let mut it = Marked::start(&format!("supervisor-{name}"), &script, processes);
        let from = Instant::now();
        kill(it.supervisor(), libc::SIGKILL);
        it.gone(&format!("supervisor killed, {name}"), from);
        let status = it.run.0.wait().unwrap();
        assert_eq!(status.code(), Some(125), "{name}");
        use std::io::Read;
        let mut said = String::new();
        it.run
            .0
            .stderr
            .take()
            .unwrap()
            .read_to_string(&mut said)
            .unwrap();
        assert_eq!(said.matches("was killed by signal 9").count(), 1, "{said}");
    }
}

#[test]
fn p22_killing_the_whole_job_ends_every_tree() {
    let _turn = turn();
    for (name, script, processes) in trees() {
        let it = Marked::start(&format!("job-{name}"), &script, processes);
        let from = Instant::now();
        // The process group that was made for it.
        deckle_sys::signal::send(-(it.run.pid() as i32), libc::SIGKILL).unwrap();
        it.gone(&format!("process group killed, {name}"), from);
    }
}

#[test]
fn p22_a_process_that_goes_on_in_new_ones_is_caught() {
    let _turn = turn();
    let hop = compile("daemon", &[]);
    let script = format!("{hop} hop; {hop} hop; exec sleep 1000");
    for supervisor in [false, true] {
        let it = Marked::start(&format!("hop-{supervisor}"), &script, 2 + 3);
        let victim = if supervisor {
            it.supervisor()
        } else {
            it.run.pid()
        };
        let from = Instant::now();
        kill(victim, libc::SIGKILL);
        it.gone(
            &format!("two hopping daemons, supervisor killed: {supervisor}"),
            from,
        );
    }
}

#[test]
fn a_parent_that_ignores_its_children_does_not_cost_the_status() {
    let ignoring = |program: &[&str]| {
        let mut c = deckle(&["run", "--quiet", "--unmanaged", "--"]);
        c.args(program);
        // SAFETY: a system call on numbers.
        unsafe {
            c.pre_exec(|| {
                libc::signal(libc::SIGCHLD, libc::SIG_IGN);
                Ok(())
            })
        };
        finish(c.output().unwrap())
    };
    assert_eq!(ignoring(&["sh", "-c", "exit 6"]).0, 6);
    let (code, out, err) = ignoring(&["grep", "SigIgn", "/proc/self/status"]);
    assert_eq!(code, 0, "{err}");
    let mask = u64::from_str_radix(out.split_whitespace().nth(1).unwrap(), 16).unwrap();
    assert_eq!(mask >> (libc::SIGCHLD - 1) & 1, 1, "as it was: {out}");
}
