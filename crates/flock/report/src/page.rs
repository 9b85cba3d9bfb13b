//! The parts of every HTML page. Style and script are inline, so that one file is all there is.

use maud::{DOCTYPE, Markup, PreEscaped, html};

use crate::table::Table;
use flock_measure::figures::Verdict;

pub(crate) fn page(title: &str, body: &Markup) -> String {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { (title) }
                style { (PreEscaped(include_str!("page.css"))) }
            }
            body {
                main { (body) }
                script { (PreEscaped(include_str!("page.js"))) }
            }
        }
    }
    .into_string()
}

pub(crate) fn header(kicker: &str, title: &str, lead: &str) -> Markup {
    html! {
        header { p.kicker { (kicker) } h1 { (title) } p.lead { (lead) } }
    }
}

pub(crate) fn verdict_list(verdicts: &[(Verdict, String)]) -> Markup {
    html! {
        ul.verdicts {
            @for (is, words) in verdicts {
                li class=[is.class()] { @if *is == Verdict::Unknown { "unknown: " } (words) }
            }
        }
    }
}

pub(crate) fn table(head: &[&str], rows: &[Vec<String>]) -> Table {
    let mut table = Table::new(None, head.iter().copied());
    rows.iter().for_each(|row| table.add(row.clone()));
    table
}

/// A column of a table: its name, and how to write it.
pub(crate) type Column<'a, T> = (&'a str, fn(&T) -> String);

/// A row for each of `all`.
pub(crate) fn rows_of<T>(all: &[T], columns: &[Column<'_, T>]) -> Table {
    let mut table = Table::new(None, columns.iter().map(|(name, _)| *name));
    all.iter().for_each(|one| table.add(columns.iter().map(|(_, cell)| cell(one))));
    table
}

/// Name and value pairs, empty values left out.
pub(crate) fn pairs(rows: &[(&str, String)]) -> Markup {
    html! {
        dl {
            @for (name, value) in rows.iter().filter(|(_, value)| !value.is_empty()) {
                dt { (name) } dd { (value) }
            }
        }
    }
}

/// A text that is unfolded on demand; nothing where there is none.
pub(crate) fn details(name: &str, text: &str) -> Markup {
    html! {
        @if !text.is_empty() { details { summary { (name) } pre { (text) } } }
    }
}

/// What has to be said, in small letters.
pub(crate) fn note(words: &str) -> Markup {
    html! { p.note { (words) } }
}

/// Figures side by side, as far as the page is wide.
pub(crate) fn charts(figures: impl IntoIterator<Item = Markup>) -> Markup {
    html! { section.charts { @for figure in figures { (figure) } } }
}
