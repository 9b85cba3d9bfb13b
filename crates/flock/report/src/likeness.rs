//! How far a run is the one whose figures were published. Its rates can be scaled to the run where
//! the scenario says by how much; latency, CPU and memory cannot, and stay those of the full scale.

use flock_measure::Results;
use flock_measure::text::{number, seconds};
use flock_model::Scenario;
use flock_model::catalogue;
use flock_model::matrix;
use flock_model::scenario::{Choice, Loaded, units};

/// A run beside what was published for its scenario.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Likeness {
    /// Ours to theirs of what publishers send; `None` where the two cannot be compared.
    published: Option<f64>,
    /// The same of what subscribers receive.
    received: Option<f64>,
    clients: Option<f64>,
    time: Option<f64>,
    /// The run has the clients, rates and content of the published one.
    is_full_scale: bool,
    /// What differs, as `scale 0.02`.
    differences: Vec<String>,
}

/// Which factor a figure is scaled by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scales {
    Published,
    Received,
    /// The number of clients.
    Clients,
    /// What takes a time that the scenario sets.
    Time,
    /// It stays what it was at the full scale.
    Never,
}

/// A published figure beside a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Theirs {
    /// Of a run like ours.
    Same(f64),
    /// At our scale, and what was published.
    Scaled(f64, f64),
    /// Of the full scale, and of nothing that we ran.
    FullScale(f64),
}

impl Likeness {
    pub(crate) fn of(results: &Results) -> Self {
        let overrides = &results.scenario.overrides;
        let Some((loaded, is_changed)) = origin(results) else {
            return Self { differences: vec!["another scenario".to_owned()], ..Self::default() };
        };
        let stated = match loaded.scenario.scale {
            1.0 => loaded.scenario,
            scale => loaded.scenario.scaled(1.0 / scale),
        };
        let speed = overrides.get("speed").and_then(|speed| speed.parse().ok()).unwrap_or(1.0);
        let ran = stated.scaled(results.scenario.scale).faster(speed);
        let changes = changes(results, &stated, is_changed);
        let is_other = !changes.is_empty();
        let is_search = results.rate_search.is_some() || results.sizing.is_some();
        let is_full_scale =
            !is_other && !is_search && results.scenario.scale == 1.0 && speed == 1.0;
        let (before, after) = (stated.estimate(), ran.estimate());
        let factor = |before: Option<f64>, after: Option<f64>| match is_full_scale {
            true => Some(1.0),
            false if is_other || is_search => None,
            false => Some(after? / before.filter(|rate| *rate > 0.0)?),
        };
        Self {
            published: factor(before.publishes_per_sec, after.publishes_per_sec),
            received: factor(before.deliveries_per_sec, after.deliveries_per_sec),
            clients: (!is_other).then_some(results.scenario.scale),
            time: (!is_other && !is_search && !overrides.contains_key("ramp"))
                .then_some(1.0 / speed),
            is_full_scale,
            differences: changes.into_iter().chain(lengths(results, &stated, speed)).collect(),
        }
    }

    pub(crate) fn is_full_scale(&self) -> bool {
        self.is_full_scale
    }

    pub(crate) fn theirs(&self, scales: Scales, value: f64) -> Theirs {
        let factor = match scales {
            Scales::Published => self.published,
            Scales::Received => self.received,
            Scales::Clients => self.clients,
            Scales::Time => self.time,
            Scales::Never => self.is_full_scale.then_some(1.0),
        };
        match factor {
            Some(1.0) => Theirs::Same(value),
            Some(factor) => Theirs::Scaled(value * factor, value),
            None => Theirs::FullScale(value),
        }
    }

    /// A sentence on what differs; nothing where nothing does.
    pub(crate) fn words(&self) -> String {
        if self.differences.is_empty() {
            return String::new();
        }
        let what = self.differences.join(", ");
        let effect = match (self.is_full_scale, self.published.or(self.received)) {
            (true, _) => "",
            (false, None) if self.clients.is_some() => {
                " Rates of a closed loop or a search cannot be scaled. Published rates, latency, \
                 CPU and memory are those of the full scale."
            }
            (false, Some(_)) => {
                " Published rates are scaled to this run. Published latency, CPU and memory are \
                 those of the full scale."
            }
            (false, None) => " The published figures are not comparable with this run.",
        };
        format!("This run differs from the published one: {what}.{effect}")
    }
}

impl Theirs {
    /// Where it may be drawn on an axis of ours.
    pub(crate) fn drawn(self) -> Option<f64> {
        match self {
            Self::Same(value) | Self::Scaled(value, _) => Some(value),
            Self::FullScale(_) => None,
        }
    }

