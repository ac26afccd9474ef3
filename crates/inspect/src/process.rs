//! Which processes are looked at.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::error::InspectError;

/// Who is meant.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Target {
    /// Every process but this one.
    All,
    /// This process.
    Pid(u32),
    /// Those of these numbers, as far as they still are there.
    Pids(Vec<u32>),
    /// Those of this name, as `ps -e` shows it.
    Name(String),
    /// Those of this cgroup and of all below it.
    Cgroup(PathBuf),
}

/// Where cgroups are; of version 1 those of the memory controller.
const CGROUPS: [&str; 3] = [
    "/sys/fs/cgroup",
    "/sys/fs/cgroup/unified",
    "/sys/fs/cgroup/memory",
];

/// Characters of a process's name; the kernel cuts off the rest.
const NAME: usize = 15;

impl Target {
    /// A number is a process, what has a slash is a cgroup, and everything else a name.
    pub fn parse(text: &str) -> Target {
        match text.parse() {
            Ok(pid) => Target::Pid(pid),
            Err(_) if text.contains('/') => Target::Cgroup(text.into()),
            Err(_) => Target::Name(text.chars().take(NAME).collect()),
        }
    }

    /// Those processes, by their numbers.
    ///
    /// # Errors
    /// There is none that was named.
    pub fn processes(&self) -> Result<Vec<Process>, InspectError> {
        let me = std::process::id();
        let pids: BTreeSet<u32> = match self {
            Target::Pid(pid) => {
                let none = match Path::new(&format!("/proc/{pid}/stat")).exists() {
                    true => InspectError::NoMemory(*pid),
                    false => InspectError::Gone(*pid),
                };
                return Process::of(*pid).map(|one| vec![one]).ok_or(none);
            }
            Target::Cgroup(path) => {
                let dir = cgroup(path).ok_or_else(|| InspectError::NoCgroup(path.clone()))?;
                let mut pids = BTreeSet::new();
                members(&dir, &mut pids);
                pids
            }
            Target::Pids(pids) => pids.iter().copied().collect(),
            Target::All | Target::Name(_) => running()?,
        };
        let others = pids.into_iter().filter(|pid| *pid != me);
        let all = others.filter_map(Process::of);
        let Target::Name(name) = self else {
            return Ok(all.collect());
        };
        let named: Vec<Process> = all.filter(|p| p.name == *name).collect();
        match named.is_empty() {
            true => Err(InspectError::NoSuch(name.clone())),
            false => Ok(named),
        }
    }
}

fn running() -> Result<BTreeSet<u32>, InspectError> {
    let entries = fs::read_dir("/proc").map_err(|why| InspectError::File {
        path: "/proc".into(),
        why,
    })?;
    let pid = |entry: fs::DirEntry| entry.file_name().to_str()?.parse().ok();
    Ok(entries.flatten().filter_map(pid).collect())
}

/// The directory of a cgroup that is given in full, or as it is called below the mount point.
fn cgroup(path: &Path) -> Option<PathBuf> {
    let below = path.strip_prefix("/").unwrap_or(path);
    let places = CGROUPS.iter().map(|root| Path::new(root).join(below));
    std::iter::once(path.to_owned())
        .chain(places)
        .find(|dir| dir.join("cgroup.procs").is_file())
}

fn members(dir: &Path, pids: &mut BTreeSet<u32>) {
    let text = fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default();
    pids.extend(text.lines().filter_map(|line| line.parse::<u32>().ok()));
    let Ok(entries) = fs::read_dir(dir) else {
        return;
    };
    let dirs = entries
        .flatten()
        .filter(|e| e.file_type().is_ok_and(|t| t.is_dir()));
    dirs.for_each(|entry| members(&entry.path(), pids));
}

/// A process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Process {
    /// Its number.
    pub pid: u32,
    /// What it calls itself, at most 15 characters.
    pub name: String,
    /// When it was started, in ticks since boot: with the number it is this one for good.
    pub start: u64,
}

impl Process {
    /// That of this number, if there is one that has memory of its own.
    pub fn of(pid: u32) -> Option<Process> {
        let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
        parse(pid, &String::from_utf8_lossy(&stat))
    }

    /// Whether it still is the same.
    pub fn is_there(&self) -> bool {
        Process::of(self.pid).is_some_and(|now| now.start == self.start)
    }

    /// Its memory cgroup, if that can be found.
    pub fn cgroup(&self) -> Option<PathBuf> {
        let text = fs::read_to_string(format!("/proc/{}/cgroup", self.pid)).ok()?;
        let of = |controller: &str| {
            text.lines().find_map(|line| {
                let mut fields = line.splitn(3, ':').skip(1);
                let (names, path) = (fields.next()?, fields.next()?);
                let ours = names.split(',').any(|name| name == controller);
                ours.then(|| path.trim_start_matches('/').to_owned())
            })
        };
        let one = of("memory").map(|path| Path::new(CGROUPS[2]).join(path));
        let two = of("").map(|path| Path::new(CGROUPS[0]).join(path));
        one.into_iter()
            .chain(two)
            .find(|dir| dir.join("cgroup.procs").is_file())
    }
}

/// The name in the second field may hold anything, so fields are counted from the last `)`.
fn parse(pid: u32, stat: &str) -> Option<Process> {
    let (head, rest) = stat.rsplit_once(')')?;
    let (_, name) = head.split_once('(')?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    // The third field of the file is the first here.
    let start = fields.get(22 - 3)?.parse().ok()?;
    let memory: u64 = fields.get(23 - 3)?.parse().ok()?;
    let name = name.chars().map(|c| if c.is_control() { '?' } else { c });
    (memory > 0).then(|| Process {
        pid,
        name: name.collect(),
        start,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_told_apart() {
        assert_eq!(Target::parse("17"), Target::Pid(17));
        assert_eq!(
            Target::parse("redis-server"),
            Target::Name("redis-server".into())
        );
        assert_eq!(
            Target::parse("a-name-that-is-too-long"),
            Target::Name("a-name-that-is-".into())
        );
        assert_eq!(
            Target::parse("system.slice/x.service"),
            Target::Cgroup("system.slice/x.service".into())
        );
    }

    #[test]
    fn a_name_may_hold_anything() {
        let stat = "7 (a) b\n(c) R 1 7 7 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 4242 1000 9 1";
        let process = parse(7, stat).unwrap();
        assert_eq!((process.name.as_str(), process.start), ("a) b?(c", 4242));
        let me = Process::of(std::process::id()).unwrap();
        assert!(me.is_there());
        assert!(
            !Process {
                start: me.start + 1,
                ..me
            }
            .is_there()
        );
    }
}
