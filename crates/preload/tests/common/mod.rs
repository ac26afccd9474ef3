//! Running real programs under the library.

pub mod host;
pub mod tasks;

use crate::skipped::skipped;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// What a program under `deckle run` did.
pub struct Ran {
    pub status: i32,
    pub out: String,
    pub err: String,
}

fn target() -> PathBuf {
    let exe = std::env::current_exe().expect("own path");
    let deps = exe.parent().expect("deps");
    deps.parent().expect("profile directory").to_path_buf()
}

/// The library under test.
pub fn library() -> PathBuf {
    let path = target().join("libdeckle.so");
    assert!(
        path.exists(),
        "{} is not built: cargo build -p deckle-preload",
        path.display()
    );
    path
}

/// `deckle`, which must lie beside the library.
pub fn deckle() -> PathBuf {
    let path = target().join("deckle");
    assert!(
        path.exists(),
        "{} is not built: cargo build -p deckle",
        path.display()
    );
    path
}

/// Whether the programs are to be static, so that the same sequences are run behind the second
/// door (`DECKLE_DOOR=second`, see scripts/test).
pub fn is_second() -> bool {
    std::env::var_os("DECKLE_DOOR").is_some_and(|door| door == "second")
}

/// The same, said, where a test is about the first door.
pub fn is_about_the_first() -> bool {
    if is_second() {
        eprintln!("not asked of the second door");
    }
    is_second()
}

/// Compiles a C program of `tests/programs`.
pub fn compile(name: &str, options: &[&str]) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs");
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let mut options = options.to_vec();
    if is_second() && !options.contains(&"-static") {
        options.push("-static");
    }
    let how = options.join("").replace('/', "_");
    let to = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}{how}"));
    // Other tests may compile the same program now, or run it.
    let n = NEXT.fetch_add(1, Ordering::Relaxed);
    let new = to.with_extension(format!("{}-{n}", std::process::id()));
    let done = Command::new("cc")
        .args(["-O1", "-pthread", "-o"])
        .arg(&new)
        .arg(source.join(format!("{name}.c")))
        .args(&options)
        .output()
        .expect("a C compiler");
    assert!(
        done.status.success(),
        "{}",
        String::from_utf8_lossy(&done.stderr)
    );
    // A program that runs stays where debuggers look for it.
    let there = std::fs::hard_link(&new, &to).is_err();
    let read = |path| std::fs::read(path).expect("a program");
    if there && read(&new) != read(&to) {
        std::fs::rename(&new, &to).expect("rename");
    } else {
        std::fs::remove_file(&new).expect("remove");
    }
    to
}

/// The number that follows `name` at the beginning of a line.
pub fn figure(text: &str, name: &str) -> u32 {
    let rest = text.lines().find_map(|line| line.strip_prefix(name));
    let word = rest.and_then(|rest| rest.split_whitespace().next());
    word.and_then(|n| n.parse().ok())
        .unwrap_or_else(|| panic!("no figure of {name}:\n{text}"))
}

/// The amount that follows `name` in a summary, mebibytes.
pub fn mebibytes(text: &str, name: &str) -> f64 {
    let rest = text.split(name).nth(1).expect("a summary");
    let mut words = rest.split_whitespace();
    let amount: f64 = words.next().and_then(|n| n.parse().ok()).expect("amount");
    match words.next().map(|unit| unit.trim_end_matches(',')) {
        Some("B") => amount / f64::from(1 << 20),
        Some("KiB") => amount / 1024.0,
        Some("MiB") => amount,
        Some("GiB") => amount * 1024.0,
        unit => panic!("{unit:?}"),
    }
}

fn finish(mut command: Command, limit: Duration) -> Output {
    let _beside = host::beside();
    let child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("spawn");
    let pid = child.id() as i32;
    let (tell, told) = std::sync::mpsc::channel();
    let start = Instant::now();
    std::thread::spawn(move || {
        let _ = tell.send(child.wait_with_output());
    });
    match told.recv_timeout(limit) {
        Ok(output) => output.expect("wait"),
        Err(_) => {
            // A child of ours, not reaped yet. Its tree ends with it.
            let _ = deckle_sys::signal::send(pid, libc::SIGKILL);
            panic!("{command:?} still ran after {:?}", start.elapsed());
        }
    }
}

fn ran(output: &Output) -> Ran {
    let out = String::from_utf8_lossy(&output.stdout).into_owned();
    // What a program of the tests leaves out it says itself.
    let left_out = |line: &str| line.strip_prefix("SKIPPED: ").map(str::to_owned);
    out.lines().filter_map(left_out).for_each(skipped);
    Ran {
        status: output.status.code().unwrap_or(-1),
        out,
        err: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// Runs a program with the library alone, outside `deckle run`.
pub fn alone(program: &[&str]) -> Ran {
    let mut command = Command::new(program[0]);
    command.args(&program[1..]).env("LD_PRELOAD", library());
    ran(&finish(command, Duration::from_secs(60)))
}

/// Runs a program without the library.
pub fn without(program: &[&str]) -> Ran {
    let mut command = Command::new(program[0]);
    command.args(&program[1..]);
    ran(&finish(command, Duration::from_secs(60)))
}

/// Runs a program under `deckle run` with these options.
pub fn run(options: &[&str], program: &[&str]) -> Ran {
    library();
    let mut command = Command::new(deckle());
    command.arg("run").args(options).arg("--").args(program);
    ran(&finish(command, Duration::from_secs(120)))
}

/// Copies a program. Not by this process: a child that another test starts meanwhile would have the
/// open copy until its exec, and who executes it before that is refused (ETXTBSY).
pub fn copy(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg(from).arg(to).status().expect("cp");
    assert!(copied.success(), "no copy of {}", from.display());
}

/// Runs a program under `deckle run`, as [`run`], with `before` in front of all, and by copies of
/// the binaries that every user can read.
pub fn run_behind(before: &[&str], options: &[&str], program: &[&str]) -> Ran {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let n = NEXT.fetch_add(1, Ordering::Relaxed);
    let dir = std::env::temp_dir().join(format!("deckle-behind-{}-{n}", std::process::id()));
    let open = |path: &Path| {
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(path, mode).expect("permissions");
    };
    std::fs::create_dir(&dir).expect("a directory");
    open(&dir);
    let parts = [
        "deckle",
        "libdeckle.so",
        "libdeckle.image",
        "libdeckle.entry",
    ];
    let sources = parts.map(|part| target().join(part));
    for source in sources.iter().chain([&PathBuf::from(program[0])]) {
        let to = dir.join(source.file_name().expect("a name"));
        copy(source, &to);
        open(&to);
    }
    let copy = dir.join(Path::new(program[0]).file_name().expect("a name"));
    let mut command = Command::new(before[0]);
    command
        .args(&before[1..])
        .arg(dir.join("deckle"))
        .arg("run");
    command
        .args(options)
        .arg("--")
        .arg(copy)
        .args(&program[1..]);
    command.current_dir("/");
    let ran = ran(&finish(command, Duration::from_secs(120)));
    std::fs::remove_dir_all(&dir).expect("the directory");
    ran
}

/// Checks that a program ended well and said `line`.
pub fn expect(ran: &Ran, line: &str) {
    assert_eq!(ran.status, 0, "stdout:\n{}\nstderr:\n{}", ran.out, ran.err);
    assert!(
        ran.out.lines().any(|l| l == line),
        "no {line:?} in:\n{}\nstderr:\n{}",
        ran.out,
        ran.err
    );
}