    /// To be shown beside ours.
    pub(crate) fn value(self) -> f64 {
        match self {
            Self::Same(value) | Self::Scaled(value, _) | Self::FullScale(value) => value,
        }
    }

    /// What has to be said of it; nothing where nothing differs.
    pub(crate) fn remark(self, show: impl Fn(f64) -> String) -> String {
        match self {
            Self::Same(_) => String::new(),
            Self::Scaled(_, value) => format!("scaled from {}", show(value)),
            Self::FullScale(_) => "full scale".to_owned(),
        }
    }
}

/// The scenario that the figures were published for, and whether parameters make the run another
/// one.
fn origin(results: &Results) -> Option<(Loaded, bool)> {
    let scenario = &results.scenario;
    let own = catalogue::find(&scenario.id, &Choice::default()).ok()?;
    let is_set = |name: &String| {
        let axis = name.strip_prefix("axis ");
        let set = name.strip_prefix("set ");
        set.is_some_and(|set| !SINK_PARAMS.contains(&set))
            || axis.is_some_and(|axis| !matrix::GENERAL.contains(&axis))
    };
    if own.source == scenario.source || !scenario.overrides.keys().any(is_set) {
        return Some((own, false));
    }
    // Parameters may make one scenario of the catalogue out of another.
    let same = |entry: &catalogue::Entry| {
        entry.load().ok().filter(|other| other.source == scenario.source)
    };
    let other = catalogue::entries().iter().find_map(same);
    Some(other.map_or((own, true), |other| (other, false)))
}

/// Parameters of built-in scenarios that say where a sink is, and how long it is waited for.
const SINK_PARAMS: [&str; 4] = ["kafka", "kafka_topic", "listen", "drain"];

/// What makes the run another one, whatever its scale.
fn changes(results: &Results, stated: &Scenario, is_changed: bool) -> Vec<String> {
    let mut all = Vec::new();
    for (option, value) in &results.scenario.overrides {
        let (kind, name) = option.split_once(' ').unwrap_or(("", option));
        let is_other = match kind {
            "set" => is_changed && !SINK_PARAMS.contains(&name),
            "axis" if name == "scale" => false,
            "axis" if matrix::GENERAL.contains(&name) => {
                let mut other = stated.clone();
                matrix::apply(&mut other, name, value).is_err() || other != *stated
            }
            "axis" => is_changed,
            _ => false,
        };
        if is_other {
            all.push(format!("{name} {value}"));
        }
    }
    all
}

