//! Reports from [`Results`]: one self-contained HTML page, Markdown, CSV, and a few lines for the
//! terminal.
//!
//! A report needs nothing but the results; the figures published for a built-in scenario are looked
//! up in the catalogue by its id. `flock_measure::figures` computes the headline once for all
//! formats, [`chart`] draws.

mod alike;
mod bars;
pub mod chart;
mod columns;
pub mod compare;
mod csv;
mod drawing;
pub mod expect;
mod facts;
pub mod form;
mod heat;
mod html;
pub mod index;
mod likeness;
mod markdown;
pub mod matrix;
mod over_time;
mod page;
mod published;
mod reports;
mod routing;
mod sections;
mod sides;
mod summary;
mod table;
pub mod versus;

pub use csv::csv;
pub use facts::disclosure;
pub use html::html;
pub use html::percentile_points;
pub use markdown::markdown;
pub use published::HARDWARE_DIFFERS;
pub use published::published;
pub use reports::Reports;
pub use sides::Side;
pub use summary::summary;
pub use table::aligned;

#[cfg(test)]
mod tests;

use flock_measure::Results;

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
