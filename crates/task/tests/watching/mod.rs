//! Cases about what the service sees of its program. The program is a child of the case; its
//! service reports through a pipe, which it keeps open until it has seen something.

use crate::cases::support::*;
use crate::cases::{Case, cases};
use deckle_task::watch::{Program, State, Watch, same_memory};
use std::time::Duration;

pub const CASES: &[Case] = cases! {
    death_of_the_program_is_seen
    exec_of_the_program_is_seen
    exec_from_another_thread_is_seen
    exec_is_seen_without_kcmp
    death_is_seen_without_kcmp
    the_end_of_the_main_thread_alone_is_not_the_end
};

/// Runs `program` in a child whose service first writes "ready", then what it sees. With
/// `deny_kcmp`, a filter refuses kcmp to the service. Returns the child and the pipe.
fn watched(deny_kcmp: bool, program: fn()) -> (i32, i32) {
    let (from, to) = pipe();
    let child = fork(move || {
        close(from);
        let me = Program::current();
        let seen_running = Step::new();
        start(&[to], move || {
            if deny_kcmp {
                refuse_kcmp();
                assert_eq!(same_memory(me.pid()), Err(libc::EPERM));
            } else {
                assert_eq!(same_memory(me.pid()), Ok(true));
            }
            let watch = Watch::open(me).unwrap();
            assert!(watch.unchanged());
            assert_eq!(watch.state(), Ok(State::Running));
            write(to, "ready");
            seen_running.set(1);
            loop {
                match watch.wait(Duration::from_millis(100)) {
                    Ok(State::Running) => {}
                    seen => return write(to, &format!("{seen:?}")),
                }
            }
        });
        close(to);
        seen_running.await_value(1);
        program();
    });
    close(to);
    assert_eq!(read(from), "ready");
    (child, from)
}

/// A seccomp filter of the calling task: EPERM for kcmp, all else allowed.
fn refuse_kcmp() {
    let op = |code: u32, k: u32, jt: u8, jf: u8| libc::sock_filter {
        code: code as u16,
        jt,
        jf,
        k,
    };
    let mut code = [
        op(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        op(
            libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
            libc::SYS_kcmp as u32,
            0,
            1,
        ),
        op(
            libc::BPF_RET | libc::BPF_K,
            libc::SECCOMP_RET_ERRNO | libc::EPERM as u32,
            0,
            0,
        ),
        op(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW, 0, 0),
    ];
    let filter = libc::sock_fprog {
        len: code.len() as u16,
        filter: code.as_mut_ptr(),
    };
    // SAFETY: a program of that length; both calls change the caller only.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        assert_eq!(
            libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &filter),
            0
        );
    }
}

fn idle() {
    std::thread::sleep(LONG);
}

/// By a raw system call, which no library can interpose.
fn exec() {
    let args = [c"/bin/sleep".as_ptr(), c"20".as_ptr(), std::ptr::null()];
    // SAFETY: strings and lists that end in NUL.
    unsafe {
        libc::syscall(
            libc::SYS_execve,
            args[0],
            args.as_ptr(),
            args.as_ptr().add(2),
        )
    };
    panic!("no /bin/sleep");
}

fn kill(pid: i32) {
    // SAFETY: a child of the case.
    assert_eq!(unsafe { libc::kill(pid, libc::SIGKILL) }, 0);
}

fn expect_death(deny_kcmp: bool) {
    let (child, from) = watched(deny_kcmp, idle);
    kill(child);
    assert_eq!(read(from), "Ok(Ended)");
    assert_eq!(read(from), "", "the service has ended, too");
    assert_eq!(wait_status(child), libc::SIGKILL);
}

fn expect_exec(deny_kcmp: bool, exec: fn()) {
    let (child, from) = watched(deny_kcmp, exec);
    assert_eq!(read(from), "Ok(Execed)");
    kill(child);
    assert_eq!(wait_status(child), libc::SIGKILL);
}

fn death_of_the_program_is_seen() {
    expect_death(false);
}

fn death_is_seen_without_kcmp() {
    expect_death(true);
}

fn exec_of_the_program_is_seen() {
    expect_exec(false, exec);
}

fn exec_is_seen_without_kcmp() {
    expect_exec(true, exec);
}

fn exec_from_another_thread_is_seen() {
    for deny_kcmp in [false, true] {
        expect_exec(deny_kcmp, || {
            std::thread::spawn(exec);
            idle();
        });
    }
}

fn the_end_of_the_main_thread_alone_is_not_the_end() {
    for deny_kcmp in [false, true] {
        let (child, from) = watched(deny_kcmp, || {
            std::thread::spawn(idle);
            deckle_task::exit(0);
        });
        let mut slot = libc::pollfd {
            fd: from,
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: one slot.
        let got = unsafe { libc::poll(&mut slot, 1, 300) };
        assert_eq!(got, 0, "the service still sees a program");
        kill(child);
        assert_eq!(read(from), "Ok(Ended)");
        assert_eq!(wait_status(child), libc::SIGKILL);
    }
}
