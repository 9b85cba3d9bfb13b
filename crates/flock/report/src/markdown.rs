//! The report as Markdown, for a pull request or a wiki.

use std::fmt::Write as _;

use crate::facts::{AS_WRITTEN, agents, disclosure, verbatim};
use crate::page::table;
use crate::sections::{headline_rows, searches, sections};
use flock_measure::Results;
use flock_measure::figures::{Figures, Verdict, verdicts};
use flock_measure::text::{self, seconds};

pub fn markdown(results: &Results) -> String {
    let mut out = format!("# {}: {}\n\n", results.scenario.id, results.scenario.title);
    // Writing to a String cannot fail.
    let _ = writeln!(
        out,
        "{}, {}, {} against `{}`\n",
        text::date(results.run.started_unix_ms),
        seconds(results.run.duration_secs),
        format_args!("{} {}", results.tool.name, results.tool.version),
        results.broker.addresses.join(", "),
    );
    for (is, words) in verdicts(results) {
        let said = match is {
            Verdict::Bad => format!("**{}:**", is.word()),
            _ => format!("{}:", is.word()),
        };
        let _ = writeln!(out, "- {said} {words}");
    }
    for words in &results.validity.notes {
        let _ = writeln!(out, "- note: {words}");
    }
    for (name, words) in searches(results) {
        let _ = writeln!(out, "- {name}: {words}");
    }
    let rows = headline_rows(&Figures::of(results));
    let _ = writeln!(out, "\n{}", table(&["Figure", "Value"], &rows).markdown());
    for section in sections(results) {
        let heading = if section.is_part { "###" } else { "##" };
        let _ = writeln!(out, "{heading} {}\n", section.title);
        for words in &section.words {
            let _ = writeln!(out, "{words}\n");
        }
        let _ = writeln!(out, "{}", section.table.markdown());
    }
    let facts: Vec<Vec<String>> = disclosure(results)
        .into_iter()
        .filter(|(_, value)| !value.is_empty())
        .map(|(name, value)| vec![name.to_owned(), value])
        .collect();
    let _ = writeln!(out, "## Environment\n\n{}", table(&["What", "Value"], &facts).markdown());
    if !results.run.agents.is_empty() {
        let _ = writeln!(out, "### Agents\n\n{}", agents(results).markdown());
    }
    // What it was written in is in the page and in the results.
    for (name, text) in verbatim(results).filter(|(name, _)| *name != AS_WRITTEN) {
        let _ = writeln!(out, "## {name}\n\n```text\n{}\n```\n", text.trim_end());
    }
    out
}
