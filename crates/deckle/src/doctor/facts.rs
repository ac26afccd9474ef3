//! userfaultfd and the limits of the system.

use std::ffi::CStr;

use deckle_sys::file::{Room, may_create_in, room_at};
use deckle_uffd::{Errno, Features};
use serde_json::json;

use super::{Finding, State};
use crate::access::Facts;
use crate::{cgroup, procfs, size};

const SECTION: &str = "userfaultfd";

fn read(path: &str) -> Option<String> {
    std::fs::read_to_string(path)
        .ok()
        .map(|s| s.trim().to_owned())
}

fn yes_no(r: &Result<(), Errno>) -> String {
    match r {
        Ok(()) => "yes".into(),
        Err(e) => format!("no ({e})"),
    }
}

pub(super) fn userfaultfd(access: &Facts) -> Vec<Finding> {
    let way = match (access.way(), access.remedy()) {
        (Some(via), _) => Finding::fact(SECTION, "used", via.to_string()),
        (None, remedy) => Finding::fact(SECTION, "used", "cannot be had").state(
            State::Missing,
            remedy.map_or_else(String::new, |r| r.to_string()),
        ),
    };
    let sysctl = access.sysctl.map_or("absent".into(), |n| n.to_string());
    let mut all = vec![
        way,
        Finding::fact(SECTION, "userfaultfd(2)", yes_no(&access.syscall))
            .value(json!(access.syscall.is_ok())),
        Finding::fact(SECTION, "/dev/userfaultfd", yes_no(&access.device))
            .value(json!(access.device.is_ok())),
        Finding::fact(SECTION, "user-mode-only", {
            let note = " (not enough: system calls on evicted memory would fail with EFAULT)";
            yes_no(&access.user_mode_only) + note
        })
        .value(json!(access.user_mode_only.is_ok())),
        Finding::fact(SECTION, "unprivileged_userfaultfd", sysctl).value(json!(access.sysctl)),
        Finding::fact(
            SECTION,
            "seccomp filter",
            if access.seccomp { "on" } else { "off" },
        )
        .value(json!(access.seccomp)),
    ];
    let Some(offered) = access.features() else {
        return all;
    };
    all.push(Finding::fact(SECTION, "features", offered.to_string()).value(json!(offered.bits())));
    let needed = [
        (
            Features::MOVE,
            "UFFDIO_MOVE",
            "Linux 6.8 or later; without it pages are copied",
        ),
        (
            Features::PAGEFAULT_FLAG_WP,
            "write-protect",
            "Linux 5.7 or later, on this processor",
        ),
        (
            Features::WP_ASYNC,
            "asynchronous write-protect",
            "Linux 6.7 or later",
        ),
    ];
    for (bit, name, remedy) in needed {
        let has = offered.contains(bit);
        let f = Finding::fact(SECTION, name, if has { "offered" } else { "not offered" })
            .value(json!(has));
        all.push(f.unless(has, State::Note, remedy));
    }
    all
}

pub(super) fn limits() -> Vec<Finding> {
    let section = "system";
    let mut all = vec![
        Finding::fact(
            section,
            "kernel",
            read("/proc/sys/kernel/osrelease").unwrap_or_default(),
        ),
        Finding::fact(section, "CPUs", cpus().to_string()).value(json!(cpus())),
    ];
    let ram = ram_bytes();
    all.push(Finding::fact(section, "RAM", size::show(ram)).value(json!(ram)));
    all.push(match cgroup::limit() {
        Some(l) => {
            let rest = cgroup::minus_headroom(l.bytes);
            let auto = rest.map_or("refused".to_owned(), size::show);
            let text = format!(
                "{} ({}); auto: {auto}",
                size::show(l.bytes),
                l.path.display()
            );
            Finding::fact(section, "cgroup limit", text).value(json!(l.bytes))
        }
        None => Finding::fact(
            section,
            "cgroup limit",
            "none; --memory-max auto is refused",
        )
        .value(json!(null)),
    });
    let maps: u64 = read("/proc/sys/vm/max_map_count")
        .and_then(|s| s.parse().ok())
        .unwrap_or(0);
    let f = Finding::fact(section, "vm.max_map_count", maps.to_string()).value(json!(maps));
    let remedy = "as root: sysctl vm.max_map_count=262144";
    all.push(f.unless(maps >= 65530, State::Note, remedy));
    let overcommit = read("/proc/sys/vm/overcommit_memory").unwrap_or_default();
    let f = Finding::fact(section, "vm.overcommit_memory", &overcommit);
    let remedy = "reservations are counted here; as root: sysctl vm.overcommit_memory=0";
    all.push(f.unless(overcommit != "2", State::Note, remedy));
    let space = deckle_sys::process::address_space_limit();
    let text = space.map_or("unlimited".to_owned(), size::show);
    let f = Finding::fact(section, "RLIMIT_AS", text).value(json!(space));
    let remedy = "ulimit -v unlimited: deckle reserves address space, not memory";
    all.push(f.unless(space.is_none(), State::Note, remedy));
    all
}

