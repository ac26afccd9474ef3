//! What `deckle run` does with the services of its tree, with this test as the service.

use crate::common::*;
use deckle_group::proto::Link;
use deckle_group::{Gauges, Group, GroupCharge, LineId};
use deckle_mm::{Charge, Item, Stats};
use deckle_sys as sys;
use std::process::Command;

/// `deckle run` over a sleeping program, and its group.
fn start(stats: &str, more: &[&str]) -> (Running, u32, Group) {
    start_script(stats, more, "echo $$; exec sleep 1000")
}

fn start_script(stats: &str, more: &[&str], script: &str) -> (Running, u32, Group) {
    let mut args = vec!["run", "--unmanaged", "--stats", stats];
    args.extend(more);
    args.extend(["--", "sh", "-c", script]);
    let mut run = Running::start(&args);
    let program = run.wait_for("\n").trim().parse().unwrap();
    let group = run.group();
    (run, program, group)
}

/// Announces `service` as the service of `program`.
fn announce(group: &Group, program: u32, service: u32) -> Link {
    announce_as(group, program, service, LineId::NONE)
}

fn announce_as(group: &Group, program: u32, service: u32, line: LineId) -> Link {
    let link = Link::connect(group.name().as_bytes()).unwrap();
    let (a, b) = (
        sys::pidfd::open(service).unwrap(),
        sys::pidfd::open(program).unwrap(),
    );
    // SAFETY: a system call on numbers; the descriptor it returns is ours.
    let any = unsafe { sys::Fd::own(libc::eventfd(0, libc::EFD_CLOEXEC)) };
    link.hello((program, service), line, &[any.raw(), a.raw(), b.raw()])
        .unwrap();
    link
}

/// Open descriptors of `pid` whose target begins with `what`. By target, not in total: the
/// supervisor opens others for a moment whenever it looks at /proc.
fn open_files(pid: u32, what: &str) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/fd"))
        .unwrap()
        .flatten()
        .filter_map(|e| std::fs::read_link(e.path()).ok())
        .filter(|to| to.to_string_lossy().starts_with(what))
        .count()
}

const PIDFD: &str = "anon_inode:[pidfd]";
/// Stands for the userfaultfd.
const UFFD: &str = "anon_inode:[eventfd]";
const SOCKET: &str = "socket:";

#[test]
fn p22_the_program_of_a_dead_service_is_killed_with_one_line() {
    let s = Scratch::new("dead");
    let stats = s.0.join("stats");
    let (run, program, group) = start(stats.to_str().unwrap(), &["--quiet"]);
    let mut service = Command::new("sleep").arg("1000").spawn().unwrap();
    let _link = announce(&group, program, service.id());
    let deckle = parent(program);
    until("deckle holds the descriptors", || {
        open_files(deckle, PIDFD) == 2 && open_files(deckle, UFFD) == 1
    });
    service.kill().unwrap();
    service.wait().unwrap();
    let (code, _, err) = run.end();
    assert_eq!(code, 137, "{err}");
    assert_eq!(err.lines().count(), 1, "{err}");
    assert!(
        err.contains(&format!("process {program}: its memory manager died")),
        "{err}"
    );
}

#[test]
fn a_service_that_says_goodbye_takes_nothing_with_it() {
    let s = Scratch::new("bye");
    let stats = s.0.join("stats");
    let (run, program, group) = start(stats.to_str().unwrap(), &["--quiet"]);
    let deckle = parent(program);
    let mut service = Command::new("sleep").arg("1000").spawn().unwrap();
    let link = announce(&group, program, service.id());
    until("deckle holds a duplicate of each descriptor", || {
        open_files(deckle, PIDFD) == 2 && open_files(deckle, UFFD) == 1
    });
    link.bye().unwrap();
    until("all but the service's are let go", || {
        open_files(deckle, PIDFD) == 1 && open_files(deckle, UFFD) == 0
    });
    drop(link);
    // Those that are left are the two where connections come in, and the one to the front.
    until("the connection too", || open_files(deckle, SOCKET) == 3);
    service.kill().unwrap();
    service.wait().unwrap();
    until("the service's too", || open_files(deckle, PIDFD) == 0);
    until("the program lives on", || state(program) == 'S');
    kill(program, libc::SIGTERM);
    assert_eq!(run.end().0, 143);
}

#[test]
fn p22_a_service_that_outlives_its_program_is_not_waited_for() {
    let s = Scratch::new("linger");
    let stats = s.0.join("stats");
    // The service is a child of the program: with the program's end it becomes deckle's.
    let script = "sleep 1000 >&- 2>&- & echo $!; echo $$; exec sleep 1000";
    let (run, service, program, group) = {
        let (mut run, service, group) = start_script(stats.to_str().unwrap(), &["--quiet"], script);
        let program: u32 = run.wait_for("\n").trim().parse().unwrap();
        (run, service, program, group)
    };
    let deckle = parent(program);
    let link = announce(&group, program, service);
    until("deckle knows the service", || {
        open_files(deckle, PIDFD) == 2 && open_files(deckle, UFFD) == 1
    });
    kill(program, libc::SIGTERM);
    let (code, _, err) = run.end();
    assert_eq!(code, 143);
    assert_eq!(
        err,
        format!("deckle: process {service}: a memory manager outlived its program: killed\n"),
        "and it is not called a child of the program"
    );
    assert_eq!(state(service), '-', "killed and reaped");
    drop(link);
}

