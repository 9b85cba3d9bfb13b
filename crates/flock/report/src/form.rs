//! The tables of a published report, in its form: our row above theirs.

use maud::{Markup, html};

use crate::columns::{self, Column, PUBLISHED, RECEIVED, own_cores};
use crate::facts::clients_words;
use crate::matrix::Done;
use crate::page::note;
use crate::published::hardware_words;
use crate::table::{Cell, Table};
use flock_measure::text;
use flock_measure::{LatencyKind, Results};
use flock_model::matrix::{self, Matrix};
use flock_model::scenario::{Part, Published};

/// Whether all columns of its tables exist.
pub fn check(matrix: &Matrix) -> Result<(), String> {
    for table in &matrix.tables {
        columns_of(table).map_err(|error| format!("table `{}`: {error}", table.title))?;
    }
    Ok(())
}

fn columns_of(table: &matrix::Table) -> Result<Vec<&'static Column>, String> {
    table.columns.iter().map(|key| columns::find(key)).collect()
}

pub(crate) fn tables(matrix: &Matrix, all: &[Done]) -> Markup {
    html! {
        @for table in &matrix.tables {
            @let columns = columns_of(table).unwrap_or_default();
            h2 { (table.title) }
            @match table.pivot {
                Some(_) => (turned(&columns, all)),
                None => (straight(matrix, &columns, all)),
            }
        }
        @if !matrix.tables.is_empty() {
            @for done in all.iter().filter(|done| !done.is_valid()) {
                (note(&format!("{} is not valid: {}", done.cell.scenario, reason(done))))
            }
        }
    }
}

/// A group of rows for each scenario, those of a curve behind each other.
fn straight(matrix: &Matrix, columns: &[&Column], all: &[Done]) -> Markup {
    let mut ordered: Vec<&Done> = all.iter().collect();
    let curves: Vec<String> = all.iter().map(|done| done.curve(&matrix.axes)).collect();
    let place = |done: &Done| {
        let curve = done.curve(&matrix.axes);
        curves.iter().position(|known| *known == curve)
    };
    ordered.sort_by_key(|done| place(done));
    let names = columns.iter().map(|column| column.name);
    let head = ["Scenario", "System"].into_iter().chain(names).chain(["Hardware and notes"]);
    let mut table = Table::new(Some("rounds"), head);
    ordered.into_iter().for_each(|done| add_group(&mut table, done, columns));
    table.html()
}

fn add_group(table: &mut Table, done: &Done, columns: &[&Column]) {
    let parts = parts_of(&done.published);
    let likeness = done.likeness().unwrap_or_default();
    let rows = parts.len() + done.published.len();
    let covered = || Cell { rows: Some(0), ..Cell::default() };
    for (n, part) in parts.iter().enumerate() {
        let scenario = match n {
            0 => Cell { rows: Some(rows), ..scenario_cell(done) },
            _ => covered(),
        };
        let not_valid = if done.is_valid() { "" } else { "not valid" };
        let name = Cell::with(own_name(done, *part), not_valid.to_owned());
        let machine = done.any().map_or_else(String::new, machine_words);
        let figures = columns.iter().map(|column| own_cell(done, column, *part));
        table.add_ours([scenario, name].into_iter().chain(figures).chain([machine.into()]));
        for theirs in done.published.iter().filter(|theirs| theirs.part == *part) {
            let first = [covered(), theirs.system.as_str().into()];
            let figures = columns.iter().map(|column| column.theirs(theirs, &likeness));
            let hardware = [hardware_words(theirs).into()];
            table.add(first.into_iter().chain(figures).chain(hardware));
        }
    }
}

