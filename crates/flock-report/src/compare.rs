//! Runs side by side: a table with ratios to the first run, as text, Markdown or HTML with charts.

use std::fmt::Write as _;

use maud::{Markup, html as markup};

use crate::alike::{differences, unlike};
use crate::chart::{Chart, Line, Unit};
use crate::drawing::{self, COLOURS};
use crate::page::{self as parts, note, table};
use crate::percentile_points;
use flock_measure::figures::{Figures, Verdict, headline, verdicts};
use flock_measure::text::{self, bytes, count, micros, number};
use flock_measure::{Due, HostSample, LatencyKind, Results};

/// A run and what it is called in the comparison.
#[derive(Clone, Debug)]
pub struct Run {
    pub name: String,
    pub results: Results,
}

impl Run {
    /// Named after the broker, and the scenario where they differ; a number keeps equal names
    /// apart.
    pub fn name_all(all: Vec<Results>) -> Vec<Self> {
        let one_scenario = all.windows(2).all(|pair| pair[0].scenario.id == pair[1].scenario.id);
        let mut runs: Vec<Self> = Vec::new();
        for results in all {
            let broker = format!("{} {}", results.broker.name, results.broker.version);
            let mut name = match broker.trim() {
                "" => results.broker.addresses.join(", "),
                broker => broker.to_owned(),
            };
            if !one_scenario {
                let _ = write!(name, ", {}", results.scenario.id);
            }
            let same = runs
                .iter()
                .filter(|run| {
                    run.results.broker == results.broker
                        && run.results.scenario.id == results.scenario.id
                })
                .count();
            if same > 0 {
                let _ = write!(name, " ({})", same + 1);
            }
            runs.push(Self { name, results });
        }
        runs
    }
}

