//! `deckle top`: a tree on the terminal, until it is told to quit.

mod draw;
mod stuck;
mod view;

use std::io::{self, IsTerminal, Write, stdin, stdout};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crossterm::cursor::{Hide, MoveTo, Show};
use crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use crossterm::style::{Attribute, Print, SetAttribute};
use crossterm::terminal::{self, Clear, ClearType, EnterAlternateScreen, LeaveAlternateScreen};
use crossterm::{execute, queue};
use deckle_sys::signal::Signals;

use self::draw::{Style, screen};
use self::view::{Key, View};
use super::{Trees, find};
use crate::args::look::TopArgs;
use crate::fail::{Fail, plain};

/// Signals that end it, after the terminal is as it was.
const ENDS: [i32; 3] = [libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT];
/// Columns and rows where the terminal does not say how many it has.
const PLAIN: (u16, u16) = (80, 24);
/// Longest wait before signals are looked at.
const LOOK: Duration = Duration::from_millis(250);

/// Shows a tree; the exit status of `deckle`.
pub fn top(args: &TopArgs) -> Result<i32, Fail> {
    let every = super::stat::time(args.interval)?;
    if !stdin().is_terminal() || !stdout().is_terminal() {
        let why = "top: this is no terminal: use `deckle stat --interval 1`";
        return Err(Fail::own(why));
    }
    if crate::is_dumb() {
        let why = "top: a terminal of TERM=dumb cannot show it: use `deckle stat --interval 1`";
        return Err(Fail::own(why));
    }
    let mut trees = match &args.tree {
        Some(word) => Trees::only(find(word)?),
        None => Trees::now(),
    };
    let [a, b, c] = ENDS;
    let signals = Signals::open(&[a, b, c, libc::SIGTSTP]);
    let signals = signals.map_err(|e| Fail::own(format!("signals cannot be received: {e}")))?;
    let (signals, looks) = (Arc::new(signals), Arc::new(AtomicU32::new(0)));
    stuck::watch(&signals, &looks, &ENDS);
    let shown = Screen::open().and_then(|screen| run(screen, &mut trees, every, &signals, &looks));
    shown.map_err(|e| Fail::own(format!("top: the terminal: {}", plain(&e))))
}

/// The terminal while it shows a tree; as it was when this goes.
struct Screen;

impl Screen {
    fn open() -> io::Result<Screen> {
        terminal::enable_raw_mode()?;
        let screen = Screen;
        execute!(stdout(), EnterAlternateScreen, Hide)?;
        Ok(screen)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let _ = execute!(stdout(), Show, LeaveAlternateScreen);
        let _ = terminal::disable_raw_mode();
    }
}

fn run(
    mut screen: Screen,
    trees: &mut Trees,
    every: Duration,
    signals: &Signals,
    looks: &AtomicU32,
) -> io::Result<i32> {
    let (mut view, mut chosen, mut next) = (View::new(), 0, Instant::now());
    loop {
        if Instant::now() >= next {
            trees.renew();
            look(&mut view, trees, &mut chosen);
            next = (next + every).max(Instant::now());
        }
        draw(&view)?;
        let mut stop = false;
        let wait = next.saturating_duration_since(Instant::now()).min(LOOK);
        if event::poll(wait)?
            && let Event::Key(key) = event::read()?
            && key.kind != KeyEventKind::Release
        {
            if key.code == KeyCode::Tab {
                chosen += 1;
                look(&mut view, trees, &mut chosen);
            } else if is_control(key, 'z') {
                stop = true;
            } else if pressed(key).is_some_and(|key| !view.key(key)) {
                return Ok(0);
            }
        }
        looks.fetch_add(1, Relaxed);
        while let Some(signal) = signals.take() {
            if ENDS.contains(&signal.number) {
                return Ok(128 + signal.number);
            }
            stop |= signal.number == libc::SIGTSTP;
        }
        if stop {
            // The shell has its terminal as it was, until it has this go on.
            drop(screen);
            signals.stop();
            screen = Screen::open()?;
        }
    }
}

/// Looks at the tree of this number, round all of them.
fn look(view: &mut View, trees: &Trees, chosen: &mut usize) {
    match trees.all() {
        [] => view.report = None,
        all => {
            *chosen %= all.len();
            view.take(&all[*chosen]);
        }
    }
}

/// All lines in one write, so that no half of them is seen.
fn draw(view: &View) -> io::Result<()> {
    let (wide, high) = match terminal::size()? {
        (0, _) | (_, 0) => PLAIN,
        size => size,
    };
    let mut text = Vec::new();
    for (row, line) in (0..high).zip(screen(view, wide.into(), high.into())) {
        queue!(text, MoveTo(0, row))?;
        for (style, part) in line {
            let attribute = match style {
                Style::Plain => Attribute::Reset,
                Style::Bold => Attribute::Bold,
                Style::Title => Attribute::Reverse,
            };
            queue!(text, SetAttribute(attribute), Print(part))?;
            queue!(text, SetAttribute(Attribute::Reset))?;
        }
        queue!(text, Clear(ClearType::UntilNewLine))?;
    }
    let mut out = stdout();
    out.write_all(&text)?;
    out.flush()
}

fn is_control(key: KeyEvent, letter: char) -> bool {
    key.code == KeyCode::Char(letter) && key.modifiers.contains(KeyModifiers::CONTROL)
}

fn pressed(key: KeyEvent) -> Option<Key> {
    let page = 10;
    Some(match key.code {
        _ if is_control(key, 'c') => Key::Interrupt,
        KeyCode::Char(c) => Key::Letter(c),
        KeyCode::Esc => Key::Escape,
        KeyCode::Enter => Key::Enter,
        KeyCode::Backspace => Key::Back,
        KeyCode::Up => Key::Up(1),
        KeyCode::Down => Key::Down(1),
        KeyCode::PageUp => Key::Up(page),
        KeyCode::PageDown => Key::Down(page),
        _ => return None,
    })
}