#[test]
fn a_service_that_stays_after_its_goodbye_is_killed() {
    use std::os::unix::process::ExitStatusExt;
    let s = Scratch::new("stays");
    let stats = s.0.join("stats");
    let (run, program, group) = start(stats.to_str().unwrap(), &["--quiet"]);
    let mut service = Command::new("sleep").arg("1000").spawn().unwrap();
    let link = announce(&group, program, service.id());
    link.bye().unwrap();
    assert_eq!(service.wait().unwrap().signal(), Some(libc::SIGKILL));
    assert_eq!(state(program), 'S', "the program has another one by now");
    kill(program, libc::SIGTERM);
    let (code, _, err) = run.end();
    assert_eq!((code, err.lines().count()), (143, 1), "{err}");
}

#[test]
fn a_kill_at_the_limit_is_reported_once_and_gives_137() {
    let s = Scratch::new("oom");
    let path = s.0.join("stats");
    let (run, program, group) = start(path.to_str().unwrap(), &["--memory-max", "64M"]);
    let id = group.join(program, 0).unwrap();
    let charge = GroupCharge::new(group, id);
    charge.try_charge(16_350).unwrap();
    assert!(charge.try_charge(1_000).is_err());
    let link = announce_as(&group, program, std::process::id(), id);
    let text = b"the report\n";
    // Two tasks run into the same limit.
    link.out_of_memory(id, 0, text).unwrap();
    link.out_of_memory(id, 0, text).unwrap();
    let (code, _, err) = run.end();
    assert_eq!(code, 137, "{err}");
    assert_eq!(err.matches("out of memory").count(), 1, "{err}");
    let json: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    assert_eq!(json["exit_status"], 137);
    assert_eq!(json["signal"], 9);
    assert_eq!(json["oom_kills"], 1);
}

#[test]
fn the_end_of_deckle_is_seen_as_the_end_of_the_connection() {
    let s = Scratch::new("eof");
    let stats = s.0.join("stats");
    let (run, _, group) = start(stats.to_str().unwrap(), &["--quiet"]);
    let link = Link::connect(group.name().as_bytes()).unwrap();
    run.signal(libc::SIGKILL);
    let mut set = [sys::poll::to_read(link.fd().raw())];
    assert_eq!(sys::poll::poll(&mut set, 60_000), Ok(1));
    assert_ne!(set[0].revents & (libc::POLLIN | libc::POLLHUP), 0);
    Group::unlink(group.name());
}

#[test]
fn what_services_say_publish_and_report_is_in_summary_and_stats() {
    let s = Scratch::new("say");
    let path = s.0.join("stats");
    let (run, program, group) = start(path.to_str().unwrap(), &["--memory-max", "64M"]);
    let id = group.join(program, 0).unwrap();
    let charge = GroupCharge::new(group, id);
    charge.try_charge(1000).unwrap();
    charge.try_charge_swap(300).unwrap();
    let counters = Stats::new();
    counters.add(Item::Pgfault, 42);
    counters.add(Item::Pswpout, 300);
    counters.add(Item::NrAnon, 1000);
    let gauges = Gauges {
        resident: 1000,
        swapped: 300,
        stored_pages: 51,
        stored_bytes: 204_800,
        ..Gauges::default()
    };
    group.publish(id, &gauges, &counters);
    let link = Link::connect(group.name().as_bytes()).unwrap();
    link.say(b"first of two lines\nsecond of two lines\n")
        .unwrap();
    link.unmanaged(b"/usr/bin/thing", b"it is statically linked")
        .unwrap();
    kill(program, libc::SIGTERM);
    let (code, _, err) = run.end();
    assert_eq!(code, 143);
    assert!(
        err.contains("first of two lines\nsecond of two lines\n"),
        "{err}"
    );
    assert!(
        err.contains("/usr/bin/thing: runs outside the limit: it is statically"),
        "{err}"
    );
    let text = std::fs::read_to_string(path).unwrap();
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(json["schema"], 1);
    assert_eq!(json["exit_status"], 143);
    assert_eq!(json["signal"], 15);
    assert_eq!(json["memory_max_bytes"], 64 << 20);
    assert!(json["peak"]["memory_bytes"].as_u64().unwrap() >= 1000 * 4096);
    assert_eq!(json["current"]["memory_bytes"], 0, "the dead hold nothing");
    assert_eq!(json["peak"]["resident_bytes"], 1000 * 4096);
    assert_eq!(json["peak"]["swapped_bytes"], 300 * 4096);
    assert_eq!(json["peak"]["stored_bytes"], 204_800);
    assert_eq!(
        json["programs_unmanaged"], 2,
        "--unmanaged itself, and the one reported"
    );
    for item in Item::ALL {
        assert!(
            json["counters"][item.name()].is_u64(),
            "{} is there",
            item.name()
        );
    }
    assert_eq!(json["counters"]["pgfault"], 42);
    assert_eq!(json["counters"]["pswpout"], 300);
    assert_eq!(
        json["counters"]["nr_anon"], 0,
        "a gauge ends with its process"
    );
}

