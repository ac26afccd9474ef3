//! The end of `deckle top` where its terminal takes nothing any more.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::thread::{sleep, spawn};
use std::time::Duration;

use crossterm::terminal::disable_raw_mode;
use deckle_sys::poll::is_ready;
use deckle_sys::signal::Signals;

/// Longest that a signal waits to be looked at, four times as long as from one look to the next.
const PATIENCE: Duration = Duration::from_secs(1);

/// Ends this process by a signal of `ends` that nobody looks at: who draws may sleep for ever in a
/// write that no signal interrupts. `looks` counts how often somebody has looked.
pub fn watch(signals: &Arc<Signals>, looks: &Arc<AtomicU32>, ends: &'static [i32]) {
    let (signals, looks) = (signals.clone(), looks.clone());
    spawn(move || {
        loop {
            let before = looks.load(Relaxed);
            let waits = is_ready(signals.fd(), PATIENCE);
            sleep(PATIENCE);
            if !waits || looks.load(Relaxed) != before {
                continue;
            }
            if let Some(signal) = signals.take()
                && ends.contains(&signal.number)
            {
                let _ = disable_raw_mode();
                std::process::exit(128 + signal.number);
            }
        }
    });
}
