//! A file behind the RAM, under real programs.

use crate::accept::{Ran, have, run, turn};
use crate::common::Scratch;
use std::path::Path;

/// 160 MiB, of which three blocks in four do not compress, and what is done with them: every
/// block is known by its sum.
const HOLD: &str = "
import hashlib, os, random
N = 160
r = random.Random(7)
def block(k, v):
    if k % 4 == 0: return bytearray((b'%d %d ' % (k, v)) * (1 << 17))[:1 << 20]
    return bytearray(random.Random(k << 20 | v).randbytes(1 << 20))
def sum_of(b): return hashlib.blake2b(b, digest_size=8).digest()
b = [block(k, 0) for k in range(N)]
s = [sum_of(x) for x in b]
def look(times, write):
    for t in range(times):
        k = r.randrange(N)
        assert sum_of(b[k]) == s[k], k
        if write and t % 3 == 0:
            b[k] = block(k, t + 1); s[k] = sum_of(b[k])
look(200, True)
";

/// Children, and children of children whose parents end.
const FORKS: &str = "
def child(depth):
    p = os.fork()
    if p: return p
    r.seed(depth)
    look(60, True)
    # A grandchild whose parent ends before it reads.
    if depth: child(depth - 1)
    os._exit(0)
children = [child(d) for d in (0, 2)]
look(60, True)
for p in children: assert os.waitpid(p, 0)[1] == 0
";

fn hold(options: &str, more: &str) -> Ran {
    let script = format!(
        "{HOLD}{more}\nassert all(sum_of(x) == y for x, y in zip(b, s))\nprint('all right')"
    );
    run(options, &["python3", "-c", &script])
}

fn counter(ran: &Ran, name: &str) -> u64 {
    ran.stats["counters"][name].as_u64().unwrap()
}

fn swap(dir: &Path, more: &str) -> String {
    format!("--memory-max 64M --swap {more}file:{}", dir.display())
}

/// Whether some of the blocks can be read in the files, which `deckle run` has.
const READ: &str = "
def told():
    found, size = 0, 0
    some = [bytes(x[5000:5064]) for x in b[1:40:4]]
    for fd in os.listdir(f'/proc/{os.getppid()}/fd'):
        fd = f'/proc/{os.getppid()}/fd/{fd}'
        # Others of its descriptors come and go.
        try: name = os.readlink(fd)
        except FileNotFoundError: continue
        if '(deleted)' in name and 'swapsecret' in name:
            with open(fd, 'rb') as file:
                while held := file.read(1 << 18):
                    size += len(held)
                    found += sum(x in held for x in some)
    print('found', found > 0, 'in', size > 32 << 20)
told()
";

#[test]
fn an_encrypted_file_tells_nothing_and_children_read_their_parents() {
    let _turn = turn();
    if !have("an_encrypted_file_tells_nothing", "python3") {
        return;
    }
    let s = Scratch::new("swapsecret");
    let plain = hold(&swap(&s.0, ""), READ);
    plain.expect("found True in True");
    plain.expect("all right");
    let more = format!("{READ}{FORKS}");
    let secret = hold(&format!("{},encrypt", swap(&s.0, "")), &more);
    secret.tell("an encrypted file, and children of fork");
    secret.expect("found False in True");
    secret.expect("all right");
    assert!(counter(&secret, "swpin_file") > 5000);
}

#[test]
fn no_more_is_written_in_a_second_than_allowed() {
    let _turn = turn();
    if !have("no_more_is_written_in_a_second_than_allowed", "python3") {
        return;
    }
    let s = Scratch::new("swapwbps");
    let from = std::time::Instant::now();
    let ran = hold(&format!("{},wbps=24M", swap(&s.0, "zram:lz4,")), "");
    let took = from.elapsed().as_secs_f64();
    ran.tell("160 MiB in 64 MiB, 24 MiB a second");
    ran.expect("all right");
    // Raw pages, and the least that an encoding may be that goes there.
    let written = ran.stats["peak"]["file_bytes"].as_u64().unwrap() as f64;
    assert!(written > (64 << 20) as f64);
    let least = (written - (2 << 20) as f64) / (24 << 20) as f64;
    assert!(took >= least, "{took} s for {written} bytes");
}

#[test]
fn what_does_not_compress_lives_in_the_file_and_comes_back() {
    let _turn = turn();
    if !have("what_does_not_compress_lives_in_the_file", "python3") {
        return;
    }
    let s = Scratch::new("swapfile");
    for more in ["zram:lz4,", "zram:zstd,", ""] {
        let ran = hold(&swap(&s.0, more), "");
        ran.tell(&format!("160 MiB in 64 MiB, --swap {more}file"));
        ran.expect("all right");
        assert!(counter(&ran, "zswpwb") > 20_000 && counter(&ran, "swpin_file") > 5000);
        let peak = |name: &str| ran.stats["peak"][name].as_u64().unwrap();
        assert!(peak("filed_bytes") > 64 << 20 && peak("file_bytes") >= 64 << 20);
        assert!(ran.err.contains("deckle: file     "), "{}", ran.err);
        assert_eq!(ran.stats["programs_unmanaged"], 0);
        // Nothing has a name there, and nothing is left.
        assert_eq!(std::fs::read_dir(&s.0).unwrap().count(), 0);
    }
    // And without a file this is too much.
    hold("--memory-max 64M --swap zram:lz4", "").ended(137);
}

#[test]
fn children_of_fork_have_what_was_in_their_parents_file() {
    let _turn = turn();
    if !have(
        "children_of_fork_have_what_was_in_their_parents_file",
        "python3",
    ) {
        return;
    }
    let s = Scratch::new("swapfork");
    let ran = hold(&swap(&s.0, "zram:lz4,"), FORKS);
    ran.tell("children of fork and a file");
    ran.expect("all right");
    assert_eq!(ran.err.matches("killed").count(), 0, "{}", ran.err);
    assert_eq!(ran.stats["programs_unmanaged"], 0);
}

#[test]
fn a_file_at_its_size_is_the_end_of_memory_and_is_told() {
    let _turn = turn();
    if !have(
        "a_file_at_its_size_is_the_end_of_memory_and_is_told",
        "python3",
    ) {
        return;
    }
    let s = Scratch::new("swapfull");
    let ran = hold(&format!("{}:32M", swap(&s.0, "zram:lz4,")), "");
    ran.ended(137);
    assert!(ran.err.contains("out of memory"), "{}", ran.err);
    let peak = ran.stats["peak"]["file_bytes"].as_u64().unwrap();
    assert!((24 << 20..=32 << 20).contains(&peak), "{peak}");
}
