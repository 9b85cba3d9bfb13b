//! One scenario over the values of some parameters: payload, QoS, rate, clients, version, whatever
//! a file has a name for. [`Matrix`] says which, and [`Matrix::cells`] are the runs.
//!
//! The sweeps and load ladders that were published come as files under `matrices/`.

mod axes;

use std::collections::BTreeMap;

use serde::Deserialize;

pub use axes::{GENERAL, apply};

use crate::catalogue;
use crate::scenario::{Loaded, Published, ScenarioError, did_you_mean};

/// What is run over what.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Matrix {
    pub id: String,
    pub title: String,
    /// Where it was published, and what is worth knowing.
    #[serde(default)]
    pub source: String,
    #[serde(default)]
    pub notes: Vec<String>,
    /// A built-in id or a file; `{name}` stands for the value of an axis, which then chooses the
    /// scenario instead of changing it.
    pub scenario: String,
    /// The first one lies along the curves, each combination of the others is a curve.
    #[serde(rename = "axis")]
    pub axes: Vec<Axis>,
    /// Tables in the form of the source, ours beside what was published.
    #[serde(default, rename = "table")]
    pub tables: Vec<Table>,
}

/// A table of a published report.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Table {
    pub title: String,
    /// Keys of figures, as in the CSV file.
    pub columns: Vec<String>,
    /// An axis whose values become groups of columns.
    pub pivot: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Axis {
    /// A parameter of the scenario, or one of [`GENERAL`].
    pub name: String,
    pub values: Vec<String>,
}

/// Finds a scenario by id or file, with parameters.
pub type Load<'a> = &'a dyn Fn(&str, &[(String, String)]) -> Result<Loaded, ScenarioError>;

/// One combination of values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cell {
    /// A value for each axis, in their order.
    pub values: Vec<String>,
    /// The scenario, with the values filled in that choose it.
    pub scenario: String,
    /// Axis and value of those that change it.
    pub changes: Vec<(String, String)>,
}

impl Axis {
    /// `payload=16,1K,8K`.
    pub fn parse(text: &str) -> Result<Self, String> {
        let wrong = || "must be NAME=VALUES, such as payload=16,1K,8K".to_owned();
        let (name, values) = text.split_once('=').ok_or_else(wrong)?;
        let values: Vec<String> = values.split(',').map(|value| value.trim().to_owned()).collect();
        if name.is_empty() || values.iter().any(String::is_empty) {
            return Err(wrong());
        }
        Ok(Self { name: name.to_owned(), values })
    }
}

impl Matrix {
    /// From a file's text; `None` if it is no matrix (a scenario, say).
    pub fn parse(file: &str, text: &str) -> Option<Result<Self, String>> {
        let table: toml::Table = text.parse().ok()?;
        table.contains_key("axis").then(|| {
            let matrix: Self =
                toml::from_str(text).map_err(|error| format!("{file}: {}", error.message()))?;
            matrix.check().map_err(|error| format!("{file}: {error}"))?;
            Ok(matrix)
        })
    }

    /// Those that come with the lab.
    pub fn built_in() -> Vec<Self> {
        FILES.iter().filter_map(|(file, text)| Self::parse(file, text)?.ok()).collect()
    }

    /// By id, in any case.
    pub fn find(id: &str) -> Option<Self> {
        Self::built_in().into_iter().find(|matrix| matrix.id.eq_ignore_ascii_case(id))
    }

    /// A scenario with nothing but axes from the command line.
    pub fn of(scenario: &str, axes: Vec<Axis>) -> Result<Self, String> {
        let matrix = Self {
            id: format!("{scenario} over {}", names(&axes)),
            title: String::new(),
            source: String::new(),
            notes: Vec::new(),
            scenario: scenario.to_owned(),
            axes,
            tables: Vec::new(),
        };
        matrix.check()?;
        Ok(matrix)
    }

    /// With these axes in place of those of the same names, or beside them.
    pub fn with(mut self, axes: Vec<Axis>) -> Result<Self, String> {
        for axis in axes {
            match self.axes.iter_mut().find(|known| known.name == axis.name) {
                Some(known) => *known = axis,
                None => self.axes.push(axis),
            }
        }
        self.check()?;
        Ok(self)
    }

    fn check(&self) -> Result<(), String> {
        if self.axes.is_empty() {
            return Err("a matrix needs an axis, such as --axis payload=16,1K,8K".to_owned());
        }
        for (n, axis) in self.axes.iter().enumerate() {
            if axis.values.is_empty() {
                return Err(format!("the axis `{}` has no values", axis.name));
            }
            if self.axes[..n].iter().any(|other| other.name == axis.name) {
                return Err(format!("the axis `{}` is given twice", axis.name));
            }
        }
        for table in &self.tables {
            let Some(pivot) = &table.pivot else { continue };
            let title = &table.title;
            match self.axes.iter().map(|axis| &axis.name).collect::<Vec<_>>()[..] {
                [only] if only == pivot => {}
                _ => {
                    return Err(format!(
                        "table `{title}`: `pivot` must be the only axis, got `{pivot}`"
                    ));
                }
            }
        }
        let cells = self.axes.iter().map(|axis| axis.values.len()).product::<usize>();
        if cells > CELLS_MAX {
            return Err(format!(
                "{cells} runs: at most {CELLS_MAX} are possible, use fewer values"
            ));
        }
        Ok(())
    }

