//! What repeated runs say together: the median, how far they lie apart, and how far chance alone
//! may have moved a ratio of two medians.
//!
//! The interval of a ratio is that of Hodges and Lehmann: of all ratios of a run of one side to a
//! run of the other, so many of the least and of the greatest are left out as the rank test of Mann
//! and Whitney allows. The test is exact for any number of runs. It supposes that both sides
//! scatter alike but for a factor, and nothing of how.

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
    /// In which it lies with at least 95 % confidence; absent where one side has too few runs.
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
    let mut ratios: Vec<f64> =
        base.iter().flat_map(|below| values.iter().map(move |above| above / below)).collect();
    ratios.sort_by(f64::total_cmp);
    let cut = cut_of_ranks(base.len(), values.len())?;
    let (low, high) = (*ratios.get(cut)?, *ratios.get(ratios.len() - 1 - cut)?);
    // Of what was nought once, there is no ratio.
    (low.is_finite() && high.is_finite()).then_some((low, high))
}

/// How many of all ratios are left out at each end, so that no more than [`ERRORS_MAX`] of the
/// intervals miss the truth; `None` where even all of them are too few.
fn cut_of_ranks(of_one: usize, of_other: usize) -> Option<usize> {
    // In how many orders of all runs so many pairs are the other way round: the coefficients of the
    // Gaussian binomial.
    let pairs = of_one * of_other;
    let mut orders = vec![0.0; pairs + 1];
    orders[0] = 1.0;
    for step in 1..=of_one {
        for at in (of_other + step..=pairs).rev() {
            orders[at] -= orders[at - of_other - step];
        }
        for at in step..=pairs {
            orders[at] += orders[at - step];
        }
    }
    cut_of(&orders)
}

/// In which the median lies with at least 93 % confidence: 94 % of five runs, as rarely all of them
/// lie on one side of it. `None` of too few runs to tell.
pub fn median_interval(values: &[f64]) -> Option<(f64, f64)> {
    if values.len() < RUNS_MIN {
        return None;
    }
    // So many of the runs below the median: binomial.
    let runs = values.len();
    let mut ways = vec![1.0; runs + 1];
    for below in 1..=runs {
        ways[below] = ways[below - 1] * (runs + 1 - below) as f64 / below as f64;
    }
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let cut = cut_of(&ways).unwrap_or(0);
    Some((sorted[cut], sorted[runs - 1 - cut]))
}

/// How many at the lower end of a symmetric distribution, and at the upper, are rare together.
fn cut_of(ways: &[f64]) -> Option<usize> {
    let all: f64 = ways.iter().sum();
    let mut below = 0.0;
    let rare = ways.iter().take_while(|ways| {
        below += **ways;
        2.0 * below / all <= ERRORS_MAX
    });
    rare.count().checked_sub(1)
}