/// One row for each system; the values of the axis are groups of columns.
fn turned(columns: &[&Column], all: &[Done]) -> Markup {
    let mut systems: Vec<(&str, &str, Option<f64>)> = Vec::new();
    for theirs in all.iter().flat_map(|done| &done.published) {
        let key = (theirs.system.as_str(), theirs.hardware.as_str(), theirs.vcpus);
        if !systems.contains(&key) {
            systems.push(key);
        }
    }
    let names = all.iter().flat_map(|_| columns.iter().map(|column| column.name));
    let head = ["System", "vCPU"].into_iter().chain(names).chain(["Hardware"]);
    let mut table = Table::new(Some("rounds"), head);
    let groups = all.iter().map(|done| (done.cell.values.join(", "), columns.len()));
    let aside = |columns: usize| [(String::new(), columns)];
    table.groups = aside(2).into_iter().chain(groups).chain(aside(1)).collect();
    let cells = |of: &dyn Fn(&Done, &Column) -> Cell| -> Vec<Cell> {
        all.iter().flat_map(|done| columns.iter().map(|column| of(done, column))).collect()
    };
    let machine = all.iter().find_map(Done::any).map(|results| &results.machine);
    let name = all.first().map_or_else(String::new, |done| own_name(done, None));
    let first = [name, machine.map_or(0, |machine| machine.cores).to_string()].map(Cell::from);
    let hardware = machine.map_or("", |machine| machine.cpu.as_str());
    let own = cells(&|done, column| own_cell(done, column, None));
    table.add_ours(first.into_iter().chain(own).chain([hardware.into()]));
    for (system, hardware, vcpus) in systems {
        let their_cell = |done: &Done, column: &Column| {
            let mut own = done.published.iter();
            let theirs = own.find(|one| one.system == system && one.hardware == hardware);
            let likeness = done.likeness().unwrap_or_default();
            theirs.map_or_else(Cell::none, |theirs| column.theirs(theirs, &likeness))
        };
        let vcpus = vcpus.map_or_else(Cell::none, |cores| text::number(cores).into());
        let first = [system.into(), vcpus];
        table.add(first.into_iter().chain(cells(&their_cell)).chain([hardware.into()]));
    }
    table.html()
}

/// Those that figures were published for; all messages together where there are none.
fn parts_of(published: &[Published]) -> Vec<Option<Part>> {
    let mut parts: Vec<Option<Part>> = Vec::new();
    for part in published.iter().map(|theirs| theirs.part) {
        if !parts.contains(&part) {
            parts.push(part);
        }
    }
    if parts.is_empty() { vec![None] } else { parts }
}

fn scenario_cell(done: &Done) -> Cell {
    let remark = done.any().map_or_else(String::new, |results| {
        format!("{}; clients: {}", results.scenario.title, clients_words(&results.scenario))
    });
    Cell::with(done.cell.scenario.clone(), remark)
}

fn own_name(done: &Done, part: Option<Part>) -> String {
    let broker = done.any().map(|results| &results.broker);
    let name = broker.map_or_else(String::new, |broker| {
        format!("{} {}", broker.name, broker.version).trim().to_owned()
    });
    let name = if name.is_empty() { "this broker".to_owned() } else { name };
    match part {
        None => name,
        Some(part) => format!("{name}, {}", part.name().replace("qos", "QoS")),
    }
}

/// The median of the valid runs; of all where none is valid, which the row says.
fn own_cell(done: &Done, column: &Column, part: Option<Part>) -> Cell {
    let value = |results: &Results| match part {
        None => (column.ours)(results),
        Some(part) => of_part(results, column, part),
    };
    let values: Vec<f64> = done.shown().into_iter().filter_map(value).collect();
    let cores = done.any().and_then(own_cores);
    column.spread_of(&values, cores)
}

/// A figure of some of the messages; `None` where it is not known of them.
fn of_part(results: &Results, column: &Column, part: Part) -> Option<f64> {
    let (kind, qos) = match part {
        Part::Qos0 => (LatencyKind::EndToEnd, Some(0)),
        Part::Qos1 => (LatencyKind::EndToEnd, Some(1)),
        Part::Qos2 => (LatencyKind::EndToEnd, Some(2)),
        Part::Routed => (LatencyKind::Routed, None),
    };
    let mut of = results.clone();
    of.latencies.retain(|one| one.kind == kind && (qos.is_none() || one.qos == qos));
    if column.unit == crate::chart::Unit::Micros {
        return (column.ours)(&of);
    }
    if column.key == PUBLISHED.key {
        let sent = *results.totals.published.get(usize::from(qos?))? as f64;
        let all = results.totals.published_all() as f64;
        return (all > 0.0).then(|| (column.ours)(results)).flatten().map(|rate| rate * sent / all);
    }
    if column.key != RECEIVED.key {
        return None;
    }
    let measured = results.phases.iter().filter(|phase| phase.measured);
    let secs: f64 = measured.map(|phase| phase.to_secs - phase.from_secs).sum();
    let count: u64 = of.latencies.iter().map(|one| one.summary.count).sum();
    (secs > 0.0 && count > 0).then(|| count as f64 / secs)
}

fn machine_words(results: &Results) -> String {
    format!("{}, {} cores", results.machine.cpu, results.machine.cores)
}

