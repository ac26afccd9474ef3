//! The server that forks for each request.

use std::time::{Duration, Instant};

use super::real::{Real, anonymous, faults};
use super::rounds::{Accesses, Workload};
use super::{Failure, Figures, last_error};
use crate::LabError;
use crate::size::PAGE;

/// Of so many pages the child writes one.
pub const EACH: usize = 8;

pub(super) fn run(seconds: f64) -> Result<Figures, Failure> {
    let failed = |e| LabError::io("mapping memory for fork", e);
    let pages = Workload::Fork.bytes() / PAGE;
    let at_start = anonymous()?;
    let mut map = Real.map(pages * PAGE, false).map_err(failed)?;
    for page in 0..pages {
        Real.write(&mut map, page).map_err(failed)?;
    }
    let mut requests = |most: Duration| -> Result<u64, Failure> {
        let started = Instant::now();
        let mut served = 0;
        loop {
            // SAFETY: one thread; the child only writes to memory of its own and ends.
            match unsafe { libc::fork() } {
                -1 => return Err(last_error("forking").into()),
                0 => {
                    let wrote = (0..pages)
                        .step_by(EACH)
                        .all(|p| Real.write(&mut map, p).is_ok());
                    // SAFETY: ends the child at once, without the parent's exit handlers.
                    unsafe { libc::_exit(i32::from(!wrote)) }
                }
                child => {
                    let mut status = 0;
                    // SAFETY: our own child; status is a local.
                    let got = unsafe { libc::waitpid(child, &mut status, 0) };
                    if got != child || status != 0 {
                        let how = format!("a child ended with status {status:#x}");
                        let what = "fork".into();
                        return Err(LabError::Child { what, how }.into());
                    }
                }
            }
            served += 1;
            if started.elapsed() >= most {
                return Ok(served);
            }
        }
    };
    requests(Duration::ZERO)?;
    let before = faults()?;
    let started = Instant::now();
    let ops = requests(Duration::from_secs_f64(seconds))?;
    let seconds = started.elapsed().as_secs_f64();
    let faults = faults()? - before;
    let used = anonymous()?.saturating_sub(at_start);
    Real.unmap(map).map_err(failed)?;
    Ok(Figures {
        ops,
        seconds,
        faults,
        // What each child writes; what a fork costs besides is not known.
        pages: ops * (pages / EACH) as u64,
        used,
        touched: (pages * PAGE) as u64,
    })
}

#[cfg(test)]
mod tests {
    #[test]
    fn r150_the_forking_server_serves_requests() {
        let done = super::run(0.01).unwrap();
        assert!(done.ops > 0 && done.faults >= done.pages / 512, "{done:?}");
    }
}
