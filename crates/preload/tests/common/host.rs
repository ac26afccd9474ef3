//! What a test changes for all programs of the host it changes alone.

use std::cell::Cell;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

static HOST: RwLock<()> = RwLock::new(());

thread_local! {
    /// Whether this thread holds it, one way or the other.
    static HELD: Cell<bool> = const { Cell::new(false) };
}

struct Held;

impl Held {
    /// `None`: it does already.
    fn new() -> Option<Held> {
        (!HELD.replace(true)).then(|| Held)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        HELD.set(false);
    }
}

/// Others may run programs, too.
pub struct Beside {
    _held: Option<(RwLockReadGuard<'static, ()>, Held)>,
}

/// For as long as a program runs.
pub fn beside() -> Beside {
    let _held = Held::new();
    let _held = _held.map(|held| (HOST.read().unwrap_or_else(PoisonError::into_inner), held));
    Beside { _held }
}

/// No other test has a program that runs.
pub struct Alone {
    _guard: RwLockWriteGuard<'static, ()>,
    _held: Held,
}

/// For as long as the host is changed.
pub fn alone() -> Alone {
    let _held = Held::new().expect("a test that runs no program yet");
    let _guard = HOST.write().unwrap_or_else(PoisonError::into_inner);
    Alone { _guard, _held }
}
