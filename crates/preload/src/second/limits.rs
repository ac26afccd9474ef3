//! RLIMIT_AS behind this door is the kernel's, which counts what the service reserves, too.

/// None of the program's own is kept.
pub fn is_raised() -> bool {
    false
}

/// See [`is_raised`].
pub fn follow() {}

/// See [`is_raised`].
pub fn hold() {}

/// See [`is_raised`].
pub fn let_go() {}

/// See [`is_raised`].
pub fn lift() -> Option<()> {
    None
}

/// See [`is_raised`].
pub fn settle(_own: Option<()>, _runs: bool) {}
