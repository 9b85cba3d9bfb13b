//! The report of a matrix: curves over the first axis, a row for every run, and how it was done.

use maud::{Markup, html};

use crate::chart::{Axis as Across, Chart, Line, Unit};
use crate::columns::{
    AVERAGE, CPU_AVG, CPU_COST, Column, LOST, MEMORY_MAX, P50, P99, PUBLISHED, RECEIVED, own_cores,
};
use crate::disclosure;
use crate::form;
use crate::likeness::Likeness;
use crate::page::{self as parts, details, note, pairs};
use crate::reports::Reports;
use crate::sides::Side;
use crate::table::{Cell, Table};
use flock_measure::Results;
use flock_measure::figures::Verdict;
use flock_measure::stats::{Spread, median_interval};
use flock_measure::text::{self, seconds};
use flock_model::matrix::{self, Axis, Matrix};
use flock_model::scenario::Published;

/// A cell that was run.
#[derive(Debug)]
pub struct Done {
    pub cell: matrix::Cell,
    /// Published for this very scenario.
    pub published: Vec<Published>,
    /// Each run with the name of its files.
    pub runs: Vec<Result<(Box<Results>, String), String>>,
}

impl Done {
    fn side(&self) -> Side<'_> {
        let results = self.runs.iter().filter_map(|run| run.as_ref().ok());
        let runs = results.map(|(results, _)| &**results).collect();
        Side { name: String::new(), runs, begun: self.runs.len() }
    }

    fn valid(&self) -> Vec<&Results> {
        self.side().valid()
    }

    /// Whether some run may be believed.
    pub(crate) fn is_valid(&self) -> bool {
        !self.valid().is_empty()
    }

    /// What stands for all: the valid runs, or all where none is valid.
    pub(crate) fn shown(&self) -> Vec<&Results> {
        if self.is_valid() { self.valid() } else { self.side().runs }
    }

    pub(crate) fn any(&self) -> Option<&Results> {
        self.shown().first().copied()
    }

    /// To the published runs; `None` without a run.
    pub(crate) fn likeness(&self) -> Option<Likeness> {
        self.any().map(Likeness::of)
    }

    /// The values beyond the first axis, `qos 1`: which curve it belongs to.
    pub(crate) fn curve(&self, axes: &[Axis]) -> String {
        let others = axes.iter().zip(&self.cell.values).skip(1);
        others.map(|(axis, value)| format!("{} {value}", axis.name)).collect::<Vec<_>>().join(", ")
    }
}

/// The page of a matrix.
pub fn page(matrix: &Matrix, command: &[String], all: &[Done], reports: Reports) -> String {
    let runs = all.iter().flat_map(|done| &done.runs).filter_map(|run| run.as_ref().ok());
    let any = runs.clone().next().map(|(results, _)| &**results);
    let body = html! {
        (header(matrix, any, all))
        (form::tables(matrix, all))
        @if all.iter().any(|done| !done.published.is_empty()) {
            (note(crate::HARDWARE_DIFFERS))
            @for words in differences(all) { (note(&words)) }
        }
        @if let Some(across) = matrix.axes.first().filter(|_| has_curves(matrix, all)) {
            (curves(matrix, across, all))
        }
        h2 { "Runs" }
        (run_rows(matrix, all, reports))
        h2 { "Environment" }
        (pairs(&facts(matrix, command, any)))
        (details(
            "The broker's configuration",
            any.map_or("", |results| results.broker.config.as_str()),
        ))
        (reports.part(runs.map(|(results, file)| (file.clone(), &**results))))
    };
    parts::page(&matrix.id, &body)
}

fn header(matrix: &Matrix, any: Option<&Results>, all: &[Done]) -> Markup {
    let title = match matrix.title.as_str() {
        "" => matrix.id.clone(),
        title => format!("{}: {title}", matrix.id),
    };
    let (kicker, lead) = any.map_or_else(Default::default, |results| {
        let broker = format!("{} {}", results.broker.name, results.broker.version);
        let machine = &results.machine;
        (
            format!("{} · {}", results.tool.words(), text::date(results.run.started_unix_ms)),
            format!("{}, on {}, {} cores", broker.trim(), machine.cpu, machine.cores),
        )
    });
    let runs: usize = all.iter().map(|done| done.runs.len()).sum();
    let valid: usize = all.iter().map(|done| done.valid().len()).sum();
    let mut verdicts = vec![(Verdict::of(valid == runs), format!("{valid} of {runs} runs valid"))];
    if all.iter().all(|done| done.runs.len() < 2) {
        verdicts.push((Verdict::Bad, "one run of each does not show the noise".to_owned()));
    }
    html! {
        (parts::header(&kicker, &title, &lead))
        (parts::verdict_list(&verdicts))
    }
}

