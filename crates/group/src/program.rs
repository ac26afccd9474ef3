//! What a program file is, before it is executed: whether libdeckle.so can be loaded into it.
//!
//! Used by `deckle run` and, in the program, before each exec. Reads the file with pread into
//! buffers on the stack (8 KiB at most); allocates nothing.

use core::ffi::CStr;
use core::fmt;

use deckle_door::Text;
use deckle_sys::file::{has_attribute, may_execute, stat_at, stat_of};
use deckle_sys::{Errno, Fd, process};

/// Longest path looked at.
pub const PATH_MAX: usize = 4096;
/// `#!` lines followed, as the kernel does.
const SCRIPT_DEPTH: u32 = 5;

/// What can be done with a program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// The library can be loaded into it.
    Managed,
    /// It cannot, or it would see too little; the second door can be put in. The reason counts
    /// where that is refused.
    Injected(Reason),
    /// It runs, but the library cannot be loaded into it.
    Unmanaged(Reason),
}

/// Why a program cannot be managed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reason {
    /// No dynamic loader, so nothing can be preloaded.
    Static,
    /// Another C library's loader.
    Musl,
    /// A Go program, which makes system calls without any library.
    Go,
    /// A 32-bit program.
    Bits32,
    /// For another processor (run by binfmt_misc, if at all).
    Machine,
    /// Set-user-id, set-group-id or file capabilities: the loader ignores LD_PRELOAD.
    Privileged,
    /// Neither an ELF file nor a script: run by binfmt_misc or a shell, if at all.
    Format,
}

impl Reason {
    /// For people.
    pub const fn text(self) -> &'static str {
        match self {
            Reason::Static => "it is statically linked, so no library can be loaded into it",
            Reason::Musl => "it is linked with musl, and libdeckle.so with glibc",
            Reason::Go => "it is a Go program, which makes its system calls itself",
            Reason::Bits32 => "it is a 32-bit program, and libdeckle.so is a 64-bit library",
            Reason::Machine => "it is built for another processor",
            Reason::Privileged => {
                "it is set-user-id, set-group-id or has file capabilities, so the loader \
                 ignores LD_PRELOAD"
            }
            Reason::Format => "it is neither an ELF program nor a script",
        }
    }

    /// What could be done about it.
    pub const fn remedy(self) -> &'static str {
        match self {
            Reason::Static | Reason::Musl | Reason::Go => {
                "let deckle run trace it (ptrace), and the program have a seccomp filter"
            }
            Reason::Bits32 | Reason::Machine => "use a 64-bit build of it for this machine",
            Reason::Privileged => "run deckle as the user that it switches to",
            Reason::Format => "name its interpreter before it",
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

/// Why a program cannot be executed at all.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ProgramError {
    /// No such file (shells answer 127).
    NotFound,
    /// A directory, or no permission to execute (shells answer 126).
    NotExecutable(Errno),
    /// The interpreter of a script does not exist (126).
    NoInterpreter,
    /// Reading it failed (126).
    Read(Errno),
    /// Scripts whose interpreters are scripts, too deep (126).
    TooDeep,
}

impl ProgramError {
    /// The exit status that shells give.
    pub const fn status(self) -> i32 {
        match self {
            ProgramError::NotFound => 127,
            _ => 126,
        }
    }
}

impl fmt::Display for ProgramError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ProgramError::NotFound => f.write_str("not found"),
            ProgramError::NotExecutable(Errno(libc::EISDIR)) => f.write_str("is a directory"),
            ProgramError::NotExecutable(_) => f.write_str("not executable"),
            ProgramError::NoInterpreter => {
                f.write_str("the interpreter named in its #! line is not found")
            }
            ProgramError::Read(e) => write!(f, "cannot be read: {e}"),
            ProgramError::TooDeep => f.write_str("its interpreter is a script of a script"),
        }
    }
}

impl core::error::Error for ProgramError {}

/// Looks at the program file `path`.
pub fn inspect(path: &CStr) -> Result<Verdict, ProgramError> {
    inspect_at(path, 0)
}

fn inspect_at(path: &CStr, depth: u32) -> Result<Verdict, ProgramError> {
    if depth >= SCRIPT_DEPTH {
        return Err(ProgramError::TooDeep);
    }
    executable(path).map_err(|e| match e {
        ProgramError::NotFound if depth > 0 => ProgramError::NoInterpreter,
        e => e,
    })?;
    let file = match Fd::open(path, libc::O_RDONLY, 0) {
        Ok(f) => f,
        // May be executed, but not read (mode 0711): the loader will manage, we cannot tell.
        Err(Errno(libc::EACCES)) => return Ok(Verdict::Managed),
        Err(e) => return Err(ProgramError::Read(e)),
    };
    let mut head = [0u8; 256];
    let n = file.read_at(&mut head, 0).map_err(ProgramError::Read)?;
    let head = &head[..n];
    if head.starts_with(b"#!") {
        let mut buf = [0u8; 256];
        // Set-id bits of scripts are ignored by the kernel.
        let Some(interpreter) = interpreter(head, &mut buf) else {
            return Ok(Verdict::Unmanaged(Reason::Format));
        };
        return inspect_at(interpreter, depth + 1);
    }
    if privileged(&file).map_err(ProgramError::Read)? {
        return Ok(Verdict::Unmanaged(Reason::Privileged));
    }
    elf(&file, head, path)
}

/// Whether `path` is a file that may be executed.
pub fn executable(path: &CStr) -> Result<(), ProgramError> {
    let st = stat_at(path).map_err(|e| match e {
        Errno(libc::ENOENT | libc::ENOTDIR) => ProgramError::NotFound,
        e => ProgramError::NotExecutable(e),
    })?;
    match st.st_mode & libc::S_IFMT {
        libc::S_IFREG => {}
        libc::S_IFDIR => return Err(ProgramError::NotExecutable(Errno(libc::EISDIR))),
        _ => return Err(ProgramError::NotExecutable(Errno(libc::EACCES))),
    }
    may_execute(path).map_err(ProgramError::NotExecutable)
}

