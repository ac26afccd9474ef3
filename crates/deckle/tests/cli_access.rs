//! Systems that refuse userfaultfd in one way or another: the error names what applies there.

use crate::common::*;
use crate::skipped::skipped;
use deckle_uffd::{Uffd, Via};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

/// What is taken away from `deckle` before it starts.
#[derive(Clone, Copy, Default)]
struct Without {
    /// Root: it runs as another user.
    root: bool,
    /// `/dev/userfaultfd`, with all of /dev.
    device: bool,
    /// The system call, by a filter as containers have it.
    call: bool,
}

/// Whether deckle will take this system for a container, and speak of container options.
fn in_container() -> bool {
    std::env::var_os("KUBERNETES_SERVICE_HOST").is_some()
        || ["/.dockerenv", "/run/.containerenv"]
            .iter()
            .any(|p| Path::new(p).exists())
}

fn take_away(without: Without) -> std::io::Result<()> {
    let done = |rc: i32| match rc {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    };
    // SAFETY: system calls on literals and on a filter that is live, in a process that has not
    // begun yet; nothing is allocated.
    unsafe {
        if without.device {
            done(libc::unshare(libc::CLONE_NEWNS))?;
            let (none, root) = (std::ptr::null(), c"/".as_ptr());
            let private = libc::MS_REC | libc::MS_PRIVATE;
            done(libc::mount(none, root, none, private, none.cast()))?;
            let (kind, dev) = (c"tmpfs".as_ptr(), c"/dev".as_ptr());
            done(libc::mount(kind, dev, kind, 0, none.cast()))?;
        }
        if without.root {
            done(libc::setgid(65534))?;
            done(libc::setuid(65534))?;
        }
        if without.call {
            let word = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
            let equal = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
            let answer = (libc::BPF_RET | libc::BPF_K) as u16;
            let step = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
            let mut steps = [
                // The number of the call is the first word.
                step(word, 0, 0, 0),
                step(equal, 0, 1, libc::SYS_userfaultfd as u32),
                step(answer, 0, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
                step(answer, 0, 0, libc::SECCOMP_RET_ALLOW),
            ];
            let filter = libc::sock_fprog {
                len: steps.len() as u16,
                filter: steps.as_mut_ptr(),
            };
            done(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))?;
            let mode = libc::SECCOMP_MODE_FILTER;
            done(libc::prctl(libc::PR_SET_SECCOMP, mode, &raw const filter))?;
        }
    }
    Ok(())
}

fn deckle_without(without: Without, args: &[&str]) -> (i32, String, String) {
    // Any user must be able to execute it, wherever it was built.
    let s = Scratch::new("access");
    let copy = copy_of_deckle(&s);
    let mut c = Command::new(&copy);
    c.args(args).env_remove("container");
    // SAFETY: see take_away.
    unsafe { c.pre_exec(move || take_away(without)) };
    finish(c.output().unwrap())
}

/// Whether the test of that name cannot run here; says so.
fn may_not(test: &str) -> bool {
    if deckle_sys::process::effective_user() != 0 {
        skipped(format_args!("{test}: needs root to take things away"));
        return true;
    }
    if let Err(why) = Uffd::open(Via::Syscall, true) {
        skipped(format_args!("{test}: was taken away already: {why}"));
        return true;
    }
    let sysctl = std::fs::read_to_string("/proc/sys/vm/unprivileged_userfaultfd");
    if sysctl.is_ok_and(|s| s.trim() == "1") {
        skipped(format_args!("{test}: vm.unprivileged_userfaultfd is 1"));
        return true;
    }
    false
}

/// What is taken away, and what must be said: outside of containers, and inside.
const CASES: [(Without, &str, &str); 3] = [
    (
        Without {
            root: true,
            device: false,
            call: false,
        },
        " nobody; then log in again",
        "on the host, as root: deckle setup",
    ),
    (
        Without {
            root: true,
            device: true,
            call: false,
        },
        "this /dev has no userfaultfd",
        "--device /dev/userfaultfd",
    ),
    (
        Without {
            root: true,
            device: true,
            call: true,
        },
        "this /dev has no userfaultfd",
        "--device /dev/userfaultfd",
    ),
];

#[test]
fn no_userfaultfd_names_the_remedy_that_applies() {
    if may_not("no_userfaultfd_names_the_remedy_that_applies") {
        return;
    }
    for (without, outside, inside) in CASES {
        if without.root && !without.device && !Path::new("/dev/userfaultfd").exists() {
            skipped("a case of no_userfaultfd_...: no /dev/userfaultfd");
            continue;
        }
        let (code, out, err) = deckle_without(without, &["run", "--", "true"]);
        assert_eq!((code, out.as_str()), (125, ""), "{err}");
        assert_eq!(err.lines().count(), 1, "{err}");
        assert!(err.contains("no userfaultfd here"), "{err}");
        let user_mode = err.contains("only one for faults of user mode");
        assert_eq!(user_mode, !without.call, "{err}");
        let remedy = if in_container() { inside } else { outside };
        assert!(err.contains(remedy), "no `{remedy}` in: {err}");
    }
}

#[test]
fn doctor_without_privilege_says_what_is_missing_and_the_remedy() {
    if may_not("doctor_without_privilege_says_what_is_missing_and_the_remedy") {
        return;
    }
    let root = Without {
        root: true,
        ..Without::default()
    };
    let (code, out, _) = deckle_without(root, &["doctor", "--format", "json"]);
    assert_eq!(code, 1, "nothing can be managed: {out}");
    let json: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_ne!(json["mode"], "full");
    let findings = json["findings"].as_array().unwrap();
    let missing = findings.iter().filter(|f| f["state"] == "missing");
    assert!(missing.clone().count() > 0);
    for f in missing.clone() {
        assert!(f["remedy"].as_str().is_some_and(|r| !r.is_empty()), "{f}");
    }
    // One thing is to be done, and all else that is missing follows from it.
    let steps = missing.filter(|f| f["remedy"] != "as for what is used, above");
    assert_eq!(
        steps.map(|f| f["name"].as_str()).collect::<Vec<_>>(),
        [Some("used")]
    );
    let kernel_faults = findings
        .iter()
        .find(|f| f["name"] == "faults of system calls");
    assert_eq!(
        kernel_faults.unwrap()["value"],
        false,
        "as the self-test found"
    );
}
