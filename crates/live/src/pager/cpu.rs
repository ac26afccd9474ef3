//! Which CPU a loop runs on, and after whom.

use std::sync::atomic::{AtomicBool, Ordering};

/// With more CPUs than this not each of them has a handler: a fault wakes all that wait, and
/// all but one in vain.
const MOST: usize = 4;
/// Handlers there, on any CPU: more faults at once than one can serve.
const UNBOUND: usize = 2;

pub(super) fn allowed() -> libc::cpu_set_t {
    // SAFETY: an all-zero set is a valid one.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: fills one set. Without an answer it stays empty.
    unsafe { libc::sched_getaffinity(0, size_of_val(&set), &raw mut set) };
    set
}

fn cpus(set: &libc::cpu_set_t) -> impl Iterator<Item = usize> {
    // SAFETY: looks at a bit within the set.
    (0..libc::CPU_SETSIZE as usize).filter(move |cpu| unsafe { libc::CPU_ISSET(*cpu, set) })
}

/// CPUs that there are for this process. (`available_parallelism` looks for quotas, too: ten
/// calls at the start of each process.)
pub(super) fn count() -> usize {
    cpus(&allowed()).count().max(1)
}

/// Handlers that should run: where there are few CPUs one for each, so that a fault is served
/// where it happens, by who is awake first.
pub(super) fn handlers() -> usize {
    match cpus(&allowed()).count() {
        n @ 1..=MOST => n,
        _ => UNBOUND,
    }
}

/// Whether tasks leave it to the system when and where they run.
static AS_IT_COMES: AtomicBool = AtomicBool::new(false);

/// From now on no task asks for a CPU of its own or for others to go first: where a filter might
/// end who does.
pub fn leave_scheduling() {
    AS_IT_COMES.store(true, Ordering::Relaxed);
}

/// Binds the calling task to one of its CPUs, by number, where there are few of them.
pub(super) fn pin(number: usize) {
    if AS_IT_COMES.load(Ordering::Relaxed) {
        return;
    }
    let all = allowed();
    if cpus(&all).count() > MOST {
        return;
    }
    if let Some(cpu) = cpus(&all).nth(number) {
        // SAFETY: an all-zero set is a valid one; the calls set a bit within it and read it. A
        // refusal leaves the task where it was.
        unsafe {
            let mut set: libc::cpu_set_t = std::mem::zeroed();
            libc::CPU_SET(cpu, &mut set);
            libc::sched_setaffinity(0, size_of_val(&set), &raw const set);
        }
    }
}

/// Lets the calling task run on all of these CPUs again.
pub(super) fn unpin(set: &libc::cpu_set_t) {
    if !AS_IT_COMES.load(Ordering::Relaxed) {
        // SAFETY: reads one set. A refusal leaves the task where it was.
        unsafe { libc::sched_setaffinity(0, size_of_val(set), set) };
    }
}

/// Leaves the CPU to everybody else.
pub(super) fn be_idle() {
    if AS_IT_COMES.load(Ordering::Relaxed) {
        return;
    }
    // The kernel's structure: a priority of none. (musl has no wrapper of the call.)
    let none: libc::c_int = 0;
    let idle = libc::SCHED_IDLE;
    // SAFETY: reads one word; a refusal leaves everything as it was.
    unsafe { libc::syscall(libc::SYS_sched_setscheduler, 0, idle, &raw const none) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_handler_has_a_cpu_of_its_own() {
        let all: Vec<usize> = cpus(&allowed()).collect();
        assert!(!all.is_empty());
        for (number, cpu) in all.iter().enumerate().take(handlers()) {
            let bound = std::thread::spawn(move || {
                pin(number);
                cpus(&allowed()).collect::<Vec<_>>()
            });
            let want = if all.len() > MOST { &all[..] } else { &[*cpu] };
            assert_eq!(bound.join().unwrap(), want);
        }
        // One that there is not: stays where it may be.
        pin(all.len());
        assert_eq!(cpus(&allowed()).count(), all.len());
    }
}
