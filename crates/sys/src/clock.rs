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

/// The CPU that the calling thread runs on, or did a moment ago; 0 where the kernel does not say.
///
/// Linux on x86-64 keeps that number in the limit of a segment, where its vDSO reads it, too: the
/// limit's low twelve bits (`__CPUNODE_SEG`, `VDSO_CPUNODE_BITS`).
#[inline]
pub fn this_cpu() -> usize {
    const SEGMENT: u32 = 0x7b;
    const CPU_BITS: u32 = 12;
    let mut limit = 0_u32;
    // SAFETY: reads a descriptor's limit; without such a segment it writes nothing but a flag.
    unsafe {
        core::arch::asm!("lsl {0:e}, {1:e}", inout(reg) limit, in(reg) SEGMENT,
            options(nomem, nostack));
    }
    (limit & ((1 << CPU_BITS) - 1)) as usize
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

    /// Sends the calling thread a signal whenever the process has used so much more: so never while
    /// it sleeps. For good.
    ///
    /// # Errors
    /// The kernel has no such timer, or allows none.
    pub fn ring(self, every: Duration, signal: i32) -> Result<(), Errno> {
        let time = libc::timespec {
            tv_sec: every.as_secs().cast_signed(),
            tv_nsec: i64::from(every.subsec_nanos()),
        };
        let times = libc::itimerspec {
            it_interval: time,
            it_value: time,
        };
        let mut timer = core::ptr::null_mut();
        // SAFETY: plain data, of which zeros are a value; the calls read it, and write the timer's
        // name, which nobody needs after the second.
        let done = unsafe {
            let mut event: libc::sigevent = core::mem::zeroed();
            event.sigev_notify = libc::SIGEV_THREAD_ID;
            event.sigev_signo = signal;
            event.sigev_notify_thread_id = libc::gettid();
            match libc::timer_create(self.0, &raw mut event, &raw mut timer) {
                0 => libc::timer_settime(timer, 0, &raw const times, core::ptr::null_mut()),
                failed => failed,
            }
        };
        match done {
            0 => Ok(()),
            _ => Err(Errno::last()),
        }
    }
}
