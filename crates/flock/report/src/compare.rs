//! Runs, or sets of repeated runs, side by side: a table with ratios to the first, as text,
//! Markdown or HTML with charts.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::{SystemTime, UNIX_EPOCH};

use maud::html as markup;

use crate::alike::differences;
use crate::chart::{Chart, Line, Unit};
use crate::columns::{
    AVERAGE, CONNECTED, CPU_AVG, CPU_COST, Column, MAX, MEMORY_MAX, MEMORY_ONE, P50, P75, P90, P95,
    P99, PUBLISHED, RECEIVED,
};
use crate::page::{self as parts, note};
use crate::sides::{self, RATIOS_NOTE, Side, obstacles};
use crate::table::{Cell, Table};
use flock_measure::figures::{Verdict, headline, verdicts};
use flock_measure::stats::Spread;
use flock_measure::text::{self, number};
use flock_measure::{Due, HostSample, Results};

impl<'a> Side<'a> {
    /// One for each set, named after the broker, and the scenario where they differ; a number keeps
    /// equal names apart.
    pub fn each(sets: &'a [Vec<Results>]) -> Vec<Self> {
        let firsts = || sets.iter().filter_map(|set| set.first());
        let one_scenario =
            firsts().zip(firsts().skip(1)).all(|(a, b)| a.scenario.id == b.scenario.id);
        let mut seen: BTreeMap<String, usize> = BTreeMap::new();
        let side = |set: &'a Vec<Results>| {
            let first = set.first()?;
            let broker = format!("{} {}", first.broker.name, first.broker.version);
            let mut name = match broker.trim() {
                "" => first.broker.addresses.join(", "),
                broker => broker.to_owned(),
            };
            if !one_scenario {
                name += &format!(", {}", first.scenario.id);
            }
            let same = seen.entry(name.clone()).or_default();
            *same += 1;
            if *same > 1 {
                name += &format!(" ({same})");
            }
            Some(Self { name, runs: set.iter().collect(), begun: set.len() })
        };
        sets.iter().filter_map(side).collect()
    }
}

/// Results in the sets that they say they belong to, others each alone; in the order in which they
/// first appear.
pub fn in_sets(all: Vec<Results>) -> Vec<Vec<Results>> {
    let mut sets: Vec<Vec<Results>> = Vec::new();
    for results in all {
        let of = |results: &Results| results.run.set.as_ref().map(|set| set.id.clone());
        let id = of(&results);
        match sets.iter_mut().find(|set| id.is_some() && of(&set[0]) == id) {
            Some(set) => set.push(results),
            None => sets.push(vec![results]),
        }
    }
    sets
}

/// A name for a set that begins now, unlike that of any other.
pub fn set_id(scenario: &str, broker: &str) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    format!("{scenario} {broker} {:x}-{:x}", now.as_nanos(), std::process::id())
}

/// What was seen of each thing that no report may keep to itself.
fn wrongs_of(results: &Results) -> Vec<(&'static str, u64)> {
    let total = results.integrity.total();
    let unfinished = results.latencies.iter().map(|latency| latency.unfinished).sum();
    let mut all = vec![
        ("lost", total.lost),
        ("duplicated", total.duplicated),
        ("out of order", total.reordered),
    ];
    all.extend(results.integrity.wrongs());
    all.extend([
        ("not judged", total.unjudged),
        ("due and not sent", results.totals.publishes_skipped),
        ("unfinished latencies (lower bounds)", unfinished),
        ("without latency", Due::of(results, headline(results)).missing),
        ("not acknowledged", results.integrity.unacknowledged),
    ]);
    all
}

