//! The scenarios that come with the tool: every published MQTT benchmark, as files under
//! `scenarios/`, embedded. They are written in the native format like anybody's own, so `flock show
//! ID --source` prints something to start from.

use crate::scenario::{self, Choice, Loaded, ScenarioError, did_you_mean};

/// One scenario that `flock run` knows by name.
#[derive(Clone, Debug)]
pub struct Entry {
    pub id: String,
    file: &'static Embedded,
}

#[derive(Debug)]
struct Embedded {
    name: &'static str,
    text: &'static str,
}

impl Entry {
    pub fn load(&self) -> Result<Loaded, ScenarioError> {
        self.load_with(&Choice::default())
    }

    /// With these parameters instead of the entry's.
    pub fn load_with(&self, choice: &Choice) -> Result<Loaded, ScenarioError> {
        let choice = Choice { variant: Some(self.id.clone()), ..choice.clone() };
        let loaded = scenario::parse(self.file.name, self.file.text, &choice, &swarm_file)?;
        // The addresses in it are examples.
        Ok(Loaded { names_broker: false, ..loaded })
    }
}

/// All entries, in the order in which they are listed.
pub fn entries() -> Vec<Entry> {
    let mut all = Vec::new();
    for file in FILES {
        // The files are part of the program; a test loads every one of them.
        let ids = scenario::ids(file.name, file.text).unwrap_or_default();
        all.extend(ids.into_iter().map(|id| Entry { id, file }));
    }
    all
}

/// The scenario of this id (in any case). `HM-R1000` is `HM-200M` with 1,000 clients,
/// `HM-R1000-even` the even form; a family's own name (`AIO-FI`, `XR-1`) is its first member.
pub fn find(id: &str, choice: &Choice) -> Result<Loaded, ScenarioError> {
    if let Some((clients, base)) = reduced(id) {
        return reduce(id, clients, base, choice);
    }
    let entries = entries();
    if let Some(entry) = entries.iter().find(|entry| entry.id.eq_ignore_ascii_case(id)) {
        return entry.load_with(choice);
    }
    for file in FILES {
        let stem = |name: &str| name.eq_ignore_ascii_case(&format!("{id}-"));
        let family = entries.iter().find(|entry| {
            std::ptr::eq(entry.file, file) && entry.id.get(..=id.len()).is_some_and(stem)
        });
        if let Some(entry) = family {
            return entry.load_with(choice);
        }
    }
    let upper = id.to_uppercase();
    let hint = did_you_mean(&upper, entries.iter().map(|entry| entry.id.as_str()))
        .unwrap_or_else(|| "see `flock list`, or give the path of a .toml or .xml file".to_owned());
    Err(ScenarioError::new(id, "unknown scenario").hint(Some(hint)))
}

/// `HM-R1000` and `HM-R1000-even`: the number of clients, and what they are a reduction of.
fn reduced(id: &str) -> Option<(u64, &'static str)> {
    let upper = id.to_uppercase();
    let rest = upper.strip_prefix("HM-R")?;
    let (digits, base) = match rest.strip_suffix("-EVEN") {
        Some(digits) => (digits, "HM-200M-even"),
        None => (rest.strip_suffix("-BURST").unwrap_or(rest), "HM-200M"),
    };
    Some((digits.parse().ok()?, base))
}

fn reduce(id: &str, clients: u64, base: &str, choice: &Choice) -> Result<Loaded, ScenarioError> {
    if !(REDUCED_CLIENTS_MIN..=FULL_CLIENTS).contains(&clients) {
        let message =
            format!("the number of clients must be from {REDUCED_CLIENTS_MIN} to {FULL_CLIENTS}");
        return Err(ScenarioError::new(id, message));
    }
    let mut loaded = find(base, choice)?;
    loaded.scenario = loaded.scenario.scaled(clients as f64 / FULL_CLIENTS as f64);
    loaded.scenario.id = id.to_uppercase().replace("-EVEN", "-even").replace("-BURST", "-burst");
    loaded.scenario.title = format!("{}, with {clients} clients", loaded.scenario.title);
    Ok(loaded)
}

/// One publisher and nine subscribers.
const REDUCED_CLIENTS_MIN: u64 = 10;
const FULL_CLIENTS: u64 = 200_000_000;

