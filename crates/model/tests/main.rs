//! The core on the software machine, and that machine itself.
//!
//! Each suite of the core is here once for each profile of the machine that it is to run on:
//! [`sparse`], [`ram`] and [`bare`], see [`matrix`]. Without the feature `profiles` only the one
//! that ships is built, for who builds it again and again.
// One suite, several profiles.
#![allow(clippy::duplicate_mod)]
// Without huge pages most suites are left out (see `suites`), and with them what only they use.
#![cfg_attr(not(feature = "huge-pages"), allow(dead_code))]

#[cfg(feature = "profiles")]
mod bare;
#[cfg(feature = "profiles")]
mod cow;
mod machine;
mod matrix;
#[cfg(feature = "profiles")]
mod ram;
mod scheduler;
mod sparse;
mod tlb;
mod violations;
