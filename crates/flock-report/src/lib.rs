//! Reports from [`Results`]: one self-contained HTML page, Markdown, CSV, and a few lines for the
//! terminal.
//!
//! A report needs nothing but the results; the figures published for a built-in scenario are looked
//! up in the catalogue by its id. [`figures`] computes the headline once for all formats, [`chart`]
//! draws.

pub mod chart;
mod csv;
pub(crate) mod drawing;
pub mod figures;
mod heat;
mod html;
mod markdown;
pub(crate) mod page;
mod published;
#[cfg(test)]
pub(crate) mod sample;
mod summary;
pub mod text;

pub use csv::csv;
pub use html::html;
pub(crate) use html::percentile_points;
pub use markdown::markdown;
pub(crate) use markdown::{
    clients_words, disclosure, machine_words, overrides_words, surroundings_words,
};
pub(crate) use published::HARDWARE_DIFFERS;
pub use published::published;
pub use summary::summary;

#[cfg(test)]
mod tests;

use crate::measure::Results;

/// What a report can be written as. The results themselves are the JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    Html,
    Markdown,
    Csv,
}

impl Format {
    pub const ALL: [Self; 3] = [Self::Html, Self::Markdown, Self::Csv];

    pub fn ending(self) -> &'static str {
        match self {
            Self::Html => "html",
            Self::Markdown => "md",
            Self::Csv => "csv",
        }
    }

    pub fn render(self, results: &Results) -> String {
        match self {
            Self::Html => html(results),
            Self::Markdown => markdown(results),
            Self::Csv => csv(results),
        }
    }
}