fn swarm_file(name: &str) -> Result<String, String> {
    SWARM
        .iter()
        .find(|file| file.name == name)
        .map(|file| file.text.to_owned())
        .ok_or_else(|| format!("{name}: no such built-in file"))
}

macro_rules! embed {
    ($($name:literal),* $(,)?) => {
        &[$(Embedded { name: $name, text: include_str!(concat!("../../scenarios/", $name)) }),*]
    };
}

static FILES: &[Embedded] = embed![
    "mb-p2p.toml",
    "mb-fanout.toml",
    "mb-shared.toml",
    "mb-conn.toml",
    "eg-1.toml",
    "eg-1-kafka.toml",
    "eg-2.toml",
    "eg-2-kafka.toml",
    "eg-3.toml",
    "eg-4.toml",
    "eg-5.toml",
    "eg-5-kafka.toml",
    "eg-5-webhook.toml",
    "eg-6.toml",
    "eg-7.toml",
    "aio-fi.toml",
    "aio-b1.toml",
    "aio-b100.toml",
    "aio-fo.toml",
    "hm-200m.toml",
    "hm-200m-even.toml",
    "sol.toml",
    "sol-ha-kill.toml",
    "sol-ha-release.toml",
    "sol-ha-isolate.toml",
    "sol-ha-monitor.toml",
    "xr-sym.toml",
    "xr-3-in.toml",
    "xr-3-out.toml",
    "xr-4.toml",
    "emqx-100m.toml",
    "emqx-5m.toml",
    "emqx-2m.toml",
    "emqx-latency.toml",
    "rabbit-pairs.toml",
    "rabbit-idle.toml",
    "rabbit-slow.toml",
    "tbmq-p2p.toml",
    "tbmq-100m.toml",
    "tbmq-3m.toml",
    "bifro-pairs.toml",
    "bifro-kept.toml",
    "bifro-shared.toml",
    "bifro-shared-kept.toml",
    "bifro-fanout.toml",
    "rr.toml",
    "sw-1.toml",
    "x-1.toml",
    "x-2.toml",
    "x-3.toml",
    "x-4.toml",
    "x-5.toml",
    "x-6.toml",
    "x-7.toml",
    "x-8.toml",
    "x-9.toml",
    "x-10.toml",
    "d-pairs.toml",
    "d-fanout.toml",
    "d-offline.toml",
    "d-resume.toml",
];

