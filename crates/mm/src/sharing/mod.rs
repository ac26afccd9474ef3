//! Pages that several places hold since a fork: copied on write by the core (`rmap`, `cow`,
//! `places`), or by the kernel below (`share`, `freeze`).

pub mod core;
pub(crate) mod cow;
pub mod freeze;
pub mod kernel;
pub(crate) mod places;
pub mod rmap;
pub mod share;
