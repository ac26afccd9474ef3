//! A server for a minute, or for as many seconds as `DECKLE_SOAK` says: its memory is in RAM, in
//! the store and in a file, it saves again and again from a fork, and its limits change at random.
//! Each value that it gives is compared, those of its last dump natively; when all of its memory
//! has been read, nothing may be stored any more, nor charged that is not there.

use crate::accept::*;
use crate::common::{Running, Scratch, deckle, until};
use crate::skipped::not_here;
use deckle_group::{Group, Limits};
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;
const PAGE: u64 = 4096;
const KEYS: usize = 40_000;
/// Bytes of all values, in the mean.
const HELD: u64 = KEYS as u64 * 4096;
/// Commands that are sent at once.
const BATCH: usize = 50;
/// No answer takes so long, whatever the limit is.
const ANSWER: Duration = Duration::from_secs(60);

struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}

/// What a key holds at an age: of each two one does not compress, the other does 4:1 and more.
fn value(key: usize, age: u32) -> Vec<u8> {
    let mut rng = Rng((key as u64) << 32 | u64::from(age));
    let len = 1024 + rng.below(6144) as usize;
    let mut bytes = format!("{key}:{age}:").into_bytes();
    while bytes.len() < len {
        bytes.extend(rng.next().to_le_bytes());
        if key.is_multiple_of(2) {
            bytes.extend(b"and now the same again, and again");
        }
    }
    bytes
}

/// A connection to the server, and the files in which is said what became of it.
struct Server(BufReader<UnixStream>, Vec<PathBuf>);

impl Server {
    fn open(socket: &Path, told: Vec<PathBuf>) -> Server {
        until("the server listens", || UnixStream::connect(socket).is_ok());
        let stream = UnixStream::connect(socket).unwrap();
        stream.set_read_timeout(Some(ANSWER)).unwrap();
        let mut server = Server(BufReader::new(stream), told);
        until("the server has loaded", || {
            server.ask(&[vec![b"PING"]]) == [b"PONG"]
        });
        server
    }

    fn send(&mut self, commands: &[Vec<&[u8]>]) {
        let mut out = Vec::new();
        for words in commands {
            write!(out, "*{}\r\n", words.len()).unwrap();
            for word in words {
                write!(out, "${}\r\n", word.len()).unwrap();
                out.extend_from_slice(word);
                out.extend_from_slice(b"\r\n");
            }
        }
        self.0.get_mut().write_all(&out).unwrap();
    }

    /// Sends all commands, and reads an answer to each.
    fn ask(&mut self, commands: &[Vec<&[u8]>]) -> Vec<Vec<u8>> {
        self.send(commands);
        commands.iter().map(|_| self.answer()).collect()
    }

    fn answer(&mut self) -> Vec<u8> {
        let mut line = String::new();
        let read = self.0.read_line(&mut line);
        if !matches!(read, Ok(1..)) {
            let told = self.1.iter().map(std::fs::read_to_string);
            let told: Vec<String> = told.map(Result::unwrap_or_default).collect();
            panic!("no answer: {read:?}\n{}", told.join("\n"));
        }
        let (kind, rest) = line.trim_end().split_at(1);
        if kind != "$" {
            return rest.into();
        }
        let len: usize = rest.parse().expect("a value");
        let mut bytes = vec![0; len + 2];
        self.0.read_exact(&mut bytes).expect("all of it in time");
        bytes.truncate(len);
        bytes
    }

    fn one(&mut self, words: &[&[u8]]) -> String {
        String::from_utf8(self.ask(&[words.to_vec()]).remove(0)).unwrap()
    }

    fn set(&mut self, keys: &[usize], ages: &[u32]) {
        let all: Vec<_> = keys
            .iter()
            .map(|k| (k.to_string(), value(*k, ages[*k])))
            .collect();
        let commands: Vec<Vec<&[u8]>> = all
            .iter()
            .map(|(k, v)| vec![&b"SET"[..], k.as_bytes(), v])
            .collect();
        let done = self.ask(&commands);
        assert!(done.iter().all(|a| a == b"OK"), "{done:?}");
    }

