//! The report of a matrix: curves over the first axis, a row for every run, and how it was done.

use std::fmt::Write as _;

use super::{Axis, Cell, Matrix};
use crate::measure::Results;
use crate::report::chart::{Axis as Across, Chart, Line, Unit};
use crate::report::figures::Figures;
use crate::report::text::{self, html as escape, seconds};
use crate::report::{details, disclosure, page as frame, pairs};
use crate::scenario::Published;
use crate::stats::{RUNS_MIN, Spread, median_interval};

/// A cell that was run.
#[derive(Debug)]
pub struct Done {
    pub cell: Cell,
    /// Published for this very scenario.
    pub published: Vec<Published>,
    /// Each run with the address of its report.
    pub runs: Vec<Result<(Box<Results>, String), String>>,
}

impl Done {
    fn valid(&self) -> impl Iterator<Item = &Results> {
        let results = self.runs.iter().filter_map(|run| run.as_ref().ok());
        results.map(|(results, _)| &**results).filter(|results| results.validity.valid)
    }

    /// Of the valid runs.
    fn values(&self, figure: &Figure) -> Vec<f64> {
        self.valid().filter_map(figure.ours).collect()
    }

    /// Of the valid runs; `None` without one.
    fn median(&self, figure: &Figure) -> Option<f64> {
        Spread::of(&self.values(figure)).map(|spread| spread.median)
    }

    /// The values beyond the first axis, `qos 1`: which curve it belongs to.
    fn curve(&self, axes: &[Axis]) -> String {
        let others = axes.iter().zip(&self.cell.values).skip(1);
        others.map(|(axis, value)| format!("{} {value}", axis.name)).collect::<Vec<_>>().join(", ")
    }
}

/// A figure that is drawn.
struct Figure {
    /// In the CSV file.
    key: &'static str,
    title: &'static str,
    column: &'static str,
    unit: Unit,
    log: bool,
    ours: fn(&Results) -> Option<f64>,
    theirs: fn(&Published) -> Option<f64>,
}

/// The page of a matrix.
pub fn page(matrix: &Matrix, command: &[String], all: &[Done]) -> String {
    let mut body = String::new();
    let any = all.iter().flat_map(|done| &done.runs).find_map(|run| run.as_ref().ok());
    let any = any.map(|(results, _)| &**results);
    header(matrix, any, all, &mut body);
    curves(matrix, all, &mut body);
    run_rows(matrix, all, &mut body);
    conditions(matrix, command, any, &mut body);
    frame(&matrix.id, &body)
}

fn header(matrix: &Matrix, any: Option<&Results>, all: &[Done], out: &mut String) {
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
    // Writing to a String cannot fail.
    let _ = write!(
        out,
        "<header><p class=\"kicker\">{}</p><h1>{}</h1><p class=\"lead\">{}</p></header>",
        escape(&kicker),
        escape(&title),
        escape(&lead)
    );
    let runs: usize = all.iter().map(|done| done.runs.len()).sum();
    let valid: usize = all.iter().map(|done| done.valid().count()).sum();
    let class = if valid == runs { "" } else { " class=\"bad\"" };
    let _ = write!(
        out,
        "<ul class=\"verdicts\"><li{class}>{valid} of {runs} runs valid</li>{}</ul>",
        if all.iter().all(|done| done.runs.len() < 2) {
            "<li class=\"bad\">one run of each tells nothing of the noise</li>"
        } else {
            ""
        }
    );
}

fn curves(matrix: &Matrix, all: &[Done], out: &mut String) {
    let Some(across) = matrix.axes.first() else { return };
    let place = |done: &Done| {
        across.values.iter().position(|value| *value == done.cell.values[0]).unwrap_or(0) as f64
    };
    let _ = write!(
        out,
        "<h2>Over {}</h2><p>Medians of the valid runs; runs that are not valid stand in no \
         curve.{}</p><section class=\"charts\">",
        escape(&across.name),
        if has_intervals(all) { BARS_NOTE } else { "" }
    );
    for figure in &FIGURES {
        let mut lines: Vec<Line> = Vec::new();
        let mut add = |name: String, at: f64, value: f64, bar: Option<(f64, f64)>| {
            let known = lines.iter().position(|line| line.name == name).unwrap_or_else(|| {
                lines.push(Line { name, ..Line::default() });
                lines.len() - 1
            });
            lines[known].points.push((at, value));
            lines[known].bars.extend(bar.map(|bar| (at, bar)));
        };
        for done in all {
            let name = match done.curve(&matrix.axes).as_str() {
                "" => "measured".to_owned(),
                curve => curve.to_owned(),
            };
            // A cell without a valid run is a gap in its curve.
            let interval = median_interval(&done.values(figure));
            add(name, place(done), done.median(figure).unwrap_or(f64::NAN), interval);
        }
        for done in all {
            for published in &done.published {
                let Some(value) = (figure.theirs)(published) else { continue };
                let curve = match done.curve(&matrix.axes).as_str() {
                    "" => String::new(),
                    curve => format!("{curve}, "),
                };
                let name = format!("{curve}{} (published)", published.system);
                add(name, place(done), value, None);
            }
        }
        for line in &mut lines {
            line.points.sort_by(|a, b| a.0.total_cmp(&b.0));
        }
        let says = |line: &Line| line.points.iter().any(|point| point.1 > 0.0);
        let chart = Chart {
            title: figure.title.to_owned(),
            unit: figure.unit,
            axis: Across::Labels(across.values.clone()),
            log: figure.log,
            lines: lines.into_iter().filter(says).collect(),
            marks: Vec::new(),
            outages: Vec::new(),
            note: String::new(),
        };
        out.push_str(&chart.figure());
    }
    out.push_str("</section>");
    if all.iter().any(|done| !done.published.is_empty()) {
        let _ = write!(out, "<p class=\"note\">{}</p>", escape(crate::report::HARDWARE_DIFFERS));
    }
}

