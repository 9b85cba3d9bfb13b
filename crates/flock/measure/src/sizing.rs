//! How much a broker holds: the largest number of connections, or of connects per second, found by
//! run after run.

use serde::{Deserialize, Serialize};

use crate::text::{bytes, count, micros, number};

/// What is looked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Sought {
    #[default]
    Connections,
    /// Connects per second.
    ConnectRate,
}

impl Sought {
    pub fn title(self) -> &'static str {
        match self {
            Self::Connections => "most connections",
            Self::ConnectRate => "highest connect rate",
        }
    }

    /// `12,000 connections`, `1,500 connects/s`.
    pub fn words(self, size: u64) -> String {
        match self {
            Self::Connections => format!("{} connections", count(size)),
            Self::ConnectRate => format!("{} connects/s", count(size)),
        }
    }
}

/// What a search found.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Sizing {
    pub sought: Sought,
    /// Of the connect latency, which had to stay within the bound.
    pub latency_percentile: f64,
    pub latency_bound_us: u64,
    /// The largest size that held and was confirmed; absent where not even the smallest did.
    pub held: Option<u64>,
    /// The smallest that did not hold; absent where the largest allowed one held.
    pub failed: Option<u64>,
    /// Where it did not hold, flock or its machine was the limit: the broker's may be higher.
    pub limited_by_tool: bool,
    pub steps: Vec<SizingStep>,
}

/// One run of a search.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SizingStep {
    pub size: u64,
    /// At most at the same time.
    pub connections: u64,
    /// At the percentile of the search.
    pub connect_latency_us: u64,
    pub memory_bytes_max: Option<u64>,
    pub held: bool,
    /// Why it did not hold.
    pub why: String,
    /// It did not hold, and flock or its machine had its part in it.
    pub by_tool: bool,
}

impl SizingStep {
    /// For the terminal: `1,000 connections: passed, connect p99 2.10 ms`.
    pub fn words(&self, sizing: &Sizing) -> String {
        let size = sizing.sought.words(self.size);
        if !self.held {
            return format!("{size}: {}", self.why);
        }
        let percentile = number(sizing.latency_percentile);
        let latency = micros(self.connect_latency_us as f64);
        let memory = self.memory_bytes_max.map_or(String::new(), |most| {
            format!(", broker memory {} at most", bytes(most as f64))
        });
        format!("{size}: passed, connect p{percentile} {latency}{memory}")
    }
}

impl Sizing {
    /// `12,000 connections (12,600 connections failed: 3 of 12,600 connects failed)`.
    pub fn words(&self) -> String {
        let held = self.held.map_or("none".to_owned(), |held| self.sought.words(held));
        let Some(failed) = self.failed else {
            let end = if self.held.is_some() { ", the largest size of the search" } else { "" };
            return format!("{held}{end}");
        };
        let of_failed = self.steps.iter().rev().find(|step| step.size == failed && !step.held);
        let why = of_failed.map_or("", |step| step.why.as_str());
        let failed = self.sought.words(failed);
        match self.limited_by_tool {
            true if self.held.is_some() => {
                format!("at least {held}: flock was the limit at {failed}: {why}")
            }
            true => format!("{held}: flock was the limit at {failed}: {why}"),
            false => format!("{held} ({failed} failed: {why})"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_say_who_was_the_limit() {
        let step = |size, why: &str| SizingStep {
            size,
            held: why.is_empty(),
            why: why.to_owned(),
            connect_latency_us: 2_100,
            ..SizingStep::default()
        };
        let mut found = Sizing {
            latency_percentile: 99.0,
            held: Some(12_000),
            failed: Some(12_600),
            steps: vec![step(12_600, "3 of 12,600 connects failed"), step(12_000, "")],
            ..Sizing::default()
        };
        assert_eq!(
            found.words(),
            "12,000 connections (12,600 connections failed: 3 of 12,600 connects failed)"
        );
        let words = found.steps[1].words(&found);
        assert_eq!(words, "12,000 connections: passed, connect p99 2.10 ms");
        found.limited_by_tool = true;
        assert!(found.words().starts_with("at least 12,000 connections: flock was the limit at"));
        let all = Sizing { failed: None, sought: Sought::ConnectRate, ..found };
        assert_eq!(all.words(), "12,000 connects/s, the largest size of the search");
        assert_eq!(Sizing { held: None, ..all }.words(), "none");
    }
}
