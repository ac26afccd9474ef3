//! Means, their errors, medians and percentiles.

/// A mean over seeds or runs.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Mean {
    pub mean: f64,
    /// Standard error of the mean; `None` of a single value.
    pub error: Option<f64>,
}

impl Mean {
    /// Of a set; 0 without an error if it is empty.
    pub fn of(values: impl Iterator<Item = f64> + Clone) -> Self {
        let n = values.clone().count() as f64;
        let mean = values.clone().sum::<f64>() / n.max(1.0);
        let squares: f64 = values.map(|v| (v - mean) * (v - mean)).sum();
        Self {
            mean,
            error: (n > 1.0).then(|| (squares / (n - 1.0) / n).sqrt()),
        }
    }

    /// Whether the mean is positive by at least `times` its error.
    pub fn clear_of_zero(&self, times: f64) -> bool {
        self.error
            .is_some_and(|e| self.mean > 0.0 && self.mean >= times * e)
    }
}

/// What is kept of the change from `none` to `all`: that from `none` to `some`, as a share.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Kept {
    /// The share.
    pub share: f64,
    /// Its standard error, by the first derivatives; `None` where one of the three has none.
    pub error: Option<f64>,
}

impl Kept {
    /// Of means of what was measured apart.
    pub fn of(none: Mean, all: Mean, some: Mean) -> Self {
        let gain = none.mean - all.mean;
        let share = (none.mean - some.mean) / gain;
        let slopes = [(1.0 - share) / gain, share / gain, -1.0 / gain];
        let errors = [none.error, all.error, some.error];
        let squares = (slopes.iter().zip(errors)).map(|(slope, e)| Some((slope * e?).powi(2)));
        let sum: Option<f64> = squares.sum();
        Self {
            share,
            error: sum.map(f64::sqrt),
        }
    }
}

impl Mean {
    /// The mean of `1 / x`, near enough where the error is small.
    pub fn inverse(self) -> Self {
        Self {
            mean: 1.0 / self.mean,
            error: self.error.map(|e| e / (self.mean * self.mean)),
        }
    }
}

/// The middle one, or the mean of the middle two; 0 of none.
pub(crate) fn median(all: &[f64]) -> f64 {
    let mut all = all.to_vec();
    all.sort_by(f64::total_cmp);
    match (all.len() / 2, all.len() % 2) {
        (0, 0) => 0.0,
        (half, 0) => (all[half - 1] + all[half]) / 2.0,
        (half, _) => all[half],
    }
}

/// The value that `percent` of the values do not exceed (nearest rank); 0 of none. Sorts.
pub(crate) fn percentile(values: &mut [u64], percent: f64) -> u64 {
    values.sort_unstable();
    let rank = (values.len() as f64 * percent / 100.0).ceil() as usize;
    values.get(rank.saturating_sub(1)).copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r138_the_error_of_a_share_is_that_of_what_it_is_made_of() {
        let mean = |mean, error| Mean { mean, error };
        let of = |none, all, some| Kept::of(mean(10.0, none), mean(6.0, all), mean(7.0, some));
        // 3 of 4. Of the third by 1/4, of the second by 3/16, of the first by 1/16.
        let one = |none, all, some| of(Some(none), Some(all), Some(some)).error.unwrap();
        assert_eq!(of(None, Some(1.0), Some(1.0)).error, None);
        assert_eq!(of(None, None, None).share, 0.75);
        for (found, want) in [
            (one(0.0, 0.0, 0.4), 0.1),
            (one(0.0, 0.4, 0.0), 0.075),
            (one(0.4, 0.0, 0.0), 0.025),
            (one(0.4, 0.4, 0.4), 0.127_475),
        ] {
            assert!((found - want).abs() < 1e-6, "{found} {want}");
        }
        let inverse = mean(4.0, Some(0.8)).inverse();
        assert_eq!((inverse.mean, inverse.error), (0.25, Some(0.05)));
    }

    #[test]
    fn r29_means_and_percentiles_of_known_sets() {
        let m = Mean::of([2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0].into_iter());
        assert_eq!(m.mean, 5.0);
        // Deviations sum up to 32 in squares: sqrt(32 / 7 / 8).
        assert!((m.error.unwrap() - 0.755_93).abs() < 1e-5, "{m:?}");
        assert!(m.clear_of_zero(6.0) && !m.clear_of_zero(7.0));
        assert_eq!(Mean::of([3.0].into_iter()).error, None);
        assert_eq!(Mean::of([].into_iter()).mean, 0.0);
        let mut all: Vec<u64> = (1..=200).rev().collect();
        assert_eq!(percentile(&mut all, 50.0), 100);
        assert_eq!(percentile(&mut all, 99.0), 198);
        assert_eq!(percentile(&mut all, 100.0), 200);
        assert_eq!(percentile(&mut [], 50.0), 0);
    }
}
