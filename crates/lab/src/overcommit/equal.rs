//! The limit at which the kernel takes as much RAM as the manager: its cgroup's limit and what zram
//! takes beside it are together what the manager's limit holds.

use crate::LabError;
use crate::program::walk::RATIO;
use crate::size::PAGE;

/// Short runs at most, until the nearest is taken.
const STEPS: usize = 6;
/// How near is near enough, as a part of the memory.
const NEAR: u64 = 128;

/// What a search for the limit came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Found {
    /// With this limit, in bytes.
    Limit(u64),
    /// Runs were killed, one after the other, with this limit.
    Killed(u64),
}

/// What can be resident of `size` bytes inside `memory` bytes when the rest is compressed as well
/// as the program says of its content.
pub(super) fn resident(size: u64, memory: u64) -> u64 {
    let stored = size as f64 / RATIO;
    ((memory as f64 - stored) / (1.0 - 1.0 / RATIO))
        .round()
        .clamp(0.0, size as f64) as u64
}

/// Looks for the limit, beginning with `limit`. `used` makes a short run with a limit and returns
/// what zram took; none, if it was killed however often it was repeated.
pub(super) fn search(
    memory: u64,
    mut limit: u64,
    mut used: impl FnMut(u64) -> Result<Option<u64>, LabError>,
) -> Result<Found, LabError> {
    let page = PAGE as u64;
    let mut best = (u64::MAX, limit);
    for _ in 0..STEPS {
        limit = (limit / page * page).clamp(page, memory);
        let Some(zram) = used(limit)? else {
            return Ok(Found::Killed(limit));
        };
        let off = memory as i64 - limit as i64 - zram as i64;
        best = best.min((off.unsigned_abs(), limit));
        if off.unsigned_abs() <= memory / NEAR {
            break;
        }
        // What the limit gains leaves zram, where it took a part of that.
        let step = off as f64 / (1.0 - 1.0 / RATIO);
        limit = limit.saturating_add_signed(step as i64);
    }
    Ok(Found::Limit(best.1))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn r150_what_fits_is_what_fits_beside_the_compressed_rest() {
        assert_eq!(resident(300 * MIB, 200 * MIB), 150 * MIB);
        assert_eq!(resident(300 * MIB, 90 * MIB), 0);
        assert_eq!(resident(300 * MIB, 900 * MIB), 300 * MIB);
    }

    #[test]
    fn r150_the_limit_of_equal_ram_is_found_whatever_zram_takes() {
        let (size, memory) = (512 * MIB, 256 * MIB);
        for (ratio, slack) in [(2.0, 0), (3.0, 9 * MIB), (4.0, 20 * MIB)] {
            let zram = |limit: u64| ((size - limit) as f64 / ratio) as u64 + slack;
            let mut runs = 0;
            let found = search(memory, resident(size, memory), |limit| {
                runs += 1;
                Ok(Some(zram(limit)))
            });
            let Ok(Found::Limit(limit)) = found else {
                panic!("{found:?}");
            };
            let off = (limit + zram(limit)).abs_diff(memory);
            assert!(off <= memory / NEAR, "{ratio}: off by {off}");
            assert!(runs <= 4, "{ratio}: {runs} runs");
        }
    }

    #[test]
    fn r150_where_nothing_is_near_the_nearest_limit_is_taken() {
        let mut tried = Vec::new();
        let found = search(100 * MIB, 40 * MIB, |limit| {
            tried.push(limit);
            Ok(Some(if limit > 50 * MIB { 90 * MIB } else { 10 * MIB }))
        });
        assert_eq!(tried.len(), STEPS);
        let Ok(Found::Limit(limit)) = found else {
            panic!("{found:?}");
        };
        let off = |limit: u64| match limit > 50 * MIB {
            true => (limit + 90 * MIB).abs_diff(100 * MIB),
            false => (limit + 10 * MIB).abs_diff(100 * MIB),
        };
        assert_eq!(Some(off(limit)), tried.into_iter().map(off).min());
    }

    #[test]
    fn r150_a_search_whose_runs_are_killed_says_where() {
        let found = search(100 * MIB, 30 * MIB + 5, |_| Ok(None));
        assert_eq!(found.unwrap(), Found::Killed(30 * MIB));
        let why = || LabError::Option("x".into());
        assert!(search(100 * MIB, MIB, |_| Err(why())).is_err());
    }
}
