//! Repeated runs of several brokers beside each other: medians, how far runs lie apart, and which
//! ratios to the first are larger than that.

use maud::Markup;

use crate::alike::unlike;
use crate::bars::Bars;
use crate::chart::{Chart, Line, Unit};
use crate::columns::{
    self, AVERAGE, CONNECTS, CPU_AVG, CPU_MAX, Column, MAX, MEMORY_AVG, MEMORY_MAX, P50, P75, P90,
    P95, P99, PUBLISHED, RECEIVED,
};
use crate::percentile_points;
use crate::table::{Cell, Table};
use flock_measure::figures::headline;
use flock_measure::stats::{Noise, Ratio, Spread};
use flock_measure::{Due, LatencyKind, Results};

/// Runs of one thing.
#[derive(Clone, Debug)]
pub struct Side<'a> {
    pub name: String,
    /// Those that gave results.
    pub runs: Vec<&'a Results>,
    /// How many were begun.
    pub begun: usize,
}

impl<'a> Side<'a> {
    pub(crate) fn valid(&self) -> Vec<&'a Results> {
        self.runs.iter().copied().filter(|results| results.validity.valid).collect()
    }

    /// The valid ones. A single run is shown as it is.
    pub(crate) fn shown(&self) -> Vec<&'a Results> {
        if self.begun == 1 { self.runs.clone() } else { self.valid() }
    }

    /// `4 of 5`.
    pub(crate) fn valid_words(&self) -> String {
        format!("{} of {}", self.valid().len(), self.begun)
    }
}

/// Of all sides.
fn all_valid<'a>(sides: &[Side<'a>]) -> Vec<&'a Results> {
    sides.iter().flat_map(Side::valid).collect()
}

