//! Clocks, and the CPUs that they run on.

/// What a clock measures.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(i32)]
pub enum Clock {
    /// Time, the same for all processes.
    Monotonic = libc::CLOCK_MONOTONIC,
    /// Time since boot, by which /proc tells when processes started.
    Boot = libc::CLOCK_BOOTTIME,
    /// CPU time of the calling process.
    Process = libc::CLOCK_PROCESS_CPUTIME_ID,
    /// CPU time of the calling thread.
    Thread = libc::CLOCK_THREAD_CPUTIME_ID,
}

/// What a clock says, in nanoseconds.
#[inline]
pub fn nanos(clock: Clock) -> u64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: writes one timespec, a local. These clocks exist always.
    unsafe { libc::clock_gettime(clock as i32, &mut now) };
    now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
}

/// Ticks of the clock by which /proc counts, in a second.
pub fn ticks_per_second() -> u32 {
    // SAFETY: a call on a number.
    let ticks = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
    ticks.max(1) as u32
}

/// CPUs that are on, at least one.
pub fn cpus() -> u32 {
    // SAFETY: a call on a number.
    let cpus = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) };
    cpus.max(1) as u32
}

/// The CPU that the calling thread runs on, or did a moment ago; 0 where that is not told.
#[inline]
pub fn this_cpu() -> usize {
    // SAFETY: a call without arguments; fails only where the kernel has no such call.
    unsafe { libc::sched_getcpu() }.max(0) as usize
}
