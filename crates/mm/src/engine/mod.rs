//! The engine: owns folios, lists, slots, spaces and translations, and is what changes them.

pub(crate) mod busy;
pub(crate) mod copies;
pub(crate) mod cut;
pub mod folio;
pub mod isolated;
pub(crate) mod leaving;
pub mod lru;
pub(crate) mod open;
pub mod pressure;
pub mod queue;
pub(crate) mod rest;
pub mod rmap;
pub mod runs;
pub mod sharing;
pub mod shatter;
pub mod slots;
pub mod space;
pub mod split;
mod state;
pub mod step;
pub mod zap;

pub use state::Engine;
