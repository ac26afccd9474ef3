//! What `deckle inspect` counts, beside a naive reading of the kernel's flags of frames.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsString;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::process::{Child, Command, Stdio};

use deckle_lab::host::Guard;
use deckle_lab::host::thp::{khugepaged_rests, set_sizes};
use serde_json::Value;

use crate::accept::turn;
use crate::common::*;
use crate::skipped::{not_here, skipped};

/// Memory in folios of each kind, some of which are cut, moved, locked and shared with a child.
/// Then both wait for the end of their input.
const SUBJECT: &str = "
import ctypes, os, sys
H, P = 2 << 20, 4096
libc = ctypes.CDLL(None)
word, number = ctypes.c_void_p, ctypes.c_int
libc.mmap.restype = libc.mremap.restype = word
libc.mmap.argtypes = [word, ctypes.c_size_t, number, number, number, ctypes.c_long]
libc.mremap.argtypes = [word, ctypes.c_size_t, ctypes.c_size_t, number, word]
libc.munmap.argtypes = libc.mlock.argtypes = [word, ctypes.c_size_t]
libc.madvise.argtypes = libc.mprotect.argtypes = [word, ctypes.c_size_t, number]
def area(begin, end):
    'From begin to end of memory that is aligned to huge pages, with nothing beside it.'
    at = libc.mmap(None, end + 2 * H, 0, 0x4022, -1, 0)
    at = (at + H - 1) // H * H
    libc.mprotect(at + begin, end - begin, 3)
    libc.madvise(at + begin, end - begin, 14)
    return at + begin
def write(at, size, step=P):
    for n in range(0, size, step):
        ctypes.memset(at + n, 90, 1)
