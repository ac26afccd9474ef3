//! Defects at the boundary between deckle and the program: what the C library, the kernel and other
//! processes do around it. Each was found by the sequence that its program goes through.

use crate::common::{Ran, compile, expect, is_second, run, run_behind};
use crate::skipped::skipped;

const LIMIT: [&str; 2] = ["--memory-max", "64M"];
const NO_SWAP: [&str; 4] = ["--memory-max", "64M", "--swap", "none"];

/// Compiles a program and runs it with these arguments under a limit.
fn with(options: &[&str], name: &str, args: &[&str]) -> Ran {
    let program = compile(name, &[]);
    let mut command = vec![program.to_str().expect("path")];
    command.extend(args);
    run(options, &command)
}

/// The same with a limit of 64 MiB, and it must say that it is right.
fn right(name: &str, args: &[&str]) -> Ran {
    let ran = with(&LIMIT, name, args);
    expect(&ran, &format!("{} right", &name[..3]));
    ran
}

/// Whether a test that needs all rights can be made.
fn is_root() -> bool {
    let root = deckle_sys::process::effective_user() == 0;
    if !root {
        skipped("not root");
    }
    root
}

/// The figure that follows `what` in what the program has said.
fn figure(ran: &Ran, what: &str) -> u64 {
    let rest = ran.out.split(what).nth(1).expect("a figure");
    let digits = rest.split(|c: char| !c.is_ascii_digit()).next();
    digits.expect("digits").parse().expect("a number")
}

/// A fork waited for what its own thread had stopped: who holds a lock of the C library writes to a
/// page that the fork has just protected, and the fork waits for that lock.
#[test]
fn d01_a_fork_waits_for_no_lock_of_the_c_library() {
    right("d01_fork_locks", &["stdio"]);
    if !is_second() {
        // A static program's name look-ups crash without deckle, too.
        right("d01_fork_locks", &["nss"]);
    }
    right("d01_fork_locks", &["malloc"]);
}

/// The same by the lock of a library whose handler (`pthread_atfork`) runs after ours.
#[test]
fn d01_a_fork_waits_for_no_lock_of_a_library_with_handlers() {
    right("d01_fork_locks", &["atfork"]);
    right("d01_fork_locks", &["dlopen"]);
}

/// The service kept the program's credentials from its start: a program that had given up root
/// shared its memory with a task that was root, with every capability and without a filter.
#[test]
fn d02_what_shares_the_programs_memory_holds_no_rights() {
    if is_root() {
        let ran = right("d02_service_rights", &[]);
        // Otherwise nothing has been looked at.
        assert!(figure(&ran, "tasks: ") > 0, "{}", ran.out);
    }
}

/// A page that the program had discarded by a system call of its own was taken for mapped: its next
/// fault was answered with nothing for ever; of one that was away the old bytes came back.
#[test]
fn d03_pages_discarded_by_a_raw_call_are_zero() {
    right("d03_raw_discard", &["libc"]);
}

/// The same by an instruction of the program's own, which nobody hears.
#[test]
fn d03_pages_discarded_by_an_instruction_are_zero() {
    right("d03_raw_discard", &["own"]);
}

/// All ways on which pages come back that were away when they were discarded.
#[test]
fn d03_pages_discarded_unheard_while_they_are_away_do_not_come_back() {
    for how in [
        "touch", "twice", "fork", "child", "move", "populate", "lock", "collapse", "rights",
    ] {
        right("d03_unseen", &[how]);
    }
}

/// The same while a thread has these very pages evicted.
#[test]
fn d03_pages_discarded_unheard_while_they_are_moved_hardly_ever_come_back() {
    right("d03_unseen", &["race"]);
}

/// What the program maps over managed memory unheard was taken for managed, and evicted; a window
/// of pages that touched it killed the program.
#[test]
fn d03_what_is_mapped_unheard_is_left_alone() {
    for how in ["unmap", "over", "again"] {
        right("d03_unseen", &[how]);
    }
}

/// What was away when it was moved unheard was read as zeros at its new place.
#[test]
fn d03_what_is_moved_unheard_has_no_wrong_byte() {
    right("d03_unseen", &["mremap"]);
}

