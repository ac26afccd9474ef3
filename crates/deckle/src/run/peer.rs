//! Who connects: our own user, or one of our tree.

use deckle_group::proc::proc_stat;
use deckle_sys::process::effective_user;
use deckle_sys::{Fd, socket};

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
pub fn peer_of(connection: &Fd) -> Option<Peer> {
    let (pid, user) = socket::peer(connection)?;
    if user == effective_user() || user == 0 {
        return Some(Peer::User);
    }
    is_descendant(pid).then_some(Peer::Tree)
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