/// A list of scenarios has none, and where no run is valid there is nothing to draw.
fn has_curves(matrix: &Matrix, all: &[Done]) -> bool {
    !matrix.is_list() && all.iter().any(Done::is_valid)
}

fn curves(matrix: &Matrix, across: &Axis, all: &[Done]) -> Markup {
    html! {
        h2 { "Over " (across.name) }
        p {
            "Curves show medians of the valid runs."
            @if has_bars(all) { (BARS_NOTE) }
        }
        (parts::charts(FIGURES.iter().map(|figure| curve_chart(figure, matrix, across, all))))
    }
}

/// How runs differ from the published ones, each sentence once.
fn differences(all: &[Done]) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    let with_theirs = all.iter().filter(|done| !done.published.is_empty());
    for likeness in with_theirs.filter_map(Done::likeness) {
        let sentence = likeness.words();
        if !sentence.is_empty() && !words.contains(&sentence) {
            words.push(sentence);
        }
    }
    words
}

fn curve_chart(figure: &Column, matrix: &Matrix, across: &Axis, all: &[Done]) -> Markup {
    let at = |done: &Done| {
        across.values.iter().position(|value| *value == done.cell.values[0]).unwrap_or(0) as f64
    };
    let mut lines: Vec<Line> = Vec::new();
    let mut add = |name: &str, at: f64, value: f64, bar: Option<(f64, f64)>| {
        let known = lines.iter().position(|line| line.name == name).unwrap_or_else(|| {
            lines.push(Line::new(name, []));
            lines.len() - 1
        });
        lines[known].points.push((at, value));
        lines[known].bars.extend(bar.map(|bar| (at, bar)));
    };
    for done in all {
        let curve = done.curve(&matrix.axes);
        let name = if curve.is_empty() { "measured" } else { &curve };
        // A cell without a valid run is a gap in its curve.
        let values = figure.values(&done.valid());
        let median = Spread::of(&values).map_or(f64::NAN, |spread| spread.median);
        add(name, at(done), median, bar(&values));
    }
    for done in all {
        let Some(likeness) = done.likeness() else { continue };
        for published in &done.published {
            let Some(value) = figure.drawn(published, &likeness) else { continue };
            let curve = done.curve(&matrix.axes);
            let between = if curve.is_empty() { "" } else { ", " };
            let kind = if likeness.is_full_scale() { "published" } else { "published, scaled" };
            let name = format!("{curve}{between}{} ({kind})", published.system);
            add(&name, at(done), value, None);
        }
    }
    for line in &mut lines {
        line.points.sort_by(|a, b| a.0.total_cmp(&b.0));
    }
    let of = if figure.unit == Unit::Percent { " (100 % is one core)" } else { "" };
    let title = format!("{}{of}", figure.title);
    let chart = Chart {
        axis: Across::Labels(across.values.clone()),
        log: figure.unit == Unit::Micros,
        ..Chart::over_time(&title, figure.unit, lines)
    };
    chart.without_zeros().figure()
}

/// Whether some combination was run more than once.
fn has_bars(all: &[Done]) -> bool {
    all.iter().any(|done| done.valid().len() > 1)
}

/// The interval of the median, or of few runs the least and the most.
fn bar(values: &[f64]) -> Option<(f64, f64)> {
    let range = || Spread::of(values).map(|spread| (spread.least, spread.most));
    median_interval(values).or_else(range).filter(|_| values.len() > 1)
}

