//! What a tree of processes really uses: a memory cgroup around it, and its Pss_Anon.

use std::ffi::OsString;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crate::common::host;
use deckle_group::{Group, Name};
use deckle_lab::host::{Guard, cgroup::Cgroup, pss};

/// Permission to change the host, restored whatever happens; one holder at a time.
pub fn guard() -> Guard {
    let program: Vec<OsString> = [super::deckle_path(), "lab", "program"]
        .map(Into::into)
        .into();
    Guard::new(&program).unwrap()
}

/// Ends a sampler also when the work panics.
pub struct Ends<'a>(pub &'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

fn enter(cgroup: &Cgroup, c: &mut Command) {
    let mut doors = cgroup.doors().unwrap();
    // SAFETY: writes to descriptors opened before; nothing else between fork and exec.
    unsafe { c.pre_exec(move || doors.iter_mut().try_for_each(|d| d.write_all(b"0"))) };
}

/// Peaks in bytes.
pub struct Peaks {
    pub cgroup_anon: u64,
    pub pss_anon: u64,
    pub samples: u32,
}

/// Measures while `work` runs a program: it is given what puts a command into the cgroup, and
/// the place for the pid of the tree's root.
pub fn measure<T>(
    name: &str,
    work: impl FnOnce(&dyn Fn(&mut Command), &AtomicU32) -> T,
) -> (T, Peaks) {
    // One guard at a time: where one holds the host already, the cgroup goes with that.
    let mut own = (!host::is_set()).then(guard);
    let cgroup = match &mut own {
        Some(guard) => Cgroup::new(guard, name).unwrap(),
        None => Cgroup::new(&mut host::guard().unwrap(), name).unwrap(),
    };
    let (root, end) = (AtomicU32::new(0), AtomicBool::new(false));
    let enter = |c: &mut Command| enter(&cgroup, c);
    let measured = std::thread::scope(|scope| {
        let sampler = scope.spawn(|| {
            let mut peaks = Peaks {
                cgroup_anon: 0,
                pss_anon: 0,
                samples: 0,
            };
            while !end.load(Relaxed) {
                peaks.cgroup_anon = peaks.cgroup_anon.max(cgroup.anon().unwrap_or(0));
                let pid = root.load(Relaxed);
                if pid != 0 && peaks.samples.is_multiple_of(8) {
                    peaks.pss_anon = peaks.pss_anon.max(pss::anon_of_tree(pid).unwrap_or(0));
                }
                peaks.samples += 1;
                std::thread::sleep(Duration::from_millis(3));
            }
            peaks
        });
        let ends = Ends(&end);
        let result = work(&enter, &root);
        drop(ends);
        (result, sampler.join().unwrap())
    });
    if let Some(guard) = own {
        guard.finish().unwrap();
    }
    measured
}

/// What CPUs of this machine have done since its start: all of them together, in seconds.
fn busy() -> f64 {
    let text = std::fs::read_to_string("/proc/stat").unwrap();
    let words = text.lines().next().unwrap().split_whitespace().skip(1);
    let ticks: Vec<f64> = words.map(|n| n.parse().unwrap()).collect();
    // Not what they waited for: idle, iowait. What guests did is in the first two.
    let ticks: f64 = ticks[..3].iter().chain(&ticks[5..8]).sum();
    ticks / 100.0
}

/// A clock that goes on while CPUs do the work of one tree, or nothing, and not while they do that
/// of others: of two CPUs of which others have one, it takes half of the time.
pub struct Clock {
    cgroup: Option<Cgroup>,
    cpus: f64,
}

impl Clock {
    /// Runs `work` with a clock, and with what puts a command into the tree. Without root it is any
    /// clock.
    pub fn with<T>(name: &str, work: impl FnOnce(&Clock, &dyn Fn(&mut Command)) -> T) -> T {
        let mut own = (super::root(name) && !host::is_set()).then(guard);
        let cgroup = match &mut own {
            Some(guard) => Cgroup::new(guard, name).ok(),
            None => host::guard().and_then(|mut guard| Cgroup::new(&mut guard, name).ok()),
        };
        let cpus = std::thread::available_parallelism().unwrap().get() as f64;
        let clock = Clock { cgroup, cpus };
        let enters = |c: &mut Command| {
            if let Some(cgroup) = &clock.cgroup {
                enter(cgroup, c);
            }
        };
        let done = work(&clock, &enters);
        if let Some(guard) = own {
            guard.finish().unwrap();
        }
        done
    }

