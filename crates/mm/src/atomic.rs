//! The atomics of the frame allocator: those of `core`.
//!
//! In the crate's own tests each access first passes a gate, at which a model checker may let
//! another thread go. So what the checker runs is the allocator itself, at the grain of single
//! accesses; tests without a checker leave the gate shut.

#[cfg(not(test))]
pub(crate) use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64};

#[cfg(test)]
pub(crate) use checked::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, gate};

#[cfg(test)]
// Each type has the operations of all.
#[allow(dead_code)]
mod checked {
    use core::sync::atomic::{self, Ordering};
    use std::cell::Cell;

    std::thread_local! {
        static GATE: Cell<Option<fn()>> = const { Cell::new(None) };
    }

    /// Calls `yields` before each access that this thread makes from now on. A model checker
    /// runs its threads as coroutines of one thread: it is the gate of all of them.
    pub(crate) fn gate(yields: Option<fn()>) {
        GATE.set(yields);
    }

    fn pass() {
        if let Some(yields) = GATE.get() {
            yields();
        }
    }

    macro_rules! checked {
        ($($name:ident($value:ty): $($op:ident)*;)*) => {$(
            #[repr(transparent)]
            pub(crate) struct $name(atomic::$name);

            impl $name {
                pub(crate) const fn new(value: $value) -> $name {
                    $name(atomic::$name::new(value))
                }
                pub(crate) fn load(&self, order: Ordering) -> $value {
                    pass();
                    self.0.load(order)
                }
                pub(crate) fn store(&self, value: $value, order: Ordering) {
                    pass();
                    self.0.store(value, order);
                }
                $(pub(crate) fn $op(&self, value: $value, order: Ordering) -> $value {
                    pass();
                    self.0.$op(value, order)
                })*
                pub(crate) fn compare_exchange(
                    &self,
                    current: $value,
                    new: $value,
                    success: Ordering,
                    failure: Ordering,
                ) -> Result<$value, $value> {
                    pass();
                    self.0.compare_exchange(current, new, success, failure)
                }
                pub(crate) fn fetch_update(
                    &self,
                    set: Ordering,
                    fetch: Ordering,
                    f: impl FnMut($value) -> Option<$value>,
                ) -> Result<$value, $value> {
                    pass();
                    self.0.fetch_update(set, fetch, f)
                }
            }
        )*};
    }

    checked! {
        AtomicBool(bool):;
        AtomicU8(u8):;
        AtomicU32(u32): fetch_add fetch_sub fetch_or fetch_and;
        AtomicU64(u64): fetch_add;
    }
}