/// The kernel cannot wait for a page on behalf of a thread that ends: the word of a robust mutex
/// that was away was not written, and no waiter got `EOWNERDEAD`.
#[test]
fn d04_a_robust_mutex_that_is_away_tells_of_its_dead_owner() {
    right("d04_robust", &["robust"]);
}

/// The same with the thread's number, for which `pthread_join` waits, on a stack of the program's.
#[test]
fn d04_a_thread_whose_record_is_away_can_be_joined() {
    right("d04_robust", &["join"]);
}

/// A fork in a signal handler waited for the lock of the library's own heap, which the interrupted
/// `malloc` held.
#[test]
fn d06_fork_in_a_handler_that_interrupts_malloc() {
    right("d06_handler_forks", &["fork", "early"]);
    right("d06_handler_forks", &["fork"]);
}

/// The same by `_Fork`, which may be called in the handlers of any program.
#[test]
fn d06_bare_fork_in_a_handler_that_interrupts_malloc() {
    right("d06_handler_forks", &["_Fork", "early"]);
    right("d06_handler_forks", &["_Fork"]);
}

/// The service was started with the loader's help by the thread that crossed the first megabyte,
/// while others held the loader's lock and waited for memory.
#[test]
fn d07_libraries_are_opened_while_the_program_becomes_managed() {
    right("d07_dlopen_start", &[]);
}

/// Whoever connected to the socket of a fork was listened to for a second; after ten of them the
/// child was killed.
#[test]
fn d08_another_users_connections_delay_no_fork() {
    if is_root() {
        right("d08_strangers", &[]);
    }
}

/// What could not be managed was killed or ended: after giving up root, and in namespaces of its
/// own, a program could neither fork nor execute.
#[test]
fn d09_a_program_that_gives_up_rights_goes_on() {
    if is_root() {
        for what in ["user", "net", "pid", "owner", "mounts", "bound"] {
            right("d09_dropped", &[what]);
        }
    }
}

/// Processes were killed by numbers of another PID namespace: nobody died, and all who wanted
/// memory waited for it for ever.
#[test]
fn d10_the_larger_of_two_is_killed_in_another_pid_namespace() {
    if is_root() {
        let ran = with(&NO_SWAP, "d10_namespace", &["inside"]);
        expect(&ran, "d10 right");
        expect(&ran, "larger killed");
    }
}

/// The same the other way round: who asks for memory is in the namespace.
#[test]
fn d10_the_larger_of_two_is_killed_from_another_pid_namespace() {
    if is_root() {
        let ran = with(&NO_SWAP, "d10_namespace", &["outside"]);
        expect(&ran, "d10 right");
        expect(&ran, "larger killed");
    }
}

/// What deckle had reserved counted against a limit on the address space, and what the program
/// asked for did not.
#[test]
fn d11_a_limit_on_the_address_space_means_the_programs_own() {
    right("d11_address_space", &["small"]);
    right("d11_address_space", &["managed"]);
}

/// The program, its children and those that it executes see the limit that was set, by all ways.
/// Where a limit that cannot be raised leaves few places for pages, a fault that found none was
/// tried again for ever, since there was room below the limit of memory.
#[test]
fn d11_who_has_no_place_for_its_pages_is_killed_and_told_why() {
    let program = compile("d11_places", &[]);
    let path = program.to_str().expect("path");
    let mut killed = 0;
    for mib in (300..600).step_by(50) {
        let limit = format!("--as={}", mib << 20);
        let mut before = vec!["setpriv", "--bounding-set=-sys_resource"];
        before.extend(["--inh-caps=-sys_resource", "prlimit", &limit]);
        let ran = run_behind(&before, &["--memory-max", "1G", "--swap", "none"], &[path]);
        match ran.status {
            137 => {
                assert!(
                    ran.err.contains("raise its limit (ulimit -v)"),
                    "{}",
                    ran.err
                );
                killed += 1;
            }
            _ => expect(&ran, "d11 right"),
        }
    }
    assert!(killed > 0, "all had places for their pages");
}

