//! Times, rates, sizes and counts as people write them, with errors that say what would be right.

use std::fmt;

use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serializer};

use crate::model::{QoS, Rate};

/// `10s`, `250ms`, `5m`, `1h`, `2d`, `50us`; in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Time(pub u64);

/// `16`, `"255K"`, `"1M"`; K and M are 1024 and 1024². In bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size(pub u32);

/// A whole number above 0; text is allowed so that a parameter can stand for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Count(pub u64);

/// `1/s`, `30/20m`: so many per so much time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PerTime(pub Rate);

/// A rate, or `max`: as fast as the window and the socket allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PerTimeOrMax(pub Option<Rate>);

/// How long a ramp takes: a time, or connections per time for the whole group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ramp {
    Over(u64),
    Rate(Rate),
}

pub fn time(text: &str) -> Result<u64, String> {
    let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, unit) = text.split_at(split);
    let unit_us: u64 = match unit {
        "us" => 1,
        "ms" => 1_000,
        "s" => 1_000_000,
        "m" => 60_000_000,
        "h" => 3_600_000_000,
        "d" => 86_400_000_000,
        "" => return Err(format!("the time `{text}` needs a unit: us, ms, s, m, h or d")),
        _ => return Err(format!("must be a time such as 10s, 250ms or 5m, got `{text}`")),
    };
    let number: u64 = digits
        .parse()
        .map_err(|_| format!("must be a time such as 10s, 250ms or 5m, got `{text}`"))?;
    number
        .checked_mul(unit_us)
        .filter(|us| *us <= TIME_MAX_US)
        .ok_or_else(|| format!("the time `{text}` must be at most a year"))
}

pub fn rate(text: &str) -> Result<Rate, String> {
    let wrong = || format!("must be a rate such as 1/s, 50/s or 1/40s, got `{text}`");
    let (count, per) = text.split_once('/').ok_or_else(wrong)?;
    let count: u64 = count.trim().parse().map_err(|_| wrong())?;
    let per = per.trim();
    let per_us = match per.starts_with(|c: char| c.is_ascii_digit()) {
        true => time(per)?,
        false => time(&format!("1{per}")).map_err(|_| wrong())?,
    };
    if count == 0 || per_us == 0 {
        return Err(format!("the rate `{text}` is zero: use max to send as fast as possible"));
    }
    if count as f64 / per_us as f64 > RATE_MAX_PER_US {
        return Err(format!(
            "the rate `{text}` must be at most {RATE_MAX_PER_US} million per second"
        ));
    }
    Ok(Rate { count, per_us })
}

fn rate_or_max(text: &str) -> Result<PerTimeOrMax, String> {
    match text {
        "max" => Ok(PerTimeOrMax(None)),
        _ => rate(text).map(|rate| PerTimeOrMax(Some(rate))),
    }
}

pub fn size(text: &str) -> Result<u32, String> {
    let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, unit) = text.split_at(split);
    let factor: u64 = match unit.trim() {
        "" | "B" => 1,
        "K" | "KB" | "KiB" => 1024,
        "M" | "MB" | "MiB" => 1024 * 1024,
        _ => return Err(format!("must be a size such as 16, 8K or 1M, got `{text}`")),
    };
    let number: u64 =
        digits.parse().map_err(|_| format!("must be a size such as 16, 8K or 1M, got `{text}`"))?;
    match number.checked_mul(factor) {
        Some(bytes) if bytes <= PAYLOAD_BYTES_MAX => Ok(bytes as u32),
        _ => Err(format!("`{text}` must be below 256 MiB, the largest MQTT packet")),
    }
}

pub fn count(text: &str) -> Result<u64, String> {
    let plain: String = text.chars().filter(|c| *c != '_').collect();
    match plain.parse::<u64>() {
        Ok(0) => Err("a count must be at least 1".to_owned()),
        Ok(count) if count <= COUNT_MAX => Ok(count),
        Ok(_) => Err(format!("`{text}` is more than 4 billion")),
        Err(_) => Err(format!("must be a whole number above 0, got `{text}`")),
    }
}

fn qos(text: &str) -> Result<QoS, String> {
    text.parse::<u8>().map_err(|_| format!("QoS must be 0, 1 or 2, got `{text}`"))?.try_into()
}

fn ramp(text: &str) -> Result<Ramp, String> {
    if text.contains('/') { rate(text).map(Ramp::Rate) } else { time(text).map(Ramp::Over) }
}