/// What is measured of the runs that count, and what went wrong of all.
fn table(sides: &[Side<'_>]) -> Table {
    let mut table = sides::figures(sides, &COLUMNS, Side::shown);
    let of_side = |side: &Side<'_>| side.runs.iter().map(|run| wrongs_of(run)).collect();
    let all: Vec<Vec<Vec<(&str, u64)>>> = sides.iter().map(of_side).collect();
    let names = all.iter().flatten().next().into_iter().flatten().map(|(name, _)| *name);
    for (n, name) in names.enumerate() {
        let of_side = |runs: &Vec<Vec<(&str, u64)>>| {
            runs.iter().map(|wrongs| wrongs[n].1 as f64).collect::<Vec<f64>>()
        };
        let counts: Vec<Vec<f64>> = all.iter().map(of_side).collect();
        if n < ALWAYS || counts.iter().flatten().any(|count| *count > 0.0) {
            let cells = counts.iter().map(|counts| count_cell(counts));
            table.add(sides::filled(name.into(), cells, table.head.len()));
        }
    }
    table
}

fn count_cell(counts: &[f64]) -> Cell {
    let Some(Spread { median, least, most, .. }) = Spread::of(counts) else { return Cell::none() };
    let range = (least < most).then(|| format!("{} to {}", number(least), number(most)));
    Cell::with(number(median), range.unwrap_or_default())
}

/// What has to be said with the table, and is not said above it.
fn notes(sides: &[Side<'_>]) -> Vec<String> {
    let runs: Vec<&Results> = sides.iter().flat_map(|side| side.runs.clone()).collect();
    let with_ratios = match sides.len() {
        0 | 1 => None,
        of if runs.len() == of => Some(ANECDOTE),
        _ => Some(RATIOS_NOTE),
    };
    let above = obstacles(sides);
    let is_above = |words: &String| above.iter().any(|line| line.ends_with(words));
    let below = differences(&runs).into_iter().filter(|words| !is_above(words));
    below.chain(with_ratios.map(str::to_owned)).collect()
}

/// An aligned table for the terminal.
pub fn plain(sides: &[Side<'_>]) -> String {
    let mut out = String::new();
    for words in obstacles(sides) {
        // Writing to a String cannot fail.
        let _ = writeln!(out, "NOT OK  {words}");
    }
    out += &table(sides).plain();
    for words in notes(sides) {
        let _ = writeln!(out, "NOTE  {words}");
    }
    out
}

pub fn markdown(sides: &[Side<'_>]) -> String {
    let mut out = String::new();
    for words in obstacles(sides) {
        let _ = writeln!(out, "- **NOT OK:** {}\n", text::markdown(&words));
    }
    out += &table(sides).markdown();
    for words in notes(sides) {
        let _ = writeln!(out, "\n{}", text::markdown(&words));
    }
    out
}

pub fn html(sides: &[Side<'_>]) -> String {
    let runs = named_runs(sides);
    let one = runs.windows(2).all(|pair| pair[0].1.scenario.id == pair[1].1.scenario.id);
    let title = match runs.first() {
        Some((_, first)) if one => format!("{}: {}", first.scenario.id, first.scenario.title),
        _ => format!("{} runs", runs.len()),
    };
    let names: Vec<&str> = sides.iter().map(|side| side.name.as_str()).collect();
    let obstacles: Vec<_> =
        obstacles(sides).into_iter().map(|words| (Verdict::Bad, words)).collect();
    let body = markup! {
        (parts::header("flock · comparison", &title, &names.join(" · ")))
        (parts::verdict_list(&obstacles))
        h2 { "Figures" }
        (table(sides).html())
        // Bars beside each other are a ratio, too.
        @if obstacles.is_empty() { (parts::charts(sides::bar_charts(sides))) }
        h2 { "Over time" }
        (parts::charts(charts(&runs).iter().map(Chart::figure)))
        (parts::charts(sides::percentile_charts(sides, Side::shown)))
        h2 { "Verdicts" }
        @for (name, results) in &runs {
            h3 { (name) }
            (parts::verdict_list(&verdicts(results)))
        }
        @for line in notes(sides) { (note(&line)) }
    };
    parts::page(&title, &body)
}

/// Those of a set by number.
fn named_runs<'a>(sides: &[Side<'a>]) -> Vec<(String, &'a Results)> {
    let of_side = |side: &Side<'a>| -> Vec<(String, &'a Results)> {
        let name = |n: usize| match side.runs.len() {
            1 => side.name.clone(),
            _ => format!("{}, run {}", side.name, n + 1),
        };
        side.runs.iter().enumerate().map(|(n, results)| (name(n), *results)).collect()
    };
    sides.iter().flat_map(of_side).collect()
}

fn charts(runs: &[(String, &Results)]) -> Vec<Chart> {
    let lines = |points: &dyn Fn(&Results) -> Vec<(f64, f64)>| -> Vec<Line> {
        let line = |(name, results): &(String, &Results)| Line::new(name, points(results));
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
    let memory = load(|s| s.memory_bytes.map(|bytes| bytes as f64));
    vec![
        Chart::over_time("Received per second", Unit::PerSecond, received),
        Chart { log: true, ..p99 },
        Chart::over_time("Broker CPU (100 % is one core)", Unit::Percent, load(|s| s.cpu_percent)),
        Chart::over_time("Broker memory", Unit::Bytes, memory),
    ]
}

const COLUMNS: [&Column; 14] = [
    PUBLISHED, RECEIVED, AVERAGE, P50, P75, P90, P95, P99, MAX, CPU_COST, CPU_AVG, MEMORY_MAX,
    MEMORY_ONE, CONNECTED,
];
/// So many of the wrongs are shown also where nothing went wrong.
const ALWAYS: usize = 3;
/// What is to be said of single runs.
const ANECDOTE: &str = "one run of each: the noise is unknown (use flock run --runs 5)";

#[cfg(test)]
mod tests {
    use super::*;
    use flock_measure::{AgentInfo, LatencyKind, RunSet, sample};

    /// Runs of a set with these costs per message.
    fn set(broker: &str, costs: &[f64]) -> Vec<Results> {
        let run = |(n, cost): (usize, &f64)| {
            let mut results = sample::results(1.0);
            results.broker.name = broker.to_owned();
            if let Some(load) = &mut results.broker_load {
                load.cpu_us_per_message = Some(*cost);
            }
            let of = costs.len() as u32;
            results.run.set = Some(RunSet { id: broker.to_owned(), number: n as u32 + 1, of });
            results
        };
        costs.iter().enumerate().map(run).collect()
    }

    fn two() -> Vec<Vec<Results>> {
        vec![set("sample", &[36.2]), set("slow", &[72.4])]
    }

    fn told(sets: &[Vec<Results>]) -> String {
        plain(&Side::each(sets))
    }

    fn every_form(sets: &[Vec<Results>]) -> [String; 3] {
        let sides = Side::each(sets);
        [plain(&sides), markdown(&sides), html(&sides)]
    }

    fn line<'a>(text: &'a str, name: &str) -> &'a str {
        text.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{text}"))
    }

    const COST: &str = "Broker CPU per message";

    #[test]
    fn ratios_are_to_the_first_run_and_of_single_runs_the_noise_is_unknown() {
        let text = told(&two());
        let cost = line(&text, COST);
        assert!(cost.contains("36.2 us") && cost.contains("2.00x (noise unknown)"), "{cost}");
        assert!(!line(&text, "lost").contains('x'), "a ratio of losses says nothing: {text}");
        assert!(!text.contains("damaged") && !text.contains("differ in"), "{text}");
        for text in every_form(&two()) {
            assert!(text.contains("one run of each") && !text.contains("NaN"), "{text}");
        }
        let page = html(&Side::each(&two()));
        assert!(page.contains("slow 1.0") && page.contains("Latency by percentile"));
        assert_eq!(Side::each(&[set("a", &[1.0]), set("a", &[1.0])])[1].name, "a 1.0 (2)");
    }

    #[test]
    fn runs_of_a_set_stand_together_and_what_is_noise_is_called_so() {
        let mut all = set("one", &[10.0, 11.0, 9.5, 9.9, 10.2]);
        all.extend(set("dear", &[30.0, 33.0, 31.0, 30.5, 31.5]));
        all.extend(set("like", &[10.5, 9.0, 11.5, 9.6, 10.4]));
        all.swap(1, 5);
        let sets = in_sets(all);
        assert_eq!(sets.iter().map(Vec::len).collect::<Vec<_>>(), [5, 5, 5]);
        let text = told(&sets);
        let cost = line(&text, COST);
        for part in ["10 us (9.50 us to 11 us)", "31 us (30 us to 33 us)", "3.10x (2.", "1.04x (0."]
        {
            assert!(cost.contains(part), "{part}: {text}");
        }
        assert!(cost.contains("larger than the noise") && cost.contains("within the noise"));
        assert!(!line(&text, "out of order").contains('x'), "{text}");
        assert_eq!(line(&text, "Valid runs").matches("5 of 5").count(), 3);
        let sides = Side::each(&sets);
        assert!(markdown(&sides).contains("**3.10x (2.") && html(&sides).contains("<b>3.10x</b>"));
    }

    #[test]
    fn runs_that_are_not_valid_stand_in_no_median_and_what_they_lost_is_shown() {
        let mut sets = vec![set("one", &[10.0, 99.0, 9.0, 11.0])];
        sets[0][1].validity.valid = false;
        sets[0][1].integrity.damaged = 7;
        let text = told(&sets);
        assert!(line(&text, COST).contains("10 us (9 us to 11 us)"), "{text}");
        assert!(line(&text, "damaged").contains("0 to 7"), "{text}");
        assert!(line(&text, "Valid runs").contains("3 of 4"), "{text}");
        assert!(!text.contains("NOT OK"), "{text}");
        sets[0].iter_mut().for_each(|results| results.validity.valid = false);
        let text = told(&sets);
        assert!(text.contains("NOT OK  no run of one"), "{text}");
        assert!(line(&text, COST).ends_with('–'), "{text}");
    }

    #[test]
    fn runs_that_are_not_valid_or_not_alike_have_no_ratio_and_it_is_said_first() {
        type Change = fn(&mut [Vec<Results>]);
        let changes: [(&str, Change); 4] = [
            ("no run of slow 1.0 is valid, so it has no ratio: 7 lost", |sets| {
                sets[1][0].validity.valid = false;
                sets[1][0].validity.reasons = vec!["7 lost".into()];
            }),
            ("no run of sample 1.0 is valid", |sets| sets[0][0].validity.valid = false),
            ("no ratios: the runs differ in scales", |sets| sets[1][0].scenario.scale = 0.5),
            ("no ratios: the runs differ in machines", |sets| {
                sets[1][0].machine.cpu = "another".into();
            }),
        ];
        for (what, change) in changes {
            let mut sets = two();
            change(&mut sets);
            for text in every_form(&sets) {
                let (said, table) = (text.find(what), text.find(COST));
                assert!(said.is_some() && said < table, "{what}: {text}");
                assert!(!text.contains("2.00x") && !text.contains("<rect class=\"k1"), "{text}");
            }
        }
        // A run that is not valid takes nothing from the others.
        let mut sets = vec![set("one", &[10.0; 5]), set("other", &[30.0; 6])];
        sets[1][2].scenario.scale = 0.5;
        assert!(!told(&sets).contains("x ("));
        sets[1][2].validity.valid = false;
        assert!(told(&sets).contains("3.00x ("));
        sets.push(vec![sets[1][2].clone()]);
        assert!(told(&sets).contains("3.00x ("));
    }

    #[test]
    fn unlike_latencies_are_not_divided() {
        let mut sets = two();
        for latency in &mut sets[1][0].latencies {
            if latency.kind == LatencyKind::EndToEnd {
                latency.kind = LatencyKind::PublishAck;
            }
        }
        let text = told(&sets);
        let p99 = line(&text, "Latency, p99");
        assert!(p99.contains("end to end") && p99.contains("publish acknowledged"), "{text}");
        assert!(p99.ends_with('–') && text.contains("differ in kinds of latency"), "{text}");
        assert!(html(&Side::each(&sets)).contains("Latency by percentile, end to end"));
        // Nor are averages of what came, where something did not.
        let mut sets = two();
        sets[1][0].latencies[1].missing = 3;
        let text = told(&sets);
        assert!(line(&text, "Latency, average").ends_with('–'), "{text}");
        assert!(line(&text, "Latency, p50").contains("x ("), "{text}");
    }

    #[test]
    fn what_speaks_against_a_run_stands_in_it() {
        let mut sets = two();
        sets[1][0].integrity.damaged = 3;
        sets[1][0].integrity.by_qos[0].unjudged = 5;
        sets[0][0].latencies[1].unfinished = 7;
        let text = told(&sets);
        for (name, value) in [("damaged", "3"), ("not judged", "5"), ("unfinished", "7")] {
            assert!(line(&text, name).contains(value), "{text}");
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
            let mut sets = two();
            assert!(!told(&sets).contains(what), "{what}");
            change(&mut sets[1][0]);
            for text in every_form(&sets) {
                let told = text.split("the runs differ in ").skip(1);
                let told = told.filter(|words| words.contains(what)).count();
                assert_eq!(told, 1, "{what}: {text}");
            }
        }
    }
}
