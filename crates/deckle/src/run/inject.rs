//! Putting the second door into a program, between its exec and its first instruction.
//!
//! The thread that executes it is traced for so long: from before the exec, which it announces, to
//! the stop after it. There the program maps our pages by a call that is written over its first
//! instructions for that moment; we fill them, and it begins in our code.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use deckle_door::entry::{NOTHING, Told};
use deckle_group::Group;
use deckle_group::proc::proc_stat;
use deckle_sys::Errno;
use deckle_sys::trace::{self, Request, request};

use super::entry::Code;
use crate::say;

/// Who is traced.
#[derive(Clone, Copy)]
pub struct Held {
    /// It has the filter already.
    pub filtered: bool,
    /// A child of it is meant.
    pub child: bool,
    /// What the program is told.
    pub told: Told,
}

/// Of whom nothing is told.
const NOBODY: Held = Held {
    filtered: false,
    child: false,
    told: NOTHING,
};

/// All of them.
pub struct Tracer {
    code: Option<Code>,
    held: HashMap<i32, Held>,
}

/// `PTRACE_EVENT_STOP`.
const STOP: i32 = 128;

impl Tracer {
    /// Puts in `code`; without it nobody is held.
    pub fn new(code: Option<Code>) -> Tracer {
        Tracer {
            code,
            held: HashMap::new(),
        }
    }

    /// Holds a thread that will execute a program, or whose child will; false: that is refused.
    pub fn hold(&mut self, tid: i32, how: Held) -> bool {
        let mut options = libc::PTRACE_O_TRACEEXEC;
        if how.child {
            options |=
                libc::PTRACE_O_TRACEVFORK | libc::PTRACE_O_TRACEFORK | libc::PTRACE_O_TRACECLONE;
        }
        let seized = || request(Request::Seize, tid, options).is_ok();
        // From an earlier announcement, out of whose exec it went by a jump.
        let known = self.held.contains_key(&tid);
        let is_held = self.code.is_some() && (known || seized());
        if is_held {
            self.held.insert(tid, how);
        }
        is_held
    }

    /// The first program, which has asked for it, and stops after its exec.
    pub fn expect(&mut self, pid: i32) {
        self.held.insert(pid, NOBODY);
    }

    /// What waitpid has told of `pid`; whether that was ours to know.
    pub fn stopped(&mut self, pid: i32, raw: i32, group: &Group) -> bool {
        let event = raw >> 16;
        if !libc::WIFSTOPPED(raw) {
            self.held.remove(&pid);
            return false;
        }
        let Some(held) = self.known(pid, event) else {
            // None of ours, or one that was let go a moment ago.
            if event != 0 {
                go_on(pid, 0);
            }
            return event != 0;
        };
        let signal = libc::WSTOPSIG(raw);
        match event {
            libc::PTRACE_EVENT_EXEC => self.put_in(pid, held, group),
            // After PTRACE_TRACEME the exec is told in the old way.
            0 if signal == libc::SIGTRAP && is_exec(pid) => self.put_in(pid, held, group),
            // Its own `int3`: there was no exec.
            0 if signal == libc::SIGTRAP => self.let_go(pid, 0),
            0 => go_on(pid, signal),
            STOP if signal != libc::SIGTRAP => {
                let _ = request(Request::Listen, pid, 0);
            }
            _ => go_on(pid, 0),
        }
        true
    }

    /// What is known of who has stopped so.
    fn known(&mut self, pid: i32, event: i32) -> Option<Held> {
        if event == libc::PTRACE_EVENT_EXEC {
            // A thread that executes a program gets the number of its process.
            let before = trace::event_message(pid);
            if let Some(held) = before.ok().and_then(|tid| self.held.remove(&(tid as i32))) {
                self.held.insert(pid, held);
            }
        }
        if event == STOP && !self.held.contains_key(&pid) {
            // A child of who is held, which is what was meant.
            let parent = proc_stat(pid as u32).map_or(0, |stat| stat.parent);
            let is_thread = |tid: &i32| Path::new(&format!("/proc/{parent}/task/{tid}")).exists();
            let mut all = self
                .held
                .iter()
                .filter(|(tid, h)| h.child && is_thread(tid));
            let held = all.next().map_or(NOBODY, |(_, h)| *h);
            self.held.insert(
                pid,
                Held {
                    child: false,
                    ..held
                },
            );
        }
        self.held.get(&pid).copied()
    }

    fn let_go(&mut self, pid: i32, signal: i32) {
        self.held.remove(&pid);
        let _ = request(Request::Detach, pid, signal);
    }