/// The runs of each combination, their median, and what was published for it.
fn run_rows(matrix: &Matrix, all: &[Done], reports: Reports) -> Markup {
    let axes = matrix.axes.iter().map(|axis| axis.name.as_str());
    let names = FIGURES.iter().map(|figure| figure.name);
    let head = axes.chain(["Run"]).chain(names).chain(["Remarks"]);
    let mut table = Table::new(Some("rounds"), head);
    for done in all {
        let row = |name: Cell, of: &dyn Fn(&Column) -> Cell, remarks: &str| {
            let values = done.cell.values.iter().map(Cell::from);
            let cells = values.chain([name]).chain(FIGURES.iter().map(|figure| of(figure)));
            cells.chain([remarks.into()]).collect::<Vec<Cell>>()
        };
        for (n, run) in done.runs.iter().enumerate() {
            let name = Cell::from((n + 1).to_string());
            table.add(match run {
                Ok((results, file)) => row(
                    Cell { link: reports.link(file), ..name },
                    &|figure| figure.spread(&[results]),
                    &crate::versus::remarks(results),
                ),
                Err(why) => row(name, &|_| Cell::none(), why),
            });
        }
        if done.runs.len() > 1 {
            let valid = format!("{} runs valid", done.side().valid_words());
            table.add_ours(row("median".into(), &|figure| median_cell(done, figure), &valid));
        }
        let likeness = done.likeness().unwrap_or_default();
        for published in &done.published {
            let of = |figure: &Column| figure.theirs(published, &likeness);
            let remarks = format!("{}, {}", published.system, published.hardware);
            table.add(row("published".into(), &of, &remarks));
        }
    }
    table.html()
}

fn median_cell(done: &Done, figure: &Column) -> Cell {
    let valid = done.valid();
    let interval = bar(&figure.values(&valid)).filter(|(low, high)| low < high);
    let cores = valid.iter().find_map(|results| own_cores(results));
    Cell { remark: figure.show_range(interval, cores), ..figure.spread(&valid) }
}

fn facts<'a>(
    matrix: &Matrix,
    command: &[String],
    any: Option<&'a Results>,
) -> Vec<(&'a str, String)> {
    let axes = matrix.axes.iter().map(|axis| format!("{}: {}", axis.name, axis.values.join(", ")));
    let mut facts = vec![
        ("source", matrix.source.clone()),
        ("command", command.join(" ")),
        ("axes", axes.collect::<Vec<_>>().join("; ")),
        ("notes", matrix.notes.join(" ")),
    ];
    // What the runs have in common; the rest is in their own reports.
    if let Some(results) = any {
        facts.push(("time of a run", seconds(results.run.duration_secs)));
        let common = disclosure(results).into_iter();
        facts.extend(common.filter(|(name, _)| !ONLY_OF_A_RUN.contains(name)));
    }
    facts
}

/// The medians for the terminal, a line for each combination.
pub fn table(matrix: &Matrix, all: &[Done]) -> String {
    let axes = matrix.axes.iter().map(|axis| axis.name.as_str());
    let names = FIGURES.iter().map(|figure| figure.name);
    let mut table = Table::new(None, axes.chain(names).chain(["valid"]));
    for done in all {
        let median = |figure: &&Column| figure.spread(&done.valid()).value;
        let figures = FIGURES.iter().map(median).chain([done.side().valid_words()]);
        table.add(done.cell.values.iter().cloned().chain(figures));
    }
    table.plain()
}

/// A row for every run, for a spreadsheet.
pub fn csv(matrix: &Matrix, all: &[Done]) -> String {
    let axes = matrix.axes.iter().map(|axis| axis.name.as_str());
    let keys = FIGURES.iter().map(|figure| figure.key);
    let mut table = Table::new(None, axes.chain(["run", "valid"]).chain(keys));
    for done in all {
        for (n, run) in done.runs.iter().enumerate() {
            let Ok((results, _)) = run else { continue };
            let values = done.cell.values.iter().cloned();
            let run = [(n + 1).to_string(), results.validity.valid.to_string()];
            let figures = FIGURES.iter().map(|figure| {
                (figure.ours)(results).map_or(String::new(), |value| value.to_string())
            });
            table.add(values.chain(run).chain(figures));
        }
    }
    table.csv()
}

const BARS_NOTE: &str = " Bars show minimum and maximum. From five valid runs they contain the \
     true median with 94 % confidence. From nine, bars are 95 % confidence intervals.";

const ONLY_OF_A_RUN: [&str; 6] =
    ["command", "scenario", "options", "clients", "payload", "publish rate"];

const FIGURES: [&Column; 9] =
    [PUBLISHED, RECEIVED, AVERAGE, P50, P99, CPU_AVG, CPU_COST, MEMORY_MAX, LOST];

#[cfg(test)]
mod tests {
    use super::*;
    use flock_measure::sample;