/// How long and how large it was.
fn lengths(results: &Results, stated: &Scenario, speed: f64) -> Vec<String> {
    let mut all = Vec::new();
    if results.scenario.scale != 1.0 {
        all.push(format!("scale {}", number(results.scenario.scale)));
    }
    if speed != 1.0 {
        all.push(format!("speed {}", number(speed)));
    }
    if let Some(ramp) = results.scenario.overrides.get("ramp") {
        all.push(format!("ramps of {ramp}"));
    }
    let given = results.scenario.overrides.get("duration");
    if let Some(ran_us) = given.and_then(|time| units::time(time).ok()) {
        let measured = stated.stages.iter().filter(|stage| stage.measured);
        let stated_us: u64 = measured.filter_map(|stage| stage.duration_us).sum();
        let secs = |us: u64| seconds(us as f64 / 1e6);
        match stated_us {
            0 => all.push(format!("duration {}", secs(ran_us))),
            _ if stated_us == ran_us => {}
            _ => all.push(format!("{} instead of {}", secs(ran_us), secs(stated_us))),
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use flock_measure::sample;

    fn ran(id: &str, scale: f64, overrides: &[(&str, &str)]) -> Likeness {
        let mut results = sample::results(1.0);
        results.scenario.id = id.into();
        results.scenario.scale = scale;
        let own = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        results.scenario.overrides = overrides.iter().map(own).collect();
        let params = overrides.iter().filter_map(|(name, value)| {
            Some((name.strip_prefix("set ")?.to_owned(), (*value).to_owned()))
        });
        let choice = Choice { params: params.collect(), ..Choice::default() };
        results.scenario.source = catalogue::find(id, &choice).unwrap().source;
        Likeness::of(&results)
    }

    #[test]
    fn the_place_of_a_sink_makes_no_other_run() {
        let place = [("set kafka", "10.0.0.1:9092"), ("set kafka_topic", "t"), ("set drain", "9s")];
        let moved = ran("EG-5-KAFKA", 0.02, &place);
        assert_eq!(moved.differences, ["scale 0.02"]);
        assert!(matches!(moved.theirs(Scales::Published, 40_000.0), Theirs::Scaled(800.0, _)));
        let faster = ran("EG-5-KAFKA", 0.02, &[place[0], ("set total", "80000/s")]);
        assert_eq!(faster.differences, ["total 80000/s", "scale 0.02"]);
    }

    #[test]
    fn rates_scale_and_nothing_else_does() {
        let tenth = ran("MB-E1", 0.1, &[("scale", "0.1"), ("duration", "10s")]);
        assert_eq!(tenth.theirs(Scales::Published, 50_000.0), Theirs::Scaled(5_000.0, 50_000.0));
        assert_eq!(tenth.theirs(Scales::Received, 50_000.0).drawn(), Some(5_000.0));
        assert_eq!(tenth.theirs(Scales::Never, 1.58).drawn(), None);
        let words = tenth.words();
        assert!(words.contains("scale 0.10, 10 s instead of 30 min"), "{words}");
        assert!(words.contains("rates are scaled"), "{words}");
    }

    #[test]
    fn a_publisher_that_does_not_scale_keeps_its_rate() {
        let tenth = ran("MB-B2", 0.1, &[("scale", "0.1")]);
        assert_eq!(tenth.theirs(Scales::Published, 1.0), Theirs::Same(1.0));
        assert_eq!(tenth.theirs(Scales::Received, 1_000.0), Theirs::Scaled(100.0, 1_000.0));
    }

    #[test]
    fn speed_scales_rates_as_well() {
        let fast = ran("MB-E1", 0.1, &[("scale", "0.1"), ("speed", "2")]);
        assert_eq!(fast.theirs(Scales::Received, 50_000.0).drawn(), Some(10_000.0));
        let connecting = fast.theirs(Scales::Time, 10.0);
        assert_eq!(connecting, Theirs::Scaled(5.0, 10.0));
        assert_eq!(fast.theirs(Scales::Clients, 100.0).drawn(), Some(10.0));
        let ramped = ran("MB-E1", 1.0, &[("ramp", "1s")]);
        assert_eq!(ramped.theirs(Scales::Time, 20.0).drawn(), None);
        let reduced = ran("HM-R2000-even", 0.000_01, &[("speed", "60")]);
        let rate = reduced.theirs(Scales::Published, 500_000.0).drawn().unwrap();
        assert!((rate - 300.0).abs() < 1.0, "{rate}");
    }

    #[test]
    fn a_closed_loop_has_no_rate_to_scale() {
        assert_eq!(ran("SOL-1K", 1.0, &[]).theirs(Scales::Received, 9.0), Theirs::Same(9.0));
        let small = ran("SOL-1K", 0.1, &[("scale", "0.1")]);
        assert_eq!(small.theirs(Scales::Received, 9.0), Theirs::FullScale(9.0));
        assert!(small.words().contains("cannot be scaled"), "{}", small.words());
    }

    #[test]
    fn another_length_alone_leaves_the_figures() {
        let short = ran("MB-E1", 1.0, &[("duration", "60s")]);
        assert_eq!(short.theirs(Scales::Never, 1.58), Theirs::Same(1.58));
        assert!(short.words().ends_with("60 s instead of 30 min."), "{}", short.words());
        assert_eq!(ran("MB-E1", 1.0, &[]).words(), "");
    }

    #[test]
    fn another_content_is_another_run() {
        for (name, value) in [("set payload", "8K"), ("axis qos", "2"), ("axis load", "50%")] {
            let id = if name == "set payload" { "SOL-1K" } else { "MB-E1" };
            let other = ran(id, 1.0, &[(name, value)]);
            assert_eq!(other.theirs(Scales::Published, 9.0).drawn(), None, "{name}");
            assert!(other.words().contains(value), "{name}: {}", other.words());
            assert!(other.words().contains("not comparable"), "{name}: {}", other.words());
        }
        let same = ran("MB-E1", 1.0, &[("axis load", "100%"), ("axis qos", "1")]);
        assert_eq!(same.theirs(Scales::Never, 9.0), Theirs::Same(9.0));
        let made = ran("AIO-FI-16B", 1.0, &[("set payload", "8K"), ("set total_rate", "14439/s")]);
        assert_eq!(made.theirs(Scales::Received, 9.0), Theirs::Same(9.0), "it is AIO-FI-8K");
    }
}