    fn put_in(&mut self, pid: i32, held: Held, group: &Group) {
        let Some(code) = &self.code else { return };
        let mut last = 0;
        match put_in(code, pid, held) {
            Ok(Put::In { signal }) => last = signal,
            Ok(Put::Not) => {
                group.count_unmanaged_program();
                say(format_args!(
                    "process {pid}: runs outside the limit: it is a 32-bit program"
                ));
            }
            Err(why) if held.filtered || group.strict() => {
                // A process that is stopped for us: the number is its own.
                let _ = deckle_sys::signal::send(pid, libc::SIGKILL);
                // With the filter it would die at its first call.
                say(format_args!(
                    "process {pid}: is ended: the second door cannot be put in: {why}"
                ));
            }
            Err(why) => {
                group.count_unmanaged_program();
                say(format_args!(
                    "process {pid}: runs outside the limit: the second door cannot be put in: {why}"
                ));
            }
        }
        self.let_go(pid, last);
    }
}

/// What came of it.
enum Put {
    /// It is in; the signal that the program is to have got meanwhile, or 0.
    In { signal: i32 },
    /// There is no door for such a program, and it needs none.
    Not,
}

fn go_on(pid: i32, signal: i32) {
    let _ = request(Request::Continue, pid, signal);
}

/// Whether a SIGTRAP is the one after an exec, not of an `int3`.
fn is_exec(pid: i32) -> bool {
    trace::signal_code(pid) == Ok(libc::SI_USER)
}

fn registers(pid: i32) -> io::Result<libc::user_regs_struct> {
    trace::registers(pid).map_err(error)
}

fn error(e: Errno) -> io::Error {
    io::Error::from_raw_os_error(e.0)
}

/// Where a 64-bit program's instructions are.
const CODE_SEGMENT: u64 = 0x33;

fn put_in(code: &Code, pid: i32, held: Held) -> io::Result<Put> {
    let before = registers(pid)?;
    if before.cs != CODE_SEGMENT {
        return Ok(Put::Not);
    }
    let mask = trace::mask(pid).map_err(error)?;
    trace::set_mask(pid, u64::MAX).map_err(error)?;
    let memory = OpenOptions::new()
        .read(true)
        .write(true)
        .open(format!("/proc/{pid}/mem"))?;
    let mapped = map(code, pid, &memory, before.rip);
    let mut after = before;
    // No call that would be made again.
    after.orig_rax = u64::MAX;
    let filled = mapped.and_then(|signal| {
        for (at, page) in code.pages([before.rip as usize, before.rsp as usize], held) {
            memory.write_all_at(&page, at as u64)?;
        }
        after.rip = code.enter as u64;
        after.rdi = code.entry() as u64;
        Ok(Put::In { signal })
    });
    let mask = mask & !(1 << (libc::SIGSYS - 1));
    trace::set_registers(pid, &after).map_err(error)?;
    trace::set_mask(pid, mask).map_err(error)?;
    filled
}

/// Has the program map our pages; the signal by which somebody has stopped it meanwhile, or 0.
fn map(code: &Code, pid: i32, memory: &File, at: u64) -> io::Result<i32> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
    let mut stub = Vec::new();
    // mov rdi, base; mov rsi, bytes
    stub.extend([0x48, 0xbf]);
    stub.extend((code.base as u64).to_le_bytes());
    stub.extend([0x48, 0xbe]);
    stub.extend((code.len() as u64).to_le_bytes());
    // mov edx, rights; mov r10d, flags; mov r8, -1; xor r9d, r9d; mov eax, mmap; syscall; int3
    stub.push(0xba);
    stub.extend((libc::PROT_READ | libc::PROT_EXEC).to_le_bytes());
    stub.extend([0x41, 0xba]);
    stub.extend(flags.to_le_bytes());
    stub.extend([
        0x49, 0xc7, 0xc0, 0xff, 0xff, 0xff, 0xff, 0x45, 0x31, 0xc9, 0xb8,
    ]);
    stub.extend((libc::SYS_mmap as u32).to_le_bytes());
    stub.extend([0x0f, 0x05, 0xcc]);
    let mut bytes = vec![0; stub.len()];
    memory.read_exact_at(&mut bytes, at)?;
    memory.write_all_at(&stub, at)?;
    let result = run(pid);
    memory.write_all_at(&bytes, at)?;
    match result? {
        (got, stopped) if got == code.base as u64 => Ok(stopped),
        (got, _) => Err(io::Error::from_raw_os_error(-(got as i64) as i32)),
    }
}

/// Has it run to the `int3`; what its call returned, and the signal that has stopped it.
fn run(pid: i32) -> io::Result<(u64, i32)> {
    let (mut signal, mut stopped) = (0, 0);
    loop {
        go_on(pid, signal);
        let Some(raw) = trace::next_stop(pid) else {
            return Err(io::Error::other("it has ended"));
        };
        match (raw >> 16, libc::WSTOPSIG(raw)) {
            (0, libc::SIGTRAP) => return Ok((registers(pid)?.rax, stopped)),
            (0, other) => signal = other,
            (_, other) => {
                // It stops when it is let go.
                signal = 0;
                stopped = if other == libc::SIGTRAP { 0 } else { other };
            }
        }
    }
}