/// Why there are no ratios, or none of some side.
pub(crate) fn obstacles(sides: &[Side<'_>]) -> Vec<String> {
    let is_alone = sides.len() < 2;
    let unlike = unlike(&all_valid(sides)).into_iter();
    let unlike = unlike.map(|words| if is_alone { words } else { format!("no ratios: {words}") });
    let without = sides.iter().filter(|side| side.valid().is_empty()).map(|side| {
        let why = side.runs.iter().find_map(|results| results.validity.reasons.first());
        let why = why.map_or(String::new(), |why| format!(": {why}"));
        let effect = if is_alone { "" } else { ", so it has no ratio" };
        format!("no run of {} is valid{effect}{why}", side.name)
    });
    unlike.chain(without).collect()
}

/// A figure of each side, and the ratios to the first side; of those `runs` that are to be shown.
pub(crate) fn figures<'a>(
    sides: &[Side<'a>],
    columns: &[&Column],
    runs: fn(&Side<'a>) -> Vec<&'a Results>,
) -> Table {
    let mut head = vec![String::new()];
    head.extend(sides.iter().map(|side| side.name.clone()));
    let base = sides.first().map_or("", |side| side.name.as_str());
    head.extend(sides.iter().skip(1).map(|side| format!("{} / {base}", side.name)));
    let mut table = Table::new(None, head);
    let valid = sides.iter().map(|side| Cell::from(side.valid_words()));
    table.add(filled(Cell::from("Valid runs"), valid, table.head.len()));
    let shown: Vec<Vec<&Results>> = sides.iter().map(runs).collect();
    let has_one_kind = kinds(&shown.concat()).len() < 2;
    let all: Vec<&Results> = sides.iter().flat_map(|side| side.runs.clone()).collect();
    for column in columns.iter().filter(|column| is_shown(column, &all)) {
        let cell = |runs: &Vec<&Results>| {
            let mut cell = column.spread(runs);
            if let Some(results) = runs.first().filter(|_| column.is_latency() && !has_one_kind) {
                cell.value += &format!(", {}", headline(results).title());
            }
            cell
        };
        let ratios = (1..sides.len()).map(|n| ratio_cell(ratio(column, sides, n)));
        let cells = shown.iter().map(cell).chain(ratios);
        table.add(std::iter::once(Cell::from(column.title)).chain(cells));
    }
    table
}

/// A row that has nothing below the last heads.
pub(crate) fn filled(name: Cell, cells: impl Iterator<Item = Cell>, width: usize) -> Vec<Cell> {
    let mut row: Vec<Cell> = std::iter::once(name).chain(cells).collect();
    row.resize(width, Cell::default());
    row
}

/// Whether any run has such a figure.
pub(crate) fn is_shown(column: &Column, runs: &[&Results]) -> bool {
    runs.iter().any(|results| (column.ours)(results).is_some())
}

/// Of the medians of the valid runs of the side `n` to those of the first, with its interval. A
/// ratio of losses says nothing.
pub(crate) fn ratio(column: &Column, sides: &[Side<'_>], n: usize) -> Option<Ratio> {
    let (base, other) = (sides.first()?.valid(), sides.get(n)?.valid());
    let both = [base.clone(), other.clone()].concat();
    let is_of_came = [AVERAGE.key, MAX.key].contains(&column.key);
    let missing = |r: &&Results| is_of_came && Due::of(r, headline(r)).missing > 0;
    // A connect is not to be divided by an acknowledgement.
    let is_mixed = column.is_latency() && kinds(&both).len() > 1;
    if column.unit == Unit::Count
        || is_mixed
        || both.iter().any(missing)
        || !unlike(&all_valid(sides)).is_empty()
    {
        return None;
    }
    Ratio::of(&column.values(&base), &column.values(&other))
}

/// `1.20x (1.10 to 1.31, larger than the noise)`.
pub(crate) fn ratio_cell(ratio: Option<Ratio>) -> Cell {
    let Some(ratio) = ratio else { return Cell::none() };
    let noise = match ratio.noise() {
        Noise::Beyond => "larger than the noise",
        Noise::Within => "within the noise",
        Noise::Unknown => "noise unknown",
    };
    let interval = ratio.interval.map(|(low, high)| format!("{low:.2} to {high:.2}, "));
    Cell {
        is_strong: ratio.noise() == Noise::Beyond,
        ..Cell::with(format!("{:.2}x", ratio.ratio), interval.unwrap_or_default() + noise)
    }
}

/// The kinds of latency that stand for some of the runs.
fn kinds(runs: &[&Results]) -> Vec<LatencyKind> {
    let mut kinds = Vec::new();
    for kind in runs.iter().map(|results| headline(results)) {
        if !kinds.contains(&kind) {
            kinds.push(kind);
        }
    }
    kinds
}

/// Bars of the figures of published comparisons.
pub(crate) fn bar_charts(sides: &[Side<'_>]) -> Vec<Markup> {
    let names: Vec<String> = sides.iter().map(|side| side.name.clone()).collect();
    let cores = sides.iter().flat_map(|side| &side.runs).find_map(|r| columns::own_cores(r));
    let median = |column: &Column, side: &Side<'_>| {
        Spread::of(&column.values(&side.valid())).map(|spread| spread.median)
    };
    let chart = |(title, columns): &(&str, &[&'static Column])| {
        let of = |column: &&'static Column| {
            (*column, sides.iter().map(|side| median(column, side)).collect())
        };
        let groups = columns.iter().map(of).collect();
        Bars { title, brokers: &names, groups, cores }.figure()
    };
    CHARTS.iter().map(chart).collect()
}

/// Latency against the percentile: all `runs` of a side together.
pub(crate) fn percentile_charts<'a>(
    sides: &[Side<'a>],
    runs: fn(&Side<'a>) -> Vec<&'a Results>,
) -> Vec<Markup> {
    let all: Vec<&Results> = sides.iter().flat_map(runs).collect();
    let chart = |kind| {
        let line = |side: &Side<'a>| {
            let mut merged = Due::default();
            runs(side).iter().for_each(|results| merged.merge(&Due::of(results, kind)));
            Line::new(&side.name, percentile_points(&merged))
        };
        let lines: Vec<Line> =
            sides.iter().map(line).filter(|line| !line.points.is_empty()).collect();
        let note = match &lines[..] {
            _ if sides.iter().all(|side| side.begun == 1) => String::new(),
            // A single line has no legend.
            [only] => format!("All valid runs of {} together.", only.name),
            _ => "All valid runs of each together.".to_owned(),
        };
        let title = format!("Latency by percentile, {}", kind.title());
        Chart::by_percentile(title, lines, &note).figure()
    };
    kinds(&all).into_iter().map(chart).collect()
}

const CHARTS: [(&str, &[&Column]); 4] = [
    ("Rate", &[PUBLISHED, RECEIVED, CONNECTS]),
    ("Latency", &[AVERAGE, P50, P75, P90, P95, P99]),
    ("Broker CPU", &[CPU_MAX, CPU_AVG]),
    ("Broker memory", &[MEMORY_MAX, MEMORY_AVG]),
];
/// What ratios and their words mean.
pub(crate) const RATIOS_NOTE: &str = "Figures are medians of the valid runs, with minimum and \
     maximum. Ratios are of medians, with 95 % confidence intervals (rank test, five or more valid \
     runs each). Of 20 ratios of equal brokers, chance makes one at most larger than the noise, on \
     average.";
