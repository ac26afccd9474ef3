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
