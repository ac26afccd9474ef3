//! What the supervisor waits for. There may be thousands of processes, of which few have something
//! to say at a time: only these are looked at.

use std::ops::Deref;
use std::rc::Rc;

use deckle_sys::epoll::{AT_ONCE, Epoll};
use deckle_sys::{Errno, Fd};

/// All that is waited for.
pub struct Events(Rc<Epoll>);

impl Events {
    /// Nothing yet.
    pub fn new() -> Result<Events, Errno> {
        Epoll::new().map(|epoll| Events(Rc::new(epoll)))
    }

    /// A descriptor that can be read while something is ready.
    pub fn raw(&self) -> i32 {
        self.0.raw()
    }

    /// Waits for `fd`, too, which `key` stands for; others may have the same.
    pub fn watch(&self, fd: Fd, key: u64) -> Result<Watched, Errno> {
        self.0.add(&fd, key)?;
        let epoll = Rc::clone(&self.0);
        Ok(Watched { fd, epoll })
    }

    /// The keys of what is ready, each once, and whether these are all.
    pub fn ready(&self) -> (Vec<u64>, bool) {
        let mut keys = Vec::new();
        self.0.ready(&mut keys);
        let all = keys.len() < AT_ONCE;
        keys.sort_unstable();
        keys.dedup();
        (keys, all)
    }
}

/// A descriptor that is waited for until it is dropped, and closed.
pub struct Watched {
    fd: Fd,
    epoll: Rc<Epoll>,
}

impl Watched {
    /// Waits for it no longer.
    pub fn rest(&self) {
        self.epoll.remove(&self.fd);
    }
}

impl Deref for Watched {
    type Target = Fd;

    fn deref(&self) -> &Fd {
        &self.fd
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.rest();
    }
}
