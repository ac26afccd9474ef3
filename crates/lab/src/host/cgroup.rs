//! A cgroup for one run: a memory limit, and what its processes use. Version 1 or 2, whichever
//! holds the memory controller on this host.

use std::fs::{self, File, OpenOptions};
use std::path::{Path, PathBuf};

use super::journal::Undo;
use super::{Guard, field, lacks, read, refused, write};
use crate::LabError;

/// A cgroup of our own, with no process in it at first.
pub struct Cgroup {
    version: Version,
    memory: PathBuf,
    /// Where CPU time is counted; in version 1 that is another hierarchy, which may be absent.
    cpu: Option<PathBuf>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Version {
    One,
    Two,
}

impl Cgroup {
    /// Makes a cgroup, to be removed (and what is in it killed) when the guard goes.
    ///
    /// # Errors
    /// No memory controller on this host, or not for us.
    pub fn new(guard: &mut Guard, name: &str) -> Result<Self, LabError> {
        let mounts = read(Path::new("/proc/self/mounts"))?;
        let name = format!("deckle-lab-{}-{name}", std::process::id());
        if let Some(root) = mount_v1(&mounts, "memory") {
            let memory = make(guard, root.join(&name))?;
            let cpu = mount_v1(&mounts, "cpuacct").map(|root| root.join(&name));
            // One mount may carry both controllers.
            let cpu = match cpu {
                Some(dir) if dir != memory => Some(make(guard, dir)?),
                same => same,
            };
            return Ok(Self {
                version: Version::One,
                memory,
                cpu,
            });
        }
        let Some(root) = mount_v2(&mounts) else {
            return no_controller();
        };
        let subtree = root.join("cgroup.subtree_control");
        let has = |text: String| text.split_whitespace().any(|c| c == "memory");
        if !has(read(&root.join("cgroup.controllers"))?) {
            return no_controller();
        }
        if !has(read(&subtree)?) {
            guard.note(Undo::Write {
                path: subtree.clone(),
                value: "-memory".into(),
            })?;
            write(&subtree, "+memory")?;
        }
        let dir = make(guard, root.join(&name))?;
        Ok(Self {
            version: Version::Two,
            memory: dir.clone(),
            cpu: Some(dir),
        })
    }

    /// The same where there is a guard to remove it; where it is not `needed`, none if it cannot be
    /// had.
    ///
    /// # Errors
    /// It is needed, and cannot be had.
    pub fn if_any(
        guard: Option<&mut Guard>,
        name: &str,
        needed: bool,
    ) -> Result<Option<Self>, LabError> {
        match guard.map(|guard| Self::new(guard, name)).transpose() {
            Err(_) if !needed => Ok(None),
            cgroup => cgroup,
        }
    }

    /// Its directory in the memory controller's hierarchy.
    pub fn dir(&self) -> &Path {
        &self.memory
    }

    /// Limits the memory of the cgroup to `bytes`, without a limit to its swap; none: not at all.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn limit(&self, bytes: Option<u64>) -> Result<(), LabError> {
        let none = || self.either("-1", "max").into();
        let bytes = bytes.map_or_else(none, |bytes| bytes.to_string());
        self.write(self.either("memory.limit_in_bytes", "memory.max"), &bytes)
    }