#[test]
fn files_for_swapped_pages_are_given_to_who_asks_and_told_in_stats() {
    use std::os::fd::OwnedFd;
    use std::os::unix::fs::FileExt;
    let s = Scratch::new("files");
    let [stats, dir] = ["stats", "swap"].map(|name| s.0.join(name));
    std::fs::create_dir(&dir).unwrap();
    let swap = format!("zram:zstd,file:{}:1073741824", dir.display());
    let config = s.file("config", b"zswap.max_pool_percent = 30\n", 0o644);
    let more = ["--swap", &swap, "--config", &config];
    let (run, program, group) = start(stats.to_str().unwrap(), &more);
    let told = group.swap_file().unwrap();
    assert_eq!((told.bytes, told.ram_percent), (1 << 30, 30));
    let connect = || Link::connect(group.name().as_bytes()).unwrap();
    let (parent, child) = (connect(), connect());
    let file = |(number, fd): (u64, sys::Fd)| (number, std::fs::File::from(OwnedFd::from(fd)));
    let (first, theirs) = file(parent.file(0, 0).unwrap());
    let (second, other) = file(parent.file(0, 0).unwrap());
    assert!(first != 0 && second != 0 && first != second);
    #[repr(align(4096))]
    struct Block([u8; 4096]);
    let (written, mut read) = (Block([7; 4096]), Block([0; 4096]));
    theirs.write_all_at(&written.0, 8192).unwrap();
    // A child asks when its parent's connection has ended.
    drop((parent, theirs));
    let (number, again) = file(child.file(first, 1).unwrap());
    again.read_exact_at(&mut read.0, 8192).unwrap();
    assert!(number == first && read.0 == written.0);
    assert_eq!(other.metadata().unwrap().len(), 0, "another file");
    let unknown = child.file(first.wrapping_add(1), 1).map(drop);
    assert_eq!(unknown, Err(sys::Errno(libc::ENOENT)));
    assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 0, "no names");
    let id = group.join(program, 0).unwrap();
    let gauges = Gauges {
        swapped: 600,
        filed: 512,
        file_pages: 256,
        ..Gauges::default()
    };
    group.publish(id, &gauges, &Stats::new());
    kill(program, libc::SIGTERM);
    assert_eq!(run.end().0, 143);
    let text = std::fs::read_to_string(stats).unwrap();
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(json["peak"]["filed_bytes"], 512 * 4096);
    assert_eq!(json["peak"]["file_bytes"], 256 * 4096);
    assert_eq!(json["knobs"]["swap"], swap);
    assert_eq!(json["knobs"]["zswap"]["max_pool_percent"], 30);
}

#[test]
fn no_file_is_given_where_none_was_asked_for() {
    let s = Scratch::new("nofile");
    let stats = s.0.join("stats");
    let (run, program, group) = start(stats.to_str().unwrap(), &["--quiet"]);
    assert_eq!(group.swap_file(), None);
    let link = Link::connect(group.name().as_bytes()).unwrap();
    let refused = link.file(0, 0).map(drop);
    assert_eq!(refused, Err(sys::Errno(libc::ENOENT)));
    kill(program, libc::SIGTERM);
    assert_eq!(run.end().0, 143);
}

#[test]
fn memory_outside_the_limit_is_measured_once_per_page() {
    const MIB: u64 = 256; // pages
    let s = Scratch::new("anon");
    let stats = s.0.join("stats");
    // dd fills a buffer and waits for somebody to read it. (What tail keeps of a pipe is not
    // known: each short read takes a buffer of its own.)
    let script = "echo $$; dd if=/dev/zero bs=67108864 count=1 | sleep 1000";
    let (mut run, _, group) = start_script(stats.to_str().unwrap(), &["--quiet"], script);
    let peak = || group.peak_gauges().unmanaged_anon;
    until("the sample shows it", || peak() >= 64 * MIB);
    assert!(peak() < 80 * MIB, "{} pages", peak());
    // First the shell, then what it leaves.
    until("all have ended", || {
        run.signal(libc::SIGTERM);
        run.0.try_wait().unwrap().is_some()
    });
    let text = std::fs::read_to_string(stats).unwrap();
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    let bytes = json["peak"]["unmanaged_anon_bytes"].as_u64().unwrap();
    assert!((64 << 20..80 << 20).contains(&bytes), "{bytes}");
}
