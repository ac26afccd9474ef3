//! Looking at program files.

use crate::skipped::skipped;
use deckle_door::Text;
use deckle_group::program::{PATH_MAX, ProgramError, Reason, Verdict, find, inspect};
use std::ffi::CString;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

struct Dir(PathBuf);
impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
fn dir(tag: &str) -> Dir {
    let d = std::env::temp_dir().join(format!("deckle-program-{tag}-{}", std::process::id()));
    std::fs::create_dir_all(&d).unwrap();
    Dir(d)
}
fn put(dir: &Dir, name: &str, bytes: &[u8], mode: u32) -> PathBuf {
    let p = dir.0.join(name);
    std::fs::write(&p, bytes).unwrap();
    std::fs::set_permissions(&p, std::fs::Permissions::from_mode(mode)).unwrap();
    p
}
fn look(p: &Path) -> Result<Verdict, ProgramError> {
    inspect(&CString::new(p.to_str().unwrap()).unwrap())
}

/// A minimal ELF file with at most one program header.
fn elf(class: u8, machine: u16, interpreter: Option<&str>) -> Vec<u8> {
    let mut f = vec![0u8; 64];
    f[..6].copy_from_slice(&[0x7f, b'E', b'L', b'F', class, 1]);
    f[16] = 3;
    f[18..20].copy_from_slice(&machine.to_le_bytes());
    f[32] = 64;
    f[54] = 56;
    if let Some(path) = interpreter {
        f[56] = 1;
        let mut entry = [0u8; 56];
        entry[0] = 3;
        entry[8] = 120;
        entry[32] = path.len() as u8 + 1;
        f.extend_from_slice(&entry);
        f.extend_from_slice(path.as_bytes());
        f.push(0);
    }
    f
}
const HERE: u16 = if cfg!(target_arch = "x86_64") {
    62
} else {
    183
};

#[test]
fn programs_are_told_apart() {
    let d = dir("kinds");
    let file = |name: &str, bytes: &[u8]| put(&d, name, bytes, 0o755);
    let injected = |p: &Path| match look(p) {
        Ok(Verdict::Injected(r)) => r,
        other => panic!("{p:?}: {other:?}"),
    };
    let reason = |p: &Path| match look(p) {
        Ok(Verdict::Unmanaged(r)) => r,
        other => panic!("{p:?}: {other:?}"),
    };
    assert_eq!(
        look(&std::env::current_exe().unwrap()),
        Ok(Verdict::Managed)
    );
    assert_eq!(look(Path::new("/bin/sh")), Ok(Verdict::Managed));
    assert_eq!(
        injected(&file("static", &elf(2, HERE, None))),
        Reason::Static
    );
    let musl = elf(2, HERE, Some("/lib/ld-musl-x86_64.so.1"));
    assert_eq!(injected(&file("musl", &musl)), Reason::Musl);
    assert_eq!(reason(&file("small", &elf(1, 3, None))), Reason::Bits32);
    assert_eq!(reason(&file("other", &elf(2, 8, None))), Reason::Machine);
    assert_eq!(reason(&file("text", b"hello")), Reason::Format);
    assert_eq!(reason(&file("empty", b"")), Reason::Format);
    assert_eq!(
        reason(&file("cut", &elf(2, HERE, Some("x"))[..70])),
        Reason::Format
    );
    assert_eq!(
        look(&file("script", b"#! /bin/sh -e\necho")),
        Ok(Verdict::Managed)
    );
    let inner = file("inner", &elf(2, HERE, None));
    let line = format!("#!{}\n", inner.display());
    assert_eq!(injected(&file("script2", line.as_bytes())), Reason::Static);
    let lost = file("lost", b"#!/no/such/interpreter\n");
    assert_eq!(look(&lost), Err(ProgramError::NoInterpreter));
    let own = d.0.join("loop");
    let p = file("loop", format!("#!{}\n", own.display()).as_bytes());
    assert_eq!(look(&p), Err(ProgramError::TooDeep));
}

#[test]
fn a_set_user_id_program_of_another_user_is_not_managed() {
    let d = dir("setuid");
    let p = put(
        &d,
        "su",
        &elf(2, HERE, Some("/lib64/ld-linux-x86-64.so.2")),
        0o755,
    );
    let path = CString::new(p.to_str().unwrap()).unwrap();
    // SAFETY: a NUL-terminated path; calls on numbers.
    let (changed, me) = unsafe { (libc::chown(path.as_ptr(), 12345, 12345), libc::getuid()) };
    if changed != 0 {
        skipped(format_args!("user {me} may not chown"));
        return;
    }
    std::fs::set_permissions(&p, std::fs::Permissions::from_mode(0o4755)).unwrap();
    assert_eq!(look(&p), Ok(Verdict::Unmanaged(Reason::Privileged)));
}

#[test]
fn the_search_path_is_walked_like_execvp() {
    let (a, b) = (dir("a"), dir("b"));
    put(&a, "tool", b"#!/bin/sh\n", 0o644);
    put(&b, "tool", b"#!/bin/sh\n", 0o755);
    put(&a, "plain", b"#!/bin/sh\n", 0o644);
    let path = format!("/nowhere:{}:{}", a.0.display(), b.0.display());
    let search = |name: &str| {
        let buf: Text<PATH_MAX> = Text::new();
        let name = CString::new(name).unwrap();
        find(&name, path.as_bytes(), &buf).map(|c| c.to_str().unwrap().to_owned())
    };
    assert_eq!(search("tool").unwrap(), format!("{}/tool", b.0.display()));
    assert_eq!(search("plain").unwrap_err().status(), 126);
    assert_eq!(search("absent").unwrap_err().status(), 127);
    assert_eq!(search("").unwrap_err().status(), 127);
    assert_eq!(search("/bin").unwrap_err().status(), 126);
    assert_eq!(search("/bin/sh").unwrap(), "/bin/sh");
    assert_eq!(search(&"x".repeat(5000)).unwrap_err().status(), 127);
}