/// Bytes that `deckle run` takes in /dev/shm, rounded up.
const PAGE_OF_GROUP: u64 = 1 << 20;

/// Whether a tree's page can be made in /dev/shm.
pub(super) fn shared_memory() -> Finding {
    const PATH: &CStr = c"/dev/shm";
    let room = std::fs::metadata("/dev/shm").is_ok_and(|m| m.is_dir());
    let room = room.then(|| may_create_in(PATH).and_then(|()| room_at(PATH)));
    shared_memory_of(room)
}

/// `None`: it is absent.
fn shared_memory_of(room: Option<Result<Room, Errno>>) -> Finding {
    let (text, remedy) = match room {
        None => (
            "absent".to_owned(),
            "as root: mount -t tmpfs tmpfs /dev/shm",
        ),
        Some(Err(Errno(libc::EROFS))) => (
            "is read-only".to_owned(),
            "as root: mount -o remount,rw /dev/shm",
        ),
        Some(Err(errno)) => (
            format!("cannot be written by this user: {errno}"),
            "as root: chmod 1777 /dev/shm",
        ),
        Some(Ok(room)) if room.bytes < PAGE_OF_GROUP => (
            format!("full: {} free, 1 MiB is needed", size::show(room.bytes)),
            "remove what is not needed there, or, as root: mount -o remount,size=64M /dev/shm; \
             for a container: --shm-size 64m",
        ),
        Some(Ok(room)) if room.files == 0 => (
            "full: no file can be made".to_owned(),
            "remove what is not needed there, or, as root: mount -o remount,nr_inodes=64k /dev/shm",
        ),
        Some(Ok(room)) => {
            let text = match room.bytes {
                u64::MAX => "there".to_owned(),
                free => format!("there, {} free", size::show(free)),
            };
            return Finding::fact("system", "/dev/shm", text).value(json!(true));
        }
    };
    let finding = Finding::fact("system", "/dev/shm", text).value(json!(false));
    finding.state(State::Missing, remedy)
}

fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, |n| n.get())
}

fn ram_bytes() -> u64 {
    procfs::kib(&read("/proc/meminfo").unwrap_or_default(), "MemTotal:") << 10
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dev_shm_is_good_only_where_a_page_can_be_made() {
        let room = |bytes, files| Some(Ok(Room { bytes, files }));
        for (found, text, remedy) in [
            (None, "absent", "mount -t tmpfs"),
            (Some(Err(Errno(libc::EROFS))), "read-only", "remount,rw"),
            (Some(Err(Errno(libc::EACCES))), "this user", "chmod 1777"),
            (room(PAGE_OF_GROUP - 1, 9), "full", "remount,size=64M"),
            (room(u64::MAX, 0), "no file", "nr_inodes"),
        ] {
            let finding = shared_memory_of(found);
            assert!(finding.text.contains(text), "{finding:?}");
            assert!(finding.state == State::Missing && finding.value == json!(false));
            assert!(
                finding.remedy.as_ref().unwrap().contains(remedy),
                "{finding:?}"
            );
        }
        for found in [room(PAGE_OF_GROUP, 1), room(u64::MAX, u64::MAX)] {
            let finding = shared_memory_of(found);
            assert!(
                finding.state == State::Ok && finding.value == json!(true),
                "{finding:?}"
            );
        }
    }
}
