//! `flock list` and `flock show`.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;

use super::args;
use flock_measure::text::{count, number};
use flock_model::catalogue;
use flock_model::scenario::units::show_time;
use flock_model::scenario::{self, Choice, Loaded, Published, ScenarioError};
use flock_model::{Command, Estimate, Payload};
use flock_report::aligned;

pub(super) fn list(args: &args::List) -> anyhow::Result<ExitCode> {
    let family = args.family.as_deref().unwrap_or("").to_lowercase();
    let words: Vec<String> = args.words.iter().map(|word| word.to_lowercase()).collect();
    let mut rows = vec![
        ["ID", "CLIENTS", "IN/S", "OUT/S", "PAYLOAD", "FAMILY", "WHAT"].map(str::to_owned).to_vec(),
    ];
    for entry in catalogue::entries() {
        let loaded = entry.load()?;
        let text = searched(&loaded);
        let is_wanted = words.iter().all(|word| text.contains(word));
        if !is_wanted || !loaded.about.family.to_lowercase().contains(&family) {
            continue;
        }
        let estimate = loaded.scenario.estimate();
        let Estimate { clients, deliveries_per_sec, payload_bytes_max, .. } = estimate;
        // What a broker gets, from whomever.
        let answers = estimate.answers_per_sec.unwrap_or(0.0);
        let taken_per_sec = estimate.publishes_per_sec.map(|rate| rate + answers);
        let publishes = payload_bytes_max > 0;
        let rate = |rate: Option<f64>| match rate {
            Some(rate) => number(rate),
            None if publishes => "max".to_owned(),
            None => "–".to_owned(),
        };
        rows.push(vec![
            entry.id,
            count(clients),
            rate(taken_per_sec),
            rate(deliveries_per_sec),
            if publishes { payload(payload_bytes_max) } else { "–".to_owned() },
            loaded.about.family,
            loaded.scenario.title,
        ]);
    }
    if rows.len() == 1 {
        anyhow::bail!("{}", no_match(args));
    }
    print(&left_from(&rows, 5))?;
    print(
        "\nHM-R{n} and HM-R{n}-even are HM-200M with n clients. `flock show ID` describes a \
             scenario.\n",
    )?;
    Ok(ExitCode::SUCCESS)
}

/// What `flock list WORD` looks through, in small letters.
fn searched(loaded: &Loaded) -> String {
    let Loaded { scenario, about, published, .. } = loaded;
    let mut texts = vec![&scenario.id, &scenario.title, &about.family, &about.summary];
    texts.push(&about.source);
    texts.extend(published.iter().map(|figure| &figure.system));
    texts.into_iter().map(|text| text.to_lowercase()).collect::<Vec<_>>().join("\n")
}

fn no_match(args: &args::List) -> String {
    let mut asked = args.words.join(" ");
    if let Some(family) = &args.family {
        asked = format!("{asked} --family {family}").trim_start().to_owned();
    }
    let mut families: Vec<String> = Vec::new();
    for family in
        catalogue::entries().iter().filter_map(|entry| Some(entry.load().ok()?.about.family))
    {
        if !families.contains(&family) {
            families.push(family);
        }
    }
    format!("no built-in scenario matches `{asked}`; the families are: {}", families.join(", "))
}

/// Aligned, with the columns from `from` on to the left.
fn left_from(rows: &[Vec<String>], from: usize) -> String {
    let widths: Vec<usize> = (from..rows[0].len())
        .map(|column| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0))
        .collect();
    let padded: Vec<Vec<String>> = rows
        .iter()
        .map(|row| {
            let mut row = row.clone();
            for (cell, width) in row[from..].iter_mut().zip(&widths) {
                *cell = format!("{cell:<width$}");
            }
            row
        })
        .collect();
    aligned(&padded)
}

fn payload(size: u32) -> String {
    match size {
        _ if size >= 1 << 20 && size.is_multiple_of(1 << 20) => format!("{} MiB", size >> 20),
        _ if size >= 1 << 10 && size.is_multiple_of(1 << 10) => format!("{} KiB", size >> 10),
        _ => format!("{size} B"),
    }
}