    /// Whether it is a list of scenarios, whose figures make no curve.
    pub fn is_list(&self) -> bool {
        matches!(&self.axes[..], [only] if self.scenario == format!("{{{}}}", only.name))
    }

    /// Every combination, the last axis changing fastest.
    pub fn cells(&self) -> Vec<Cell> {
        let mut all: Vec<Vec<String>> = vec![Vec::new()];
        for axis in &self.axes {
            let longer = |row: &Vec<String>| {
                let with = |value: &String| row.iter().chain([value]).cloned().collect();
                axis.values.iter().map(with).collect::<Vec<_>>()
            };
            all = all.iter().flat_map(longer).collect();
        }
        all.into_iter().map(|values| self.cell(values)).collect()
    }

    fn cell(&self, values: Vec<String>) -> Cell {
        let (mut scenario, mut changes) = (self.scenario.clone(), Vec::new());
        for (axis, value) in self.axes.iter().zip(&values) {
            let place = format!("{{{}}}", axis.name);
            if self.scenario.contains(&place) {
                scenario = scenario.replace(&place, value);
            } else {
                changes.push((axis.name.clone(), value.clone()));
            }
        }
        Cell { values, scenario, changes }
    }
}

impl Cell {
    /// `payload 8K, qos 1`.
    pub fn words(&self, axes: &[Axis]) -> String {
        let pairs = axes.iter().zip(&self.values);
        pairs.map(|(axis, value)| format!("{} {value}", axis.name)).collect::<Vec<_>>().join(", ")
    }

    /// Loads the scenario, with the parameters of `set`, and changes it.
    pub fn load(&self, load: Load<'_>, set: &[(String, String)]) -> Result<Loaded, String> {
        let plain = load(&self.scenario, set).map_err(|error| error.to_string())?;
        let (params, general): (Vec<_>, Vec<_>) =
            self.changes.iter().cloned().partition(|(name, _)| plain.params.contains_key(name));
        let all: Vec<(String, String)> = set.iter().cloned().chain(params).collect();
        let mut loaded = load(&self.scenario, &all).map_err(|error| error.to_string())?;
        // Figures were published for what the file says, not for what is made of it here.
        loaded.published = published_for(&loaded);
        for (name, value) in general {
            let known = || {
                let names = plain.params.keys().map(String::as_str).chain(GENERAL);
                let hint = did_you_mean(&name, names.clone());
                hint.unwrap_or_else(|| {
                    format!("there are {}", names.collect::<Vec<_>>().join(", "))
                })
            };
            if !GENERAL.contains(&name.as_str()) {
                return Err(format!("unknown axis `{name}` of this scenario; valid: {}", known()));
            }
            let before = loaded.scenario.clone();
            apply(&mut loaded.scenario, &name, &value)
                .map_err(|error| format!("axis `{name}`: {error}"))?;
            if loaded.scenario != before {
                loaded.published.clear();
            }
        }
        Ok(loaded)
    }
}

/// What was published for a scenario that is, with its parameters filled in, this very one.
fn published_for(loaded: &Loaded) -> Vec<Published> {
    let same = |entry: &catalogue::Entry| {
        let other = entry.load().ok()?;
        (other.source == loaded.source && !other.published.is_empty()).then_some(other.published)
    };
    let own = loaded.published.clone();
    let is_own = catalogue::find(&loaded.scenario.id, &crate::scenario::Choice::default())
        .is_ok_and(|known| known.source == loaded.source);
    if is_own { own } else { catalogue::entries().iter().find_map(same).unwrap_or_default() }
}

fn names(axes: &[Axis]) -> String {
    axes.iter().map(|axis| axis.name.as_str()).collect::<Vec<_>>().join(" and ")
}

/// By name of the option, what a cell changed.
pub fn overrides(cell: &Cell) -> BTreeMap<String, String> {
    cell.changes.iter().map(|(name, value)| (format!("axis {name}"), value.clone())).collect()
}

/// A day of runs of a minute and a half.
const CELLS_MAX: usize = 1_000;

macro_rules! embed {
    ($($name:literal),* $(,)?) => {
        [$(($name, include_str!(concat!("../../matrices/", $name)))),*]
    };
}