/// Of fewer runs there is no interval, but the least and the most.
pub const RUNS_MIN: usize = 5;
/// Intervals that miss the truth.
const ERRORS_MAX: f64 = 0.05;
/// A ratio this close to 1 is no difference, however sure it is.
const TRIFLE: f64 = 0.005;

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
    }

    #[test]
    fn of_few_runs_nothing_is_known_and_of_a_trifle_nothing_is_made() {
        let few = [1.0, 1.1, 0.9, 1.0];
        assert_eq!(Ratio::of(&few, &[5.0, 6.0, 5.5, 5.1]).unwrap().noise(), Noise::Unknown);
        assert_eq!(Ratio::of(&[0.0], &[5.0]), None);
        let rate = |rate| [rate; 5];
        assert_eq!(Ratio::of(&rate(1_000.0), &rate(1_000.4)).unwrap().noise(), Noise::Within);
        assert_eq!(Ratio::of(&rate(1_000.0), &rate(1_020.0)).unwrap().noise(), Noise::Beyond);
    }

    #[test]
    fn a_median_has_an_interval_where_there_are_runs_enough() {
        assert_eq!(median_interval(&[1.0, 2.0, 3.0, 4.0]), None);
        assert_eq!(median_interval(&[4.0; 5]), Some((4.0, 4.0)));
        assert_eq!(median_interval(&[10.0, 11.0, 9.5, 10.4, 12.0]), Some((9.5, 12.0)));
        let nine: Vec<f64> = (1..=9).map(f64::from).collect();
        assert_eq!(median_interval(&nine), Some((2.0, 8.0)));
    }

    #[test]
    fn the_rank_test_is_that_of_the_tables() {
        // The critical values of U for 5 % on both sides, and that of the ratios left out.
        for (of_one, of_other, cut) in
            [(5, 5, 2), (4, 4, 0), (6, 6, 5), (8, 8, 13), (5, 9, 7), (20, 20, 127)]
        {
            assert_eq!(cut_of_ranks(of_one, of_other), Some(cut), "{of_one}, {of_other}");
        }
        assert_eq!(cut_of_ranks(3, 3), None);
    }

    /// Numbers that look like random ones (splitmix64), from 0 to 1.
    struct Draw(u64);

    impl Draw {
        fn next(&mut self) -> f64 {
            self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
            let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
            ((z ^ (z >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
        }

        /// A sum of twelve, nearly normal.
        fn normal(&mut self) -> f64 {
            (0..12).map(|_| self.next()).sum::<f64>() - 6.0
        }
    }

    /// How many of a hundred intervals hold the truth, of runs whose median is 1.
    fn percent_held(run: fn(&mut Draw) -> f64, other: fn(&mut Draw) -> f64, runs: usize) -> f64 {
        let (mut draw, mut held) = (Draw(1), 0);
        for _ in 0..TRIALS {
            let one: Vec<f64> = (0..runs).map(|_| run(&mut draw)).collect();
            let other: Vec<f64> = (0..runs).map(|_| 1.5 * other(&mut draw)).collect();
            let (low, high) = Ratio::of(&one, &other).unwrap().interval.unwrap();
            held += u32::from((low..=high).contains(&1.5));
        }
        f64::from(held) * 100.0 / f64::from(TRIALS)
    }

    /// The interval has to hold the truth as often as it says.
    #[test]
    fn the_interval_holds_the_truth_as_often_as_it_says() {
        type Run = fn(&mut Draw) -> f64;
        let normal: Run = |draw| (draw.normal() * 0.05).exp();
        let wide: Run = |draw| (draw.normal() * 0.15).exp();
        // A run in five is disturbed, and up to twice as slow.
        let disturbed: Run = |draw| {
            let is_disturbed = draw.next() < 0.2;
            let slower = if is_disturbed { 1.0 + draw.next() } else { 1.0 };
            slower * (1.0 + 0.02 * draw.normal())
        };
        for runs in [5, 7, 12] {
            for (one, other) in [(normal, normal), (wide, wide), (disturbed, disturbed)] {
                let held = percent_held(one, other, runs);
                assert!(held >= 94.5, "{held} % of {runs}");
            }
            // One side scatters three times as much.
            let held = percent_held(normal, wide, runs);
            assert!(held >= 92.0, "{held} % of {runs}");
        }
    }

    #[test]
    fn the_interval_of_a_median_holds_it_as_often_as_it_says() {
        for runs in [5, 6, 8, 9, 20] {
            let (mut draw, mut held) = (Draw(2), 0);
            for _ in 0..TRIALS {
                let values: Vec<f64> = (0..runs).map(|_| -draw.next().ln()).collect();
                let (low, high) = median_interval(&values).unwrap();
                held += u32::from((low..=high).contains(&2.0_f64.ln()));
            }
            let held = f64::from(held) * 100.0 / f64::from(TRIALS);
            assert!(held >= 93.0, "{held} % of {runs}");
        }
    }

    const TRIALS: u32 = 4_000;
}