    fn check(&mut self, keys: &[usize], ages: &[u32]) {
        let names: Vec<String> = keys.iter().map(usize::to_string).collect();
        let commands: Vec<Vec<&[u8]>> = names
            .iter()
            .map(|k| vec![&b"GET"[..], k.as_bytes()])
            .collect();
        for (key, got) in keys.iter().zip(self.ask(&commands)) {
            let right = got == value(*key, ages[*key]);
            let start = String::from_utf8_lossy(&got[..got.len().min(40)]).into_owned();
            assert!(right, "key {key}, age {}: {start:?}", ages[*key]);
        }
    }

    fn all(&mut self, ages: &[u32], what: fn(&mut Server, &[usize], &[u32])) {
        let keys: Vec<usize> = (0..KEYS).collect();
        for some in keys.chunks(BATCH) {
            what(self, some, ages);
        }
    }

    /// Whether it is saving; what it has saved last is right.
    fn saves(&mut self) -> bool {
        let info = self.one(&[b"INFO", b"persistence"]);
        assert!(info.contains("rdb_last_bgsave_status:ok"), "{info}");
        info.contains("rdb_bgsave_in_progress:1")
    }

    fn pid(&mut self) -> i32 {
        let info = self.one(&[b"INFO", b"server"]);
        let pid = info.lines().find_map(|l| l.strip_prefix("process_id:"));
        pid.expect("its pid").trim().parse().unwrap()
    }
}

/// Reads all that a process's private memory holds, so that nothing of it is swapped any more;
/// bytes that it has resident then.
fn bring_back(pid: i32) -> u64 {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let pagemap = File::open(format!("/proc/{pid}/pagemap")).unwrap();
    for line in maps.lines().filter(|l| l.contains(" rw-p ")) {
        let (range, _) = line.split_once(' ').unwrap();
        let (from, to) = range.split_once('-').unwrap();
        let page = |hex| u64::from_str_radix(hex, 16).unwrap() / PAGE;
        let mut entries = vec![0; ((page(to) - page(from)) * 8) as usize];
        pagemap.read_exact_at(&mut entries, page(from) * 8).unwrap();
        for (page, entry) in (page(from)..).zip(entries.as_chunks().0) {
            // Present, swapped, or marked by deckle: not a hole.
            if u64::from_le_bytes(*entry) >> 57 != 0 {
                read_page(pid, page);
            }
        }
    }
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let anon = status.lines().find_map(|l| l.strip_prefix("RssAnon:"));
    let kib = anon.unwrap().trim().trim_end_matches(" kB");
    kib.parse::<u64>().unwrap() * 1024
}

fn read_page(pid: i32, page: u64) {
    let _ = deckle_sys::process::peek(pid as u32, &[page * PAGE], &mut [0]);
}

/// Half to one and a half of what the server holds.
fn limits(rng: &mut Rng) -> Limits {
    let max = (HELD / 2 + rng.below(HELD)) / PAGE;
    let high = max - (max / 64).max(4 * MIB / PAGE);
    Limits {
        max,
        high,
        swap_max: u64::MAX,
    }
}

/// Changes the limits until told to stop; how often.
fn change_limits(group: &Group, end: &AtomicBool) -> u64 {
    let (mut rng, mut times) = (Rng(15), 0);
    while !end.load(Ordering::Relaxed) {
        group.set_limits(limits(&mut rng));
        times += 1;
        std::thread::sleep(Duration::from_millis(10 + rng.below(400)));
    }
    times
}

/// The server by its name: its package has it under that of a tool, too, which comes without a
/// daemon that would be started.
fn server_in(s: &Scratch) -> Option<String> {
    let tool = Path::new("/usr/bin/redis-check-rdb");
    let link = s.0.join("redis-server");
    let _ = std::os::unix::fs::symlink(tool, &link);
    tool.exists().then(|| link.to_str().unwrap().to_owned())
}

fn seconds() -> u64 {
    std::env::var("DECKLE_SOAK").map_or(60, |s| s.parse().expect("seconds in DECKLE_SOAK"))
}

