//! The service: who manages the program's memory, beside the program.

mod gate;
mod request;

pub use gate::{arena, is_small, outgrown};
pub use request::{Op, request};

/// Starts the service. Returns the range of managed memory; `None` outside `deckle run`.
fn start() -> Option<(usize, usize)> {
    crate::config::group_name()?;
    None
}
