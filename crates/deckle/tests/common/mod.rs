//! Running the real `deckle` from tests.

pub mod host;

use std::io::Read;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use deckle_group::{Group, Name};
use deckle_sys::poll::is_ready;

/// Long enough for any machine; a test that waits this long has failed.
pub const PATIENCE: Duration = Duration::from_secs(60);

pub fn deckle(args: &[&str]) -> Command {
    drop(host::guard());
    let mut c = Command::new(env!("CARGO_BIN_EXE_deckle"));
    c.args(args)
        .stdin(Stdio::null())
        .env_remove("container")
        .env_remove("LD_PRELOAD");
    // What the tests were started with may be otherwise: nohup and a shell's background
    // ignore some.
    // SAFETY: system calls on numbers.
    unsafe {
        c.pre_exec(|| {
            for signal in [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT] {
                libc::signal(signal, libc::SIG_DFL);
            }
            Ok(())
        })
    };
    c
}

/// Runs to the end; exit status, standard output, standard error.
pub fn output(args: &[&str]) -> (i32, String, String) {
    finish(deckle(args).output().unwrap())
}

pub fn finish(o: Output) -> (i32, String, String) {
    let text = |b: Vec<u8>| String::from_utf8(b).unwrap();
    (
        o.status.code().unwrap_or(-1),
        text(o.stdout),
        text(o.stderr),
    )
}

/// A running `deckle`, killed when the test ends early.
pub struct Running(pub Child);

impl Running {
    pub fn start(args: &[&str]) -> Running {
        Running::spawn(&mut deckle(args))
    }
    /// In a process group of its own, as a shell starts it. The kernel ignores SIGTSTP for a
    /// group that nobody outside of it could continue, which that of the tests may be.
    pub fn start_job(args: &[&str]) -> Running {
        Running::spawn(deckle(args).process_group(0))
    }
    pub fn spawn(c: &mut Command) -> Running {
        let piped = c.stdout(Stdio::piped()).stderr(Stdio::piped());
        Running(piped.spawn().unwrap())
    }
    pub fn pid(&self) -> u32 {
        self.0.id()
    }
    /// The group of this `deckle run`.
    pub fn group(&self) -> Group {
        let page = group_page(self.pid()).expect("the group's page");
        let file = page.file_name().unwrap().to_str().unwrap();
        let name = file.strip_prefix("deckle-").unwrap();
        Group::attach(Name::new(name.as_bytes()).unwrap()).unwrap()
    }
    /// Waits until its standard output has shown `text`; what was read so far.
    pub fn wait_for(&mut self, text: &str) -> String {
        let mut seen = String::new();
        let out = self.0.stdout.as_mut().unwrap();
        let mut byte = [0u8; 1];
        while !seen.contains(text) {
            let n = out.read(&mut byte).unwrap();
            assert_eq!(n, 1, "output ended before `{text}`: {seen}");
            seen.push(byte[0] as char);
        }
        seen
    }
    /// The next line of its standard error.
    pub fn said(&mut self) -> String {
        let err = self.0.stderr.as_mut().unwrap();
        let (mut line, mut byte) = (String::new(), [0u8; 1]);
        while err.read(&mut byte).unwrap() == 1 && byte != *b"\n" {
            line.push(byte[0] as char);
        }
        line
    }
    /// What waits to be read of its standard error.
    fn unread(&mut self) -> String {
        let (mut text, mut buf) = (Vec::new(), [0u8; 4096]);
        while let Some(err) = &mut self.0.stderr
            && is_ready(err.as_raw_fd(), Duration::ZERO)
            && let Ok(n @ 1..) = err.read(&mut buf)
        {
            text.extend_from_slice(&buf[..n]);
        }
        String::from_utf8_lossy(&text).into_owned()
    }
    pub fn signal(&self, signal: i32) {
        kill(self.pid(), signal);
    }
    /// Exit status (128 + N after signal N), rest of standard output, standard error.
    pub fn end(mut self) -> (i32, String, String) {
        let (mut out, mut err) = (String::new(), String::new());
        let from = Instant::now();
        let status = loop {
            if let Some(s) = self.0.try_wait().unwrap() {
                break s;
            }
            assert!(from.elapsed() < PATIENCE, "deckle did not end");
            std::thread::sleep(Duration::from_millis(5));
        };
        self.0
            .stdout
            .take()
            .unwrap()
            .read_to_string(&mut out)
            .unwrap();
        self.0
            .stderr
            .take()
            .unwrap()
            .read_to_string(&mut err)
            .unwrap();
        use std::os::unix::process::ExitStatusExt;
        let code = status
            .code()
            .unwrap_or_else(|| 128 + status.signal().unwrap());
        (code, out, err)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("deckle run has said: {}", self.unread());
        }
        let _ = self.0.kill();
        let _ = self.0.wait();
        // Killed like this it leaves its group's page, which a service would remove.
        if let Some(page) = group_page(self.pid()) {
            let _ = std::fs::remove_file(page);
        }
    }
}

