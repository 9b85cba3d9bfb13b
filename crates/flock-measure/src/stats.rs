//! What repeated runs say together: the median, how far they lie apart, and how far chance alone
//! may have moved a ratio of two medians.
//!
//! The interval is a bootstrap (Efron 1979, by percentiles): the runs of both sides are drawn again
//! with replacement, thousands of times, and the ratio of the medians is taken each time. It
//! supposes nothing of how runs are distributed. The draws are seeded, so that the same results
//! give the same interval everywhere.

/// Values of repeated runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    pub median: f64,
    pub least: f64,
    pub most: f64,
    pub runs: usize,
}

impl Spread {
    /// `None` of nothing.
    pub fn of(values: &[f64]) -> Option<Self> {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (least, most) = (*sorted.first()?, *sorted.last()?);
        Some(Self { median: median(&sorted), least, most, runs: sorted.len() })
    }
}

/// Of sorted values; 0 of none.
fn median(sorted: &[f64]) -> f64 {
    match sorted.len() {
        0 => 0.0,
        n => (sorted[(n - 1) / 2] + sorted[n / 2]) / 2.0,
    }
}

/// How one set of runs stands to another.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ratio {
    /// Of the medians.
    pub ratio: f64,
    /// In which it lies with 95 % confidence; absent where one side has too few runs to tell.
    pub interval: Option<(f64, f64)>,
}

/// Is there a difference?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Noise {
    /// Larger than chance would make it.
    Beyond,
    /// Chance alone may have made it.
    Within,
    /// Too few runs to tell.
    Unknown,
}

impl Ratio {
    /// Of `values` to `base`; `None` where one of them is empty or `base` is nought.
    pub fn of(base: &[f64], values: &[f64]) -> Option<Self> {
        let (below, above) = (Spread::of(base)?.median, Spread::of(values)?.median);
        if below <= 0.0 {
            return None;
        }
        let is_enough = base.len() >= RUNS_MIN && values.len() >= RUNS_MIN;
        let interval = is_enough.then(|| interval(base, values)).flatten();
        Some(Self { ratio: above / below, interval })
    }

    pub fn noise(&self) -> Noise {
        match self.interval {
            None => Noise::Unknown,
            Some((low, high)) if low > 1.0 + TRIFLE || high < 1.0 - TRIFLE => Noise::Beyond,
            Some(_) => Noise::Within,
        }
    }
}

fn interval(base: &[f64], values: &[f64]) -> Option<(f64, f64)> {
    let mut draw = Draw(SEED);
    let ratios = (0..RESAMPLES)
        .map(|_| (draw.median_of(base), draw.median_of(values)))
        .filter(|(below, _)| *below > 0.0)
        .map(|(below, above)| above / below);
    middle_of(ratios.collect())
}

/// In which the median lies with 95 % confidence; `None` of too few runs to tell.
pub fn median_interval(values: &[f64]) -> Option<(f64, f64)> {
    if values.len() < RUNS_MIN {
        return None;
    }
    let mut draw = Draw(SEED);
    middle_of((0..RESAMPLES).map(|_| draw.median_of(values)).collect())
}

/// What is left without the tails.
fn middle_of(mut drawn: Vec<f64>) -> Option<(f64, f64)> {
    drawn.sort_by(f64::total_cmp);
    let at = |share: f64| drawn.get((drawn.len() as f64 * share) as usize).copied();
    Some((at(TAIL)?, at(1.0 - TAIL)?))
}

/// Numbers that look like random ones (splitmix64).
struct Draw(u64);

impl Draw {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((u128::from(z ^ (z >> 31)) * end as u128) >> 64) as usize
    }

    /// Of as many values, drawn with replacement.
    fn median_of(&mut self, values: &[f64]) -> f64 {
        let mut drawn: Vec<f64> =
            (0..values.len()).map(|_| values[self.below(values.len())]).collect();
        drawn.sort_by(f64::total_cmp);
        median(&drawn)
    }
}