/// Deserializes a type from text, or from a whole number that is read as the text of its digits.
macro_rules! from_text {
    ($($name:ty, $parse:expr, $expecting:literal;)*) => {$(
        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct Text;
                impl Visitor<'_> for Text {
                    type Value = $name;
                    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                        f.write_str($expecting)
                    }
                    fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
                        ($parse)(text).map_err(E::custom)
                    }
                    fn visit_i64<E: de::Error>(self, number: i64) -> Result<Self::Value, E> {
                        ($parse)(&number.to_string()).map_err(E::custom)
                    }
                    fn visit_u64<E: de::Error>(self, number: u64) -> Result<Self::Value, E> {
                        ($parse)(&number.to_string()).map_err(E::custom)
                    }
                }
                deserializer.deserialize_any(Text)
            }
        }
    )*};
}

from_text! {
    Time, |text: &str| time(text).map(Time), "a time like \"10s\"";
    Size, |text: &str| size(text).map(Size), "a size like 16 or \"8K\"";
    Count, |text: &str| count(text).map(Count), "a whole number above 0";
    PerTime, |text: &str| rate(text).map(PerTime), "a rate like \"1/s\"";
    PerTimeOrMax, rate_or_max, "a rate like \"1/s\", or \"max\"";
    QoS, qos, "0, 1 or 2";
    Ramp, ramp, "a time like \"10s\" or a rate like \"100/s\"";
}

/// Microseconds that are written as [`Time`].
pub mod micros {
    use super::{Deserialize, Deserializer, Serializer, Time, show_time};

    pub fn serialize<S: Serializer>(us: &u64, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&show_time(*us))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
        Time::deserialize(from).map(|time| time.0)
    }
}

/// A number that is written as [`Count`].
pub fn whole<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    Count::deserialize(from).map(|count| count.0)
}

/// Microseconds as the shortest text that [`time`] reads back.
pub fn show_time(us: u64) -> String {
    const UNITS: [(u64, &str); 5] =
        [(3_600_000_000, "h"), (60_000_000, "m"), (1_000_000, "s"), (1_000, "ms"), (1, "us")];
    let (unit_us, unit) = UNITS
        .into_iter()
        .find(|(unit, _)| us >= *unit && us.is_multiple_of(*unit))
        .unwrap_or((1, "us"));
    if us == 0 { "0s".to_owned() } else { format!("{}{unit}", us / unit_us) }
}

const TIME_MAX_US: u64 = 366 * 86_400_000_000;
const RATE_MAX_PER_US: f64 = 10.0;
/// The largest remaining length, less the longest topic, packet id and a good deal of properties.
const PAYLOAD_BYTES_MAX: u64 = 268_435_455 - 65_537 - 4_096;
/// Publishers are numbered with 32 bits in the stamp of a message.
const COUNT_MAX: u64 = u32::MAX as u64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times() {
        for (text, us) in
            [("0s", 0), ("250ms", 250_000), ("10s", 10_000_000), ("20m", 1_200_000_000), ("7us", 7)]
        {
            assert_eq!(time(text), Ok(us));
            assert_eq!(time(&show_time(us)), Ok(us));
        }
        for (text, detail) in [
            ("10", "needs a unit"),
            ("x", "must be a time"),
            ("s", "must be a time"),
            ("999d", "year"),
        ] {
            assert!(time(text).unwrap_err().contains(detail), "{text}");
        }
    }

    #[test]
    fn rates() {
        assert_eq!(rate("1/s"), Ok(Rate { count: 1, per_us: 1_000_000 }));
        assert_eq!(rate("30/20m"), Ok(Rate { count: 30, per_us: 1_200_000_000 }));
        for (text, detail) in
            [("0/s", "zero"), ("1/0s", "zero"), ("5", "must be a rate"), ("20/us", "at most")]
        {
            assert!(rate(text).unwrap_err().contains(detail), "{text}");
        }
    }

    #[test]
    fn sizes_and_counts() {
        assert_eq!(size("16"), Ok(16));
        assert_eq!(size("255K"), Ok(261_120));
        assert_eq!(size("1M"), Ok(1_048_576));
        assert!(size("1G").unwrap_err().contains("must be a size"));
        assert!(size("256M").unwrap_err().contains("256 MiB"));
        assert_eq!(count("50_000"), Ok(50_000));
        assert!(count("0").unwrap_err().contains("at least 1"));
        assert!(count("-3").unwrap_err().contains("must be a whole number"));
        assert!(count("5000000000").unwrap_err().contains("4 billion"));
    }
}
