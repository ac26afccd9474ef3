//! What an experiment shows while it runs, so that it is never silent for longer than a minute.

use std::io::{self, IsTerminal, Write};
use std::thread;
use std::time::Duration;

use indicatif::ProgressBar;

use crate::program::fill::progress;

/// How often a terminal sees that time passes.
const TICK: Duration = Duration::from_secs(1);
/// How often a line says so where standard error is no terminal.
const SAY: Duration = Duration::from_secs(60);

/// A bar of so many runs of an experiment. It must be finished when the experiment is over.
pub(crate) fn steps(runs: u64, name: &'static str) -> ProgressBar {
    let bar = progress(runs, name);
    match io::stderr().is_terminal() {
        true => bar.enable_steady_tick(TICK),
        false => tell(bar.clone(), SAY, io::stderr()),
    }
    bar
}

/// Writes a line every so often, until the bar is finished.
fn tell(bar: ProgressBar, every: Duration, mut to: impl Write + Send + 'static) {
    // Without a thread there are no lines, and the experiment runs all the same.
    let _ = thread::Builder::new().spawn(move || {
        loop {
            thread::sleep(every);
            if bar.is_finished() {
                return;
            }
            let _ = writeln!(to, "{}", line(&bar));
        }
    });
}

fn line(bar: &ProgressBar) -> String {
    let (name, done) = (bar.message(), bar.position());
    let (all, seconds) = (bar.length().unwrap_or(0), bar.elapsed().as_secs());
    format!("deckle lab {name}: {done} of {all} runs after {seconds} s")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Sender, channel};

    struct Lines(Sender<String>);

    impl Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let text = String::from_utf8_lossy(bytes).into_owned();
            self.0.send(text).map_err(io::Error::other)?;
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn lines_come_until_the_experiment_is_over() {
        let (to, lines) = channel();
        let bar = ProgressBar::hidden();
        bar.set_length(7);
        bar.set_message("anon-folio");
        bar.inc(3);
        tell(bar.clone(), Duration::from_millis(1), Lines(to));
        let watchdog = Duration::from_secs(60);
        let mut text = String::new();
        while text.matches('\n').count() < 2 {
            text += &lines.recv_timeout(watchdog).expect("no line comes");
        }
        assert!(
            text.starts_with("deckle lab anon-folio: 3 of 7 runs after 0 s\n"),
            "{text}"
        );
        bar.finish_and_clear();
        // The other end goes with the thread.
        while lines.recv_timeout(watchdog).is_ok() {}
        assert_eq!(
            lines.try_recv(),
            Err(std::sync::mpsc::TryRecvError::Disconnected)
        );
    }
}
