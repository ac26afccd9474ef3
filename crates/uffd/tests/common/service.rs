//! A task that shares the program's memory and nothing else.

use deckle_uffd::Errno;

use super::mem::Map;

/// A task made by clone(CLONE_VM) without CLONE_FILES, CLONE_THREAD, CLONE_SIGHAND.
pub struct Service {
    pub pid: i32,
    _stack: Map,
}

/// Starts the task on a stack of its own.
///
/// It shares the thread-local storage of the calling thread (errno among it), so as long as it
/// runs the caller should do little else than touch memory, and `body` must not panic or
/// allocate.
pub fn start<S: Sync>(
    body: extern "C" fn(*mut libc::c_void) -> i32,
    shared: &'static S,
) -> Service {
    let stack = Map::pages(64);
    let top = (stack.addr + stack.len) as *mut libc::c_void;
    let arg = std::ptr::from_ref(shared).cast_mut().cast();
    // SAFETY: the stack is mapped and outlives the task (Service waits for it), the argument is
    // static and may be shared between threads.
    let pid = unsafe { libc::clone(body, top, libc::CLONE_VM, arg) };
    assert!(pid > 0, "clone: {}", Errno::last());
    Service { pid, _stack: stack }
}

impl Service {
    /// Waits for the end and gives the exit code.
    pub fn join(self) -> i32 {
        let ended = deckle_sys::process::wait(self.pid, libc::__WALL);
        let (_, status) = ended.unwrap().expect("its end");
        assert!(
            libc::WIFEXITED(status),
            "ended by signal {}",
            libc::WTERMSIG(status)
        );
        libc::WEXITSTATUS(status)
    }
}