#[test]
fn a_server_in_both_tiers_with_changing_limits_loses_and_leaks_nothing() {
    let _turn = turn();
    deckle_path();
    let s = Scratch::new("soak");
    let Some(program) = server_in(&s) else {
        not_here("no redis here (package redis-tools)");
        return;
    };
    let file = |name: &str| s.0.join(name).to_str().unwrap().to_owned();
    let options = |socket: &str| {
        let words = format!(
            "--port 0 --unixsocket {} --dir {} --dbfilename dump --logfile {} --save",
            file(socket),
            s.0.display(),
            file("log")
        );
        let mut all: Vec<String> = words.split(' ').map(str::to_owned).collect();
        all.push(String::new());
        all
    };
    let swap = format!("zram:lz4,file:{}", s.0.display());
    let stats = file("stats");
    let mut run = vec!["run", "--memory-max", "256M", "--swap", &swap];
    run.extend(["--stats", &stats, "--", &program]);
    let words = options("managed");
    run.extend(words.iter().map(String::as_str));
    let mut command = deckle(&run);
    let err = File::create(s.0.join("err")).unwrap();
    command.stdout(Stdio::null()).stderr(err);
    let mut running = Running(command.spawn().unwrap());
    let told = || ["err", "log"].map(|name| s.0.join(name)).to_vec();
    let mut server = Server::open(&s.0.join("managed"), told());
    let group = running.group();

    let (mut ages, mut rng) = (vec![0; KEYS], Rng(1));
    server.all(&ages, Server::set);

    let end = AtomicBool::new(false);
    let (mut reads, mut writes, mut saves) = (0u64, 0u64, 0u64);
    let from = Instant::now();
    let changes = std::thread::scope(|scope| {
        let ends = gauges::Ends(&end);
        let changing = scope.spawn(|| change_limits(&group, &end));
        let mut saved = Instant::now();
        while from.elapsed() < Duration::from_secs(seconds()) {
            let keys: Vec<usize> = (0..BATCH)
                .map(|_| rng.below(KEYS as u64) as usize)
                .collect();
            server.check(&keys, &ages);
            reads += BATCH as u64;
            if rng.below(3) == 0 {
                keys.iter().for_each(|k| ages[*k] = rng.next() as u32);
                server.set(&keys, &ages);
                writes += BATCH as u64;
            }
            if saved.elapsed() > Duration::from_secs(5) && !server.saves() {
                server.one(&[b"BGSAVE"]);
                saves += 1;
                saved = Instant::now();
            }
        }
        while server.saves() {
            std::thread::sleep(Duration::from_millis(50));
        }
        server.all(&ages, Server::check);
        drop(ends);
        changing.join().unwrap()
    });
    // All of it fits; holes are not filled ahead of need.
    let max = HELD * 15 / 8 / PAGE;
    group.set_limits(Limits {
        max,
        high: max,
        swap_max: u64::MAX,
    });
    assert_eq!(server.one(&[b"SAVE"]), "OK");
    let resident = bring_back(server.pid());
    std::thread::sleep(Duration::from_secs(2));
    let (charged, swapped) = (group.usage() * PAGE, group.gauges().swapped);
    let filed = group.file_bytes();
    let gauges = format!("{:?}", group.gauges());
    server.send(&[vec![b"SHUTDOWN", b"NOSAVE"]]);
    let status = running.0.wait().unwrap();
    let err = std::fs::read_to_string(s.0.join("err")).unwrap();
    assert!(status.success(), "{status}\n{err}");
    let stats: serde_json::Value = serde_json::from_slice(&std::fs::read(&stats).unwrap()).unwrap();
    let counter = |name: &str| stats["counters"][name].as_u64().unwrap();
    eprintln!(
        "{} s: {reads} reads, {writes} writes, {saves} saves, {changes} limits; in MiB: {} to the \
         store, {} to files, {} of files read; at the end {} are charged, {} resident, {} in files",
        from.elapsed().as_secs(),
        counter("pswpout") * PAGE / MIB,
        counter("zswpwb") * PAGE / MIB,
        counter("swpin_file") * PAGE / MIB,
        charged / MIB,
        resident / MIB,
        filed / MIB,
    );
    assert_eq!(stats["oom_kills"], 0, "{err}");
    assert!(
        counter("swpin_file") > 1000 && counter("zswpwb") > 1000,
        "{stats}"
    );
    assert!(saves > 0 && changes >= seconds(), "{saves} {changes}");
    // Everything was read: nothing is stored, and what is charged is there.
    assert_eq!((swapped, filed), (0, 0), "slots leak: {gauges}");
    assert!(
        charged < resident + 16 * MIB,
        "{charged} {resident}: memory leaks"
    );

    let mut native = Running::spawn(Command::new(&program).args(options("native")));
    let mut dumped = Server::open(&s.0.join("native"), told());
    dumped.all(&ages, Server::check);
    dumped.send(&[vec![b"SHUTDOWN", b"NOSAVE"]]);
    native.0.wait().unwrap();
}