#[test]
fn d11_a_limit_on_the_address_space_is_told_and_inherited() {
    right("d11_limits", &["small"]);
    right("d11_limits", &["managed"]);
}

/// A program behind the other door is told, too, of limits and of filters: from the second door on
/// all are behind that.
#[test]
fn d11_d24_programs_behind_the_second_door_are_told() {
    let limits = compile("d11_limits", &["-static"]);
    let filter = compile("d24_own_filter", &["-static"]);
    let path = |program: &std::path::Path| program.to_str().expect("path").to_owned();
    for when in ["small", "managed"] {
        right("d11_limits", &[when, &path(&limits)]);
        // Where ours is not there yet, and this filter refuses it, such a program runs outside.
        let err = right("d24_own_filter", &[when, "kill", &path(&filter)]).err;
        assert_eq!(!is_second(), err.contains("runs outside"), "{when}: {err}");
    }
}

/// The same for a limit on data: in a renderer of Chromium no thread could be made.
#[test]
fn d11_a_limit_on_data_means_the_programs_own() {
    right("d11_data", &["small"]);
    right("d11_data", &["managed"]);
}

/// The next fork that the kernel told of was taken for the one that was prepared, so that a child
/// of `clone` got what the child of `fork` was to have.
#[test]
fn d12_children_of_clone_and_of_fork_at_once() {
    right("d12_raw_clones", &[]);
}

/// The kernel waited for ever for a page that it was to write to while a fork was made, since
/// nobody serves a fault then: a word of `clone`'s or `clone3`'s, or the thread's own record
/// (restartable sequences) where that lies in managed memory.
#[test]
fn d31_what_the_kernel_writes_while_a_fork_is_made_is_written() {
    if right("d31_kernel_words", &[]).out.contains("may not") {
        skipped("a child whose id is chosen: not allowed here");
    }
}

/// Where the kernel itself writes the word of a futex it does not wait for the page: EFAULT.
#[test]
fn d13_futex_calls_that_write_reach_words_that_are_away() {
    right("d13_futex", &["calls"]);
}

/// The same in the C library's own calls: it ends the program when they fail so.
#[test]
fn d13_mutexes_with_priority_inheritance_reach_words_that_are_away() {
    right("d13_futex", &["mutex"]);
}

/// `execve` took 12 KiB of stack.
#[test]
fn d18_exec_in_a_handler_on_a_small_stack() {
    right("d18_exec_small_stack", &[]);
}

/// A child that had not started its service ten seconds after the fork was killed, though it had
/// only been stopped together with all others.
#[test]
fn d21_a_tree_that_is_stopped_within_forks_goes_on() {
    right("d21_stopped", &["tree"]);
}

/// The same if only the child is stopped.
#[test]
fn d21_children_that_are_stopped_within_forks_go_on() {
    right("d21_stopped", &["children"]);
}

/// A child made while another thread starts the service had a copy of a start that never ends.
#[test]
fn d22_a_fork_while_the_program_becomes_managed() {
    right("d22_fork_at_start", &[]);
}

/// What had been unmapped stayed reserved, so that an access to it was told as one without rights.
#[test]
fn d23_an_access_to_what_is_unmapped_says_so() {
    right("d23_fault_codes", &[]);
}

/// The chain of forks of a program that has taken rights from itself, before it became managed and
/// after: all of it is managed.
fn chain_inside(what: &str) {
    // Within so tight a limit nobody may be late with what an ended child gives back.
    let _alone = crate::common::host::alone();
    for when in ["small", "managed"] {
        let err = right("d24_chain", &[what, when]).err;
        let inside = err.contains("programs unmanaged 0") && !err.contains("runs outside");
        assert!(inside, "{what}, {when}: {err}");
    }
}

/// What a child's service and its parent need was refused by a filter of the program's own: the
/// child ran outside, or where the limit had no room for all its memory there was none; where the
/// filter kills, a fork was the end of the program.
#[test]
fn d24_children_behind_a_filter_that_refuses_are_managed() {
    for how in ["eperm", "enosys"] {
        chain_inside(how);
    }
}

