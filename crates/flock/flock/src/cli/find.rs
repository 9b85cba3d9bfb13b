//! What `flock run` can look for: the highest rate, the most connections, the fastest connects.

use crate::sizing::{Quest, connects_in_one_stage};
use flock_measure::Sought;
use flock_model::scenario::units;
use flock_model::{Scenario, Search};

/// The searches and their bounds.
#[derive(Debug, clap::Args)]
pub(super) struct Find {
    /// Find the highest total rate at which a percentile of the latency is below a limit, such as
    /// p99=10ms.
    #[arg(long, value_parser = bound, value_name = "PERCENTILE=TIME", group = "rate_search")]
    pub find_rate: Option<(f64, u64)>,
    /// Find the largest number of connections without failed connects and lost connections. A
    /// percentile of the connect latency must be below a limit, such as p99=1s. Each step is a run.
    #[arg(
        long,
        value_parser = bound,
        value_name = "PERCENTILE=TIME",
        conflicts_with_all = ["rate_search", "runs"]
    )]
    pub find_connections: Option<(f64, u64)>,
    /// Find the highest rate of connects, with the same conditions. Each step is a run.
    #[arg(
        long,
        value_parser = bound,
        value_name = "PERCENTILE=TIME",
        group = "rate_search",
        conflicts_with = "runs"
    )]
    pub find_connect_rate: Option<(f64, u64)>,
    /// Lowest rate of the search, in messages per second of all publishers or connects per second.
    #[arg(long, default_value_t = RATE_MIN, requires = "rate_search")]
    pub rate_min: u64,
    /// Highest rate of the search.
    #[arg(long, default_value_t = RATE_MAX, requires = "rate_search")]
    pub rate_max: u64,
    /// Length of a step of the search.
    #[arg(
        long,
        default_value = RATE_STEP,
        value_parser = units::time,
        value_name = "TIME",
        requires = "rate_search"
    )]
    pub rate_step: u64,
    /// Smallest number of connections of the search.
    #[arg(long, default_value_t = CONNECTIONS_MIN, requires = "find_connections")]
    pub connections_min: u64,
    /// Largest number of connections of the search.
    #[arg(long, default_value_t = CONNECTIONS_MAX, requires = "find_connections")]
    pub connections_max: u64,
    /// Connects per second while the number of connections is searched.
    #[arg(
        long,
        default_value_t = CONNECT_RATE,
        value_parser = clap::value_parser!(u64).range(1..),
        requires = "find_connections"
    )]
    pub connect_rate: u64,
}

impl Find {
    /// The search for the highest rate of messages, if one is asked for.
    pub(super) fn rate_search(&self) -> anyhow::Result<Option<Search>> {
        let rates = (self.rate_min, self.rate_max);
        self.find_rate.map(|bound| search(bound, rates, self.rate_step)).transpose()
    }

    /// The search for a size, if one is asked for. `duration_us` is for how long connections stay.
    pub(super) fn quest(
        &self,
        scenario: &Scenario,
        duration_us: Option<u64>,
    ) -> anyhow::Result<Option<Quest>> {
        let hold_us = duration_us.unwrap_or(HOLD_US);
        let (sought, bound, sizes) = match (self.find_connections, self.find_connect_rate) {
            (Some(bound), _) => {
                (Sought::Connections, bound, (self.connections_min, self.connections_max))
            }
            (None, Some(bound)) => (Sought::ConnectRate, bound, (self.rate_min, self.rate_max)),
            (None, None) => return Ok(None),
        };
        anyhow::ensure!(
            0 < sizes.0 && sizes.0 <= sizes.1,
            "the search needs a smallest size from 1 to the largest, got {} to {}",
            sizes.0,
            sizes.1
        );
        anyhow::ensure!(
            sought == Sought::Connections || connects_in_one_stage(scenario),
            "--find-connect-rate needs a scenario whose clients connect in one stage, such as MB-B4"
        );
        Ok(Some(Quest {
            sought,
            percentile: bound.0,
            latency_max_us: bound.1,
            size_min: sizes.0,
            size_max: sizes.1,
            connects_per_sec: self.connect_rate,
            ramp_us: self.rate_step,
            hold_us,
            precision: SEARCH_PRECISION,
        }))
    }
}

/// The search for the highest rate that keeps a percentile below a latency.
pub(super) fn search(
    (percentile, latency_max_us): (f64, u64),
    (rate_min, rate_max): (u64, u64),
    step_us: u64,
) -> anyhow::Result<Search> {
    anyhow::ensure!(rate_min <= rate_max, "--rate-min must not be above --rate-max");
    let rate_min = rate_min.max(1);
    let precision = SEARCH_PRECISION;
    Ok(Search { percentile, latency_max_us, rate_min, rate_max, step_us, precision })
}

pub(super) fn bound(text: &str) -> Result<(f64, u64), String> {
    let wrong = || "must be PERCENTILE=TIME, such as p99=10ms".to_owned();
    let (percentile, latency) = text.split_once('=').ok_or_else(wrong)?;
    let percentile: f64 = percentile.trim_start_matches('p').parse().map_err(|_| wrong())?;
    if !(percentile > 0.0 && percentile <= 100.0) {
        return Err("the percentile must be above 0, at most 100".to_owned());
    }
    Ok((percentile, units::time(latency)?))
}

/// Of a search that does not say.
pub(super) const RATE_MIN: u64 = 100;
pub(super) const RATE_MAX: u64 = 1_000_000;
pub(super) const CONNECTIONS_MIN: u64 = 1_000;
pub(super) const CONNECTIONS_MAX: u64 = 1_000_000;
pub(super) const CONNECT_RATE: u64 = 1_000;
pub(super) const RATE_STEP: &str = "10s";
/// Of the connections of a search.
const HOLD_US: u64 = 10_000_000;
/// How far apart the rate that held and the one that did not may be, as a share.
const SEARCH_PRECISION: f64 = 0.05;
