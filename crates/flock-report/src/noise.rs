//! Repeated runs beside each other: medians, how far runs lie apart, and which differences are
//! larger than that.

use std::fmt::Write as _;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::alike::{differences, unlike};
use crate::compare::{Measure, Run, aligned, markdown_table, measures};
use flock_measure::Results;
use flock_measure::stats::{Noise, Ratio, Spread};

/// Runs of one thing.
#[derive(Clone, Debug)]
pub struct Side {
    pub name: String,
    pub runs: Vec<Run>,
}

impl Side {
    /// One for each set of results.
    pub fn each(sets: Vec<Vec<Results>>) -> Vec<Self> {
        let sets: Vec<Vec<Results>> = sets.into_iter().filter(|set| !set.is_empty()).collect();
        let firsts = Run::name_all(sets.iter().map(|set| set[0].clone()).collect());
        let sides = firsts.into_iter().zip(sets).map(|(Run { name, .. }, set)| {
            let named = |results| Run { name: name.clone(), results };
            Self { runs: set.into_iter().map(named).collect(), name: name.clone() }
        });
        sides.collect()
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

/// Head and rows. Figures are of the valid runs; ratios are to the first side.
fn cells(sides: &[Side]) -> (Vec<String>, Vec<Vec<String>>) {
    let mut head = vec![String::new()];
    head.extend(sides.iter().map(|side| format!("{}, {}", side.name, runs_words(side.runs.len()))));
    let runs: Vec<Run> = sides.iter().flat_map(|side| side.runs.clone()).collect();
    let is_alike = unlike(&valid(sides)).is_empty();
    let mut rows: Vec<Vec<String>> =
        measures(&runs).iter().filter_map(|measure| row(sides, measure, is_alike)).collect();
    let mut valid = vec!["valid".to_owned()];
    valid.extend(sides.iter().map(|side| {
        let valid = side.runs.iter().filter(|run| is_valid(run)).count();
        format!("{valid} of {}", side.runs.len())
    }));
    rows.push(valid);
    (head, rows)
}

fn runs_words(runs: usize) -> String {
    if runs == 1 { "one run".to_owned() } else { format!("{runs} runs") }
}

fn is_valid(run: &Run) -> bool {
    run.results.validity.valid
}

/// Of which there are figures.
fn valid(sides: &[Side]) -> Vec<&Results> {
    let all = sides.iter().flat_map(|side| &side.runs).filter(|run| is_valid(run));
    all.map(|run| &run.results).collect()
}

/// Why sides have no figures or no ratios.
fn obstacles(sides: &[Side]) -> Vec<String> {
    let unlike = unlike(&valid(sides)).into_iter().map(|words| match sides.len() {
        1 => words,
        _ => format!("no ratios: {words}"),
    });
    let none_valid = sides.iter().filter(|side| !side.runs.iter().any(is_valid));
    let without = none_valid.map(|side| {
        let reasons = side.runs.iter().find_map(|run| run.results.validity.reasons.first());
        let why = reasons.map_or(String::new(), |why| format!(": {why}"));
        format!("no run of {} was valid, so it has no figures{why}", side.name)
    });
    unlike.chain(without).collect()
}

/// What goes wrong is shown of every run, valid or not; of what is measured, the valid ones.
fn row(sides: &[Side], measure: &Measure, is_alike: bool) -> Option<Vec<String>> {
    let mut from = 0;
    let values = sides.iter().map(|side| {
        let of_side = &measure.values[from..from + side.runs.len()];
        from += side.runs.len();
        let counts = |run: &Run| !measure.has_ratio || is_valid(run);
        let valid = side.runs.iter().zip(of_side).filter(|(run, _)| counts(run));
        valid.filter_map(|(_, value)| *value).collect::<Vec<f64>>()
    });
    let values: Vec<Vec<f64>> = values.collect();
    if values.iter().all(Vec::is_empty) {
        return None;
    }
    let mut line = vec![measure.name.clone()];
    for (n, own) in values.iter().enumerate() {
        let Some(spread) = Spread::of(own) else {
            line.push("–".to_owned());
            continue;
        };
        let mut words = spread_words(&spread, measure.show);
        if n > 0
            && (measure.has_ratio && is_alike)
            && let Some(ratio) = Ratio::of(&values[0], own)
        {
            let _ = write!(words, "; {}", ratio_words(&ratio));
        }
        line.push(words);
    }
    Some(line)
}

fn spread_words(spread: &Spread, show: fn(f64) -> String) -> String {
    let [median, least, most] = [spread.median, spread.least, spread.most].map(show);
    match least == most {
        true => median,
        false => format!("{median} ({least} to {most})"),
    }
}

/// `1.20x (1.10 to 1.31), larger than the noise`.
pub fn ratio_words(ratio: &Ratio) -> String {
    let interval =
        ratio.interval.map_or(String::new(), |(low, high)| format!(" ({low:.2} to {high:.2})"));
    let noise = match ratio.noise() {
        Noise::Beyond => "larger than the noise",
        Noise::Within => "within the noise",
        Noise::Unknown => "noise unknown: fewer than five valid runs",
    };
    format!("{:.2}x{interval}, {noise}", ratio.ratio)
}

/// What has to be said with the table.
fn notes(sides: &[Side]) -> Vec<String> {
    let runs: Vec<&Results> =
        sides.iter().flat_map(|side| &side.runs).map(|run| &run.results).collect();
    let mut notes = differences(&runs);
    if sides.len() > 1 {
        notes.push(
            "medians of the valid runs (minimum to maximum); ratios with their 95 % confidence \
                 interval (rank test, five or more valid runs each). Of 20 ratios of equal \
                 brokers, at most one on average is called larger than the noise"
                .to_owned(),
        );
    }
    notes
}

/// An aligned table for the terminal.
pub fn plain(sides: &[Side]) -> String {
    let (head, rows) = cells(sides);
    let mut all = vec![head];
    all.extend(rows);
    let mut out = String::new();
    for words in obstacles(sides) {
        let _ = writeln!(out, "NOT OK  {words}");
    }
    out.push_str(&aligned(&all));
    for note in notes(sides) {
        let _ = writeln!(out, "NOTE  {note}");
    }
    out
}

pub fn markdown(sides: &[Side]) -> String {
    let (head, rows) = cells(sides);
    markdown_table(&obstacles(sides), &head, &rows, &notes(sides))
}

#[cfg(test)]
mod tests {
    use super::*;
    use flock_measure::RunSet;
    use flock_measure::sample;

    fn runs(set: &str, costs: &[f64]) -> Vec<Results> {
        let run = |(n, cost): (usize, &f64)| {
            let mut results = sample::results(1.0);
            results.broker.name = set.to_owned();
            if let Some(load) = &mut results.broker_load {
                load.cpu_us_per_message = Some(*cost);
            }
            let of = costs.len() as u32;
            results.run.set = Some(RunSet { id: set.to_owned(), number: n as u32 + 1, of });
            results
        };
        costs.iter().enumerate().map(run).collect()
    }

    fn line<'a>(text: &'a str, name: &str) -> &'a str {
        text.lines().find(|line| line.starts_with(name)).unwrap()
    }

