//! Defect 20: the host swaps what deckle manages.

use crate::common::host::{Alone, alone};
use crate::common::{compile, deckle};
use crate::skipped::skipped;
use deckle_group::{Group, Name};
use deckle_lab::LabError;
use deckle_lab::host::{Guard, zram};
use std::io::{BufRead, BufReader, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const PAGE: u64 = 4096;
/// Bytes of the program's memory.
const BYTES: u64 = 24 << 20;

/// Real swap for this test alone, for as long as the guards are there.
fn swap() -> Option<(Guard, Alone)> {
    let alone = alone();
    let program = [deckle().into_os_string(), "lab".into(), "program".into()];
    let made = Guard::new(&program).and_then(|mut guard| {
        zram::swap_on(&mut guard, 1 << 30)?;
        Ok::<_, LabError>(guard)
    });
    let made = made.inspect_err(|e| skipped(e));
    Some((made.ok()?, alone))
}

/// Private memory without a file that a process may write: start and bytes of each mapping.
fn anonymous(pid: i32) -> Vec<(u64, u64)> {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    let one = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (start, end) = words.first()?.split_once('-')?;
        let number = |text| u64::from_str_radix(text, 16).ok();
        let is_ours = words.get(1)?.ends_with('p') && words.len() == 5;
        is_ours.then_some((number(start)?, number(end)? - number(start)?))
    };
    maps.lines().filter_map(one).collect()
}

/// Has the host swap out all that a process has, its service's memory too. Whether it has any.
fn swap_out(pid: i32, pidfd: &OwnedFd) -> bool {
    const PROCESS_MADVISE: libc::c_long = 440;
    let all = anonymous(pid);
    for &(start, bytes) in &all {
        let range = libc::iovec {
            iov_base: start as *mut libc::c_void,
            iov_len: bytes as usize,
        };
        let (fd, advice) = (pidfd.as_raw_fd(), libc::MADV_PAGEOUT);
        // SAFETY: one vector; the advice changes no byte, here or there.
        unsafe { libc::syscall(PROCESS_MADVISE, fd, &raw const range, 1, advice, 0) };
    }
    !all.is_empty()
}

/// Bytes of the program's memory that are there, swapped out by the host or not; and the latter.
fn resident(pid: i32, memory: u64) -> (u64, u64) {
    let smaps = std::fs::read_to_string(format!("/proc/{pid}/smaps")).expect("smaps");
    let (mut inside, mut rss, mut swapped) = (false, 0, 0);
    for line in smaps.lines() {
        let mut words = line.split_whitespace();
        let (name, number) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
        let kib = number.parse::<u64>().unwrap_or(0) << 10;
        match name {
            "Rss:" if inside => rss += kib,
            "Swap:" if inside => swapped += kib,
            range if !range.ends_with(':') => {
                let start = range.split('-').next().expect("start");
                let start = u64::from_str_radix(start, 16).expect("hex");
                inside = (memory..memory + BYTES).contains(&start);
            }
            _ => {}
        }
    }
    (rss + swapped, swapped)
}

/// The group of a process of it.
fn group(pid: i32) -> Group {
    let environ = std::fs::read(format!("/proc/{pid}/environ")).expect("environ");
    let mut all = environ.split(|b| *b == 0);
    let name = all.find_map(|v| v.strip_prefix(b"DECKLE_GROUP="));
    let name = Name::new(name.expect("a group")).expect("name");
    Group::attach(name).expect("page")
}

struct Killed(Child);
impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Pages that had been moved as entries of the host's swap counted as not moved: what a page was
/// known of was dropped, or an eviction was done twice. No byte may be lost, and each page that is
/// there counts as such, wherever the host has it.
#[test]
fn d20_what_the_host_swaps_out_keeps_its_bytes_and_is_counted() {
    let Some(_swap) = swap() else { return };
    let program = compile("d20_host_swap", &[]);
    let mut command = Command::new(deckle());
    command
        .args(["run", "--memory-max", "64M", "--"])
        .arg(program);
    let piped = command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = Killed(piped.spawn().expect("spawn"));
    let mut lines = BufReader::new(child.0.stdout.take().expect("piped")).lines();
    let mut told = |what: &str| {
        let line = lines.next().expect("a line").expect("text");
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        assert_eq!(words[0], what, "{line}");
        let memory = u64::from_str_radix(words[2].trim_start_matches("0x"), 16);
        (
            words[1].parse::<i32>().expect("pid"),
            memory.expect("address"),
        )
    };
    let (pid, _) = told("ready");
    let pidfd = deckle_sys::pidfd::open(pid as u32).expect("a pidfd").into();
    let stop = std::sync::atomic::AtomicBool::new(false);
    let memory = std::thread::scope(|s| {
        s.spawn(|| {
            while !stop.load(std::sync::atomic::Ordering::Relaxed) && swap_out(pid, &pidfd) {
                std::thread::sleep(Duration::from_millis(3));
            }
        });
        let (_, memory) = told("quiet");
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        memory
    });
    swap_out(pid, &pidfd);
    // The gauges are published ten times a second.
    std::thread::sleep(Duration::from_millis(500));
    let (there, swapped) = resident(pid, memory);
    let line = group(pid).processes().find(|p| p.pid == pid as u32);
    let counted = line.expect("its line").gauges.resident * PAGE;
    eprintln!("there {there}, of it swapped out {swapped}, counted {counted}");
    assert!(
        swapped > 1 << 20,
        "the host has swapped {swapped} bytes out"
    );
    // Its heap counts, too.
    assert!(
        (there..=there + (4 << 20)).contains(&counted),
        "{there} {counted}"
    );
    // To the program, whose end we have not been told.
    deckle_sys::signal::send(pid, libc::SIGUSR1).expect("it is there");
    let last = lines.next().expect("a line").expect("text");
    let mut err = String::new();
    let from = child.0.stderr.as_mut().expect("piped");
    from.read_to_string(&mut err).expect("errors");
    assert_eq!(last, "d20 right", "{err}");
}
