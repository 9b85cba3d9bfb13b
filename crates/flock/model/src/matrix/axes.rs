//! Axes that fit any scenario, whatever parameters its file has.

use crate::model::{Command, Content, Pace, Payload, Rate, Scenario, Version, Who};
use crate::scenario::units;

/// Their names.
pub const GENERAL: [&str; 8] =
    ["qos", "payload", "version", "rate", "total_rate", "load", "in_flight", "scale"];

/// Changes the scenario as an axis says.
pub fn apply(scenario: &mut Scenario, name: &str, value: &str) -> Result<(), String> {
    let wrong = |valid: &str| format!("must be {valid}, got `{value}`");
    match name {
        "qos" => {
            let qos = value.parse::<u8>().map_err(|_| wrong("0, 1 or 2"))?.try_into()?;
            scenario.each_command_mut(&mut |command| match command {
                Command::Publish(publish) => publish.qos = qos,
                Command::Subscribe(subscribe) => subscribe.qos = qos,
                _ => {}
            });
        }
        "payload" => {
            let bytes = units::size(value)?;
            scenario.each_command_mut(&mut |command| {
                if let Command::Publish(publish) = command {
                    publish.payload = resized(&publish.payload, bytes);
                }
            });
        }
        "version" => {
            let version = match value {
                "3.1" => Version::V31,
                "3.1.1" | "4" => Version::V311,
                "5" => Version::V5,
                _ => return Err(wrong("3.1, 3.1.1 or 5")),
            };
            for group in &mut scenario.groups {
                group.version = version;
            }
        }
        "in_flight" => {
            let window = value.parse().ok().filter(|window| *window > 0);
            let window: u16 = window.ok_or_else(|| wrong("between 1 and 65535"))?;
            paces(scenario, &mut |pace, _| pace.in_flight = Some(window));
        }
        "rate" => {
            let rate = units::rate(value)?;
            paces(scenario, &mut |pace, _| pace.rate = Some(rate));
        }
        "total_rate" => {
            let rate = units::rate(value)?;
            paces(scenario, &mut |pace, clients| {
                let per_us = rate.per_us.saturating_mul(clients.max(1));
                pace.rate = Some(Rate { per_us, ..rate });
            });
        }
        "load" => {
            let factor = percent(value)?;
            if (factor - 1.0).abs() > f64::EPSILON {
                paces(scenario, &mut |pace, _| {
                    pace.rate = pace.rate.map(|rate| rate.times(factor));
                });
            }
        }
        "scale" => {
            let factor: f64 = value.parse().map_err(|_| wrong("a number above 0"))?;
            if !(factor > 0.0 && factor.is_finite() && factor <= SCALE_MAX) {
                return Err(format!("must be above 0, at most {SCALE_MAX}"));
            }
            if (factor - 1.0).abs() > f64::EPSILON {
                *scenario = scenario.scaled(factor);
            }
        }
        _ => return Err(format!("unknown axis `{name}`")),
    }
    Ok(())
}

/// The same kind of payload with so many bytes.
fn resized(payload: &Payload, bytes: u32) -> Payload {
    let plain = Payload::filler(bytes);
    let content = match payload.content {
        Content::Random { .. } | Content::RandomSize { .. } => Content::Random { bytes },
        Content::Filler { .. } | Content::Fixed(_) | Content::Composed { .. } => plain.content,
    };
    Payload { content, stamped: plain.stamped }
}

/// Every pace, with how many clients go by it.
fn paces(scenario: &mut Scenario, change: &mut dyn FnMut(&mut Pace, u64)) {
    let counts: Vec<u64> = scenario.groups.iter().map(|group| group.count).collect();
    for stage in &mut scenario.stages {
        for cycle in &mut stage.life_cycles {
            let Who::Clients(group) = cycle.who else { continue };
            let clients = counts[group.index()];
            crate::model::each_step_mut(&mut cycle.steps, &mut |command| {
                if let Command::Publish(publish) = command {
                    change(&mut publish.pace, clients);
                }
            });
        }
    }
}

/// `50%`, as a factor.
fn percent(value: &str) -> Result<f64, String> {
    let wrong = || format!("a share must be a percentage such as 50%, got `{value}`");
    let number: f64 = value.strip_suffix('%').ok_or_else(wrong)?.parse().map_err(|_| wrong())?;
    if number > 0.0 && number <= LOAD_MAX_PERCENT { Ok(number / 100.0) } else { Err(wrong()) }
}

const SCALE_MAX: f64 = 1_000.0;
const LOAD_MAX_PERCENT: f64 = 100_000.0;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::find;
    use crate::scenario::Choice;

    fn changed(name: &str, value: &str) -> Result<Scenario, String> {
        let mut scenario = find("MB-B1", &Choice::default()).unwrap().scenario;
        apply(&mut scenario, name, value).map(|()| scenario)
    }

    #[test]
    fn each_general_axis_changes_what_it_says() {
        let rate = |name: &str, value: &str| {
            changed(name, value).unwrap().estimate().publishes_per_sec.unwrap().round()
        };
        assert_eq!(rate("rate", "3/s"), 3_000.0);
        assert_eq!(rate("total_rate", "700/s"), 700.0);
        assert_eq!(rate("load", "25%"), 250.0);
        assert_eq!(rate("scale", "0.1"), 100.0);
        assert_eq!(changed("payload", "1K").unwrap().estimate().payload_bytes_max, 1_024);
        let mut qos = Vec::new();
        let mut windows = Vec::new();
        changed("qos", "2").unwrap().each_command(&mut |_, _, command| match command {
            Command::Publish(publish) => qos.push(u8::from(publish.qos)),
            Command::Subscribe(subscribe) => qos.push(u8::from(subscribe.qos)),
            _ => {}
        });
        changed("in_flight", "9").unwrap().each_command(&mut |_, _, command| {
            if let Command::Publish(publish) = command {
                windows.push(publish.pace.in_flight);
            }
        });
        assert!(!qos.is_empty() && qos.iter().all(|qos| *qos == 2), "{qos:?}");
        assert_eq!(windows, [Some(9)]);
        let version = changed("version", "5").unwrap().groups[0].version;
        assert_eq!(version, Version::V5);
    }

    #[test]
    fn values_that_make_no_sense_are_refused() {
        for (name, value) in [
            ("qos", "3"),
            ("qos", "x"),
            ("payload", "1G"),
            ("version", "6"),
            ("rate", "fast"),
            ("total_rate", "0/s"),
            ("load", "50"),
            ("load", "0%"),
            ("in_flight", "0"),
            ("scale", "-1"),
            ("colour", "red"),
        ] {
            assert!(changed(name, value).is_err(), "{name}={value}");
        }
        for name in GENERAL {
            assert!(
                changed(name, "1").is_ok() || !changed(name, "1").unwrap_err().contains("axis")
            );
        }
    }
}