/// Why no run of it is valid.
fn reason(done: &Done) -> String {
    let words = done.runs.iter().find_map(|run| match run {
        Ok((results, _)) => results.validity.reasons.first().cloned(),
        Err(why) => Some(why.clone()),
    });
    words.unwrap_or_else(|| "not run".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::columns::{CPU_MAX, P50};
    use flock_measure::{LatencyHistogram, sample};
    use flock_model::catalogue;
    use flock_model::scenario::Choice;

    /// Every cell of a built-in matrix, run once at this scale.
    fn ran(id: &str, scale: f64) -> (Matrix, Vec<Done>) {
        let matrix = Matrix::find(id).unwrap();
        let done = |cell: matrix::Cell| {
            let loaded = catalogue::find(&cell.scenario, &Choice::default()).unwrap();
            let mut results = sample::results(1.0);
            results.scenario.id.clone_from(&cell.scenario);
            results.scenario.scale = scale;
            results.scenario.overrides = [("scale".to_owned(), scale.to_string())].into();
            let runs = vec![Ok((Box::new(results), "r.html".to_owned()))];
            Done { cell, published: loaded.published, runs }
        };
        let all = matrix.cells().into_iter().map(done).collect();
        (matrix, all)
    }

    #[test]
    fn each_report_is_a_page_with_ours_and_theirs() {
        for (id, parts) in [
            (
                "AIO-REPORT",
                ["4,135/s<br><small>scaled from 41,352/s", "662 KB<", "520 ms", "AIO-B100-255K"],
            ),
            (
                "SOL-REPORT",
                ["E112ibds_v5", "225,000/s<br><small>full scale", "Ultra disk", ">112<"],
            ),
            ("EG-REPORT", ["QoS 0", "routed", "185 ms<br><small>full scale", "1.20 s<br>"]),
            (
                "HM-REPORT",
                ["20,000,000<br><small>scaled from 200,000,000", "2,220 s", "13 KB", "100,000/s"],
            ),
            ("MB-REPORT", ["VerneMQ 1.12.6.2", "25,000/s<br><small>scaled", "117 s<br>", "NanoMQ"]),
        ] {
            let (matrix, all) = ran(id, 0.1);
            check(&matrix).unwrap();
            let html = tables(&matrix, &all).into_string();
            for part in parts {
                assert!(html.contains(part), "{id}: {part} is missing: {html}");
            }
            assert_eq!(html.matches("<tr").count(), html.matches("</tr>").count());
            assert!(!html.contains("NaN") && !html.contains(" / sample"), "{id}");
        }
    }

    #[test]
    fn our_figures_are_of_the_same_part_as_theirs() {
        let mut results = sample::results(1.0);
        let mut slow = LatencyHistogram::new();
        slow.record_micros_n(70_000, 550);
        let mut other = results.latencies[1].clone();
        other.qos = Some(0);
        other.summary = slow.summary();
        other.histogram = slow;
        results.latencies.push(other);
        let p50 = |part| of_part(&results, P50, part).unwrap();
        assert!(p50(Part::Qos0) > 69_000.0 && p50(Part::Qos1) < 60_000.0);
        assert_eq!(of_part(&results, RECEIVED, Part::Qos0), Some(10.0));
        let all = (PUBLISHED.ours)(&results);
        assert_eq!(of_part(&results, PUBLISHED, Part::Qos1), all);
        assert_eq!(of_part(&results, PUBLISHED, Part::Qos0), Some(0.0));
        assert_eq!(of_part(&results, PUBLISHED, Part::Routed), None);
        assert_eq!(of_part(&results, P50, Part::Routed), None);
        assert_eq!(of_part(&results, CPU_MAX, Part::Qos1), None);
    }

    #[test]
    fn a_run_that_is_not_valid_is_said_to_be_so() {
        let (matrix, mut all) = ran("SOL-REPORT", 1.0);
        let Ok((results, _)) = &mut all[0].runs[0] else { panic!("it ran") };
        results.validity.valid = false;
        results.validity.reasons = vec!["the tool was late".into()];
        let html = tables(&matrix, &all).into_string();
        assert!(html.contains("SOL-1K is not valid: the tool was late"), "{html}");
        assert!(html.contains("225,000/s</td>"), "at the full scale figures stand as they are");
    }

    #[test]
    fn an_unknown_column_names_the_valid_ones() {
        let mut matrix = Matrix::find("SOL-REPORT").unwrap();
        matrix.tables[0].columns.push("speed".into());
        let error = check(&matrix).unwrap_err();
        assert!(error.contains("`speed`") && error.contains("received_per_sec"), "{error}");
    }
}