    /// CPU seconds of others since the start.
    fn others(&self) -> f64 {
        let ours = |cgroup: &Cgroup| cgroup.cpu_seconds().ok().flatten();
        let ours = self.cgroup.as_ref().and_then(ours);
        ours.map_or(0.0, |ours| busy() - ours)
    }

    /// How long `work` takes by this clock, and by that of the wall.
    pub fn time(&self, work: impl FnOnce()) -> [Duration; 2] {
        let (from, others) = (Instant::now(), self.others());
        work();
        let (took, others) = (from.elapsed(), self.others() - others);
        let lost = Duration::from_secs_f64(others.max(0.0) / self.cpus);
        [took.saturating_sub(lost), took]
    }
}

/// Bytes that a tree of processes uses at one moment, by what `deckle` has charged and by what
/// the system says.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    pub charged: u64,
    /// Anonymous memory of the cgroup that is mapped.
    pub cgroup_anon: u64,
    /// The same with what is held of huge pages that are mapped in part.
    pub cgroup_held: u64,
    pub pss_anon: u64,
}

/// The group of the programs under the `deckle run` with this pid.
pub fn group_below(root: u32) -> Option<Group> {
    let below = pss::tree(root).ok()?;
    below.into_iter().find_map(|pid| {
        let environ = std::fs::read(format!("/proc/{pid}/environ")).ok()?;
        let mut entries = environ.split(|b| *b == 0);
        let name = entries.find_map(|e| e.strip_prefix(b"DECKLE_GROUP="))?;
        Group::attach(Name::new(name).ok()?).ok()
    })
}

/// Runs `work` as [`measure`] does, and takes a look at the tree as soon as the file `said`
/// contains `at_rest`, five times. The host's THP setting is `madvise` meanwhile, unless this whole
/// test program has another.
pub fn at_rest<T>(
    cgroup_name: &str,
    said: &Path,
    at_rest: &str,
    work: impl FnOnce(&dyn Fn(&mut Command), &AtomicU32) -> T,
) -> (T, Vec<Moment>) {
    let root = AtomicU32::new(0);
    let end = AtomicBool::new(false);
    let mut own = (!host::is_set()).then(guard);
    if let Some(guard) = &mut own {
        let setting = Path::new("/sys/kernel/mm/transparent_hugepage/enabled");
        guard.set(setting, "madvise").unwrap();
    }
    let cgroup = match &mut own {
        Some(guard) => Cgroup::new(guard, cgroup_name).unwrap(),
        None => Cgroup::new(&mut host::guard().unwrap(), cgroup_name).unwrap(),
    };
    let enter = |c: &mut Command| enter(&cgroup, c);
    let done = std::thread::scope(|scope| {
        let looker = scope.spawn(|| {
            let rests = || std::fs::read_to_string(said).is_ok_and(|t| t.contains(at_rest));
            while !rests() {
                if end.load(Relaxed) {
                    return Vec::new();
                }
                std::thread::sleep(Duration::from_millis(20));
            }
            let look = |_| {
                std::thread::sleep(Duration::from_millis(300));
                let root = root.load(Relaxed);
                Some(Moment {
                    charged: group_below(root)?.usage() * 4096,
                    cgroup_anon: cgroup.anon().ok()?,
                    cgroup_held: cgroup.held().ok()?,
                    pss_anon: pss::anon_of_tree(root).ok()?,
                })
            };
            (0..5).filter_map(look).collect()
        });
        let ends = Ends(&end);
        let result = work(&enter, &root);
        drop(ends);
        (result, looker.join().unwrap())
    });
    if let Some(guard) = own {
        guard.finish().unwrap();
    }
    done
}
