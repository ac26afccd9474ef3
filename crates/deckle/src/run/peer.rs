//! Who connects: our own user, or one of our tree.

use deckle_group::sys::{Fd, proc_stat};

use crate::procfs::field;

/// Who has connected.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Peer {
    /// A process of our own user, or root's.
    User,
    /// One of our tree that has become another user.
    Tree,
}

/// Who is at the other end; `None`: nobody who may talk to us.
pub fn peer_of(socket: &Fd) -> Option<Peer> {
    let mut peer = libc::ucred {
        pid: 0,
        uid: u32::MAX,
        gid: 0,
    };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: a live ucred and its size.
    let rc = unsafe {
        libc::getsockopt(
            socket.raw(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut peer).cast(),
            &mut len,
        )
    };
    // SAFETY: a call without arguments.
    let known = peer.uid == unsafe { libc::geteuid() } || peer.uid == 0;
    match rc {
        0 if known => Some(Peer::User),
        0 if is_descendant(peer.pid as u32) => Some(Peer::Tree),
        _ => None,
    }
}

/// The id here of a thread of the process `pid`, which calls it `tid` in its own pid namespace.
pub fn thread_of(pid: u32, tid: u32) -> Option<u32> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).ok()?;
    let mut tasks = tasks.filter_map(|t| t.ok()?.file_name().to_str()?.parse::<u32>().ok());
    tasks.find(|task| {
        let path = format!("/proc/{pid}/task/{task}/status");
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let told = field(&text, "NSpid:").and_then(|ids| ids.split_whitespace().last());
        told.and_then(|id| id.parse().ok()) == Some(tid)
    })
}

/// Whether a process of another user is one of our tree, which has changed its credentials.
pub fn is_descendant(mut pid: u32) -> bool {
    /// Generations that are looked at.
    const MOST: usize = 256;
    for _ in 0..MOST {
        match proc_stat(pid) {
            Ok(stat) if stat.parent == std::process::id() => return true,
            Ok(stat) if stat.parent > 1 => pid = stat.parent,
            _ => return false,
        }
    }
    false
}
