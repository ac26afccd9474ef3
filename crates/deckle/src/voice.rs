//! Text for standard error.
//!
//! Nothing says that standard error is read: its pipe may be full, its terminal stopped by Ctrl-S.
//! `deckle run` must go on all the same, so from [`begin`] on a thread of its own writes what
//! [`write()`] has queued.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

/// Most bytes that are queued.
const MOST: usize = 256 << 10;
/// Kept for the line that tells what was dropped.
const NOTE: usize = 128;
/// A pipe takes so many bytes whole.
const PIECE: usize = 4096;
/// How long [`finish`] waits while nothing is written.
const PATIENCE: Duration = Duration::from_secs(2);
/// How often a file that never blocks is tried again.
const AGAIN: Duration = Duration::from_millis(10);

static VOICE: OnceLock<Arc<Queue>> = OnceLock::new();

/// From now on [`write()`] never waits. To be called where no fork follows.
///
/// # Errors
/// There is no thread to be had.
pub fn begin() -> io::Result<()> {
    if VOICE.get().is_none() {
        let queue = Queue::start(MOST, write_now)?;
        VOICE.get_or_init(|| queue);
    }
    Ok(())
}

/// Writes lines, the end of the last one may be missing: in one write where they are short, so that
/// lines of several writers do not mix.
pub fn write(text: &[u8]) {
    let mut text = text.to_vec();
    if !text.ends_with(b"\n") {
        text.push(b'\n');
    }
    match VOICE.get() {
        Some(queue) => queue.push(text),
        None => write_now(&text),
    }
}

/// Waits until all is written, or nothing was for a while. To be called before the process ends.
pub fn finish() {
    if let Some(queue) = VOICE.get() {
        queue.finish(PATIENCE);
    }
}

fn write_now(mut text: &[u8]) {
    while !text.is_empty() {
        match io::stderr().write(text) {
            Ok(0) => return,
            Ok(n) => text = &text[n..],
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            // Another process that has it open, too, has made it so.
            Err(e) if e.kind() == ErrorKind::WouldBlock => thread::sleep(AGAIN),
            Err(_) => return,
        }
    }
}

#[derive(Default)]
struct State {
    texts: VecDeque<Vec<u8>>,
    /// Of all texts.
    bytes: usize,
    /// Lines for which there was no room since the last text.
    dropped: usize,
    /// A text is being written.
    busy: bool,
    /// Pieces that were written.
    written: u64,
}

impl State {
    fn is_done(&self) -> bool {
        self.texts.is_empty() && self.dropped == 0 && !self.busy
    }

    fn add(&mut self, text: Vec<u8>) {
        self.bytes += text.len();
        self.texts.push_back(text);
    }

    /// Tells how many lines are missing here.
    fn note_dropped(&mut self) {
        let lines = std::mem::take(&mut self.dropped);
        self.add(format!("deckle: {lines} lines left out: standard error was not read\n").into());
    }
}

/// Texts that a thread writes, in their order.
struct Queue {
    most: usize,
    state: Mutex<State>,
    changed: Condvar,
}

impl Queue {
    fn start(most: usize, write: impl FnMut(&[u8]) + Send + 'static) -> io::Result<Arc<Queue>> {
        let queue = Arc::new(Queue {
            most,
            state: Mutex::default(),
            changed: Condvar::new(),
        });
        let its = queue.clone();
        thread::Builder::new()
            .name("stderr".into())
            .spawn(move || its.work(write))?;
        Ok(queue)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a text; where there is no room for it, its lines are counted.
    fn push(&self, text: Vec<u8>) {
        let mut s = self.lock();
        let room = self.most.saturating_sub(s.bytes);
        if s.dropped > 0 && text.len() + NOTE <= room {
            s.note_dropped();
        }
        if s.dropped == 0 && text.len() <= room {
            s.add(text);
        } else {
            s.dropped += text.iter().filter(|b| **b == b'\n').count();
        }
        self.changed.notify_all();
    }

    fn work(&self, mut write: impl FnMut(&[u8])) {
        let mut s = self.lock();
        loop {
            if s.texts.is_empty() && s.dropped > 0 {
                s.note_dropped();
            }
            let Some(text) = s.texts.pop_front() else {
                s.busy = false;
                self.changed.notify_all();
                let wait = self.changed.wait_while(s, |s| s.is_done());
                s = wait.unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            s.bytes -= text.len();
            s.busy = true;
            drop(s);
            for piece in text.chunks(PIECE) {
                write(piece);
                self.lock().written += 1;
                self.changed.notify_all();
            }
            s = self.lock();
        }
    }

    /// Whether all is written, before nothing was for so long.
    fn finish(&self, patience: Duration) -> bool {
        let mut s = self.lock();
        while !s.is_done() {
            let before = s.written;
            let stuck = |s: &mut State| !s.is_done() && s.written == before;
            let wait = self.changed.wait_timeout_while(s, patience, stuck);
            let (now, waited) = wait.unwrap_or_else(PoisonError::into_inner);
            if waited.timed_out() {
                return false;
            }
            s = now;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Receiver, Sender, channel};

    const LONG: Duration = Duration::from_secs(60);

    /// A queue, what it has written, and what lets it write one piece more.
    fn gated(most: usize) -> (Arc<Queue>, Receiver<String>, Sender<()>) {
        let ((wrote, seen), (go, gate)) = (channel(), channel());
        let queue = Queue::start(most, move |text: &[u8]| {
            let _ = wrote.send(String::from_utf8_lossy(text).into_owned());
            let _ = gate.recv();
        });
        (queue.unwrap(), seen, go)
    }

    #[test]
    fn what_cannot_be_written_waits_for_its_turn_and_holds_up_neither_who_says_it_nor_the_end() {
        let (queue, seen, go) = gated(MOST);
        for text in ["a\n", "b\n", "c\n"] {
            queue.push(text.into());
        }
        assert!(!queue.finish(Duration::from_millis(50)));
        // The gate is open once its other end is gone.
        drop(go);
        assert!(queue.finish(LONG));
        assert_eq!(seen.try_iter().collect::<String>(), "a\nb\nc\n");
    }

    #[test]
    fn what_there_is_no_room_for_is_counted_where_it_is_missing() {
        let (queue, seen, go) = gated(NOTE + 8);
        queue.push(b"first\n".into());
        // It is being written, and takes no room any more.
        assert_eq!(seen.recv_timeout(LONG).unwrap(), "first\n");
        queue.push(vec![b'x'; NOTE]);
        for _ in 0..3 {
            queue.push(b"lost\nlost\n".into());
        }
        go.send(()).unwrap();
        assert_eq!(seen.recv_timeout(LONG).unwrap(), "x".repeat(NOTE));
        queue.push(b"last\n".into());
        drop(go);
        assert!(queue.finish(LONG));
        let rest: String = seen.try_iter().collect();
        assert_eq!(
            rest,
            "deckle: 6 lines left out: standard error was not read\nlast\n"
        );
    }

    #[test]
    fn a_long_text_is_waited_for_as_long_as_it_gets_on() {
        let (queue, seen, go) = gated(MOST);
        queue.push(vec![b'x'; 8 * PIECE]);
        let slow = thread::spawn(move || {
            for _ in 0..8 {
                thread::sleep(Duration::from_millis(50));
                let _ = go.send(());
            }
            seen
        });
        assert!(queue.finish(LONG));
        let seen = slow.join().unwrap();
        assert!(seen.try_iter().all(|piece| piece.len() == PIECE));
    }
}
