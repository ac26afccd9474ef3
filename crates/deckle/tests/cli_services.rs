//! What `deckle run` does with the services of its tree, with this test as the service.

mod common;
use common::*;
use deckle_group::proto::Link;
use deckle_group::{Gauges, Group, GroupCharge, Name, sys};
use deckle_mm::{Charge, Item, Stats};
use std::process::Command;

/// `deckle run` over a sleeping program, and its group.
fn start(stats: &str, more: &[&str]) -> (Running, u32, Group) {
    let mut args = vec!["run", "--unmanaged", "--stats", stats];
    args.extend(more);
    args.extend(["--", "sh", "-c", "echo $$; exec sleep 1000"]);
    let mut run = Running::start(&args);
    let program = run.wait_for("\n").trim().parse().unwrap();
    let prefix = format!("deckle-{}-", run.pid());
    let file = std::fs::read_dir("/dev/shm")
        .unwrap()
        .flatten()
        .map(|e| e.file_name().into_string().unwrap())
        .find(|n| n.starts_with(&prefix))
        .expect("the group's page");
    let name = Name::new(file.strip_prefix("deckle-").unwrap().as_bytes()).unwrap();
    (run, program, Group::attach(name).unwrap())
}

/// Announces `service` as the service of `program`.
fn announce(group: &Group, program: u32, service: u32) -> Link {
    let link = Link::connect(group.name()).unwrap();
    let (a, b) = (
        sys::pidfd_open(service).unwrap(),
        sys::pidfd_open(program).unwrap(),
    );
    let any = sys::Fd::open(c"/dev/null", libc::O_RDWR, 0).unwrap();
    link.hello(program, service, [any.raw(), a.raw(), b.raw()])
        .unwrap();
    link
}

/// Descriptors that `pid` has open.
fn descriptors(pid: u32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/fd"))
        .unwrap()
        .count()
}

#[test]
fn p22_the_program_of_a_dead_service_is_killed_with_one_line() {
    let s = Scratch::new("dead");
    let stats = s.0.join("stats");
    let (run, program, group) = start(stats.to_str().unwrap(), &["--quiet"]);
    let mut service = Command::new("sleep").arg("1000").spawn().unwrap();
    let _link = announce(&group, program, service.id());
    let deckle = run.pid();
    until("deckle holds the descriptors", || descriptors(deckle) >= 8);
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
    let deckle = run.pid();
    let before = descriptors(deckle);
    let mut service = Command::new("sleep").arg("1000").spawn().unwrap();
    let link = announce(&group, program, service.id());
    until("deckle holds a duplicate of each descriptor", || {
        descriptors(deckle) == before + 4
    });
    link.bye().unwrap();
    until("they are let go", || descriptors(deckle) == before + 1);
    drop(link);
    until("the connection too", || descriptors(deckle) == before);
    service.kill().unwrap();
    service.wait().unwrap();
    std::thread::sleep(std::time::Duration::from_millis(50));
    assert_eq!(state(program), 'S', "the program lives on");
    kill(program, libc::SIGTERM);
    assert_eq!(run.end().0, 143);
}

#[test]
fn the_end_of_deckle_is_seen_as_the_end_of_the_connection() {
    let s = Scratch::new("eof");
    let stats = s.0.join("stats");
    let (run, _, group) = start(stats.to_str().unwrap(), &["--quiet"]);
    let link = Link::connect(group.name()).unwrap();
    run.signal(libc::SIGKILL);
    let mut p = libc::pollfd {
        fd: link.fd().raw(),
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one live pollfd.
    let n = unsafe { libc::poll(&mut p, 1, 60_000) };
    assert_eq!(n, 1);
    assert_ne!(p.revents & (libc::POLLIN | libc::POLLHUP), 0);
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
    let link = Link::connect(group.name()).unwrap();
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
