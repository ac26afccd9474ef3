//! The workload programs by themselves, and a program that holds settings of the host, for tests.

use std::ffi::OsString;
use std::io::BufRead;
use std::process::ExitCode;

use deckle_lab::LabError;
use deckle_lab::child::Running;
use deckle_lab::host::cgroup::Cgroup;
use deckle_lab::host::thp::Thp;
use deckle_lab::host::{Guard, zram};

fn main() -> ExitCode {
    let args: Vec<OsString> = std::env::args_os().skip(1).collect();
    if args.iter().map(|a| a.to_str()).eq([Some("hold")]) {
        return match hold() {
            Ok(()) => ExitCode::SUCCESS,
            Err(e) => {
                println!("cannot hold: {e}");
                ExitCode::FAILURE
            }
        };
    }
    deckle_lab::programs_main(&args)
}

/// Changes every kind of setting that the experiments change, says `held KEEPER SLEEPER`, and
/// keeps them until stdin ends.
fn hold() -> Result<(), LabError> {
    let this = std::env::current_exe().map_err(|e| LabError::io("finding this program", e))?;
    let mut guard = Guard::new(&[this.into_os_string()])?;
    Thp {
        max_ptes_none: 123,
        shrink_underused: false,
    }
    .set(&mut guard, "always")?;
    zram::swap_on(&mut guard, 16 << 20)?;
    let cgroup = Cgroup::new(&mut guard, "hold")?;
    cgroup.limit_without_swap(64 << 20)?;
    let sleeper = ["sleep", "600"].map(OsString::from);
    let sleeper = Running::start("sleeper", &sleeper, cgroup.doors()?)?;
    // The cgroup's end has to be what ends the sleeper.
    let pid = sleeper.pid();
    std::mem::forget(sleeper);
    println!("held {} {pid}", guard.keeper_pid());
    let _ = std::io::stdin().lock().lines().count();
    guard.finish()?;
    Ok(())
}