    #[test]
    fn runs_of_a_set_stand_together_and_what_is_noise_is_called_so() {
        let mut all = runs("one", &[10.0, 11.0, 9.5, 9.9, 10.2]);
        all.extend(runs("dear", &[30.0, 33.0, 31.0, 30.5, 31.5]));
        all.extend(runs("like", &[10.5, 9.0, 11.5, 9.6, 10.4]));
        all.swap(1, 5);
        let sides = Side::each(in_sets(all));
        assert_eq!(sides.iter().map(|side| side.runs.len()).collect::<Vec<_>>(), [5, 5, 5]);
        let text = plain(&sides);
        let cost = line(&text, "CPU us per message");
        assert!(cost.contains("10 (9.50 to 11)"), "{text}");
        assert!(
            cost.contains("31 (30 to 33); 3.10x (2.") && cost.contains("larger than"),
            "{text}"
        );
        assert!(cost.contains("1.04x (0.") && cost.contains("within the noise"), "{text}");
        assert!(line(&text, "out of order").matches('x').count() == 0, "{text}");
        assert_eq!(line(&text, "valid").matches("5 of 5").count(), 3);
        assert!(markdown(&sides).contains("larger than the noise"));
    }

    #[test]
    fn runs_that_are_not_valid_stand_in_no_median_and_what_they_lost_is_shown() {
        let mut all = runs("one", &[10.0, 99.0, 9.0, 11.0]);
        all[1].validity.valid = false;
        all[1].integrity.damaged = 7;
        let text = plain(&Side::each(in_sets(all)));
        assert!(line(&text, "CPU us per message").contains("10 (9 to 11)"), "{text}");
        assert!(line(&text, "damaged").contains("0 to 7"), "{text}");
        assert!(line(&text, "valid").contains("3 of 4"), "{text}");
        assert!(!text.contains("no figures"), "{text}");
        let mut none = runs("one", &[10.0, 9.0]);
        none.iter_mut().for_each(|results| results.validity.valid = false);
        let text = plain(&Side::each(in_sets(none)));
        assert!(text.contains("no figures") && !text.contains("CPU us"), "{text}");
    }

    #[test]
    fn sets_that_are_not_alike_have_no_ratio_and_it_is_said_first() {
        let mut all = runs("one", &[10.0; 5]);
        all.extend(runs("other", &[30.0; 6]));
        all[7].scenario.overrides.insert("ramp".into(), "1s".into());
        let sides = Side::each(in_sets(all.clone()));
        for text in [plain(&sides), markdown(&sides)] {
            let said = text.find("no ratios: the runs differ in options");
            assert!(said.is_some() && said < text.find("CPU us per message"), "{text}");
            assert!(!text.contains("x ("), "{text}");
        }
        // What is not valid stands in no ratio, and so in the way of none.
        all[7].validity.valid = false;
        assert!(plain(&Side::each(in_sets(all))).contains("3.00x ("));
    }

    #[test]
    fn of_single_runs_the_noise_is_unknown() {
        let mut all = runs("one", &[10.0]);
        all.extend(runs("other", &[20.0]));
        let text = plain(&Side::each(in_sets(all)));
        assert!(line(&text, "CPU us per message").contains("2.00x, noise unknown"), "{text}");
    }
}
