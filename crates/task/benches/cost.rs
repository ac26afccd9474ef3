//! What a service task costs: to make, and to ask. Prints medians of one run.
//!
//! `idle`: both sides sleep on a futex. `spin`: the service spins, the program sleeps only after
//! a short spin. Ratios within one run count, not the figures.

#[cfg(all(target_os = "linux", target_arch = "x86_64", target_env = "gnu"))]
mod cost {
    use deckle_task::watch::same_memory;
    use deckle_task::{Area, Options, exit, futex, spawn};
    use std::ffi::c_void;
    use std::hint::black_box;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::{Duration, Instant};

    const RUNS: usize = 2000;
    static WORD: AtomicU32 = AtomicU32::new(0);
    static SPIN: AtomicU32 = AtomicU32::new(0);
    const STOP: u32 = u32::MAX;

    extern "C" fn end_at_once(_: *mut c_void) -> ! {
        exit(0)
    }

    /// Odd values are requests, the even value after one is its answer.
    extern "C" fn serve(_: *mut c_void) -> ! {
        loop {
            let now = WORD.load(Ordering::Acquire);
            if now == STOP {
                exit(0);
            }
            if now % 2 == 1 {
                WORD.store(now + 1, Ordering::Release);
                futex::wake(&WORD, 1);
            } else if SPIN.load(Ordering::Relaxed) == 0 {
                futex::wait(&WORD, now, None);
            } else {
                std::hint::spin_loop();
            }
        }
    }

    fn ask(spins: u32) {
        let request = WORD.load(Ordering::Relaxed) + 1;
        WORD.store(request, Ordering::Release);
        if spins == 0 {
            futex::wake(&WORD, 1);
        }
        for _ in 0..spins {
            if WORD.load(Ordering::Acquire) != request {
                return;
            }
            std::hint::spin_loop();
        }
        while WORD.load(Ordering::Acquire) == request {
            futex::wait(&WORD, request, None);
        }
    }

    fn median(mut work: impl FnMut()) -> f64 {
        let mut times: Vec<Duration> = (0..RUNS)
            .map(|_| {
                let start = Instant::now();
                work();
                start.elapsed()
            })
            .collect();
        times.sort();
        times[RUNS / 2].as_secs_f64() * 1e6
    }

    pub fn run() {
        let area = Area::new(256 * 1024).expect("an area");
        let options = Options {
            name: c"deckle-bench",
            keep: &[],
        };
        let mut made = Vec::with_capacity(RUNS);
        let new = median(|| made.push(Area::new(256 * 1024).expect("an area")));
        made.drain(..).for_each(|a| {
            // SAFETY: no task was made in it.
            unsafe { a.unmap() }
        });
        let start = |entry| {
            // SAFETY: the entries only touch the statics above; one task at a time.
            unsafe { spawn(&area, &options, entry, std::ptr::null_mut()) }.expect("a task")
        };
        let mut total = Duration::ZERO;
        let mut times: Vec<Duration> = (0..RUNS)
            .map(|_| {
                let begin = Instant::now();
                let task = start(end_at_once);
                let took = begin.elapsed();
                while !task.wait_end(Duration::from_secs(1)) {}
                total += begin.elapsed();
                while !task.reap() {}
                took
            })
            .collect();
        times.sort();
        println!("area: new                          {new:8.2} us");
        println!(
            "spawn until it is set up           {:8.2} us",
            times[RUNS / 2].as_secs_f64() * 1e6
        );
        println!(
            "spawn until it has ended (mean)    {:8.2} us",
            total.as_secs_f64() * 1e6 / RUNS as f64
        );
        let task = start(serve);
        println!(
            "request and answer, idle service   {:8.2} us",
            median(|| ask(0))
        );
        println!("back to back, the program spins    {:8.2} us", {
            median(|| {
                let request = WORD.load(Ordering::Relaxed) + 1;
                WORD.store(request, Ordering::Release);
                futex::wake(&WORD, 1);
                for _ in 0..20_000 {
                    if WORD.load(Ordering::Acquire) != request {
                        return;
                    }
                    std::hint::spin_loop();
                }
                while WORD.load(Ordering::Acquire) == request {
                    futex::wait(&WORD, request, None);
                }
            })
        });
        SPIN.store(1, Ordering::Relaxed);
        futex::wake(&WORD, 1);
        println!(
            "request and answer, both spin      {:8.2} us",
            median(|| ask(20_000))
        );
        let pid = task.id();
        println!(
            "same_memory (kcmp)                 {:8.2} us",
            median(|| {
                black_box(same_memory(pid)).expect("kcmp");
            })
        );
        WORD.store(STOP, Ordering::Release);
        while !task.wait_end(Duration::from_secs(1)) {}
    }
}

fn main() {
    #[cfg(all(target_os = "linux", target_arch = "x86_64", target_env = "gnu"))]
    cost::run();
    #[cfg(not(all(target_os = "linux", target_arch = "x86_64", target_env = "gnu")))]
    eprintln!("SKIPPED: no service tasks on this system");
}