huge = area(0, 12 * H)
write(huge, 12 * H, 50 << 10)
small = [area(H // 2, H) for _ in range(4)]
for at in small:
    write(at, H // 2)
libc.munmap(huge, 100 * P)
libc.munmap(huge + H + 200 * P, P)
libc.madvise(huge + 3 * H - 50 * P, 100 * P, 4)
libc.mprotect(huge + 4 * H, 100 * P, 1)
libc.mprotect(huge + 5 * H, 30 * P, 0)
other = area(0, 4 * H)
libc.mremap(huge + 6 * H + 100 * P, 50 * P, 50 * P, 3, other + 3 * P)
libc.mremap(huge + 7 * H, H, H, 3, other + 600 * P)
libc.mlock(huge + 8 * H, H)
libc.munmap(huge + 8 * H, 7 * P)
libc.munmap(small[0] + 8 * P, 3 * P)
told, tell = os.pipe()
child = os.fork()
if child == 0:
    write(huge + 9 * H, P)
    libc.munmap(huge + 10 * H, H // 2)
    write(small[1], P)
    os.write(tell, b'x')
    sys.stdin.read()
    os._exit(0)
os.read(told, 1)
libc.munmap(huge + 10 * H + H // 2, 9 * P)
write(huge + 11 * H + 77 * P, P)
print(os.getpid(), child, flush=True)
sys.stdin.read()
os.waitpid(child, 0)
";

/// Both end with it, also when a test fails.
struct Subject(Child, Vec<u32>);

impl Subject {
    fn start() -> Option<Subject> {
        let mut command = Command::new("python3");
        command.args(["-c", SUBJECT]);
        let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let Ok(mut child) = piped.spawn() else {
            not_here("no python3");
            return None;
        };
        let mut line = String::new();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        out.read_line(&mut line).unwrap();
        let pids = line.split_whitespace().map(|pid| pid.parse().unwrap());
        let pids: Vec<u32> = pids.collect();
        assert_eq!(pids.len(), 2, "{line}");
        Some(Subject(child, pids))
    }
}

impl Drop for Subject {
    fn drop(&mut self) {
        // The end of their input is the end of both.
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

/// A word of each page or frame.
struct Words(File);

impl Words {
    fn open(path: &str) -> Words {
        Words(File::open(path).unwrap_or_else(|e| panic!("{path}: {e}")))
    }

    fn of(&self, nth: u64) -> u64 {
        let mut word = [0; 8];
        self.0.read_exact_at(&mut word, nth * 8).unwrap();
        u64::from_ne_bytes(word)
    }
}

/// What there is in large folios, by asking for one page after the other.
#[derive(PartialEq, Debug)]
struct Naive {
    /// Mapped bytes by the size of their folio, in KiB.
    sizes: BTreeMap<u64, u64>,
    /// Huge pages, of which at least a page is mapped.
    huge: u64,
    /// Of these, how many are mapped by one entry.
    whole: u64,
    /// Bytes of them that nobody maps.
    unmapped: u64,
}

impl Naive {
    fn of(pid: u32) -> Naive {
        const HEAD: u64 = 1 << 15;
        const TAIL: u64 = 1 << 16;
        const THP: u64 = 1 << 22;
        const ZERO: u64 = 1 << 24;
        let pagemap = Words::open(&format!("/proc/{pid}/pagemap"));
        let (flags, counts) = (
            Words::open("/proc/kpageflags"),
            Words::open("/proc/kpagecount"),
        );
        let mut sizes: BTreeMap<u64, u64> = BTreeMap::new();
        // By the first frame of each folio, its frames.
        let mut folios: HashMap<u64, u64> = HashMap::new();
        let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
        for line in maps.lines().filter(|line| !line.contains("[vsyscall]")) {
            let (range, _) = line.split_once(' ').unwrap();
            let (start, end) = range.split_once('-').unwrap();
            let page = |text| u64::from_str_radix(text, 16).unwrap() / 4096;
            for page in page(start)..page(end) {
                let entry = pagemap.of(page);
                let (is_there, is_file) = (entry >> 63 == 1, entry >> 61 & 1 == 1);
                let mut frame = entry & ((1 << 55) - 1);
                if !is_there || is_file || flags.of(frame) & (THP | ZERO) != THP {
                    continue;
                }
                while flags.of(frame) & HEAD == 0 {
                    frame -= 1;
                }
                let size = || {
                    let behind = (frame + 1..).take_while(|n| flags.of(*n) & TAIL != 0);
                    1 + behind.count() as u64
                };
                let size = *folios.entry(frame).or_insert_with(size);
                *sizes.entry(size * 4).or_default() += 4096;
            }
        }
        let huge = folios.iter().filter(|(_, size)| **size == 512);
        let unmapped = |frame: &u64| (*frame..frame + 512).filter(|n| counts.of(*n) == 0).count();
        let smaps = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap();
        let whole = smaps.lines().find_map(|l| l.strip_prefix("AnonHugePages:"));
        let whole = whole.unwrap().trim().trim_end_matches(" kB");
        Naive {
            sizes,
            huge: huge.clone().count() as u64,
            whole: whole.parse::<u64>().unwrap() / 2048,
            unmapped: huge.map(|(frame, _)| unmapped(frame) as u64 * 4096).sum(),
        }
    }

    fn told(pid: u32) -> Naive {
        let (code, out, err) = output(&["inspect", &pid.to_string(), "--format", "json"]);
        assert_eq!((code, err.as_str()), (0, ""), "{out}");
        let said: Value = serde_json::from_str(&out).unwrap();
        let process = &said["processes"][0];
        let number = |key: &str| process[key].as_u64().unwrap();
        let sizes = process["folio_bytes_by_kib"].as_object().unwrap().iter();
        Naive {
            sizes: sizes
                .map(|(kib, bytes)| (kib.parse().unwrap(), bytes.as_u64().unwrap()))
                .collect(),
            huge: number("huge_pages"),
            whole: number("huge_pages") - number("not_mapped_whole"),
            unmapped: number("unmapped_bytes"),
        }
    }
}

#[test]
fn inspect_counts_folios_as_the_flags_of_frames_say_and_leaves_them_as_they_are() {
    let _turn = turn();
    // It sets what the host has, and another may have set.
    if host::is_set() {
        return;
    }
    if deckle_sys::process::effective_user() != 0 {
        return skipped("needs root");
    }
    let lab = [env!("CARGO_BIN_EXE_deckle"), "lab", "program"].map(OsString::from);
    let mut guard = Guard::new(&lab).unwrap();
    let sizes = [(64, "madvise"), (2048, "madvise")];
    let set = set_sizes(&mut guard, "madvise", &sizes).and_then(|()| khugepaged_rests(&mut guard));
    if let Err(why) = set {
        return skipped(why);
    }
    let Some(subject) = Subject::start() else {
        return;
    };
    let told: Vec<[Naive; 3]> = (subject.1.iter())
        .map(|pid| [Naive::of(*pid), Naive::told(*pid), Naive::of(*pid)])
        .collect();
    guard.undisturbed().unwrap();
    guard.finish().unwrap();
    for [before, said, after] in &told {
        assert_eq!(said, before);
        assert_eq!(after, before, "looking has changed it");
    }
    // There was something to be told.
    let [parent, child] = [0, 1].map(|nth| &told[nth][0]);
    if parent.huge < 12 {
        return skipped("no huge pages to be had by a touch");
    }
    assert_eq!((parent.whole, child.whole), (1, 1), "{told:?}");
    assert!(parent.unmapped > 0 && child.unmapped > 0, "{told:?}");
    assert!(parent.sizes[&64] > 1 << 20, "{parent:?}");
}
