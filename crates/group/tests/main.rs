//! The group's page and its messages, between real processes.

mod account;
mod common;
mod lend;
mod lines;
mod look;
mod program;
#[path = "../../uffd/tests/common/skipped.rs"]
mod skipped;
