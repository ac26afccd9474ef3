//! Ending everything below this process, daemons too.

use std::thread::sleep;
use std::time::{Duration, Instant};

use deckle_group::proc::proc_stat;
use deckle_sys::pidfd;
use deckle_sys::process::wait;

use super::tree::{Process, descendants, is_service_task};

/// For how long it is tried. Only processes that we may not kill, or that make new ones faster
/// than we find them, are left then.
const PATIENCE: Duration = Duration::from_secs(10);
/// Longest pause between two rounds.
const PAUSE_MAX: Duration = Duration::from_millis(50);

/// Kills every descendant and reaps them, round after round until none is left; how many it
/// had to kill. Services come after all programs: a program that lost its service first could
/// still see memory that is not its own.
pub fn end_tree() -> usize {
    let (from, mut pause, mut killed) = (Instant::now(), Duration::ZERO, 0);
    while reap() && from.elapsed() < PATIENCE {
        let alive = descendants().into_iter().filter(|p| p.alive);
        let (services, programs): (Vec<_>, Vec<_>) = alive.partition(|p| is_service_task(p.pid));
        let now = if programs.is_empty() {
            services
        } else {
            programs
        };
        killed += now.iter().filter(|p| kill(p)).count();
        sleep(pause);
        pause = (pause * 2).clamp(Duration::from_millis(1), PAUSE_MAX);
    }
    killed
}

/// Kills exactly this process, never one that has got its pid since it was seen.
fn kill(process: &Process) -> bool {
    let Ok(pidfd) = pidfd::open(process.pid) else {
        return false;
    };
    let same = proc_stat(process.pid).is_ok_and(|s| s.start == process.start);
    same && pidfd::kill(&pidfd, libc::SIGKILL).is_ok()
}

/// Reaps what has ended; whether any child is left.
fn reap() -> bool {
    loop {
        match wait(-1, libc::WNOHANG | libc::__WALL) {
            Ok(None) => return true,
            Ok(Some(_)) => {}
            Err(_) => return false,
        }
    }
}