/// Whether some combination was run often enough.
fn has_intervals(all: &[Done]) -> bool {
    all.iter().any(|done| done.valid().count() >= RUNS_MIN)
}

fn run_rows(matrix: &Matrix, all: &[Done], out: &mut String) {
    out.push_str("<h2>Runs</h2><div class=\"scroll\"><table class=\"rounds\"><thead><tr>");
    for axis in &matrix.axes {
        let _ = write!(out, "<th class=\"text\">{}</th>", escape(&axis.name));
    }
    out.push_str("<th class=\"text\">Run</th>");
    for figure in &FIGURES {
        let _ = write!(out, "<th>{}</th>", figure.column);
    }
    out.push_str("<th class=\"text\">Remarks</th></tr></thead><tbody>");
    for done in all {
        let values = || done.cell.values.iter().map(|value| escape(value));
        let axes: String =
            values().map(|value| format!("<td class=\"text\">{value}</td>")).collect();
        let mut row = |class: &str, name: &str, figures: &[Option<f64>], remarks: &str| {
            let _ = write!(out, "<tr{class}>{axes}<td class=\"text\">{name}</td>");
            for (figure, value) in FIGURES.iter().zip(figures) {
                let shown = value.map_or("–".to_owned(), |value| figure.unit.show(value));
                let interval = (name == MEDIAN).then(|| median_interval(&done.values(figure)));
                let interval = interval.flatten().filter(|(low, high)| low < high);
                let interval = interval.map_or(String::new(), |(low, high)| {
                    let [low, high] = [low, high].map(|value| escape(&figure.unit.show(value)));
                    format!("<br><small>{low} to {high}</small>")
                });
                let _ = write!(out, "<td>{}{interval}</td>", escape(&shown));
            }
            let _ = write!(out, "<td class=\"text\">{}</td></tr>", escape(remarks));
        };
        for (n, run) in done.runs.iter().enumerate() {
            match run {
                Ok((results, link)) => row(
                    "",
                    &format!("<a href=\"{}\">{}</a>", escape(link), n + 1),
                    &FIGURES.each_ref().map(|figure| (figure.ours)(results)),
                    &crate::versus::remarks(results),
                ),
                Err(why) => row("", &(n + 1).to_string(), &[None; FIGURES.len()], why),
            }
        }
        if done.runs.len() > 1 {
            let figures = FIGURES.each_ref().map(|figure| done.median(figure));
            let valid = format!("{} of {} runs valid", done.valid().count(), done.runs.len());
            row(" class=\"ours\"", MEDIAN, &figures, &valid);
        }
        for published in &done.published {
            let figures = FIGURES.each_ref().map(|figure| (figure.theirs)(published));
            let remarks = format!("{}, {}", published.system, published.hardware);
            row("", "published", &figures, &remarks);
        }
    }
    out.push_str("</tbody></table></div>");
}

fn conditions(matrix: &Matrix, command: &[String], any: Option<&Results>, out: &mut String) {
    out.push_str("<h2>How it was run</h2>");
    let axes = matrix.axes.iter().map(|axis| format!("{}: {}", axis.name, axis.values.join(", ")));
    let mut facts = vec![
        ("source", matrix.source.clone()),
        ("command", command.join(" ")),
        ("axes", axes.collect::<Vec<_>>().join("; ")),
        ("worth knowing", matrix.notes.join(" ")),
    ];
    // What the runs have in common; the rest is in their own reports.
    if let Some(results) = any {
        facts.push(("a run takes about", seconds(results.run.duration_secs)));
        let common = disclosure(results).into_iter();
        facts.extend(common.filter(|(name, _)| !ONLY_OF_A_RUN.contains(name)));
    }
    out.push_str(&pairs(&facts));
    let config = any.map_or("", |results| results.broker.config.as_str());
    out.push_str(&details("The broker's configuration", config));
}