static SWARM: &[Embedded] = embed!["swarm/hm-200m.xml", "swarm/hm-200m-even.xml", "swarm/sw-1.xml"];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Command, GroupId, Version, Who};
    use std::collections::BTreeSet;

    fn load(id: &str) -> Loaded {
        find(id, &Choice::default()).unwrap_or_else(|error| panic!("{error}"))
    }

    #[test]
    fn every_entry_loads_and_has_something_to_say() {
        let entries = entries();
        let ids: BTreeSet<&str> = entries.iter().map(|entry| entry.id.as_str()).collect();
        assert_eq!(ids.len(), entries.len(), "ids are unique");
        for entry in &entries {
            let loaded = entry.load().unwrap_or_else(|error| panic!("{}: {error}", entry.id));
            assert_eq!(loaded.scenario.id, entry.id);
            assert!(
                !loaded.about.summary.is_empty() && !loaded.about.family.is_empty(),
                "{}",
                entry.id
            );
            assert!(loaded.scenario.estimate().clients > 0, "{}", entry.id);
            let small = loaded.scenario.scaled(0.001);
            assert_eq!(scenario::check::check(&small), [], "{} scaled down", entry.id);
        }
    }

    #[test]
    fn every_published_scenario_is_there() {
        let mut wanted: Vec<String> = (1..=7).map(|n| format!("EG-{n}")).collect();
        for shape in ["FI", "B1", "B100", "FO"] {
            wanted.extend(["16B", "8K", "255K"].map(|size| format!("AIO-{shape}-{size}")));
        }
        wanted.extend((1..=4).flat_map(|n| [format!("MB-B{n}"), format!("MB-E{n}")]));
        wanted.extend(
            [
                "HM-200M",
                "HM-R1000",
                "HM-R1000-even",
                "SOL-1K",
                "SOL-1M",
                "SOL-HA-KILL",
                "SOL-HA-RELEASE",
                "SOL-HA-ISOLATE",
                "SOL-HA-MONITOR",
                "XR-1",
                "XR-2",
                "XR-3",
                "XR-4",
                "SW-1",
                "EMQX-100M",
                "EMQX-5M",
                "EMQX-2M",
                "EMQX-LAT-Q0",
                "RABBIT-Q0",
                "RABBIT-Q1",
                "RABBIT-1M",
                "RABBIT-200K",
                "TBMQ-P2P-1M",
                "TBMQ-100M",
                "TBMQ-3M",
                "BIFRO-5K-Q0-32B-50",
                "BIFRO-KEPT-10K-Q1-1K",
                "BIFRO-SHARED-Q1",
                "BIFRO-FANOUT",
            ]
            .map(str::to_owned),
        );
        for id in wanted {
            load(&id);
        }
    }

    #[test]
    fn durable_scenarios_leave_no_session_behind() {
        let ours = ["D-1-16B", "D-1-1K", "D-1-8K", "D-2", "D-3", "D-4"];
        let published = ["TBMQ-P2P-1M", "TBMQ-100M", "BIFRO-KEPT-10K-Q1-1K"];
        for id in ours.into_iter().chain(published) {
            let scenario = load(id).scenario;
            let subscribers = &scenario.groups[0];
            assert_eq!((subscribers.id.as_str(), subscribers.version), ("sub", Version::V311));
            let steps = scenario
                .stages
                .iter()
                .flat_map(|stage| &stage.life_cycles)
                .filter(|cycle| cycle.who == Who::Clients(GroupId(0)))
                .flat_map(|cycle| &cycle.steps);
            let connects = steps.filter_map(|step| match &step.command {
                Command::Connect(connect) => Some(connect.clean_start),
                _ => None,
            });
            let mut clean: Vec<bool> = connects.collect();
            assert_eq!((clean.remove(0), clean.pop()), (true, Some(true)), "{id}");
            assert!(!clean.is_empty() && clean.iter().all(|clean| !clean), "{id}: {clean:?}");
        }
    }

    #[test]
    fn the_numbers_are_those_of_the_reports() {
        // id, clients, messages in and out per second.
        let cases = [
            ("MB-B1", 2_000, Some((1_000.0, 1_000.0))),
            ("MB-E1", 100_000, Some((50_000.0, 50_000.0))),
            ("MB-B2", 1_001, Some((1.0, 1_000.0))),
            ("MB-E2", 1_005, Some((250.0, 250_000.0))),
            ("MB-E3", 50_500, Some((50_000.0, 50_000.0))),
            ("MB-E4", 1_000_000, None),
            ("EG-1", 400_004, Some((40_000.0, 80_000.0))),
            ("EG-3", 200_200, Some((40.0, 40_000.0))),
            ("EG-4", 40_001, Some((1.0, 40_000.0))),
            ("AIO-FI-16B", 1_001, Some((41_352.0, 41_352.0))),
            ("AIO-FO-16B", 1_001, Some((42.0, 42_000.0))),
            ("AIO-FO-255K", 1_001, Some((1.0, 1_000.0))),
            ("AIO-FI-16B-closed", 1_001, None),
            ("AIO-FO-8K-closed", 1_001, None),
            ("AIO-B1-16B", 2, None),
            ("AIO-B100-8K", 200, None),
            ("HM-200M", 200_000_000, None),
            ("HM-200M-even", 200_000_000, Some((500_000.0, 500_000.0))),
            ("SOL-1K", 240, None),
            ("SOL-HA-KILL", 240, Some((2_000.0, 10_000.0))),
            ("XR-1-Q0", 2_000, Some((30_000.0, 30_000.0))),
            ("XR-3-in", 2_100, Some((15_000.0, 15_000.0))),
            ("X-6", 1_500, Some((5_000.0, 5_000.0))),
            ("XR-3-out", 2_010, Some((250.0, 50_000.0))),
            ("D-1-8K", 200, None),
            ("D-2", 240, None),
            ("D-3", 2_000, None),
            ("D-4", 2, None),
            ("EMQX-100M", 100_000_000, Some((50e6 / 90.0, 50e6 / 90.0))),
            ("EMQX-5M", 5_000_000, None),
            ("EMQX-2M", 1_020, Some((2_000.0, 2_000_000.0))),
            ("EMQX-LAT-Q2", 2_000, Some((1_000.0, 1_000.0))),
            ("RABBIT-Q1", 200, None),
            ("RABBIT-1M", 1_000_000, None),
            ("RABBIT-200K", 200_000, Some((100_000.0 / 120.0, 100_000.0 / 120.0))),
            ("TBMQ-P2P-200K", 200_000, Some((100_000.0, 100_000.0))),
            ("TBMQ-P2P-1M", 1_000_000, Some((500_000.0, 500_000.0))),
            ("TBMQ-100M", 100_000_500, Some((3e6, 3e6))),
            ("TBMQ-3M", 3_100, Some((1_000.0, 3e6))),
            ("BIFRO-5K-Q0-32B-50", 10_000, Some((250_000.0, 250_000.0))),
            ("BIFRO-KEPT-300-Q1-1K-50", 600, Some((15_000.0, 15_000.0))),
            ("BIFRO-SHARED-Q1", 40_400, Some((40_000.0, 40_000.0))),
            ("BIFRO-FANOUT", 1_001, Some((1.0, 1_000.0))),
            ("RR-Q1", 110, Some((1_000.0, 2_000.0))),
        ];
        for (id, clients, rates) in cases {
            let estimate = load(id).scenario.estimate();
            assert_eq!(estimate.clients, clients, "{id}");
            let found = estimate.publishes_per_sec.zip(estimate.deliveries_per_sec);
            match (found, rates) {
                (Some(found), Some(wanted)) => {
                    let near = |a: f64, b: f64| (a - b).abs() < b * 1e-6;
                    assert!(near(found.0, wanted.0) && near(found.1, wanted.1), "{id}: {found:?}");
                }
                (found, wanted) => assert_eq!(found, wanted, "{id}"),
            }
        }
    }

    #[test]
    fn published_figures_are_those_of_the_sources() {
        let figures = |id: &str| load(id).published;
        let halves: Vec<_> = figures("EG-1").iter().map(|f| f.received_per_sec).collect();
        assert_eq!(halves, [Some(20_000.0), Some(20_000.0), Some(40_000.0)], "half for each QoS");
        assert_eq!(figures("EG-3")[0].received_per_sec, None, "no rate is published");
        let million = figures("HM-200M");
        assert!(million.iter().all(|figure| figure.cpu_average_percent.is_none()));
        let notes: String = million.iter().map(|figure| figure.note.as_str()).collect();
        for said in ["75 to 80 %", "about 55 %", "65 to 75 GB", "450,000", "the goal was 40"] {
            assert!(notes.contains(said), "{said}");
        }
        assert_eq!(million, figures("HM-200M-even"));
        // 6.27 % of 8 GiB, in decimal megabytes.
        assert_eq!(figures("XR-1-Q0")[0].memory_average_mb, Some(539.0));
        let notes = load("XR-1-Q1").about.notes.join(" ");
        assert!(notes.contains("57K") && notes.contains("24K"), "the recommendations: {notes}");
        assert!(load("XR-4").about.notes[0].contains("25K"));
        assert_eq!(figures("MB-E4").len(), 8, "both posts");
    }

    #[test]
    fn reductions_keep_the_ratio() {
        let counts =
            |id: &str| load(id).scenario.groups.iter().map(|group| group.count).collect::<Vec<_>>();
        assert_eq!(counts("HM-R20000"), [2_000, 18_000]);
        assert_eq!(counts("hm-r10-even"), [1, 9]);
        assert!(
            find("HM-R9", &Choice::default()).unwrap_err().to_string().contains("must be from")
        );
    }

    #[test]
    fn unknown_ids_are_met_with_the_nearest() {
        let error = find("MB-F1", &Choice::default()).unwrap_err().to_string();
        assert!(error.contains("did you mean `MB-"), "{error}");
    }

    #[test]
    fn parameters_can_be_set_by_name() {
        let choice = Choice {
            params: [("in_flight".to_owned(), "7".to_owned())].into(),
            ..Choice::default()
        };
        assert!(find("SOL-1K", &choice).unwrap().source.contains("in_flight = \"7\""));
    }
}