/// The same where a refused call is the end.
#[test]
fn d24_children_behind_a_filter_that_kills_are_managed() {
    for how in ["kill", "trap"] {
        chain_inside(how);
    }
}

/// The same where all is the end but what deckle says that it needs: it makes no other call.
#[test]
fn d24_a_fork_needs_no_call_but_those_that_are_looked_for_in_a_filter() {
    chain_inside("allow");
}

/// Where a filter refuses what no service can do without, children run outside, and nobody is
/// killed. Where the limit has no room for all that such a child gets, the fork fails.
#[test]
fn d24_children_that_cannot_be_managed_run_outside() {
    for when in ["small", "managed"] {
        let ran = with(&["--memory-max", "512M"], "d24_chain", &["mute", when]);
        expect(&ran, "d24 right");
        let told = "a forked process: runs outside the limit: its parent's own filter refuses";
        assert!(ran.err.contains(told), "{}", ran.err);
        let full = with(&LIMIT, "d24_chain", &["mute", when]);
        assert!(full.out.contains("d24 no fork: ENOMEM"), "{}", full.out);
        if is_second() {
            // Which needs no such call.
            continue;
        }
        let unseen = with(&LIMIT, "d24_chain", &["prctl", when]);
        assert!(unseen.out.contains("d24 no fork: EAGAIN"), "{}", unseen.out);
    }
    if is_second() {
        chain_inside("prctl");
    }
}

/// `deckle run` and `/proc` were out of reach for children elsewhere.
#[test]
fn d24_children_in_another_root_and_in_other_namespaces_are_managed() {
    if is_root() {
        for what in ["chroot", "net", "pid", "mounts"] {
            chain_inside(what);
        }
    }
}

/// The same where no file may be opened: by landlock, or by a limit. A hard limit can be raised by
/// the mighty alone: then they run outside.
#[test]
fn d24_children_that_may_open_no_files_are_managed() {
    for what in ["landlock", "files"] {
        chain_inside(what);
    }
    let never = with(
        &["--memory-max", "512M"],
        "d24_chain",
        &["nofiles", "managed"],
    );
    expect(&never, "d24 right");
}

/// Programs that are executed behind a filter have it too, and find the connection that they cannot
/// make: they were outside, or killed where they tried to tell.
#[test]
fn d24_a_filter_of_the_programs_own_hinders_neither_forks_nor_programs() {
    for args in [
        &["small"][..],
        &["managed"],
        &["small", "kill"],
        &["managed", "kill"],
        &["crowd", "kill"],
    ] {
        let err = right("d24_own_filter", args).err;
        assert!(!err.contains("runs outside"), "{args:?}: {err}");
    }
}

/// Where a filter allows a dozen calls a call on memory must need no other: not even the one by
/// which a signal's handler returns.
#[test]
fn d24_a_filter_that_allows_a_dozen_calls_leaves_the_program_its_memory() {
    for when in ["small", "managed"] {
        let err = right("d24_narrow", &[when]).err;
        assert!(!err.contains("runs outside"), "{when}: {err}");
    }
}

/// A thread made while its maker's system calls were caught for a fork began in the middle of the
/// handler that makes them, on a stack without its frames.
#[test]
fn d24_handlers_of_a_fork_make_threads_and_execute_programs() {
    right("d24_handler_threads", &[]);
}

/// A mapping lay where deckle wanted it, whatever address the program had proposed: ZGC found no
/// room for its heap.
#[test]
fn d26_a_mapping_lies_where_the_program_proposes_it() {
    right("d26_hints", &[]);
}

/// The service was started with memory from the program's own allocator, which waited for the
/// mapping that the service was to make: rustc and whatever has jemalloc in it did not start.
#[test]
fn d28_an_allocator_of_the_programs_own_maps_within_its_lock() {
    right("d28_own_malloc", &[]);
}

/// All of a program had to fit into one reservation of a tebibyte: MariaDB did not start.
#[test]
fn d29_more_is_reserved_than_the_machine_has() {
    right("d29_reservation", &[]);
}