/// The medians for the terminal, a line for each combination.
pub fn table(matrix: &Matrix, all: &[Done]) -> String {
    let mut rows: Vec<Vec<String>> =
        vec![matrix.axes.iter().map(|axis| axis.name.clone()).collect()];
    rows[0].extend(FIGURES.iter().map(|figure| figure.column.to_owned()));
    rows[0].push("valid".to_owned());
    for done in all {
        let mut row = done.cell.values.clone();
        row.extend(FIGURES.iter().map(|figure| {
            done.median(figure).map_or("-".to_owned(), |value| figure.unit.show(value))
        }));
        row.push(format!("{} of {}", done.valid().count(), done.runs.len()));
        rows.push(row);
    }
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max()
    };
    let widths: Vec<usize> = (0..rows[0].len()).map(|at| width(at).unwrap_or(0)).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
    };
    rows.iter().map(line).collect()
}

/// A row for every run, for a spreadsheet.
pub fn csv(matrix: &Matrix, all: &[Done]) -> String {
    let mut out = String::new();
    for axis in &matrix.axes {
        let _ = write!(out, "{},", text::csv(&axis.name));
    }
    out.push_str("run,valid");
    for figure in &FIGURES {
        let _ = write!(out, ",{}", figure.key);
    }
    out.push('\n');
    for done in all {
        for (n, run) in done.runs.iter().enumerate() {
            let Ok((results, _)) = run else { continue };
            for value in &done.cell.values {
                let _ = write!(out, "{},", text::csv(value));
            }
            let _ = write!(out, "{},{}", n + 1, results.validity.valid);
            for figure in &FIGURES {
                let value = (figure.ours)(results).map_or(String::new(), |value| value.to_string());
                let _ = write!(out, ",{value}");
            }
            out.push('\n');
        }
    }
    out
}

const MEDIAN: &str = "median";
const BARS_NOTE: &str = " The bar at a point is the interval in which its median lies with 95 % \
                         confidence, by a bootstrap over its runs.";

const ONLY_OF_A_RUN: [&str; 6] = [
    "command",
    "scenario",
    "asked to be otherwise",
    "clients",
    "payload",
    "publish rate asked for",
];

const FIGURES: [Figure; 9] = [
    Figure {
        key: "published_per_sec",
        title: "Published per second",
        column: "Published",
        unit: Unit::PerSecond,
        log: false,
        ours: |r| Figures::of(r).published_per_sec,
        theirs: |p| p.published_per_sec,
    },
    Figure {
        key: "received_per_sec",
        title: "Received per second",
        column: "Received",
        unit: Unit::PerSecond,
        log: false,
        ours: |r| Figures::of(r).received_per_sec,
        theirs: |p| p.received_per_sec,
    },
    Figure {
        key: "latency_average_us",
        title: "Latency, average",
        column: "Average",
        unit: Unit::Micros,
        log: true,
        ours: |r| Figures::of(r).average_us,
        theirs: |p| p.average_ms.map(|ms| ms * 1e3),
    },
    Figure {
        key: "latency_p50_us",
        title: "Latency, p50",
        column: "p50",
        unit: Unit::Micros,
        log: true,
        ours: |r| Figures::of(r).p50_us,
        theirs: |p| p.p50_ms.map(|ms| ms * 1e3),
    },
    Figure {
        key: "latency_p99_us",
        title: "Latency, p99",
        column: "p99",
        unit: Unit::Micros,
        log: true,
        ours: |r| Figures::of(r).p99_us,
        theirs: |p| p.p99_ms.map(|ms| ms * 1e3),
    },
    Figure {
        key: "broker_cpu_percent",
        title: "Broker CPU (100 % is one core)",
        column: "CPU",
        unit: Unit::Percent,
        log: false,
        ours: |r| Figures::of(r).cpu_average_percent,
        theirs: |p| p.cpu_average_percent.zip(p.vcpus).map(|(percent, vcpus)| percent * vcpus),
    },
    Figure {
        key: "broker_cpu_us_per_message",
        title: "Broker CPU per message",
        column: "CPU per message",
        unit: Unit::Cost,
        log: false,
        ours: |r| Figures::of(r).cpu_us_per_message,
        theirs: |_| None,
    },
    Figure {
        key: "broker_memory_bytes_max",
        title: "Broker memory, at most",
        column: "Memory",
        unit: Unit::Bytes,
        log: false,
        ours: |r| Figures::of(r).memory_max_bytes,
        theirs: |p| p.memory_max_mb.or(p.memory_average_mb).map(|mb| mb * 1e6),
    },
    Figure {
        key: "lost",
        title: "Lost",
        column: "Lost",
        unit: Unit::Count,
        log: false,
        // What carries no stamp cannot be missed.
        ours: |r| (r.integrity.total().expected > 0).then(|| r.integrity.total().lost as f64),
        theirs: |_| None,
    },
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::sample;

    fn done(values: [&str; 2], shifts: &[f64], valid: bool) -> Done {
        let run = |shift: &f64| {
            let mut results = sample::results(*shift);
            results.validity.valid = valid;
            Ok((Box::new(results), format!("{}-{}.html", values[0], values[1])))
        };
        Done {
            cell: Cell {
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
        let html = page(&matrix(), &["flock".into(), "matrix".into()], &all);
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
            "95 % confidence",
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
}