/// One line of the comparison: its name, how to read it out of the figures, how to write it, and
/// whether a ratio to the first run says something.
type Row = (&'static str, fn(&Figures) -> Option<f64>, fn(f64) -> String, bool);

const ROWS: [Row; 10] = [
    ("published per second", |f| f.published_per_sec, number, true),
    ("received per second", |f| f.received_per_sec, number, true),
    ("CPU us per message", |f| f.cpu_us_per_message, number, true),
    ("CPU, cores on average", |f| f.cpu_average_percent.map(|p| p / 100.0), number, true),
    ("memory, at most", |f| f.memory_max_bytes, bytes, true),
    ("memory per connection", |f| f.memory_per_connection_bytes, bytes, true),
    ("connections, at most", |f| Some(f.connections_max as f64), number, false),
    ("lost", |f| Some(f.lost as f64), number, false),
    ("duplicated", |f| Some(f.duplicated as f64), number, false),
    ("out of order", |f| Some(f.reordered as f64), number, false),
];

/// What is told of each kind of latency: a percentile of all that was due, or what only those have
/// that came.
enum OfLatency {
    At(f64),
    Average,
    Maximum,
}

impl OfLatency {
    fn of(&self, due: &Due) -> Option<f64> {
        let summary = || due.histogram.summary();
        let came = !due.histogram.is_empty();
        match self {
            Self::At(percentile) => due.micros_at(*percentile).map(|us| us as f64),
            Self::Average => came.then(|| summary().average_us),
            Self::Maximum => came.then(|| summary().max_us as f64),
        }
    }
}

const LATENCY_ROWS: [(&str, OfLatency); 7] = [
    ("average", OfLatency::Average),
    ("p50", OfLatency::At(50.0)),
    ("p75", OfLatency::At(75.0)),
    ("p90", OfLatency::At(90.0)),
    ("p95", OfLatency::At(95.0)),
    ("p99", OfLatency::At(99.0)),
    ("maximum", OfLatency::Maximum),
];

/// The kinds of latency that stand for one of the runs. A connect is not to be divided by an
/// acknowledgement, so that each has rows of its own.
fn kinds(runs: &[Run]) -> Vec<LatencyKind> {
    let mut kinds = Vec::new();
    for run in runs {
        let kind = headline(&run.results);
        if !kinds.contains(&kind) {
            kinds.push(kind);
        }
    }
    kinds
}

fn latency_title(kind: LatencyKind, kinds: &[LatencyKind]) -> String {
    match kinds.len() {
        1 => "latency".to_owned(),
        _ => format!("latency, {}", kind.title()),
    }
}

/// What was seen of each thing that no report may keep to itself; left out where no run has it.
fn faults_of(results: &Results) -> Vec<(String, u64)> {
    let total = results.integrity.total();
    let unfinished = results.latencies.iter().map(|latency| latency.unfinished).sum();
    let mut all: Vec<(String, u64)> =
        results.integrity.wrongs().map(|(what, count)| (what.to_owned(), count)).to_vec();
    let others = [
        ("not judged", total.unjudged),
        ("due and not sent", results.totals.publishes_skipped),
        ("unfinished latencies (lower bounds)", unfinished),
        ("without latency", Due::of(results, headline(results)).missing),
        ("not acknowledged", results.integrity.unacknowledged),
    ];
    all.extend(others.map(|(what, count)| (what.to_owned(), count)));
    all
}

/// A figure of each run.
pub struct Measure {
    pub name: String,
    pub values: Vec<Option<f64>>,
    pub show: fn(f64) -> String,
    /// Whether a ratio to another run says something.
    pub has_ratio: bool,
}

/// Why single runs, or all of them, have no ratio to the first.
fn obstacles(runs: &[Run]) -> Vec<String> {
    let all: Vec<&Results> = runs.iter().map(|run| &run.results).collect();
    let alike = unlike(&all).into_iter().map(|words| format!("no ratios: {words}"));
    let invalid = runs.iter().filter(|run| !run.results.validity.valid);
    let told = invalid.map(|run| {
        let why = run.results.validity.reasons.first().map_or("", String::as_str);
        format!("no ratio of {}, which is not valid: {why}", run.name)
    });
    alike.chain(told).collect()
}

/// Whether a run is to have ratios to the first.
fn may_be_divided(runs: &[Run]) -> Vec<bool> {
    let all: Vec<&Results> = runs.iter().map(|run| &run.results).collect();
    let is_valid = |results: &Results| results.validity.valid;
    let any = unlike(&all).is_empty() && all.first().is_some_and(|first| is_valid(first));
    all.iter().map(|results| any && is_valid(results)).collect()
}

/// Head and rows; ratios are to the first run.
fn cells(runs: &[Run]) -> (Vec<String>, Vec<Vec<String>>) {
    let divided = may_be_divided(runs);
    let mut head = vec![String::new()];
    head.extend(runs.iter().map(|run| run.name.clone()));
    let mut rows: Vec<Vec<String>> =
        measures(runs).iter().map(|measure| row(measure, &divided)).collect();
    let mut valid = vec!["valid".to_owned()];
    valid.extend(
        runs.iter().map(|run| if run.results.validity.valid { "yes" } else { "NO" }.to_owned()),
    );
    rows.push(valid);
    (head, rows)
}

/// Every figure that some run has.
pub fn measures(runs: &[Run]) -> Vec<Measure> {
    let figures: Vec<Figures> = runs.iter().map(|run| Figures::of(&run.results)).collect();
    let mut all = Vec::new();
    let mut add = |name: &str, values: &[Option<f64>], show: fn(f64) -> String, has_ratio| {
        if values.iter().any(Option::is_some) {
            all.push(Measure { name: name.to_owned(), values: values.to_vec(), show, has_ratio });
        }
    };
    for (n, (name, of, show, has_ratio)) in ROWS.into_iter().enumerate() {
        if n == RATE_ROWS {
            for (name, values, has_ratio) in latency_values(runs) {
                add(&name, &values, micros, has_ratio);
            }
        }
        let values: Vec<Option<f64>> = figures.iter().map(of).collect();
        add(name, &values, show, has_ratio);
    }
    let faults: Vec<Vec<(String, u64)>> = runs.iter().map(|run| faults_of(&run.results)).collect();
    for (n, (what, _)) in faults.first().into_iter().flatten().enumerate() {
        let values: Vec<Option<f64>> =
            faults.iter().map(|of| of.get(n).map(|(_, count)| *count as f64)).collect();
        if values.iter().flatten().any(|count| *count > 0.0) {
            add(what, &values, number, false);
        }
    }
    all
}

/// What is to be said of single runs.
const ANECDOTE: &str = "one run of each: the noise is unknown (use flock run --runs 5)";

/// Rows of [`ROWS`] before those of latency.
const RATE_ROWS: usize = 2;

/// Every row of latency: its name, its values, and whether they have a ratio.
fn latency_values(runs: &[Run]) -> Vec<(String, Vec<Option<f64>>, bool)> {
    let kinds = kinds(runs);
    let mut all = Vec::new();
    for kind in &kinds {
        let due: Vec<Due> = runs.iter().map(|run| Due::of(&run.results, *kind)).collect();
        let is_whole = due.iter().all(|due| due.missing == 0);
        for (what, of) in &LATENCY_ROWS {
            let name = format!("{}, {what}", latency_title(*kind, &kinds));
            let has_ratio = is_whole || matches!(of, OfLatency::At(_));
            all.push((name, due.iter().map(|due| of.of(due)).collect(), has_ratio));
        }
    }
    all
}

fn row(measure: &Measure, divided: &[bool]) -> Vec<String> {
    let Measure { name, values, show, has_ratio } = measure;
    let first = values.first().copied().flatten().filter(|first| *first > 0.0);
    let mut line = vec![name.clone()];
    for (n, value) in values.iter().enumerate() {
        let is_divided = n > 0 && *has_ratio && divided.get(n) == Some(&true);
        line.push(match (value, first) {
            (None, _) => "–".to_owned(),
            (Some(value), Some(first)) if is_divided => {
                format!("{} ({}x)", show(*value), ratio(value / first))
            }
            (Some(value), _) => show(*value),
        });
    }
    line
}

fn ratio(value: f64) -> String {
    if value >= 100.0 { number(value.round()) } else { format!("{value:.2}") }
}

/// An aligned table for the terminal.
pub fn plain(runs: &[Run]) -> String {
    let (head, rows) = cells(runs);
    let mut all = vec![head];
    all.extend(rows);
    let mut out = String::new();
    for line in obstacles(runs) {
        let _ = writeln!(out, "NOT OK  {line}");
    }
    out.push_str(&aligned(&all));
    for line in notes(runs) {
        let _ = writeln!(out, "NOTE  {line}");
    }
    out
}

/// What has to be said with the table.
fn notes(runs: &[Run]) -> Vec<String> {
    let anecdote = (runs.len() > 1).then(|| ANECDOTE.to_owned());
    let all: Vec<&Results> = runs.iter().map(|run| &run.results).collect();
    differences(&all).into_iter().chain(anecdote).collect()
}

/// Columns as wide as they need to be: the first to the left, the others to the right.
pub fn aligned(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        rows.iter()
            .filter_map(|row| row.get(column))
            .map(|cell| cell.chars().count())
            .max()
            .unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut out = String::new();
    for row in rows {
        let mut line = String::new();
        for (column, cell) in row.iter().enumerate() {
            // Writing to a String cannot fail.
            let _ = match column {
                0 => {
                    write!(line, "{cell}{:1$}", "", widths[0].saturating_sub(cell.chars().count()))
                }
                _ => write!(
                    line,
                    "  {:1$}{cell}",
                    "",
                    widths[column].saturating_sub(cell.chars().count())
                ),
            };
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}

pub fn markdown(runs: &[Run]) -> String {
    let (head, rows) = cells(runs);
    markdown_table(&obstacles(runs), &head, &rows, &notes(runs))
}

/// A table, and what has to be said before it and with it.
pub fn markdown_table(
    obstacles: &[String],
    head: &[String],
    rows: &[Vec<String>],
    notes: &[String],
) -> String {
    let mut out = String::new();
    for words in obstacles {
        let _ = writeln!(out, "- **NOT OK:** {}", text::markdown(words));
    }
    let between = if obstacles.is_empty() { "" } else { "\n" };
    let line = "---|".repeat(head.len());
    let _ = writeln!(out, "{between}| {} |\n|{line}", head.join(" | "));
    for row in rows {
        let row: Vec<String> = row.iter().map(|cell| text::markdown(cell)).collect();
        let _ = writeln!(out, "| {} |", row.join(" | "));
    }
    for note in notes {
        let _ = writeln!(out, "\n{}", text::markdown(note));
    }
    out
}

pub fn html(runs: &[Run]) -> String {
    let ids: Vec<&str> = runs.iter().map(|run| run.results.scenario.id.as_str()).collect();
    let one = ids.windows(2).all(|pair| pair[0] == pair[1]);
    let title = match runs.first() {
        Some(first) if one => {
            format!("{}: {}", first.results.scenario.id, first.results.scenario.title)
        }
        _ => format!("{} runs", runs.len()),
    };
    let names = runs.iter().map(|run| run.name.as_str()).collect::<Vec<_>>().join(" · ");
    let (head, rows) = cells(runs);
    let head: Vec<&str> = head.iter().map(String::as_str).collect();
    let obstacles: Vec<_> =
        obstacles(runs).into_iter().map(|words| (Verdict::Bad, words)).collect();
    let body = markup! {
        (parts::header("flock · comparison", &title, &names))
        (parts::verdict_list(&obstacles))
        h2 { "Figures" }
        (table(&head, &rows))
        @if may_be_divided(runs).iter().filter(|divided| **divided).count() > 1 {
            (note("In brackets: the ratio to the first run."))
        }
        // Bars beside each other are a ratio, too.
        @if obstacles.is_empty() { (parts::charts(bars(runs))) }
        h2 { "Over time" }
        (parts::charts(charts(runs).iter().map(Chart::figure)))
        h2 { "Verdicts" }
        @for run in runs {
            h3 { (run.name) }
            (parts::verdict_list(&verdicts(&run.results)))
        }
        @for line in notes(runs) { (note(&line)) }
    };
    parts::page(&title, &body)
}

/// Bars for the figures in which brokers differ most.
fn bars(runs: &[Run]) -> Vec<Markup> {
    let is_drawn = |measure: &Measure| {
        measure.name.ends_with(", p99")
            || ["received per second", "CPU us per message", "memory, at most"]
                .contains(&measure.name.as_str())
    };
    let mut all: Vec<Measure> = measures(runs).into_iter().filter(is_drawn).collect();
    // Latencies first.
    all.sort_by_key(|measure| !measure.name.ends_with(", p99"));
    all.iter().map(|measure| bar_figure(runs, measure)).collect()
}

fn bar_figure(runs: &[Run], measure: &Measure) -> Markup {
    let most = measure.values.iter().flatten().copied().fold(0.0, f64::max);
    let drawing = markup! {
        div.bar {
            @for (n, (run, value)) in runs.iter().zip(&measure.values).enumerate() {
                @let width = value.unwrap_or(0.0) / most * 100.0;
                span { (run.name) }
                div.track {
                    div class={ "fill k" (n % COLOURS) } style={ "width:" (drawing::px(width)) "%" } {}
                }
                b { (value.map_or("–".to_owned(), measure.show)) }
            }
        }
    };
    markup! {
        @if most > 0.0 { (drawing::figure("bars", &measure.name, &[], &drawing, "")) }
    }
}

fn charts(runs: &[Run]) -> Vec<Chart> {
    let lines = |points: &dyn Fn(&Results) -> Vec<(f64, f64)>| -> Vec<Line> {
        let line = |run: &Run| Line::new(&run.name, points(&run.results));
        runs.iter().map(line).filter(|line| !line.points.is_empty()).collect()
    };
    let received = lines(&|results| {
        results.series.iter().map(|s| (f64::from(s.at_secs), s.per_sec(s.received))).collect()
    });
    let p99 = lines(&|results| {
        let seconds = results.series.iter().filter(|s| s.end_to_end.count > 0);
        seconds.map(|s| (f64::from(s.at_secs), s.end_to_end.p99_us as f64)).collect()
    });
    let load = |of: fn(&HostSample) -> Option<f64>| {
        lines(&move |results: &Results| {
            let samples = results.broker_load.iter().flat_map(|load| &load.samples);
            samples.filter_map(|sample| Some((sample.at_secs, of(sample)?))).collect()
        })
    };
    let p99 = Chart::over_time("End-to-end latency, p99", Unit::Micros, p99);
    let mut all = vec![
        Chart::over_time("Received per second", Unit::PerSecond, received),
        Chart { log: true, ..p99 },
    ];
    let kinds = kinds(runs);
    for kind in &kinds {
        let title = match kinds.len() {
            1 => "Latency by percentile".to_owned(),
            _ => format!("Latency by percentile, {}", kind.title()),
        };
        let points = |results: &Results| percentile_points(&Due::of(results, *kind));
        all.push(Chart::by_percentile(title, lines(&points), ""));
    }
    let memory = load(|s| s.memory_bytes.map(|bytes| bytes as f64));
    all.extend([
        Chart::over_time("Broker CPU (100 % is one core)", Unit::Percent, load(|s| s.cpu_percent)),
        Chart::over_time("Broker memory", Unit::Bytes, memory),
    ]);
    all
}

/// How many connections and messages a set of runs saw; for a last line.
pub fn total(runs: &[Run]) -> String {
    let received: u64 = runs.iter().map(|run| run.results.totals.received_all()).sum();
    format!("{} runs, {} messages received", runs.len(), count(received))
}

#[cfg(test)]
mod tests {
    use super::*;
    use flock_measure::AgentInfo;
    use flock_measure::sample;

    fn runs() -> Vec<Run> {
        let mut second = sample::results(2.0);
        second.broker.name = "slow".into();
        Run::name_all(vec![sample::results(1.0), second])
    }

    #[test]
    fn ratios_are_to_the_first_run() {
        let text = plain(&runs());
        let line = text.lines().find(|line| line.starts_with("CPU us per message")).unwrap();
        assert!(line.contains("36.2") && line.contains("(2.00x)"), "{line}");
        let lost = text.lines().find(|line| line.starts_with("lost")).unwrap();
        assert!(!lost.contains('x'), "a ratio of losses says nothing: {lost}");
    }

    #[test]
    fn runs_that_are_not_valid_or_not_alike_have_no_ratio_and_it_is_said_first() {
        type Change = fn(&mut [Run]);
        let changes: [(&str, Change); 4] = [
            ("no ratio of slow 1.0, which is not valid: 7 lost", |runs| {
                runs[1].results.validity.valid = false;
                runs[1].results.validity.reasons = vec!["7 lost".into()];
            }),
            ("no ratio of sample 1.0, which is not valid", |runs| {
                runs[0].results.validity.valid = false;
            }),
            ("no ratios: the runs differ in scales", |runs| runs[1].results.scenario.scale = 0.5),
            ("no ratios: the runs differ in machines", |runs| {
                runs[1].results.machine.cpu = "another".into();
            }),
        ];
        for (what, change) in changes {
            let mut runs = runs();
            change(&mut runs);
            for text in [plain(&runs), markdown(&runs), html(&runs)] {
                let (said, table) = (text.find(what), text.find("CPU us per message"));
                assert!(said.is_some() && said < table, "{what}: {text}");
                assert!(!text.contains("0x)") && !text.contains("the ratio to"), "{text}");
            }
            assert!(!html(&runs).contains("div.bar") && !html(&runs).contains("class=\"fill"));
        }
        // A third run that is not valid takes nothing from the others.
        let mut runs = runs();
        runs.push(Run { name: "third".into(), ..runs[1].clone() });
        runs[2].results.validity.valid = false;
        assert_eq!(may_be_divided(&runs), [true, true, false]);
        assert!(plain(&runs).contains("(2.00x)"));
    }

    #[test]
    fn unlike_latencies_are_not_divided() {
        let mut runs = runs();
        for latency in &mut runs[1].results.latencies {
            if latency.kind == LatencyKind::EndToEnd {
                latency.kind = LatencyKind::PublishAck;
            }
        }
        let text = plain(&runs);
        let line = |name: &str| text.lines().find(|line| line.starts_with(name)).unwrap();
        assert!(line("latency, end to end, p99").ends_with('–'), "{text}");
        assert!(!line("latency, publish acknowledged, p99").contains('x'), "{text}");
        assert!(text.contains("differ in kinds of latency"), "{text}");
        assert!(html(&runs).contains("Latency by percentile, end to end"));
    }

    #[test]
    fn what_speaks_against_a_run_stands_in_it() {
        let mut runs = runs();
        assert!(!plain(&runs).contains("damaged") && !plain(&runs).contains("differ in"));
        runs[1].results.integrity.damaged = 3;
        runs[1].results.integrity.by_qos[0].unjudged = 5;
        runs[0].results.latencies[1].unfinished = 7;
        runs[1].results.scenario.scale = 0.5;
        let text = plain(&runs);
        for (name, end) in [("damaged", "3"), ("not judged", "5"), ("unfinished latencies", "0")] {
            let line = text.lines().find(|line| line.starts_with(name)).unwrap();
            assert!(line.ends_with(end), "{line}");
        }
        assert!(text.contains("out of order") && text.contains("differ in scales"), "{text}");
    }

    #[test]
    fn columns_are_aligned() {
        let text =
            aligned(&[vec!["a".into(), "long head".into()], vec!["name".into(), "1".into()]]);
        assert_eq!(text, "a     long head\nname          1\n");
    }

    #[test]
    fn equal_names_are_kept_apart() {
        let runs = Run::name_all(vec![sample::results(1.0), sample::results(1.0)]);
        assert_eq!(runs[1].name, "sample 1.0 (2)");
    }

    #[test]
    fn the_page_draws_every_run() {
        let page = html(&runs());
        assert!(page.contains("slow 1.0") && page.contains("sample 1.0"));
        assert!(page.contains("Latency by percentile") && !page.contains("NaN"));
        for text in [page, markdown(&runs()), plain(&runs())] {
            assert!(text.contains("one run of each"), "{text}");
        }
    }

    #[test]
    fn every_form_says_in_what_the_runs_differ() {
        type Change = fn(&mut Results);
        let changes: [(&str, Change); 13] = [
            ("scenarios", |r| r.scenario.id = "X".into()),
            ("scales", |r| r.scenario.scale = 0.5),
            ("parameters", |r| {
                r.scenario.parameters.insert("publish rate".into(), "1/s".into());
            }),
            ("closed and open", |r| r.scenario.closed_loop = true),
            ("machines", |r| r.machine.cpu = "another".into()),
            ("cores for the broker", |r| r.broker.cpus = Some("3".into())),
            ("lengths of the measurement", |r| r.phases[1].to_secs = 20.0),
            ("numbers of clients", |r| r.scenario.clients = 7),
            ("builds of flock", |r| r.tool.profile = "dev".into()),
            ("agents", |r| r.run.agents.push(AgentInfo::default())),
            ("governors", |r| r.machine.surroundings.governor = Some("powersave".into())),
            ("kernels", |r| r.machine.kernel = "6.2".into()),
            ("kinds of latency", |r| r.latencies.truncate(1)),
        ];
        for (what, change) in changes {
            let mut runs = runs();
            assert!(!plain(&runs).contains(what), "{what}");
            change(&mut runs[1].results);
            for text in [html(&runs), markdown(&runs), plain(&runs)] {
                let told = text.split("the runs differ in ").skip(1);
                assert!(told.into_iter().any(|words| words.contains(what)), "{what}: {text}");
            }
        }
    }
}
