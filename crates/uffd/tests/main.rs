//! The facts that deckle stands on, each in a process of its own.

mod common;
mod facts_events;
mod facts_folio;
mod facts_fork;
mod facts_marker;
mod facts_move;
mod facts_open;
mod facts_service;
mod facts_thp;
mod facts_wp;
#[path = "common/skipped.rs"]
mod skipped;