/// Of fewer runs there is no interval: drawn again, two give three medians.
pub const RUNS_MIN: usize = 3;
const RESAMPLES: usize = 10_000;
/// What is cut off at each end of 95 %.
const TAIL: f64 = 0.025;
/// A ratio this close to 1 is no difference, however sure it is.
const TRIFLE: f64 = 0.005;
const SEED: u64 = 0x0066_6C6F_636B;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_and_spread() {
        let spread = Spread::of(&[3.0, 1.0, 2.0, 10.0]).unwrap();
        assert_eq!(spread, Spread { median: 2.5, least: 1.0, most: 10.0, runs: 4 });
        assert_eq!(Spread::of(&[7.0]).unwrap().median, 7.0);
        assert_eq!(Spread::of(&[]), None);
    }

    #[test]
    fn what_runs_of_one_thing_differ_by_is_noise() {
        let (one, other) = ([10.0, 11.0, 9.5, 10.4, 12.0], [10.8, 9.9, 11.5, 10.1, 10.2]);
        let ratio = Ratio::of(&one, &other).unwrap();
        assert_eq!(ratio.noise(), Noise::Within, "{ratio:?}");
        let (low, high) = ratio.interval.unwrap();
        assert!(low < 1.0 && 1.0 < high && low <= ratio.ratio && ratio.ratio <= high);
    }

    #[test]
    fn a_difference_that_every_run_shows_is_none() {
        let (one, other) = ([10.0, 11.0, 9.5, 10.4, 12.0], [15.8, 14.9, 16.5, 15.1, 19.2]);
        let ratio = Ratio::of(&one, &other).unwrap();
        assert_eq!(ratio.noise(), Noise::Beyond);
        assert!((ratio.ratio - 15.8 / 10.4).abs() < 1e-9);
        // The same whenever it is asked.
        assert_eq!(Ratio::of(&one, &other), Some(ratio));
    }

    #[test]
    fn of_few_runs_nothing_is_known_and_of_a_trifle_nothing_is_made() {
        assert_eq!(Ratio::of(&[1.0, 2.0], &[5.0, 6.0]).unwrap().noise(), Noise::Unknown);
        assert_eq!(Ratio::of(&[0.0], &[5.0]), None);
        let rate = |rate| [rate; 5];
        assert_eq!(Ratio::of(&rate(1_000.0), &rate(1_000.4)).unwrap().noise(), Noise::Within);
        assert_eq!(Ratio::of(&rate(1_000.0), &rate(1_020.0)).unwrap().noise(), Noise::Beyond);
    }

    #[test]
    fn a_median_has_an_interval_where_there_are_runs_enough() {
        assert_eq!(median_interval(&[1.0, 2.0]), None);
        assert_eq!(median_interval(&[4.0, 4.0, 4.0]), Some((4.0, 4.0)));
        let (low, high) = median_interval(&[10.0, 11.0, 9.5, 10.4, 12.0]).unwrap();
        assert!((9.5..10.4).contains(&low) && high > 10.4 && high <= 12.0, "{low} to {high}");
    }

    /// The interval has to hold the truth about as often as it says.
    #[test]
    fn the_interval_holds_the_truth_most_of_the_time() {
        let mut draw = Draw(1);
        // Sums of twelve: nearly normal around 100.
        let mut run = |middle: f64| {
            let sum: usize = (0..12).map(|_| draw.below(1_000)).sum();
            middle + (sum as f64 / 1_000.0 - 6.0) * 5.0
        };
        let mut held = 0;
        for _ in 0..100 {
            let one: Vec<f64> = (0..5).map(|_| run(100.0)).collect();
            let other: Vec<f64> = (0..5).map(|_| run(150.0)).collect();
            let (low, high) = Ratio::of(&one, &other).unwrap().interval.unwrap();
            held += u32::from((low..=high).contains(&1.5));
        }
        assert!(held >= 85, "{held} of 100");
    }
}
