//! The THP setting of the host under which this whole test program is to run.

use std::ffi::OsString;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use deckle_lab::host::Guard;

/// Names the setting; scripts/test-thp gives it. Without it the host stays as it is.
const VARIABLE: &str = "DECKLE_TEST_THP";
const SETTING: &str = "/sys/kernel/mm/transparent_hugepage/enabled";

/// Whether the host has been given a setting for this test program. Tests that set several
/// themselves, or compare with the kernel's side, have nothing to add then.
pub fn is_set() -> bool {
    std::env::var_os(VARIABLE).is_some()
}

/// What changes the host for this test program, if anything does: made at the first call, and
/// undone by its keeper when the program has ended, however it ends. Panics if the host does
/// not have the setting (any more).
pub fn guard() -> Option<MutexGuard<'static, Guard>> {
    static HOST: OnceLock<Mutex<Guard>> = OnceLock::new();
    let value = std::env::var(VARIABLE).ok()?;
    let host = HOST.get_or_init(|| {
        let program = [env!("CARGO_BIN_EXE_deckle"), "lab", "program"];
        let mut guard = Guard::new(&program.map(OsString::from)).unwrap();
        guard.set(Path::new(SETTING), &value).unwrap();
        eprintln!("host THP {value}");
        Mutex::new(guard)
    });
    let guard = host.lock().unwrap_or_else(PoisonError::into_inner);
    guard.undisturbed().unwrap();
    Some(guard)
}