/// A scenario by built-in id, or by file.
pub(super) fn load(name: &str, set: &[(String, String)]) -> Result<Loaded, ScenarioError> {
    load_with(name, set, None)
}

/// The same with a payload in place of those of Swarm's generators.
pub(super) fn load_with(
    name: &str,
    set: &[(String, String)],
    payload: Option<&Payload>,
) -> Result<Loaded, ScenarioError> {
    let (params, payload) = (set.iter().cloned().collect(), payload.cloned());
    let choice = Choice { variant: None, params, payload };
    let path = Path::new(name);
    let is_file = path.extension().is_some_and(|ending| ending == "toml" || ending == "xml");
    if is_file || path.exists() {
        scenario::load(path, &choice)
    } else {
        catalogue::find(name, &choice)
    }
}

pub(super) fn show(args: &args::Show) -> anyhow::Result<ExitCode> {
    let loaded = load_with(&args.scenario, &args.set, args.payload.as_ref())?;
    if args.source {
        print(&loaded.source)?;
    } else {
        print(&explain(&loaded))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn explain(loaded: &Loaded) -> String {
    let Loaded { scenario, about, published, laptop, .. } = loaded;
    let mut out = format!("{}: {}\n\n", scenario.id, scenario.title);
    paragraph(&mut out, "", &about.summary);
    let estimate = scenario.estimate();
    let mut facts = vec![
        ("family", about.family.clone()),
        ("source", about.source.clone()),
        ("published set-up", about.setup.clone()),
        (
            "clients",
            format!(
                "{} ({} publish, {} subscribe)",
                count(estimate.clients),
                count(estimate.publishers),
                count(estimate.subscribers)
            ),
        ),
        ("topics", count(estimate.topics)),
    ];
    if let Some(copies) = estimate.copies_per_message {
        facts.push(("copies per message", number(copies)));
        let rate = |rate: Option<f64>| {
            rate.map_or("unthrottled".to_owned(), |rate| format!("{} msg/s", number(rate)))
        };
        facts.push(("published", rate(estimate.publishes_per_sec)));
        if let Some(answers) = estimate.answers_per_sec {
            facts.push(("answered", rate(Some(answers))));
        }
        facts.push(("delivered", rate(estimate.deliveries_per_sec)));
        facts.push(("payload", format!("{} at most", payload(estimate.payload_bytes_max))));
    }
    let sinks = scenario.sinks.iter().map(|sink| ("routed to", sink.kind.to_string()));
    facts.extend(sinks);
    facts.push(match laptop {
        Some(options) => ("on a laptop", format!("flock run {} {options}", scenario.id)),
        None => ("command", format!("flock run {}", scenario.id)),
    });
    for (name, value) in facts.into_iter().filter(|(_, value)| !value.is_empty()) {
        paragraph(&mut out, name, &value);
    }
    stages(loaded, &mut out);
    for (title, items) in [
        ("Chosen by flock, not part of the source", &about.chosen),
        ("Notes, and contradictions in the source", &about.notes),
    ] {
        if !items.is_empty() {
            let _ = writeln!(out, "\n{title}:");
            for item in items {
                paragraph(&mut out, "-", item);
            }
        }
    }
    if !published.is_empty() {
        out.push_str("\nPublished results (other hardware: not a comparison):\n");
        for figure in published {
            figures(&mut out, figure);
        }
    }
    out
}

fn stages(loaded: &Loaded, out: &mut String) {
    out.push_str("\nStages:\n");
    let mut rows = Vec::new();
    for stage in &loaded.scenario.stages {
        let length = match stage.duration_us {
            Some(us) => show_time(us),
            None => "until done".to_owned(),
        };
        let names: Vec<&str> = stage.life_cycles.iter().map(|cycle| cycle.id.as_str()).collect();
        let publishes = stage.life_cycles.iter().any(|cycle| {
            cycle.steps.iter().any(|step| matches!(step.command, Command::Publish(_)))
        });
        let mark = if stage.measured {
            "measured"
        } else if publishes {
            "publishes"
        } else {
            ""
        };
        rows.push(vec![format!("  {}", stage.id), length, mark.to_owned(), names.join(", ")]);
    }
    out.push_str(&left_from(&rows, 1));
}

/// A name and a text, wrapped.
fn paragraph(out: &mut String, name: &str, text: &str) {
    let indent = match name {
        "" => 0,
        "-" => 4,
        _ => 22,
    };
    let head = if name == "-" { "  -".to_owned() } else { name.to_owned() };
    let mut line = if indent == 0 { String::new() } else { format!("{head:<indent$}") };
    let mut used = indent;
    for word in text.split_whitespace() {
        let width = word.chars().count();
        if used > indent && used + 1 + width > WIDTH {
            out.push_str(line.trim_end());
            line = format!("\n{:indent$}", "");
            used = indent;
        } else if used > indent {
            line.push(' ');
            used += 1;
        }
        line.push_str(word);
        used += width;
    }
    out.push_str(&line);
    out.push('\n');
}

/// All that was published of one system, as it was printed.
fn figures(out: &mut String, figure: &Published) {
    let _ = writeln!(out, "\n  {}", figure.system);
    let list = |figures: &[(&str, Option<f64>, &str)]| {
        let known = figures
            .iter()
            .filter_map(|(name, value, unit)| Some(format!("{name} {}{unit}", exact((*value)?))));
        known.collect::<Vec<_>>().join(", ")
    };
    let Published { vcpus, average_ms, .. } = *figure;
    let rates = [
        ("in", figure.published_per_sec, " msg/s"),
        ("out", figure.received_per_sec, " msg/s"),
        ("connects", figure.connects_per_sec, "/s"),
    ];
    let clients =
        [("all", figure.connections, ""), ("connected within", figure.connect_secs, " s")];
    let hardware = match vcpus {
        Some(vcpus) if !figure.hardware.contains("vCPU") && !figure.hardware.contains("cores") => {
            format!("{} ({} vCPU)", figure.hardware, exact(vcpus))
        }
        _ => figure.hardware.clone(),
    };
    let lines = [
        ("on", hardware),
        ("messages", figure.part.map_or_else(String::new, |part| part.name().to_owned())),
        ("rate", list(&rates)),
        ("clients", list(&clients)),
        (
            "latency",
            list(&[
                ("average", average_ms, " ms"),
                ("p50", figure.p50_ms, " ms"),
                ("p75", figure.p75_ms, " ms"),
                ("p90", figure.p90_ms, " ms"),
                ("p95", figure.p95_ms, " ms"),
                ("p99", figure.p99_ms, " ms"),
                ("max", figure.max_ms, " ms"),
            ]),
        ),
        (
            "acknowledged in",
            list(&[("average", figure.ack_average_ms, " ms"), ("p95", figure.ack_p95_ms, " ms")]),
        ),
        (
            "CPU of all cores",
            list(&[
                ("average", figure.cpu_average_percent, " %"),
                ("max", figure.cpu_max_percent, " %"),
            ]),
        ),
        (
            "memory",
            list(&[
                ("average", figure.memory_average_mb, " MB"),
                ("of a connection", figure.memory_per_connection_kb, " KB"),
                ("max", figure.memory_max_mb, " MB"),
                ("per connection", figure.memory_per_connection_kb, " KB"),
            ]),
        ),
        ("note", figure.note.clone()),
    ];
    for (name, value) in lines.iter().filter(|(_, value)| !value.is_empty()) {
        paragraph(out, &format!("    {name}"), value);
    }
}

/// With all its digits, and thousands set apart.
fn exact(value: f64) -> String {
    let text = value.to_string();
    let (whole, fraction) = text.split_once('.').unwrap_or((&text, ""));
    let whole = whole.parse().map_or(whole.to_owned(), count);
    if fraction.is_empty() { whole } else { format!("{whole}.{fraction}") }
}

/// To standard output; a closed pipe is no error.
pub(super) fn print(text: &str) -> std::io::Result<()> {
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        other => other,
    }
}

const WIDTH: usize = 100;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_entry_can_be_explained() {
        for entry in catalogue::entries() {
            let text = explain(&entry.load().unwrap());
            assert!(text.contains("Stages:") && text.contains(&entry.id), "{text}");
            assert!(!text.contains("NaN"));
        }
    }

    #[test]
    fn the_explanation_has_the_choices_and_every_published_figure() {
        let text = explain(&catalogue::find("MB-E1", &Choice::default()).unwrap());
        for part in [
            "50,000 msg/s",
            "Chosen by flock",
            "measured",
            "flock run MB-E1 --scale 0.08",
            "VerneMQ 1.12.6.2",
            "average 2,136.62 ms, p50 467 ms, p75 2,937 ms, p90 6,551 ms, p95 9,517 ms, p99",
            "CPU of all cores  average 80 %",
            "average 80 %, max 88 %",
            "average 6,020 MB, max 6,300 MB",
            "a single-threaded broker at its bound",
        ] {
            assert!(text.contains(part), "{part} is missing in\n{text}");
        }
        let text = explain(&catalogue::find("RABBIT-Q1", &Choice::default()).unwrap());
        for part in ["in 17,995.888 msg/s", "average 2.88 ms, max 51.421 ms", "average 5.55 ms"] {
            assert!(text.contains(part), "{part} is missing in\n{text}");
        }
        // Whatever stands in a file is shown.
        for entry in catalogue::entries() {
            let loaded = entry.load().unwrap();
            let words = explain(&loaded).split_whitespace().collect::<Vec<_>>().join(" ");
            for figure in &loaded.published {
                let stated = serde_json::to_value(figure).unwrap();
                for (name, value) in stated.as_object().unwrap() {
                    let shown = match value {
                        serde_json::Value::Number(number) => exact(number.as_f64().unwrap()),
                        serde_json::Value::String(text) => text.clone(),
                        _ => continue,
                    };
                    let is_there = name == "vcpus" || words.contains(&shown);
                    assert!(is_there, "{}: {name} {shown} is missing in\n{words}", entry.id);
                }
            }
        }
    }

    #[test]
    fn every_entry_fits_a_laptop_as_it_says() {
        use clap::Parser as _;
        for entry in catalogue::entries() {
            let loaded = entry.load().unwrap();
            let options = loaded.laptop.as_deref().unwrap_or("");
            let line = format!("flock run {} {options}", entry.id);
            let parsed = args::Args::try_parse_from(line.split_whitespace());
            let args::Command::Run(run) = parsed.unwrap_or_else(|e| panic!("{line}: {e}")).command
            else {
                panic!("{line}")
            };
            let loaded = load(&entry.id, &run.changes.set).unwrap();
            let scenario = super::super::run::changed(loaded.scenario, &run.changes);
            assert_eq!(scenario::check::check(&scenario), [], "{line}");
            let estimate = scenario.estimate();
            assert!(estimate.clients <= 16_000, "{line}: {} clients", estimate.clients);
            let deliveries = estimate.deliveries_per_sec.unwrap_or(0.0);
            assert!(deliveries <= 55_000.0, "{line}: {deliveries}/s");
            let bytes = deliveries * f64::from(estimate.payload_bytes_max);
            assert!(bytes <= 300e6, "{line}: {bytes} bytes per second");
            let ramp = scenario.stages.iter().flat_map(|stage| &stage.life_cycles);
            for step in ramp.flat_map(|cycle| &cycle.steps) {
                if let Command::Delay(delay) = &step.command {
                    assert!(delay.duration_us <= 200_000_000, "{line}: {delay:?}");
                }
            }
        }
    }
}
