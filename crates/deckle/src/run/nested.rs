//! `deckle run` inside another one: make, a shell or a CI job within a limit calls it.
//!
//! The memory of the inner program is under both limits. If the inner limit is not the smaller
//! one, the program joins the outer group: it takes this process's place. Otherwise it gets a
//! group of its own, whose whole limit is charged to the outer group for as long as it lives (a
//! [`Reservation`]): so the usage of both together cannot pass the outer limit.
//!
//! The outer `deckle run` manages each program that is executed in its tree, also this one. A
//! managed supervisor would wait for its own service, as for any child, for ever. So before it
//! forks, `deckle run` executes itself anew without the library, and tells itself by a variable
//! of the environment which group it is in.

use std::ffi::{CString, OsStr, OsString};
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::time::{Duration, Instant};

use deckle_door::entry::WINDOW;
use deckle_door::link::Link;
use deckle_group::{Answer, Asked, Group, GroupCharge, LineId, Name};
use deckle_mm::{Charge, PAGE_SIZE};
use deckle_sys::{Fd, pidfd, process};

use super::child::Program;
use super::entry::WINDOWS;
use super::{LIBRARY, find_program, refuse};
use crate::args::RunArgs;
use crate::fail::{Fail, plain};
use crate::settings::Settings;
use crate::{say, size};

/// Names the outer group to the `deckle run` that has executed itself.
pub const OUTER: &str = "DECKLE_OUTER";
/// Names the group to a managed program.
pub const GROUP: &str = "DECKLE_GROUP";
/// The loader's variable.
pub const PRELOAD: &str = "LD_PRELOAD";
/// How long the processes of the outer group are asked for room.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long one of them has for its answer.
const ANSWER: Duration = Duration::from_secs(1);

/// The group in whose tree this process runs.
pub struct Outer(Group);

/// The outer group, if this process runs in the tree of another `deckle run` and is to make a
/// group of its own. Does not come back where the program joins the outer group, and where this
/// process executes itself.
///
/// # Errors
/// The program cannot be held below both limits, or cannot be executed.
pub fn outer(args: &RunArgs) -> Result<Option<Outer>, Fail> {
    if let Some(name) = std::env::var_os(OUTER) {
        return attach(&name)?.map(Outer).map(Some).ok_or_else(gone);
    }
    let preload = std::env::var_os(PRELOAD).unwrap_or_default();
    // The second entry path takes the library out of the list.
    let entered = is_entered();
    let is_managed = entered || without_ours(&preload).is_some();
    let Some(name) = std::env::var_os(GROUP).filter(|_| is_managed) else {
        return Ok(None);
    };
    let Some(group) = attach(&name)? else {
        return Ok(None);
    };
    let settings = Settings::of(args)?;
    let (inner, outer) = (settings.limits.max, group.limits().max);
    if args.unmanaged || inner >= outer {
        return Err(join(args, &settings, outer));
    }
    if entered {
        return Err(Fail::own(format!(
            "--memory-max: inside another deckle run, and called by a static program, only its \
             limit ({}) can hold: call deckle from a program that is linked dynamically",
            shown(outer)
        )));
    }
    Err(execute_anew(&name, &preload))
}

fn gone() -> Fail {
    Fail::own("the deckle run outside of this one has ended")
}

fn shown(pages: u64) -> String {
    match pages {
        u64::MAX => "none".to_owned(),
        pages => size::show(pages * PAGE_SIZE as u64),
    }
}

/// The group of that name, if its `deckle run` lives.
fn attach(name: &OsStr) -> Result<Option<Group>, Fail> {
    let Ok(name) = Name::new(name.as_bytes()) else {
        return Ok(None);
    };
    match Group::attach(name) {
        Ok(group) => Ok(Some(group).filter(Group::is_supervised)),
        // A variable that has outlived its `deckle run`.
        Err(_) if Link::connect(name.as_bytes()).is_err() => Ok(None),
        Err(e) => Err(Fail::own(format!(
            "inside another deckle run, whose limit cannot be read: {e}: run it as the same user, \
             with the same /dev/shm"
        ))),
    }
}

/// The rest of a list of libraries; `None`: ours is not in it.
fn without_ours(list: &OsStr) -> Option<OsString> {
    let all = list.as_bytes().split(|b| matches!(b, b':' | b' '));
    let is_ours = |entry: &&[u8]| entry.rsplit(|b| *b == b'/').next() == Some(LIBRARY.as_bytes());
    let (ours, rest): (Vec<_>, Vec<_>) = all.partition(is_ours);
    let rest: Vec<_> = rest.into_iter().filter(|e| !e.is_empty()).collect();
    (!ours.is_empty()).then(|| OsString::from_vec(rest.join(&b':')))
}

/// Whether this process has the second entry path, with a filter that no exec takes away.
fn is_entered() -> bool {
    let window = (WINDOWS[0] * WINDOW) as u64..((WINDOWS[0] + WINDOWS[1]) * WINDOW) as u64;
    let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let mut starts = maps.lines().filter_map(|l| l.split_once('-'));
    starts.any(|(at, _)| u64::from_str_radix(at, 16).is_ok_and(|at| window.contains(&at)))
}