/// Finds `name` as execvp does: with a slash it is a path, else `search` (a PATH) is walked.
/// The path is written to `buf`; one that is longer is passed over. A file that is found but
/// may not be executed is an error only if no later one may.
pub fn find<'a, const N: usize>(
    name: &CStr,
    search: &[u8],
    buf: &'a Text<N>,
) -> Result<&'a CStr, ProgramError> {
    let name = name.to_bytes();
    if name.is_empty() {
        return Err(ProgramError::NotFound);
    }
    let mut denied = None;
    let slash = name.contains(&b'/');
    let dirs = if slash { &b""[..] } else { search };
    for dir in dirs.split(|&b| b == b':') {
        match dir {
            _ if slash => buf.set_all(&[name, b"\0"]),
            b"" => buf.set_all(&[b"./", name, b"\0"]),
            dir => buf.set_all(&[dir, b"/", name, b"\0"]),
        };
        // What was cut has no NUL at its end.
        let Ok(path) = CStr::from_bytes_with_nul(buf.get()) else {
            continue;
        };
        match executable(path) {
            Ok(()) => return Ok(path),
            Err(ProgramError::NotFound) => {}
            Err(e) => denied = denied.or(Some(e)),
        }
    }
    Err(denied.unwrap_or(ProgramError::NotFound))
}

/// The interpreter of a `#!` line.
fn interpreter<'a>(head: &[u8], buf: &'a mut [u8; 256]) -> Option<&'a CStr> {
    let line = head[2..].split(|&b| b == b'\n').next()?;
    let word = line
        .split(|&b| matches!(b, b' ' | b'\t' | b'\r'))
        .find(|w| !w.is_empty())?;
    buf.get_mut(..word.len())?.copy_from_slice(word);
    *buf.get_mut(word.len())? = 0;
    CStr::from_bytes_until_nul(buf).ok()
}

/// Whether the loader will see AT_SECURE: another user's or group's set-id bit, or file
/// capabilities for a user who is not root.
fn privileged(file: &Fd) -> Result<bool, Errno> {
    let st = stat_of(file)?;
    let (user, group) = process::user_and_group();
    let set_user = st.st_mode & libc::S_ISUID != 0 && st.st_uid != user;
    let both = libc::S_ISGID | libc::S_IXGRP;
    let set_group = st.st_mode & both == both && st.st_gid != group;
    let caps = has_attribute(file, c"security.capability");
    Ok(set_user || set_group || (caps && user != 0))
}

fn elf(file: &Fd, head: &[u8], path: &CStr) -> Result<Verdict, ProgramError> {
    let unmanaged = |r| Ok(Verdict::Unmanaged(r));
    if !head.starts_with(b"\x7fELF") {
        return unmanaged(Reason::Format);
    }
    if head.get(4) == Some(&libc::ELFCLASS32) {
        return unmanaged(Reason::Bits32);
    }
    if head.len() < 58 {
        return unmanaged(Reason::Format);
    }
    let u16_at = |at: usize| u16::from_le_bytes([head[at], head[at + 1]]);
    let u64_at = |b: &[u8], at: usize| b[at..].first_chunk().map_or(0, |n| u64::from_le_bytes(*n));
    if u16_at(18) != libc::EM_X86_64 {
        return unmanaged(Reason::Machine);
    }
    let (mut entry, table) = ([0u8; 56], u64_at(head, 32));
    if usize::from(u16_at(54)) != entry.len() {
        return unmanaged(Reason::Format);
    }
    let (mut dynamic, mut go) = (false, false);
    for i in 0..u64::from(u16_at(56)) {
        let at = table.saturating_add(i * 56);
        if at > i64::MAX as u64 {
            return unmanaged(Reason::Format);
        }
        let n = file.read_at(&mut entry, at).map_err(ProgramError::Read)?;
        if n < entry.len() {
            return unmanaged(Reason::Format);
        }
        // The segment, as far as there is room for it.
        let read = |to: &mut [u8]| {
            let at = u64_at(&entry, 8).min(i64::MAX as u64);
            let len = u64_at(&entry, 32).min(to.len() as u64) as usize;
            file.read_at(&mut to[..len], at).map_err(ProgramError::Read)
        };
        if entry[..4] == libc::PT_NOTE.to_le_bytes() {
            let mut notes = [0u8; 512];
            // Each: length of the name, of the text, kind (build id), name.
            let is_go = |n: &[u8]| n[..4] == [4, 0, 0, 0] && n[8..] == *b"\x04\0\0\0Go\0\0";
            let n = read(&mut notes)?;
            go |= notes[..n].windows(16).step_by(4).any(is_go);
        }
        if entry[..4] == libc::PT_INTERP.to_le_bytes() {
            let mut loader = [0u8; 255];
            let n = read(&mut loader)?;
            if loader[..n].windows(7).any(|w| w == b"ld-musl") {
                return Ok(Verdict::Injected(Reason::Musl));
            }
            dynamic = true;
        }
    }
    // The loader itself has no interpreter, and loads the library all the same.
    let name = path.to_bytes().rsplit(|&b| b == b'/').next().unwrap_or(b"");
    let is_loader = name.starts_with(b"ld-linux") || name == b"ld.so";
    Ok(match dynamic || is_loader {
        _ if go => Verdict::Injected(Reason::Go),
        true => Verdict::Managed,
        false => Verdict::Injected(Reason::Static),
    })
}
