//! Benchmarks of the core's frame allocator, beside the one that a Rust kernel would take from
//! crates.io. `cargo bench -p deckle-bench` prints both and their ratio from one run.
//!
//! The harness is written by hand: the subjects have to alternate in one run, on two threads,
//! over memory filled to a given level, and be compared with each other; criterion and divan
//! time closures one after the other, and would bring more code than the rest of the
//! workspace has.
#![forbid(unsafe_code)]

pub mod machine;
pub mod published;
pub mod shapes;
pub mod subject;
pub mod table;