    fn done(values: [&str; 2], shifts: &[f64], valid: bool) -> Done {
        let run = |shift: &f64| {
            let mut results = sample::results(*shift);
            results.validity.valid = valid;
            Ok((Box::new(results), format!("{}-{}", values[0], values[1])))
        };
        Done {
            cell: matrix::Cell {
                values: values.map(str::to_owned).to_vec(),
                scenario: "S".into(),
                changes: Vec::new(),
            },
            published: Vec::new(),
            runs: shifts.iter().map(run).collect(),
        }
    }

    fn matrix() -> Matrix {
        let axes = ["payload=16B,<8K>", "qos=0,1"].map(|text| Axis::parse(text).unwrap());
        Matrix::of("S", axes.to_vec()).unwrap()
    }

    #[test]
    fn every_combination_of_the_other_axes_is_a_curve() {
        let mut all = vec![
            done(["16B", "0"], &[1.0, 3.0, 2.0], true),
            done(["16B", "1"], &[1.0], true),
            done(["<8K>", "0"], &[1.0], false),
        ];
        all.push(Done { runs: vec![Err("refused".into())], ..done(["<8K>", "1"], &[], true) });
        all[1].published = vec![Published {
            system: "Other".into(),
            average_ms: Some(4.0),
            ..Published::default()
        }];
        let html = page(&matrix(), &["flock".into(), "matrix".into()], &all, Reports::Files);
        for part in [
            "data-name=\"qos 0\"",
            "data-name=\"qos 1\"",
            "data-name=\"qos 1, Other (published)\"",
            "4 of 6 runs valid",
            "3 of 3 runs valid",
            "16B-0.html",
            "refused",
            "flock matrix",
            "payload: 16B, &lt;8K&gt;; qos: 0, 1",
            "72.4 us",
            "class=\"c0 bar\"",
            "minimum and maximum",
            "<small>36.2 us to 109 us</small>",
            "listener 1883",
        ] {
            assert!(html.contains(part), "{part} is missing");
        }
        assert!(!html.contains("NaN") && !html.contains("<8K>"));
        assert_eq!(html.matches("<table").count(), html.matches("</table>").count());
        let text = csv(&matrix(), &all);
        assert_eq!(text.lines().count(), 6);
        let widths: Vec<usize> = text.lines().map(|line| line.split(',').count()).collect();
        assert!(widths.iter().all(|width| *width == widths[0]), "{text}");
    }

    #[test]
    fn a_single_file_has_the_report_of_each_run() {
        let all = [done(["16B", "0"], &[1.0], true), done(["16B", "1"], &[2.0], false)];
        let html = page(&matrix(), &[], &all, Reports::Inside);
        for name in ["16B-0", "16B-1"] {
            assert!(html.contains(&format!("href=\"#{name}\"")), "{name}");
            assert!(html.contains(&format!("id=\"{name}\"")), "{name}");
        }
        // They are whole pages in an attribute, and nothing is loaded from elsewhere.
        assert_eq!(html.matches("srcdoc=\"&lt;!DOCTYPE html&gt;").count(), 2);
        assert!(!html.contains(".html\""));
    }

    #[test]
    fn figures_of_the_full_scale_are_drawn_scaled_or_not_at_all() {
        let mut small = done(["16B", "0"], &[1.0], true);
        let Ok((results, _)) = &mut small.runs[0] else { panic!("it ran") };
        results.scenario.id = "MB-E1".into();
        results.scenario.scale = 0.1;
        results.scenario.overrides = [("scale".to_owned(), "0.1".to_owned())].into();
        small.published = crate::published(results);
        let all = [small];
        let across = &matrix().axes[0];
        let of = |figure: &Column| curve_chart(figure, &matrix(), across, &all).into_string();
        let rates = of(RECEIVED);
        assert!(rates.contains("EMQX 5.0.21 (published, scaled)"), "{rates}");
        assert!(rates.contains("5,000/s") && !rates.contains("50,000/s"), "{rates}");
        for figure in [P50, CPU_AVG, MEMORY_MAX] {
            assert!(!of(figure).contains("(published"), "{}", figure.title);
        }
        let html = page(&matrix(), &[], &all, Reports::Files);
        assert!(html.contains("5,000/s<br><small>scaled from 50,000/s</small>"));
        assert!(html.contains("This run differs from the published one: scale 0.10."));
    }
}
