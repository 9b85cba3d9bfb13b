//! The reports of the single runs that a page sums up: where they are, and the links to them.

use maud::{Markup, html};

use flock_measure::Results;

/// Where the reports of the runs are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reports {
    /// In files beside the page, `NAME.html`.
    Files,
    /// In the page itself, so that one file is all there is.
    Inside,
}

impl Reports {
    /// The address of the report of the run `name`.
    pub(crate) fn link(self, name: &str) -> String {
        match self {
            Self::Files => format!("{name}.html"),
            Self::Inside => format!("#{name}"),
        }
    }

    /// The folded reports of the runs, by name, if the page contains them.
    pub(crate) fn part<'a>(self, runs: impl Iterator<Item = (String, &'a Results)>) -> Markup {
        if self == Self::Files {
            return html! {};
        }
        html! {
            h2 { "Reports of the runs" }
            @for (name, results) in runs {
                details {
                    summary { (name) }
                    iframe.report id=(name) loading="lazy" title=(name)
                        srcdoc=(crate::html(results)) {}
                }
            }
        }
    }
}
