//! What a service says of itself, and whether that is so.

use deckle_group::LineId;
use deckle_group::proc::proc_stat;
use deckle_sys::socket::FDS_MAX;
use deckle_sys::{Errno, Fd, pidfd};

use super::events::Watched;
use super::peer::{Peer, is_descendant};
use crate::procfs::field;
use crate::say;

/// A service that is watched.
pub struct Service {
    /// Pid of its program, as that calls itself.
    pub program: u32,
    /// The same in this process's pid namespace; 0 if it has no pid here.
    pub program_here: u32,
    /// Its line.
    pub line: LineId,
    /// In this process's pid namespace; 0 if it has no pid here.
    pub pid: u32,
    /// Held, never used: see [`super::services`].
    _userfaultfd: Fd,
    /// Pidfds of both.
    pub service_pidfd: Watched,
    pub program_pidfd: Watched,
}

/// A process, and its pid in this process's namespace; 0 if it has none here.
pub struct Known {
    /// The process.
    pub pidfd: Fd,
    /// Its pid.
    pub pid: u32,
}

impl Known {
    /// That of a pidfd.
    pub fn of(pidfd: Fd) -> Known {
        let pid = pid_of(&pidfd);
        Known { pidfd, pid }
    }
}

/// Whom a hello is about: a service and its program, which calls itself `pid`. By the descriptors
/// that came with it; or it is who has sent it, and that one's program is known.
fn identified(
    pid: u32,
    [service, program]: [Option<Fd>; 2],
    sender: Option<Fd>,
) -> [Option<Known>; 2] {
    if service.is_some() {
        return [service, program].map(|fd| fd.map(Known::of));
    }
    // Not who has adopted the service since.
    let named = |program: &Known| {
        let path = format!("/proc/{}/status", program.pid);
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let line = text.lines().find(|l| l.starts_with("NSpid:"));
        line.and_then(|l| l.split_whitespace().last()?.parse().ok()) == Some(pid)
    };
    let service = sender.map(Known::of);
    let program = service.as_ref().and_then(program_of).filter(named);
    [service, program]
}

/// The program of a service: its parent.
pub fn program_of(service: &Known) -> Option<Known> {
    let parent = || proc_stat(service.pid).ok().map(|s| s.parent);
    let pid = parent()?;
    let pidfd = pidfd::open(pid).ok()?;
    // Its child still, and so nobody else has the number; nor the service's, while that lives.
    let known = pid != std::process::id() && parent() == Some(pid);
    (known && !pidfd::has_ended(&service.pidfd)).then_some(Known { pidfd, pid })
}

/// What a service cannot be watched without has not come.
pub struct TooFew;

/// The service that says hello on a connection of `peer`, if it is to be watched: by `watch`.
///
/// # Errors
/// It cannot be.
pub fn hello(
    peer: Peer,
    pid: u32,
    line: LineId,
    mut fds: [Option<Fd>; FDS_MAX],
    sender: Option<Fd>,
    watch: impl Fn(Fd) -> Result<Watched, Errno>,
) -> Result<Option<Service>, TooFew> {
    let [service, program] = identified(pid, [fds[1].take(), fds[2].take()], sender);
    match (fds[0].take(), service, program) {
        // Whoever is named here may be killed by us later: by our user no other than he could.
        (Some(userfaultfd), Some(service), Some(program))
            if peer == Peer::User || is_descendant(service.pid) && is_descendant(program.pid) =>
        {
            let watch = |pidfd| {
                watch(pidfd).map_err(|e| {
                    say(format_args!(
                        "process {pid}: ended: cannot be waited for (epoll_ctl): {e}"
                    ));
                    TooFew
                })
            };
            Ok(Some(Service {
                program: pid,
                program_here: program.pid,
                line,
                pid: service.pid,
                _userfaultfd: userfaultfd,
                service_pidfd: watch(service.pidfd)?,
                program_pidfd: watch(program.pidfd)?,
            }))
        }
        // One that has ended has no number any more.
        (_, _, Some(program)) if pidfd::has_ended(&program.pidfd) => Ok(None),
        // Its program has ended, and it will see that.
        (Some(_), Some(_), None) => Ok(None),
        (Some(_), Some(_), Some(_)) => {
            say(format_args!(
                "process {pid}: its service names a process that is none of ours; ignored"
            ));
            Ok(None)
        }
        _ => {
            say(format_args!(
                "process {pid}: ended: descriptors of its service have not come: raise the hard \
                 limit on open files (ulimit -Hn)"
            ));
            Err(TooFew)
        }
    }
}

/// The pid, in this process's namespace, of the process behind `pidfd`; 0 if it has none.
pub fn pid_of(pidfd: &Fd) -> u32 {
    let path = format!("/proc/self/fdinfo/{}", pidfd.raw());
    let text = std::fs::read_to_string(path).unwrap_or_default();
    field(&text, "Pid:")
        .and_then(|n| n.parse().ok())
        .unwrap_or(0)
}
