//! `deckle run`: check everything, then start the program and stay until its tree has ended.

mod child;
mod ending;
mod entry;
mod events;
mod front;
mod hello;
mod inject;
mod killed;
pub mod knobs;
mod leaving;
mod nested;
mod peer;
mod points;
pub mod report;
mod room;
mod services;
mod signals;
mod stats_file;
mod supervise;
mod swapfile;
mod told;
pub mod tree;
mod victim;

use std::ffi::{CString, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::parent_id;
use std::path::{Path, PathBuf};

use deckle_door::Text;
use deckle_group::program::{self, PATH_MAX, ProgramError, Verdict};
use deckle_group::{AttachError, Group, Name};
use deckle_live::{Capabilities, Capability};
use deckle_sys::signal::Signals;
use deckle_sys::{Errno, random};

use self::front::{Link, Side};
use self::nested::Outer;
use self::report::Report;
use self::swapfile::SwapFiles;
use self::told::Told;
use crate::access::Facts;
use crate::args::RunArgs;
use crate::fail::{Fail, plain};
use crate::settings::Settings;
use crate::{look, procfs, say, voice};

/// File name of the preload library.
const LIBRARY: &str = "libdeckle.so";
/// File name of the service image, which it starts.
const IMAGE: &str = "libdeckle.image";
/// File name of the second door.
const ENTRY: &str = "libdeckle.entry";

/// Runs the program; the exit status of `deckle`.
pub fn run(args: &RunArgs) -> Result<i32, Fail> {
    let outer = nested::outer(args)?;
    let settings = Settings::of(args)?;
    let name = Name::new(random_name()?.as_bytes()).map_err(|e| Fail::own(e.to_string()))?;
    let signals =
        signals::open().map_err(|e| Fail::own(format!("signals cannot be received: {e}")))?;
    if !Path::new("/proc/self").exists() {
        return Err(Fail::own(procfs::MISSING));
    }
    if std::process::id() == 1 {
        return supervisor((args, &settings), name, &signals, None, outer);
    }
    match front::split(&signals, name)? {
        Side::Front(status) => Ok(status),
        Side::Supervisor(link) => supervisor((args, &settings), name, &signals, Some(link), outer),
    }
}

/// All but the front's part; the exit status.
fn supervisor(
    (args, settings): (&RunArgs, &Settings),
    name: Name,
    signals: &Signals,
    front: Option<Link>,
    outer: Option<Outer>,
) -> Result<i32, Fail> {
    voice::begin().map_err(|e| Fail::own(format!("no thread: {}", plain(&e))))?;
    let (path, verdict) = find_program(&args.program)?;
    let alias = look::alias(args.name.as_deref())?;
    let pid = front
        .as_ref()
        .map_or_else(std::process::id, |_| parent_id());
    let tree = args.name.clone().unwrap_or_else(|| pid.to_string());
    let told = Told::create(args, name, tree, settings)?;
    let managed = !args.unmanaged && can_manage(&path, verdict, settings.strict)?;
    let found = managed.then(tried).transpose()?;
    let library = if managed { Some(library()?) } else { None };
    let dir = settings.swap.file.as_ref().map(|file| file.dir.as_path());
    let files = SwapFiles::new(dir)?;
    let tracer = tracer(library.as_deref(), name)?;
    let watched = managed.then(room::raise).transpose()?;
    deckle_group::look::sweep();
    let group = group_of(name, settings)?;
    if let Some((_, most)) = watched {
        group.set_lines_max(most);
    }
    let _unlink = Unlink(name);
    let _reserved = outer
        .map(|outer| outer.reserve(settings.limits.max))
        .transpose()?;
    group.note_front(pid);
    group.set_unmanaged(args.unmanaged);
    if let Some(alias) = alias {
        look::claim(&group, alias)?;
    }
    if let Some(found) = found {
        group.set_capabilities(found.bits());
    }
    if matches!(verdict, Verdict::Unmanaged(_)) || args.unmanaged {
        group.count_unmanaged_program();
    }
    let program = child::Program {
        path,
        argv: args.program.clone(),
        traced: library.is_some() && matches!(verdict, Verdict::Injected(_)),
        files: watched.and_then(|(before, _)| before),
        library,
    };
    let swap = settings.swap.to_string();
    let telling = told.start(group, swap.clone())?;
    let Some(end) = supervise::supervise(&group, &program, signals, front, tracer, files)? else {
        // Nobody is there who would want to know.
        return Ok(137);
    };
    let lost = telling.end(&end);
    if !args.quiet {
        let report = Report::gather(&group, swap, Ok(&end));
        voice::write(report.text().as_bytes());
    }
    lost.iter().for_each(|fail| say(format_args!("{fail}")));
    // What the program says of itself is not lost with a file.
    Ok(match (end.status, lost.first()) {
        (0, Some(fail)) => fail.status,
        (status, _) => status,
    })
}

/// Puts the second door, beside the `library`, into programs.
fn tracer(library: Option<&Path>, name: Name) -> Result<inject::Tracer, Fail> {
    let code = library.map(|library| {
        let files = [ENTRY, IMAGE].map(|file| library.with_file_name(file));
        entry::Code::read(&files[0], &files[1], name).map_err(Fail::own)
    });
    Ok(inject::Tracer::new(code.transpose()?))
}

/// Whether the tree can be managed, of which the first program says `verdict`.
///
/// # Errors
/// It must be and cannot.
fn can_manage(path: &Path, verdict: Verdict, strict: bool) -> Result<bool, Fail> {
    let Verdict::Unmanaged(reason) = verdict else {
        need_userfaultfd(&Facts::gather())?;
        return Ok(true);
    };
    let (name, remedy) = (path.display(), reason.remedy());
    if strict {
        refuse(path, verdict)?;
    }
    say(format_args!(
        "{name}: cannot be managed and runs outside the limit: {reason}: {remedy}"
    ));
    // Its dynamically linked children are managed all the same, if that can be had.
    Ok(Facts::gather().way().is_some() && library().is_ok())
}

/// Refuses a program that cannot be managed: `--strict`.
fn refuse(path: &Path, verdict: Verdict) -> Result<(), Fail> {
    let Verdict::Unmanaged(reason) = verdict else {
        return Ok(());
    };
    Err(Fail::own(format!(
        "{}: cannot be managed: {reason}: {}",
        path.display(),
        reason.remedy()
    )))
}

/// The group, with what the settings say of it.
fn group_of(name: Name, settings: &Settings) -> Result<Group, Fail> {
    let (limits, swap) = (settings.limits, settings.swap.kind);
    let group = Group::create(name, limits, &settings.tunables, swap);
    let group = group.map_err(|e| {
        let hint = match e {
            AttachError::Call(_, Errno(libc::ENOSPC)) => {
                "/dev/shm is full: free 1 MiB there, or have it made larger"
            }
            AttachError::Call(_, Errno(libc::EFBIG)) => {
                "the hard limit on the size of files must allow 1 MiB: raise it (ulimit -H -f)"
            }
            _ => "/dev/shm must be writable and have 1 MiB free",
        };
        Fail::own(format!("{e}: {hint}"))
    })?;
    group.set_strict(settings.strict);
    if let Some(file) = settings.swap_file {
        group.set_swap_file(file);
    }
    group.set_align_mappings(settings.align_mappings);
    Ok(group)
}

/// Removes the group's name at the end, also after an error.
struct Unlink(Name);
impl Drop for Unlink {
    fn drop(&mut self) {
        Group::unlink(self.0);
    }
}

fn find_program(argv: &[OsString]) -> Result<(PathBuf, Verdict), Fail> {
    let name = argv.first().map_or(&b""[..], |a| a.as_bytes());
    let shown = match name {
        b"" => "``".into(),
        name => String::from_utf8_lossy(name),
    };
    let fail = |e: ProgramError| {
        let hint = match e {
            ProgramError::NotFound => "check the name, or give its path",
            ProgramError::NotExecutable(Errno(libc::EISDIR)) => "give a program in it",
            ProgramError::NotExecutable(_) | ProgramError::Read(_) => {
                "check its permissions (chmod +x)"
            }
            ProgramError::NoInterpreter | ProgramError::TooDeep => "check its first line",
        };
        Fail {
            status: e.status(),
            text: format!("{shown}: {e}: {hint}"),
        }
    };
    let name = CString::new(name).map_err(|_| fail(ProgramError::NotFound))?;
    let search = std::env::var_os("PATH").unwrap_or_else(|| "/usr/bin:/bin".into());
    let buf: Text<PATH_MAX> = Text::new();
    let path = program::find(&name, search.as_bytes(), &buf).map_err(fail)?;
    let verdict = program::inspect(path).map_err(fail)?;
    Ok((
        PathBuf::from(OsString::from_vec(path.to_bytes().to_vec())),
        verdict,
    ))
}

fn need_userfaultfd(facts: &Facts) -> Result<(), Fail> {
    let Some(remedy) = facts.remedy() else {
        return Ok(());
    };
    let what = if facts.user_mode_only.is_ok() {
        "no userfaultfd here that serves system calls too, only one for faults of user mode"
    } else {
        "no userfaultfd here"
    };
    Err(Fail::own(format!(
        "{what} ({facts}): {remedy}; see `deckle doctor`"
    )))
}

/// The self-test, once for the whole tree: every process of it would find the same.
fn tried() -> Result<Capabilities, Fail> {
    let found = deckle_live::self_test();
    for vital in [Capability::Tested, Capability::KernelFaults] {
        if !found.has(vital) {
            let text = vital.without();
            return Err(Fail::own(format!("{text}; see `deckle doctor`")));
        }
    }
    Ok(found)
}

/// The preload library: next to this program, or in `../lib/deckle/`.
pub fn library() -> Result<PathBuf, Fail> {
    let own = std::env::current_exe()
        .map_err(|e| Fail::own(format!("cannot find my own path: {}", plain(&e))))?;
    let dir = own.parent().unwrap_or(Path::new("/"));
    let places = [dir.join(LIBRARY), dir.join("../lib/deckle").join(LIBRARY)];
    let beside = |p: &PathBuf| [IMAGE, ENTRY].iter().all(|f| p.with_file_name(f).is_file());
    let whole = |p: &&PathBuf| p.is_file() && beside(p);
    let found = places.iter().find(whole).ok_or_else(|| {
        Fail::own(format!(
            "{LIBRARY}, {IMAGE} and {ENTRY} are neither in {} nor in ../lib/deckle: install them \
             there (in a checkout: scripts/build)",
            dir.display()
        ))
    })?;
    let found = found.canonicalize().unwrap_or_else(|_| found.clone());
    // The loader splits LD_PRELOAD at these, and cannot be told otherwise.
    if found
        .as_os_str()
        .as_bytes()
        .iter()
        .any(|b| matches!(b, b' ' | b':'))
    {
        return Err(Fail::own(format!(
            "{}: the path has a space or a colon, which LD_PRELOAD cannot express: move deckle",
            found.display()
        )));
    }
    Ok(found)
}

fn random_name() -> Result<String, Fail> {
    let word = random().map_err(|e| Fail::own(format!("no random numbers: {e}")))?;
    let (pid, word) = (std::process::id(), u64::from_le_bytes(word));
    Ok(format!("{pid}-{word:016x}"))
}