/// The page of the group of the `deckle run` with this pid, if it is there.
pub fn group_page(pid: u32) -> Option<PathBuf> {
    let start = format!("deckle-{pid}-");
    let mut pages = std::fs::read_dir("/dev/shm").ok()?.flatten();
    let page = pages.find(|e| e.file_name().to_string_lossy().starts_with(&start));
    page.map(|e| e.path())
}

pub fn kill(pid: u32, signal: i32) {
    let _ = deckle_sys::signal::send(pid as i32, signal);
}

/// State letter of a process, `-` if it is gone.
pub fn state(pid: u32) -> char {
    deckle_group::proc::proc_stat(pid).map_or('-', |s| s.state as char)
}

/// The parent of a process; of the first program of `deckle run`: its supervisor.
pub fn parent(pid: u32) -> u32 {
    deckle_group::proc::proc_stat(pid).unwrap().parent
}

/// Waits until `f` holds.
pub fn until(what: &str, mut f: impl FnMut() -> bool) {
    let from = Instant::now();
    while !f() {
        assert!(from.elapsed() < PATIENCE, "never came: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// What a call of the C library has come to.
pub fn checked(status: i32) -> std::io::Result<()> {
    match status {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

/// A scratch directory, removed at the end.
pub struct Scratch(pub PathBuf);

impl Scratch {
    pub fn new(tag: &str) -> Scratch {
        use std::sync::atomic::{AtomicU32, Ordering};
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("deckle-cli-{tag}-{}-{n}", std::process::id());
        let dir = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&dir).unwrap();
        Scratch(dir)
    }
    pub fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }
    pub fn file(&self, name: &str, bytes: &[u8], mode: u32) -> String {
        use std::os::unix::fs::PermissionsExt;
        let path = self.0.join(name);
        let draft = self.0.join(format!("{name}.draft"));
        std::fs::write(&draft, bytes).unwrap();
        copy(&draft, &path);
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        path.to_str().unwrap().to_owned()
    }
}

/// Copies a file that will be executed. By another process: a program whose file this process
/// has just written cannot be executed while a fork of another test still holds it open.
pub fn copy(from: &Path, to: &Path) {
    let done = Command::new("cp").arg(from).arg(to).status().unwrap();
    assert!(done.success(), "cp {} {}", from.display(), to.display());
}

/// A copy of `deckle` in `dir`: any user can execute it, and no library lies beside it.
pub fn copy_of_deckle(dir: &Scratch) -> PathBuf {
    let to = dir.0.join("deckle");
    copy(Path::new(env!("CARGO_BIN_EXE_deckle")), &to);
    to
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A minimal static ELF program for this machine: exits with 3 (x86-64), else is only looked at.
pub fn static_elf() -> Vec<u8> {
    let machine: u16 = if cfg!(target_arch = "x86_64") {
        62
    } else {
        183
    };
    let mut f = vec![0u8; 64];
    f[..7].copy_from_slice(&[0x7f, b'E', b'L', b'F', 2, 1, 1]);
    f[16] = 2;
    f[18..20].copy_from_slice(&machine.to_le_bytes());
    f[20] = 1;
    f[24..32].copy_from_slice(&0x400078u64.to_le_bytes());
    f[32] = 64;
    f[52] = 64;
    f[54] = 56;
    f[56] = 1;
    let mut load = [0u8; 56];
    load[0] = 1;
    load[4] = 5;
    load[16..24].copy_from_slice(&0x400000u64.to_le_bytes());
    load[24..32].copy_from_slice(&0x400000u64.to_le_bytes());
    load[32] = 0x90;
    load[40] = 0x90;
    load[48..56].copy_from_slice(&0x1000u64.to_le_bytes());
    f.extend_from_slice(&load);
    // mov eax, 60; mov edi, 3; syscall
    f.extend_from_slice(&[0xb8, 60, 0, 0, 0, 0xbf, 3, 0, 0, 0, 0x0f, 0x05]);
    f.resize(0x90, 0);
    f
}
