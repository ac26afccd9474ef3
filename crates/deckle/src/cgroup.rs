//! The memory limit that the system already holds this process to: the smallest of its memory
//! cgroup's and of that one's ancestors', version 1 or 2.

use std::fs;
use std::path::{Path, PathBuf};

/// A finite limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limit {
    /// Bytes.
    pub bytes: u64,
    /// The file that says so.
    pub path: PathBuf,
}

/// Version 1 says "none" with the largest page-aligned number; nothing real comes near.
const UNLIMITED: u64 = 1 << 60;

/// The smallest limit above this process, if there is one.
pub fn limit() -> Option<Limit> {
    let cgroup = fs::read_to_string("/proc/self/cgroup").ok()?;
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    limit_in(Path::new("/"), &cgroup, &mounts)
}

/// What is left for anonymous memory: page cache, page tables and stacks are charged to the
/// same limit. Headroom is 64 MiB or 1/8, whichever is more. `None` if nothing is left.
pub fn minus_headroom(bytes: u64) -> Option<u64> {
    bytes
        .checked_sub((bytes / 8).max(64 << 20))
        .filter(|rest| *rest > 0)
}

/// What runs a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Container {
    /// Docker.
    Docker,
    /// Podman.
    Podman,
    /// A pod, whatever runs it.
    Kubernetes,
    /// Something that does not say what it is.
    Other,
}

/// What this looks like the inside of.
pub fn container() -> Option<Container> {
    let is_there = |path| Path::new(path).exists();
    if std::env::var_os("KUBERNETES_SERVICE_HOST").is_some() {
        Some(Container::Kubernetes)
    } else if is_there("/run/.containerenv") {
        Some(Container::Podman)
    } else if is_there("/.dockerenv") {
        Some(Container::Docker)
    } else {
        let other = std::process::id() == 1 || std::env::var_os("container").is_some();
        other.then_some(Container::Other)
    }
}

/// Whether this looks like the inside of a container.
pub fn in_container() -> bool {
    container().is_some()
}

fn limit_in(root: &Path, cgroup: &str, mounts: &str) -> Option<Limit> {
    let mut best: Option<Limit> = None;
    for line in mounts.lines() {
        let Some((mount_root, mount_point, file, controller)) = memory_mount(line) else {
            continue;
        };
        let Some(group) = own_group(cgroup, controller) else {
            continue;
        };
        // In a container the mount shows a part of the tree, or the whole of it under "/".
        let inside = group
            .strip_prefix(mount_root)
            .unwrap_or(group)
            .trim_matches('/');
        let top = root.join(mount_point.trim_start_matches('/'));
        let mut dir = top.join(inside);
        loop {
            let path = dir.join(file);
            if let Some(bytes) = read_limit(&path)
                && best.as_ref().is_none_or(|b| bytes < b.bytes)
            {
                best = Some(Limit { bytes, path });
            }
            if dir == top || !dir.pop() {
                break;
            }
        }
    }
    best
}

/// Root, mount point, name of the limit's file and the controller of a line of mountinfo, if
/// it is a cgroup mount with the memory controller.
fn memory_mount(line: &str) -> Option<(&str, &str, &'static str, Option<&'static str>)> {
    let (left, right) = line.split_once(" - ")?;
    let mut fields = left.split(' ').skip(3);
    let (root, point) = (fields.next()?, fields.next()?);
    let mut kind = right.split(' ');
    match kind.next()? {
        "cgroup2" => Some((root, point, "memory.max", None)),
        "cgroup" if kind.nth(1)?.split(',').any(|o| o == "memory") => {
            Some((root, point, "memory.limit_in_bytes", Some("memory")))
        }
        _ => None,
    }
}

fn own_group<'a>(cgroup: &'a str, controller: Option<&str>) -> Option<&'a str> {
    cgroup.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':');
        let (_, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        let ours = match controller {
            None => controllers.is_empty(),
            Some(c) => controllers.split(',').any(|x| x == c),
        };
        ours.then_some(path)
    })
}

fn read_limit(path: &Path) -> Option<u64> {
    let text = fs::read_to_string(path).ok()?;
    text.trim().parse().ok().filter(|n| *n < UNLIMITED)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Tree(PathBuf);
    impl Tree {
        fn new(tag: &str, files: &[(&str, &str)]) -> Tree {
            let root = std::env::temp_dir().join(format!("deckle-cg-{tag}-{}", std::process::id()));
            for (path, text) in files {
                let path = root.join(path);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, text).unwrap();
            }
            Tree(root)
        }
    }
    impl Drop for Tree {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    const V2: &str = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw";
    const V1: &str = "34 25 0:29 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
                      35 25 0:30 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu";

    #[test]
    fn the_smallest_ancestor_counts_in_version_2() {
        let t = Tree::new(
            "v2",
            &[
                ("sys/fs/cgroup/a/memory.max", "1073741824\n"),
                ("sys/fs/cgroup/a/b/memory.max", "max\n"),
                ("sys/fs/cgroup/a/b/c/memory.max", "2147483648\n"),
                ("sys/fs/cgroup/other/memory.max", "4096\n"),
            ],
        );
        let got = limit_in(&t.0, "0::/a/b/c\n", V2).unwrap();
        assert_eq!(got.bytes, 1 << 30);
        assert!(got.path.ends_with("a/memory.max"));
        assert_eq!(limit_in(&t.0, "0::/\n", V2), None);
    }

    #[test]
    fn version_1_is_read_and_its_unlimited_is_none() {
        let t = Tree::new(
            "v1",
            &[
                (
                    "sys/fs/cgroup/memory/memory.limit_in_bytes",
                    "9223372036854771712\n",
                ),
                (
                    "sys/fs/cgroup/memory/x/memory.limit_in_bytes",
                    "536870912\n",
                ),
            ],
        );
        assert_eq!(
            limit_in(&t.0, "4:memory:/x\n1:cpu:/y\n", V1).unwrap().bytes,
            512 << 20
        );
        assert_eq!(limit_in(&t.0, "4:memory:/\n", V1), None);
    }

    #[test]
    fn in_a_container_the_mount_is_a_part_of_the_tree() {
        let t = Tree::new("sub", &[("sys/fs/cgroup/memory.max", "268435456\n")]);
        let mounts = "30 23 0:26 /docker/abc /sys/fs/cgroup rw - cgroup2 cgroup rw";
        assert_eq!(
            limit_in(&t.0, "0::/docker/abc\n", mounts).unwrap().bytes,
            256 << 20
        );
        assert_eq!(limit_in(&t.0, "0::/\n", mounts).unwrap().bytes, 256 << 20);
    }

    #[test]
    fn headroom_is_an_eighth_but_at_least_64_mib() {
        assert_eq!(minus_headroom(1 << 30), Some(7 << 27));
        assert_eq!(minus_headroom(256 << 20), Some(192 << 20));
        assert_eq!(minus_headroom(64 << 20), None);
        assert_eq!(minus_headroom(1), None);
    }
}