    /// Limits the memory of the cgroup to `bytes`, and its swap to nothing.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn limit_without_swap(&self, bytes: usize) -> Result<(), LabError> {
        self.limit(Some(bytes as u64))?;
        let bytes = bytes.to_string();
        let (file, value) = match self.version {
            Version::One => ("memory.memsw.limit_in_bytes", bytes.as_str()),
            Version::Two => ("memory.swap.max", "0"),
        };
        if self.version == Version::One {
            self.write("memory.swappiness", "0")?;
        }
        // Present only where swap is accounted.
        match self.memory.join(file).exists() {
            true => self.write(file, value),
            false => Ok(()),
        }
    }

    /// Files through which a child puts itself into the cgroup: it writes `0` to each.
    ///
    /// # Errors
    /// If one cannot be opened.
    pub fn doors(&self) -> Result<Vec<File>, LabError> {
        let mut dirs = vec![&self.memory];
        dirs.extend(self.cpu.iter().filter(|cpu| **cpu != self.memory));
        dirs.into_iter()
            .map(|dir| {
                let path = dir.join("cgroup.procs");
                let open = OpenOptions::new().write(true).open(&path);
                open.map_err(|e| LabError::file("opening", path, e))
            })
            .collect()
    }

    /// Anonymous memory of the cgroup now, in bytes, huge pages included.
    ///
    /// # Errors
    /// If the statistics cannot be read.
    pub fn anon(&self) -> Result<u64, LabError> {
        self.field("memory.stat", self.either("rss", "anon"))
    }

    /// Memory that the cgroup is charged for now without page cache and kernel memory, in bytes.
    /// Unlike [`anon`](Self::anon) it holds all of a huge page of which only a part is mapped.
    ///
    /// # Errors
    /// If the statistics cannot be read.
    pub fn held(&self) -> Result<u64, LabError> {
        let all = self.field(self.either("memory.usage_in_bytes", "memory.current"), "")?;
        let cache = self.field("memory.stat", self.either("cache", "file"))?;
        let rest = cache + self.kernel_memory()?;
        Ok(all.saturating_sub(rest))
    }

    /// Asks the kernel to reclaim `bytes` of the cgroup's memory; version 1 can only be asked for
    /// all that can be had.
    ///
    /// # Errors
    /// No such request on this kernel (before 5.19 with version 2), or not for us.
    pub fn reclaim(&self, bytes: u64) -> Result<(), LabError> {
        let (file, what) = match self.version {
            Version::One => ("memory.force_empty", 0),
            Version::Two => ("memory.reclaim", bytes),
        };
        let path = self.memory.join(file);
        match fs::write(&path, what.to_string()) {
            // Less than was asked for.
            Err(e) if e.raw_os_error() == Some(libc::EAGAIN) => Ok(()),
            other => other.map_err(|e| refused("writing", &path, e)),
        }
    }

    /// Kernel memory charged to the cgroup now, in bytes: page tables, kernel stacks, slab.
    ///
    /// # Errors
    /// If the statistics cannot be read.
    pub fn kernel_memory(&self) -> Result<u64, LabError> {
        match self.version {
            Version::One => self.field("memory.kmem.usage_in_bytes", ""),
            Version::Two => self.field("memory.stat", "kernel"),
        }
    }

    /// Processes that the kernel killed in the cgroup for lack of memory.
    ///
    /// # Errors
    /// If the statistics cannot be read.
    pub fn oom_kills(&self) -> Result<u64, LabError> {
        self.field(
            self.either("memory.oom_control", "memory.events"),
            "oom_kill",
        )
    }

    /// CPU time of all processes that were ever in it, in seconds; none if nobody counts it.
    ///
    /// # Errors
    /// If it is counted but cannot be read.
    pub fn cpu_seconds(&self) -> Result<Option<f64>, LabError> {
        let Some(dir) = &self.cpu else {
            return Ok(None);
        };
        let used = match self.version {
            Version::One => field(&dir.join("cpuacct.usage"), "")? as f64 / 1e9,
            Version::Two => field(&dir.join("cpu.stat"), "usage_usec")? as f64 / 1e6,
        };
        Ok(Some(used))
    }

    /// What it is called in version 1, or in version 2.
    fn either(&self, one: &'static str, two: &'static str) -> &'static str {
        match self.version {
            Version::One => one,
            Version::Two => two,
        }
    }

    fn field(&self, file: &str, name: &str) -> Result<u64, LabError> {
        field(&self.memory.join(file), name)
    }

    fn write(&self, file: &str, value: &str) -> Result<(), LabError> {
        write(&self.memory.join(file), value)
    }
}

fn make(guard: &mut Guard, dir: PathBuf) -> Result<PathBuf, LabError> {
    guard.note(Undo::RemoveCgroup(dir.clone()))?;
    fs::create_dir(&dir).map_err(|e| refused("creating", &dir, e))?;
    Ok(dir)
}

fn no_controller<T>() -> Result<T, LabError> {
    lacks(
        "this host gives us no memory cgroup",
        "run outside of a container or with a writable cgroup file system",
    )
}

/// Mount point of a version 1 hierarchy with this controller.
fn mount_v1(mounts: &str, controller: &str) -> Option<PathBuf> {
    mounts.lines().find_map(|line| {
        let mut fields = line.split(' ').skip(1);
        let (at, kind, options) = (fields.next()?, fields.next()?, fields.next()?);
        (kind == "cgroup" && options.split(',').any(|o| o == controller)).then(|| at.into())
    })
}

/// Mount point of the version 2 hierarchy.
fn mount_v2(mounts: &str) -> Option<PathBuf> {
    mounts.lines().find_map(|line| {
        let mut fields = line.split(' ').skip(1);
        let (at, kind) = (fields.next()?, fields.next()?);
        (kind == "cgroup2").then(|| at.into())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r137_cgroup_mounts_of_both_versions_are_found() {
        let mounts = "tmpfs /sys/fs/cgroup tmpfs rw 0 0\n\
            cgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,nosuid,cpu,cpuacct 0 0\n\
            cgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0\n\
            cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n";
        assert_eq!(
            mount_v1(mounts, "memory"),
            Some("/sys/fs/cgroup/memory".into())
        );
        assert_eq!(
            mount_v1(mounts, "cpuacct"),
            Some("/sys/fs/cgroup/cpu,cpuacct".into())
        );
        assert_eq!(mount_v2(mounts), Some("/sys/fs/cgroup/unified".into()));
        assert_eq!(
            mount_v1("cgroup2 /sys/fs/cgroup cgroup2 rw 0 0", "memory"),
            None
        );
    }
}
