//! Reports of kills at the limit: at most so many whole ones in a while, as the kernel does.

use std::time::{Duration, Instant};

/// The kernel's `ratelimit_state` of its own reports.
const INTERVAL: Duration = Duration::from_secs(5);
const BURST: usize = 10;

/// Which reports were whole lately.
#[derive(Default)]
pub struct Reports {
    /// When the first of them was.
    begin: Option<Instant>,
    whole: usize,
}

impl Reports {
    /// What of a report is shown now: all of it, or its first line, which says which process was
    /// killed.
    pub fn shown(&mut self, mut text: Vec<u8>, now: Instant) -> Vec<u8> {
        if self.begin.is_none_or(|begin| now >= begin + INTERVAL) {
            (self.begin, self.whole) = (Some(now), 0);
        }
        self.whole += 1;
        if self.whole > BURST {
            let line = text.iter().position(|b| *b == b'\n');
            text.truncate(line.unwrap_or(text.len()));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ten_reports_in_five_seconds_are_whole_and_each_kill_is_told() {
        let (begin, mut reports) = (Instant::now(), Reports::default());
        let text = |n: u32| format!("deckle: out of memory: process {n} killed\n{n}\nwhat\n");
        let mut whole = Vec::new();
        for n in 0..104 {
            let at = begin + n * Duration::from_millis(100);
            let shown = reports.shown(text(n).into_bytes(), at);
            let shown = String::from_utf8(shown).unwrap();
            let first = text(n).lines().next().unwrap().to_owned();
            assert_eq!(shown.lines().next().unwrap(), first);
            if shown == text(n) {
                whole.push(n);
            } else {
                assert_eq!(shown, first);
            }
        }
        let expected = [0, 50, 100].map(|from| from..(from + 10).min(104));
        assert_eq!(whole, expected.into_iter().flatten().collect::<Vec<_>>());
    }
}
