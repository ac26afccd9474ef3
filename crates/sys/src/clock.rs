//! Clocks, and the CPUs that they run on.

use crate::Errno;
use core::time::Duration;

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

/// The CPU time that a process uses, as a clock.
#[derive(Clone, Copy, Debug)]
pub struct CpuClock(libc::clockid_t);

impl CpuClock {
    /// That of process `pid`, whether there is one or not.
    pub fn of(pid: i32) -> CpuClock {
        /// The kernel's number of what a process has run, of the three clocks that each has.
        const RUN: libc::clockid_t = 2;
        CpuClock(!pid << 3 | RUN)
    }

    /// Sleeps until the process has used so much more; as long as it sleeps, too.
    ///
    /// # Errors
    /// `EINVAL`: the process has ended; the kernel has no such sleep.
    pub fn sleep(self, time: Duration) -> Result<(), Errno> {
        let wanted = libc::timespec {
            tv_sec: time.as_secs().cast_signed(),
            tv_nsec: i64::from(time.subsec_nanos()),
        };
        // SAFETY: reads one timespec; nothing is to be told of what is left of the time.
        let slept = unsafe {
            libc::clock_nanosleep(self.0, 0, &raw const wanted, core::ptr::null_mut())
        };
        match slept {
            0 | libc::EINTR => Ok(()),
            error => Err(Errno(error)),
        }
    }
}
