//! Real programs under the library.

mod adopted;
mod common;
mod compat;
mod cow;
mod debuggers;
mod defects;
mod direct_io;
mod dumps;
mod fork_matrix;
mod forks;
mod host_swap;
mod programs;
mod real;
mod refused_forks;
mod second;
#[path = "../../uffd/tests/common/skipped.rs"]
mod skipped;
mod spawns;
mod tools;