const FILES: [(&str, &str); 10] = embed![
    "eg-report.toml",
    "aio-report.toml",
    "hm-report.toml",
    "sol-report.toml",
    "mb-report.toml",
    "aio-rates.toml",
    "aio-clients.toml",
    "xr-ladder.toml",
    "xr-payloads.toml",
    "tbmq-ladder.toml",
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::{Choice, check};

    fn load(name: &str, set: &[(String, String)]) -> Result<Loaded, ScenarioError> {
        catalogue::find(
            name,
            &Choice { params: set.iter().cloned().collect(), ..Choice::default() },
        )
    }

    fn axes(texts: &[&str]) -> Vec<Axis> {
        texts.iter().map(|text| Axis::parse(text).unwrap()).collect()
    }

    #[test]
    fn every_built_in_matrix_runs_and_has_what_was_published() {
        assert_eq!(Matrix::built_in().len(), FILES.len(), "a file cannot be read");
        for matrix in Matrix::built_in() {
            assert!(!matrix.source.is_empty() && !matrix.title.is_empty(), "{}", matrix.id);
            let mut published = 0;
            for cell in matrix.cells() {
                let loaded = cell.load(&load, &[]).unwrap_or_else(|e| panic!("{}: {e}", matrix.id));
                assert_eq!(check::check(&loaded.scenario), [], "{}: {cell:?}", matrix.id);
                published += usize::from(!loaded.published.is_empty());
            }
            assert!(published > 0, "{}", matrix.id);
        }
        let cells = |id: &str| Matrix::find(id).unwrap().cells().len();
        assert_eq!([cells("aio-report"), cells("XR-LADDER")], [12, 15]);
    }

    #[test]
    fn a_table_can_only_be_turned_by_the_only_axis() {
        let text = |pivot: &str| {
            format!(
                "id = 'M'\ntitle = 't'\nscenario = 'SOL-{{payload}}'\n[[axis]]\n\
                 name = 'payload'\nvalues = ['1K']\n[[table]]\ntitle = 'rates'\n\
                 columns = ['lost']\npivot = '{pivot}'\n"
            )
        };
        let matrix = |pivot| Matrix::parse("m.toml", &text(pivot)).unwrap();
        assert!(matrix("payload").is_ok());
        let error = matrix("vm").unwrap_err();
        assert!(error.contains("`rates`") && error.contains("`vm`"), "{error}");
        let error = matrix("payload").unwrap().with(axes(&["qos=0,1"])).unwrap_err();
        assert!(error.contains("only axis"), "{error}");
    }

    #[test]
    fn an_axis_chooses_a_scenario_sets_a_parameter_or_changes_the_scenario() {
        let matrix = Matrix::of("XR-2-{payload}", axes(&["payload=128B,8K", "total=500/s,900/s"]));
        let matrix = matrix.unwrap().with(axes(&["qos=0", "version=5"])).unwrap();
        let cells = matrix.cells();
        assert_eq!(cells.len(), 4);
        assert_eq!(cells[3].words(&matrix.axes), "payload 8K, total 900/s, qos 0, version 5");
        assert_eq!(cells[3].scenario, "XR-2-8K");
        let loaded = cells[3].load(&load, &[]).unwrap();
        assert_eq!(loaded.params["total"], "900/s");
        assert_eq!(loaded.params["qos"], "0", "a parameter goes before what is general");
        let estimate = loaded.scenario.estimate();
        assert_eq!((estimate.publishes_per_sec, estimate.payload_bytes_max), (Some(900.0), 8192));
        let is_v5 = |group: &crate::model::ClientGroup| group.version == crate::model::Version::V5;
        assert!(loaded.scenario.groups.iter().all(is_v5));
    }

    #[test]
    fn figures_stand_only_where_the_scenario_is_the_published_one() {
        let matrix = Matrix::of("XR-1-Q1", axes(&["payload=128,1K,64"])).unwrap();
        let found: Vec<usize> = matrix
            .cells()
            .iter()
            .map(|cell| cell.load(&load, &[]).unwrap().published.len())
            .collect();
        assert_eq!(found, [1, 1, 0], "XR-2-1K is the same with another payload");
        let half = Matrix::of("XR-1-Q1", axes(&["load=50%,100%"])).unwrap();
        let found: Vec<usize> = half
            .cells()
            .iter()
            .map(|cell| cell.load(&load, &[]).unwrap().published.len())
            .collect();
        assert_eq!(found, [0, 1]);
    }

    #[test]
    fn what_is_no_matrix_is_said() {
        assert!(Axis::parse("payload").is_err() && Axis::parse("=1").is_err());
        assert!(Matrix::of("MB-B1", Vec::new()).unwrap_err().contains("--axis"));
        assert!(Matrix::of("MB-B1", axes(&["a=1", "a=2"])).unwrap_err().contains("given twice"));
        let many = (0..40).map(|n| n.to_string()).collect::<Vec<_>>().join(",");
        let two = axes(&[&format!("a={many}"), &format!("b={many}")]);
        assert!(Matrix::of("MB-B1", two).unwrap_err().contains("1600 runs"));
        let strange = Matrix::of("MB-B1", axes(&["qoss=1"])).unwrap();
        let error = strange.cells()[0].load(&load, &[]).unwrap_err();
        assert!(error.contains("did you mean `qos`"), "{error}");
        assert!(Matrix::parse("x.toml", "id = \"x\"").is_none());
    }
}