/// Has the program take this process's place in the outer group. Comes back with an error only.
fn join(args: &RunArgs, settings: &Settings, outer: u64) -> Fail {
    let (path, verdict) = match find_program(&args.program) {
        Ok(found) => found,
        Err(fail) => return fail,
    };
    if settings.strict
        && let Err(fail) = refuse(&path, verdict)
    {
        return fail;
    }
    if !args.quiet {
        say(format_args!(
            "inside another deckle run, whose limit ({}) holds: the program joins it, and no other \
             option has an effect",
            shown(outer)
        ));
    }
    let argv = args.program.clone();
    let program = Program {
        path,
        argv,
        library: None,
        traced: false,
        files: None,
    };
    program.replace()
}

/// Executes this program once more, without the library. Comes back with an error only.
fn execute_anew(group: &OsStr, preload: &OsStr) -> Fail {
    let text = |text: &OsStr| CString::new(text.as_bytes()).unwrap_or_default();
    let fail = |e: String| Fail::own(format!("cannot execute myself: {e}"));
    let path = match std::env::current_exe() {
        Ok(path) => path,
        Err(e) => return fail(plain(&e)),
    };
    let rest = without_ours(preload).filter(|list| !list.is_empty());
    let others = std::env::vars_os().filter(|(key, _)| key != GROUP && key != PRELOAD);
    let ours = rest.map(|list| (PRELOAD.into(), list));
    let all = others.chain(ours).chain([(OUTER.into(), group.to_owned())]);
    let env: Vec<CString> = all.map(|(key, value)| variable(&key, &value)).collect();
    let argv: Vec<CString> = std::env::args_os().map(|word| text(&word)).collect();
    fail(process::execute(&text(path.as_os_str()), &argv, &env, true).to_string())
}

/// An entry of the environment.
pub fn variable(key: &OsStr, value: &OsStr) -> CString {
    let bytes = [key.as_bytes(), b"=", value.as_bytes()].concat();
    CString::new(bytes).unwrap_or_default()
}

/// What the outer group is charged for an inner one: its whole limit.
pub struct Reservation {
    group: Group,
    line: LineId,
    /// The outer supervisor sees the end of this process by it.
    _link: Link,
}

impl Outer {
    /// Charges `pages` to the outer group for the life of this process. The processes of that
    /// group reclaim if it has not that much left.
    ///
    /// # Errors
    /// They cannot.
    pub fn reserve(self, pages: u64) -> Result<Reservation, Fail> {
        let group = self.0;
        let me = std::process::id();
        let fail = |what: String| Fail::own(format!("inside another deckle run: {what}"));
        let link = Link::connect(group.name().as_bytes()).map_err(|_| gone())?;
        let myself = pidfd::open(me).map_err(|e| fail(format!("no pidfd: {e}")))?;
        let null = Fd::open(c"/dev/null", libc::O_RDONLY, 0);
        let null = null.map_err(|e| fail(format!("/dev/null: {e}")))?;
        let line = group.join(me, 0).map_err(|e| fail(e.to_string()))?;
        let reservation = Reservation {
            group,
            line,
            _link: link,
        };
        group.note_settled(line);
        // In the place of a userfaultfd, of a service and of its program.
        let fds = [null.raw(), myself.raw(), myself.raw()];
        let told = reservation._link.hello((me, me), line, &fds);
        told.map_err(|_| gone())?;
        match reservation.charge(pages) {
            true => Ok(reservation),
            false => Err(Fail::own(format!(
                "--memory-max: {} does not fit into what is free of the limit of the deckle run \
                 outside of this one ({}, of which {} is in use): give less, or wait until others \
                 have ended",
                shown(pages),
                shown(group.limits().max),
                shown(group.usage())
            ))),
        }
    }
}

impl Reservation {
    fn charge(&self, pages: u64) -> bool {
        let (group, until) = (self.group, Instant::now() + PATIENCE);
        let charge = GroupCharge::new(group, self.line);
        // A refused charge would have others refused at the same moment.
        let missing = || (group.usage() + pages).saturating_sub(group.limits().max);
        let charged = || missing() == 0 && charge.try_charge(pages).is_ok();
        loop {
            group.fold_stale();
            if charged() {
                return true;
            }
            let (mut asked, mut freed) = (Asked::default(), 0);
            while let Some(donor) = group.choose_donor(self.line, &mut asked) {
                let ring = group.ask(donor.line, missing().max(1));
                let left = until.saturating_duration_since(Instant::now());
                match ring.map(|ring| group.wait_answer(ring, left.min(ANSWER))) {
                    Some(Answer::Freed(pages)) => freed += pages,
                    Some(Answer::Gone) => freed += 1,
                    Some(Answer::Late) | None => {}
                }
                if charged() {
                    return true;
                }
            }
            if freed == 0 || Instant::now() > until {
                return false;
            }
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.group.leave(self.line);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_alone_is_taken_out_of_a_list() {
        let rest = |list: &str| without_ours(OsStr::new(list)).map(|l| l.into_string().unwrap());
        assert_eq!(rest(""), None);
        assert_eq!(rest("/a/other.so:b.so"), None);
        assert_eq!(rest("/x/libdeckle.so"), Some(String::new()));
        assert_eq!(rest("/x/libdeckle.so:/a.so b.so").unwrap(), "/a.so:b.so");
    }
}
