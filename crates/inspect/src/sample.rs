//! What a sample says of the whole.
//!
//! The interval is that of Agresti and Coull, for shares instead of yes and no: some huge pages
//! that are wholly zeros and as many that have none are seen besides, so that a sample in which
//! all are alike does not claim that all others are. What was seen counts as it is; the interval is
//! of the rest.

/// Standard errors of the interval: 99 % where the sample is large. What is promised is 95.
const Z: f64 = 2.576;
/// Observations that are added to the sample, one half of them 0 and the other 1.
const ADDED: f64 = Z * Z;

/// A figure, and where the true one lies.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Estimate {
    /// The best guess.
    pub value: f64,
    /// Not less, in at least 95 of 100 samples.
    pub low: f64,
    /// Not more.
    pub high: f64,
}

impl Estimate {
    /// A figure that is known.
    pub fn exact(value: f64) -> Estimate {
        let (low, high) = (value, value);
        Estimate { value, low, high }
    }

    /// Whether it is.
    pub fn is_exact(&self) -> bool {
        self.low == self.high
    }

    /// Another unit.
    pub fn map(self, f: impl Fn(f64) -> f64) -> Estimate {
        Estimate {
            value: f(self.value),
            low: f(self.low),
            high: f(self.high),
        }
    }

    /// The sum of figures from samples that know nothing of each other.
    pub fn sum(parts: impl IntoIterator<Item = Estimate>) -> Estimate {
        let (mut sum, mut below, mut above) = (0.0, 0.0, 0.0);
        for part in parts {
            sum += part.value;
            below += (part.value - part.low).powi(2);
            above += (part.high - part.value).powi(2);
        }
        Estimate {
            value: sum,
            low: sum - below.sqrt(),
            high: sum + above.sqrt(),
        }
    }
}

/// Shares of what was seen.
#[derive(Clone, Copy, Default)]
pub struct Moments {
    n: f64,
    sum: f64,
    squares: f64,
}

impl Moments {
    /// `n` of this share, 0 to 1.
    pub fn add(&mut self, share: f64, n: u64) {
        let n = n as f64;
        self.n += n;
        self.sum += n * share;
        self.squares += n * share * share;
    }

    /// The sum over all, of which this was a sample without replacement.
    pub fn total(&self, all: u64) -> Estimate {
        let rest = all as f64 - self.n;
        if rest <= 0.0 {
            return Estimate::exact(self.sum);
        }
        let n = self.n + ADDED;
        let mean = (self.sum + ADDED / 2.0) / n;
        let variance = ((self.squares + ADDED / 2.0) / n - mean * mean).max(0.0);
        let error = Z * (variance * (1.0 / n + 1.0 / rest)).sqrt();
        let guess = if self.n > 0.0 {
            self.sum / self.n
        } else {
            mean
        };
        let end = |share: f64| self.sum + rest * share.clamp(0.0, 1.0);
        let value = end(guess);
        Estimate {
            value,
            low: end(mean - error).min(value),
            high: end(mean + error).max(value),
        }
    }
}

/// Random numbers (SplitMix64), the same for the same seed.
#[derive(Clone, Copy, Debug)]
pub struct Rng(pub u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// One of `n` numbers from 0 on.
    fn below(&mut self, n: usize) -> usize {
        ((u128::from(self.next()) * n as u128) >> 64) as usize
    }
}

/// Chooses `n` of so many, each as likely as any other; in order.
pub fn choose(rng: &mut Rng, of: usize, n: usize) -> Vec<usize> {
    let mut all: Vec<usize> = (0..of).collect();
    for i in 0..n.min(of) {
        let other = i + rng.below(of - i);
        all.swap(i, other);
    }
    all.truncate(n);
    all.sort_unstable();
    all
}
